package node

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/weirproxy/weir/config"
)

// failing is a listener whose first accept fails with the error for missing descriptors.
type failing struct {
	net.Listener
	failed bool
}

func (f *failing) Accept() (net.Conn, error) {
	if !f.failed {
		f.failed = true
		return nil, temporary{errors.New("too many open files")}
	}
	return f.Listener.Accept()
}

type temporary struct{ error }

func (temporary) Timeout() bool   { return false }
func (temporary) Temporary() bool { return true }

// Messages of net/http about the admin port are normal lines of weir's log, and the keys
// of the status are named like in the rest of weir's JSON.
func TestAdminPort(t *testing.T) {
	core, lines := observer.New(zapcore.InfoLevel)
	s := newServer(zap.New(core), zap.NewAtomicLevel(), Build{})
	defer s.stop()
	s.effect.Store(&inEffect{config: &config.Config{Node: "n"}})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.serveAdmin(ctx, &failing{Listener: ln}) }()
	resp, err := http.Get("http://" + ln.Addr().String() + "/status")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(body), `"healthy": false`) {
		t.Errorf("the status is %s", body)
	}
	found := lines.FilterMessage("a problem with a port").FilterField(zap.String("port", "admin"))
	if found.Len() != 1 || !strings.Contains(found.All()[0].ContextMap()["error"].(string), "too many open files") {
		t.Errorf("logged %v", lines.All())
	}
}
