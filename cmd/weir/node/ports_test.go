package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
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

// A request of the admin port may wait while weir ends, such as a reload for an upgrade. It
// gets its answer before the process ends.
func TestEndWaitsForTheLastAnswer(t *testing.T) {
	r := newRunning(t, `
admin: {address: "@admin"}
drain: {lame_duck: 0s, timeout: 1m}
listeners: {web: {address: "@web", protocol: http}}
routes: [{listeners: [web], redirect: https}]
`, "admin", "web")
	r.loading.Lock() // the reload waits
	answers := r.requestReload()
	ended := make(chan error, 1)
	go func() { ended <- r.end(time.Minute) }()
	eventually(t, "the end waits for the answer", calls(").awaitAnswers"))
	select {
	case <-ended:
		t.Fatal("the server ended before its answer")
	default:
	}
	r.loading.Unlock()
	if got := <-answers; !strings.Contains(got, "standard input") {
		t.Errorf("the answer is %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// requestReload sends a request to reload, and returns when the admin port serves it. The channel gets the
// answer, or the error.
func (r *running) requestReload() (answers <-chan string) {
	r.t.Helper()
	c := make(chan string, 1)
	go func() {
		resp, err := bySocket.Post("http://"+r.address("admin")+"/reload", "", nil)
		if err != nil {
			c <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		c <- string(text)
	}()
	eventually(r.t, "the reload waits", calls(").adminReload"))
	return c
}

// calls returns a check whether a goroutine calls the function.
func calls(function string) func() error {
	return func() error {
		buf := make([]byte, 1<<20)
		if !strings.Contains(string(buf[:runtime.Stack(buf, true)]), function+"(") {
			return errors.New("it is not called")
		}
		return nil
	}
}

// A second signal, and the end of drain.timeout, end the wait for an answer.
func TestEndOfTheWaitForAnswers(t *testing.T) {
	for timeout, after := range map[string]time.Duration{"1m": 50 * time.Millisecond, "1s": time.Minute} {
		t.Run(timeout, func(t *testing.T) {
			r := newRunning(t, `
admin: {address: "@admin"}
drain: {lame_duck: 0s, timeout: `+timeout+`}
listeners: {web: {address: "@web", protocol: http}}
routes: [{listeners: [web], redirect: https}]
`, "admin", "web")
			r.loading.Lock() // the reload waits
			answers := r.requestReload()
			if err := r.end(after); err != nil {
				t.Error(err)
			}
			if err := calls("node.endPort")(); err != nil {
				t.Error("the end has waited until the port gave up")
			}
			r.loading.Unlock()
			<-answers
		})
	}
}

// A port that has failed has no answers to write, so the end does not wait for it.
func TestEndAfterAPortHasFailed(t *testing.T) {
	r := newRunning(t, `
admin: {address: "@admin"}
listeners: {web: {address: "@web", protocol: http}}
routes: [{listeners: [web], redirect: https}]
`, "admin", "web")
	for _, port := range r.ports { // the admin port and its socket
		port.socket.Close()
		<-port.done
	}
	written := make(chan struct{})
	go func() {
		r.answering.Wait()
		close(written)
	}()
	select {
	case <-written:
	case <-time.After(patience):
		t.Error("an answer is expected")
	}
}

// A request that takes too long is cut when its port ends.
func TestEndPortCutsSlowRequests(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	begun, cut := make(chan struct{}), make(chan struct{})
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(cut)
	})}
	go server.Serve(ln)
	defer server.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-begun
	ended := make(chan struct{})
	go func() {
		endPort(server, time.Millisecond)
		close(ended)
	}()
	for _, done := range []chan struct{}{ended, cut} {
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("the request was not cut")
		}
	}
}

