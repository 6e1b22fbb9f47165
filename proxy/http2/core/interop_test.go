package core

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/proxy/http2/http2test"
	"github.com/weirproxy/weir/proxy/message"
)

// link drives a core over a connection. One goroutine reads, another writes.
type link struct {
	side
	conn   net.Conn
	mu     sync.Mutex
	change sync.Cond // an event happened
	dead   bool
	echo   bool   // send the request's body back
	page   string // the answer to a request without a body
}

func newLink(c net.Conn, config Config, echo bool, page ...string) *link {
	l := &link{conn: c, echo: echo, page: strings.Join(page, "")}
	l.streams = map[*Stream]*seen{}
	l.change.L = &l.mu
	l.core.Init(config, l)
	go l.read()
	go l.write()
	return l
}

func (l *link) read() {
	buf := make([]byte, 16<<10)
	for {
		n, err := l.conn.Read(buf)
		l.mu.Lock()
		if n > 0 && l.core.Receive(time.Now(), buf[:n]) != nil || err != nil {
			l.core.Abort(InternalError, "lost", "")
			l.dead = true
		}
		l.change.Broadcast()
		l.mu.Unlock()
		if l.dead {
			return
		}
	}
}

func (l *link) write() {
	for {
		l.mu.Lock()
		for l.core.Pending() == 0 && !l.dead {
			l.change.Wait()
		}
		out, dead := l.core.Take(), l.dead
		l.mu.Unlock()
		l.conn.Write(out.Bytes())
		if out.Free(); dead {
			l.conn.Close()
			return
		}
	}
}

// Head answers each request of an echo with the body of the request.
func (l *link) Head(s *Stream, refusal *message.Refusal) {
	l.side.Head(s, refusal)
	if !l.echo {
		return
	}
	if refusal != nil {
		l.core.Respond(s, http2test.NewResponse(refusal.Status), true)
		return
	}
	req := &l.of(s).req
	if req.ExpectContinue {
		l.core.Respond(s, http2test.NewResponse(100), false)
	}
	res := http2test.NewResponse(200, "X-Method: "+string(req.Bytes(req.Method)), "X-Target: "+string(req.Bytes(req.Target)),
		"X-Cookie: "+string(req.GetName("cookie")), "Trailer: X-Trailer", "Set-Cookie: a=b")
	l.core.Respond(s, res, req.IsHead)
}

func (l *link) Data(s *Stream, p []byte) {
	l.side.Data(s, p)
	if l.echo {
		l.of(s).body = []byte{}
		l.send(s, p, false)
	}
}

func (l *link) End(s *Stream) {
	l.side.End(s)
	if l.echo && l.of(s).body == nil {
		l.send(s, []byte(l.page), false)
	}
	l.Writable(s)
}

func (l *link) Writable(s *Stream) {
	l.side.Writable(s)
	if t := l.of(s); l.echo && t.ended && len(t.toSend) == 0 {
		trailers := http2test.NewHead("X-Trailer: " + string(t.req.Trailers.GetName("x-trailer")))
		l.core.Finish(s, trailers)
	}
}

// do makes a request, and returns its result when it is over.
func (l *link) do(t *testing.T, req *message.Request, body []byte, trailers ...string) *seen {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := l.core.Open(req, body == nil)
	if err != nil {
		t.Fatal(err)
	}
	got := l.of(s)
	if body != nil {
		l.send(s, body, len(trailers) == 0)
		for len(got.toSend) > 0 && !got.over {
			l.change.Broadcast()
			l.change.Wait()
		}
		if len(trailers) > 0 {
			l.core.Finish(s, http2test.NewHead(trailers...))
		}
	}
	l.change.Broadcast()
	for !got.ended && !got.over {
		l.change.Wait()
	}
	l.core.Release(s)
	delete(l.streams, s)
	return got
}

