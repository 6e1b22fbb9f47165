package http2test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// NewRequest returns a request in the form that a proxy has it.
func NewRequest(method, target, host string, fields ...string) *message.Request {
	r := new(message.Request)
	r.Reset()
	r.SetMethod(r.StoreString(method))
	r.SetTarget(r.StoreString(target))
	r.Host = r.StoreString(host)
	r.AddField("Host", host)
	addFields(&r.Head, fields)
	return r
}

// NewResponse returns a response without a body.
func NewResponse(status int, fields ...string) *message.Response {
	r := new(message.Response)
	r.Status = status
	addFields(&r.Head, fields)
	return r
}

// NewHead returns a head with the given "name: value" lines.
func NewHead(lines ...string) *message.Head {
	h := new(message.Head)
	addFields(h, lines)
	return h
}

func addFields(h *message.Head, lines []string) {
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.AddField(name, value)
	}
}

// FieldsText returns the fields that are not dropped as text.
func FieldsText(h *message.Head) string {
	var b strings.Builder
	for i := range h.Fields {
		if !h.Fields[i].Dropped {
			fmt.Fprintf(&b, " [%s: %s]", h.Name(i), h.Value(i))
		}
	}
	return b.String()
}

// Equal compares the texts of two values.
func Equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// NewAccount makes an account with room for this many bytes. The test fails if any of them
// are left in the account at its end.
func NewAccount(t testing.TB, room int) *memory.Account {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	p := memory.NewProcess(ctx)
	p.SetLimit(32 << 20)
	a := new(memory.Account)
	a.Open(p, netip.Prefix{}, nil)
	a.Force(4<<20 - room) // the limit of one connection
	t.Cleanup(func() {
		if left := a.Used() - int64(4<<20-room); left != 0 {
			t.Errorf("%d bytes are left in the account", left)
		}
	})
	return a
}