// Commands of root and of weir's own user drain over the Unix socket beside the port, without a token. The port itself says so.
func TestAdminSocket(t *testing.T) {
	r := newRunning(t, web+"admin: {address: '@admin'}\n", "web", "app", "admin")
	post := func(c *http.Client, path string) (int, string) {
		t.Helper()
		resp, err := c.Post("http://"+r.address("admin")+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	if status, text := post(http.DefaultClient, "/drain"); status != 403 || r.node.Draining() || !strings.Contains(text, "use the Unix socket @weir/"+r.address("admin")+", and so does curl --abstract-unix-socket weir/") {
		t.Errorf("over TCP: %d %s", status, text)
	}
	if status, text := post(bySocket, "/drain"); status != 200 || !r.node.Draining() {
		t.Errorf("over the socket: %d %s", status, text)
	}
	if lines := r.lines.FilterMessage("request on the admin port: drain").All(); len(lines) != 1 || lines[0].ContextMap()["peer"] != fmt.Sprint("user ", os.Geteuid()) {
		t.Errorf("logged is %v", lines)
	}
	r.load(web + "admin: {address: '@admin', token: " + someToken + "}\n")
	if status, text := post(bySocket, "/undrain"); status != 200 || r.node.Draining() {
		t.Errorf("over the socket, with a token in the configuration: %d %s", status, text)
	}
	r.load(web) // without an admin port
	if c, err := net.Dial("unix", AdminSocket(r.address("admin"))); err == nil {
		c.Close()
		t.Error("the socket is open without the port")
	}
}

// Two weirs on one machine start if no file names the admin port. The second says what it does not have, and gets it
// by a reload when it is free. A port that the file names is an error.
func TestAdminPortOfAnotherWeir(t *testing.T) {
	first := newRunning(t, web+"admin: {address: '@admin'}\n", "web", "app", "admin")
	second := makeRunning(t, "web", "app")
	second.words = append(second.words, "@admin", first.address("admin"))
	if err := second.try(web + "admin: {address: '@admin'}\n"); err == nil || !strings.Contains(err.Error(), "admin.address: cannot bind "+first.address("admin")) {
		t.Errorf("the file names the port: %v", err)
	}
	implied := func() {
		t.Helper()
		cfg, err := file.Parse("test", []byte(strings.NewReplacer(second.words...).Replace(web+"admin: {address: '@admin'}\n")), os.LookupEnv)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Admin.Implied = true
		if err := second.apply(cfg); err != nil {
			t.Fatal(err)
		}
	}
	implied()
	lines := second.lines.FilterMessageSnippet("weir goes on without this port").All()
	if len(lines) != 1 || !strings.Contains(lines[0].ContextMap()["error"].(string), "another process has the port") {
		t.Errorf("logged is %v", lines)
	}
	if err := first.end(0); err != nil {
		t.Fatal(err)
	}
	implied()
	for _, c := range []*http.Client{http.DefaultClient, bySocket} {
		resp, err := c.Get("http://" + first.address("admin") + "/status")
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("the second weir has no admin port: %v", err)
			continue
		}
		resp.Body.Close()
	}
}

// Where abstract sockets are forbidden, weir starts and reloads without the socket beside the port, and warns.
func TestForbiddenAdminSocket(t *testing.T) {
	for _, forbids := range []error{syscall.EAFNOSUPPORT, syscall.EACCES, syscall.EPERM} {
		t.Run(forbids.Error(), func(t *testing.T) {
			r := makeRunning(t, "web", "app", "admin")
			r.sockets.Listen = func(network, address string) (net.Listener, error) {
				if network == "unix" {
					return nil, forbids
				}
				return net.Listen(network, address)
			}
			for n := range 2 {
				r.load(web + "admin: {address: '@admin'}\n")
				lines := r.lines.FilterMessageSnippet("weir goes on without this port; without it weir's commands need admin.token").All()
				if len(lines) != n+1 || lines[n].ContextMap()["port"] != adminSocket {
					t.Errorf("logged is %v", r.lines.All())
				}
			}
			resp, err := http.Get("http://" + r.address("admin") + "/status")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		})
	}
}
