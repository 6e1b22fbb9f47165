package api_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/config/kube/api"
)

// A watch ends if the API server is silent: the connection is open, and answers no pings. Otherwise weir would wait for
// events of a frozen API server for ever.
func TestSilentConnectionIsLost(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	defer s.CloseClientConnections()
	address, freeze := frozen(t, s.Listener.Addr().String())
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"https://" + address + "\", insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: t}}]\n" +
		"contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Connect(kubeconfig); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"} {
		if got := os.Getenv(name); got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
		t.Setenv(name, "1") // this test has less patience
	}
	c, err := api.Connect(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	var answers atomic.Int32
	c.Answered = func() { answers.Add(1) }
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := c.Core.Get().Resource("services").Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if answers.Load() != 1 {
		t.Errorf("one response is %d answers", answers.Load())
	}
	freeze()
	if _, err := stream.Read(make([]byte, 1)); err == nil || ctx.Err() != nil {
		t.Errorf("the stream ended with %v", err)
	}
}

// frozen passes connections on to a server until freeze is called. It returns its address.
func frozen(t *testing.T, server string) (address string, freeze func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var silent atomic.Bool
	pass := func(to, from net.Conn) {
		defer to.Close()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if !silent.Load() {
				to.Write(buffer[:n])
			}
		}
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", server)
			if err != nil {
				in.Close()
				return
			}
			go pass(in, out)
			go pass(out, in)
		}
	}()
	return l.Addr().String(), func() { silent.Store(true) }
}