func TestNetHTTPClient(t *testing.T) {
	url := "http://" + http2test.Listen(t, func(c net.Conn) { newLink(c, Config{}, true) })
	client := http2test.Client(t)
	f := func(method, target string, body io.Reader, want string) {
		t.Helper()
		req, _ := http.NewRequest(method, url+target, body)
		req.Header.Add("Cookie", "a=1; b=2")
		if body != nil {
			req.Trailer = http.Header{"X-Trailer": {"t"}}
			req.Header.Set("Expect", "100-continue")
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if err != nil || string(got) != want {
			t.Errorf("%s %s: %d bytes, %v", method, target, len(got), err)
		}
		if h := res.Header; h.Get("X-Method") != method || h.Get("X-Target") != target || h.Get("X-Cookie") != "a=1; b=2" || res.StatusCode != 200 {
			t.Errorf("%d %v", res.StatusCode, h)
		}
		if body != nil && res.Trailer.Get("X-Trailer") != "t" {
			t.Errorf("trailers %v", res.Trailer)
		}
	}
	f("GET", "/a?b", nil, "")
	f("HEAD", "/", nil, "")
	f("POST", "/", strings.NewReader("hello"), "hello")
	large := strings.Repeat("0123456789abcdef", 1<<17)
	f("PUT", "/large", io.MultiReader(strings.NewReader(large)), large)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { f("PUT", "/beside", strings.NewReader(large[:300000]), large[:300000]) })
	}
	all.Wait()
	res, err := client.Get(url + "/..%2f")
	if err != nil || res.StatusCode != 400 {
		t.Errorf("%v, %v", res, err)
	}
}

func TestNetHTTPServer(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/early":
			w.WriteHeader(413)
			return
		case "/hints":
			w.Header().Set("Link", "x")
			w.WriteHeader(103)
		}
		w.Header().Set("Trailer", "X-Trailer")
		io.Copy(http2test.Flusher{ResponseWriter: w}, r.Body)
		w.Header().Set("X-Trailer", r.Trailer.Get("X-Trailer"))
	})
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l := newLink(c, Config{Role: Client, Scheme: "http"}, false)
	f := func(target string, body []byte, want string, trailers ...string) {
		t.Helper()
		req := http2test.NewRequest("POST", target, "a", "Trailer: X-Trailer")
		got := l.do(t, req, body, trailers...)
		text := fmt.Sprintf("%d %d bytes%s", got.res.Status, len(got.body), http2test.FieldsText(&got.res.Trailers))
		if got.over {
			text += " reset"
		}
		http2test.Equal(t, target, text, want)
		if got.res.Status == 200 && !got.over && !bytes.Equal(got.body, body) {
			t.Errorf("%s: another body", target)
		}
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	f("/", nil, "200 0 bytes [x-trailer: ]")
	f("/", []byte("hello"), "200 5 bytes [x-trailer: t]", "X-Trailer: t")
	f("/", large, "200 2097152 bytes [x-trailer: t]", "X-Trailer: t")
	f("/hints", []byte("x"), "200 1 bytes [x-trailer: ]")
	f("/reset", nil, "0 0 bytes reset")
	f("/early", []byte("x"), "413 0 bytes")
	server.Config.Shutdown(context.Background())
	l.mu.Lock()
	for !l.dead && l.core.Capacity() > 0 {
		l.change.Wait()
	}
	l.mu.Unlock()
}

// The server ends the connection in two steps: running requests finish, later requests
// use another connection.
func TestNetHTTPClientWhileGoingAway(t *testing.T) {
	links := make(chan *link, 100)
	url := "http://" + http2test.Listen(t, func(c net.Conn) { links <- newLink(c, Config{}, true) })
	client := http2test.Client(t)
	pr, pw := io.Pipe()
	running := make(chan error, 1)
	go func() {
		res, err := client.Post(url, "", pr)
		if err == nil {
			var b []byte
			if b, err = io.ReadAll(res.Body); err == nil && string(b) != "hello" {
				err = errors.New(string(b))
			}
		}
		running <- err
	}()
	l := <-links
	pw.Write([]byte("hel"))
	l.mu.Lock()
	l.core.GoAway()
	for !l.core.GoingAway() {
		l.change.Broadcast()
		l.change.Wait()
	}
	l.mu.Unlock()
	for range 5 {
		if res, err := client.Get(url); err != nil || res.StatusCode != 200 {
			t.Errorf("%v, %v", res, err)
		}
	}
	pw.Write([]byte("lo"))
	pw.Close()
	if err := <-running; err != nil {
		t.Error(err)
	}
	// How many connections the later requests use is the affair of net/http. The second one may
	// come before the connection of the first one is known.
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.streams) != 1 {
		t.Errorf("%d requests on the connection that was going away", len(l.streams))
	}
}

// The test suite h2spec passes completely, if it is installed.
func TestH2spec(t *testing.T) {
	http2test.H2spec(t, http2test.Listen(t, func(c net.Conn) { newLink(c, Config{}, true, "hello from the test") }))
}
