package extauthz

import (
	"bytes"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// The files of testdata come from the code that is generated from Envoy's definitions: see
// testdata/make.
func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name + ".bin")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A request is the same message, byte for byte, that the generated code writes.
func TestRequest(t *testing.T) {
	r := Request{ID: "id-1", Method: "POST", Path: "/a?b=c", Host: "shop.example", Scheme: "https", Protocol: "HTTP/1.1", Received: time.Unix(1700000000, 5),
		Source: netip.MustParseAddrPort("192.0.2.1:4711"), Destination: netip.MustParseAddrPort("[2001:db8::1]:443"),
		Headers: []Header{{"X-Empty", ""}, {"Accept", "a"}, {"Cookie", "c=1"}, {"accept", "b"}, {"cookie", "d=2"}, {"X-Bytes", "\xff"}}, Size: 4, Body: []byte("body")}
	if got, want := r.Append([]byte("before")), append([]byte("before"), fixture(t, "request")...); !bytes.Equal(got, want) {
		t.Errorf("the message is\n%q\nwant\n%q", got, want)
	}
	r.Body, r.Size = []byte("\xff\x00"), -1 // no text
	if got, want := r.Append(nil), fixture(t, "request-binary"); !bytes.Equal(got, want) {
		t.Errorf("the message is\n%q\nwant\n%q", got, want)
	}
	if got := (&Request{Received: time.Unix(0, 0)}).Append(nil); len(got) == 0 || bytes.Contains(got, []byte("invalid")) {
		t.Errorf("without addresses the message is %q", got)
	}
}

func TestParseResponse(t *testing.T) {
	change := func(name, value string, action Action) Change { return Change{Header{name, value}, action} }
	for name, want := range map[string]Response{
		"plain-ok": {},
		"ok": {Headers: []Change{change("x-user", "ada", Overwrite), change("x-group", "a", Append), change("x-absent", "b", AddIfAbsent), change("x-over", "c", Overwrite), change("x-if", "d", OverwriteIfExists)},
			Remove: []string{"authorization", "x-secret"}, ResponseHeaders: []Change{change("set-cookie", "s=1", Overwrite)}},
		"query":        {Query: true},
		"plain-denied": {Code: 16},
		"denied":       {Code: 7, Message: "no", Denied: true, Status: 401, Headers: []Change{change("www-authenticate", "Basic", Overwrite)}, Body: "sign in"},
		"denied-ok":    {Denied: true}, // it is no permission
	} {
		got, err := ParseResponse(fixture(t, name))
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
			continue
		}
		if allows := !strings.Contains(name, "denied"); got.Allows() != allows {
			t.Errorf("%s: it allows the request: %t", name, !allows)
		}
	}
}

// What is no decision is an error, so the request does not pass.
func TestParseBadResponse(t *testing.T) {
	header := func(option ...byte) []byte { // an ok_response with a HeaderValueOption
		option = append([]byte{2<<3 | 2, byte(len(option))}, option...)
		return append([]byte{3<<3 | 2, byte(len(option))}, option...)
	}
	for name, b := range map[string][]byte{
		"empty":                     fixture(t, "empty"),
		"another message":           {9<<3 | 2, 0},
		"a status that is a number": {1 << 3, 0},
		"cut off":                   fixture(t, "ok")[:100],
		"no tag":                    {0xff},
		"field 0":                   {0, 0},
		"an unknown action":         header(3<<3, 4),
		"a negative action":         header(3<<3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1),
		"too many headers":          append([]byte{3<<3 | 2, 0x82, 4}, bytes.Repeat([]byte{2<<3 | 2, 0}, 257)...),
		"too many to remove":        append([]byte{3<<3 | 2, 0x82, 4}, bytes.Repeat([]byte{5<<3 | 2, 0}, 257)...),
	} {
		if r, err := ParseResponse(b); err == nil || r != nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// No message breaks the parser. Its result is bounded, and only a message with a decision is one.
func FuzzParseResponse(f *testing.F) {
	for _, name := range []string{"ok", "plain-ok", "query", "denied", "plain-denied", "denied-ok", "empty", "request"} {
		f.Add(fixture(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseResponse(b)
		if err != nil {
			return
		}
		size := len(r.Message) + len(r.Body)
		for _, all := range [][]Change{r.Headers, r.ResponseHeaders} {
			if len(all) > mostHeaders {
				t.Errorf("there are %d headers", len(all))
			}
			for _, c := range all {
				size += len(c.Name) + len(c.Value)
			}
		}
		for _, name := range r.Remove {
			size += len(name)
		}
		switch {
		case len(r.Remove) > mostHeaders || size > len(b):
			t.Errorf("a message of %d bytes has %d bytes, and removes %d headers", len(b), size, len(r.Remove))
		case len(b) == 0, r.Denied && r.Allows(), r.Code != 0 && r.Allows():
			t.Errorf("%q allows the request", b)
		}
	})
}
