package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/config"
)

// If a connection with many exchanges ends, weir replaces it by one connection, not by many.
func TestLostConnectionIsNoStampede(t *testing.T) {
	var lost atomic.Bool
	var waiting atomic.Int32
	a := newApplication(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" && !lost.Load() {
			waiting.Add(1)
			<-r.Context().Done()
		}
	}, "h2c")
	r := newRig(t, h2cBackend, nil, "@app", a.address)
	client := r.client(true)
	do := func(path string) {
		if res, err := client.Get(r.url(path)); err != nil || res.StatusCode != 200 {
			t.Error(res, err)
		} else {
			res.Body.Close()
		}
	}
	do("/")
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { do("/wait") })
	}
	eventually(t, "all wait", func() error {
		if n := waiting.Load(); n != 100 {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	lost.Store(true)
	a.CloseClientConnections()
	all.Wait()
	if n := a.connections.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// acceptH2 accepts a connection and sends its preface.
func (e *endpoint) acceptH2(settings ...xhttp2.Setting) (*peer, *xhttp2.Framer) {
	e.Helper()
	p := e.accept()
	p.wantRead(xhttp2.ClientPreface)
	f := xhttp2.NewFramer(p, p.r)
	f.WriteSettings(settings...)
	return p, f
}

// nextFrame returns the next frame of type T.
func nextFrame[T xhttp2.Frame](t testing.TB, f *xhttp2.Framer) (want T) {
	t.Helper()
	for {
		got, err := f.ReadFrame()
		if err != nil {
			t.Fatalf("waiting for %T: %v", want, err)
		}
		if w, ok := got.(T); ok {
			return w
		}
		if s, ok := got.(*xhttp2.SettingsFrame); ok && !s.IsAck() {
			f.WriteSettingsAck()
		}
	}
}

// answer200 answers the stream with an empty 200.
func answer200(f *xhttp2.Framer, id uint32) {
	f.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}, EndHeaders: true, EndStream: true})
}

// If an endpoint did not process a request, weir sends it again over another connection, whatever its method.
func TestUnprocessedIsRepeated(t *testing.T) {
	f := func(request string, refuse func(f *xhttp2.Framer, id uint32), gone bool) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, h2cBackend, nil, "@app", e.address)
		c := r.dial("web")
		c.write(request)
		_, fr := e.acceptH2()
		h := nextFrame[*xhttp2.HeadersFrame](t, fr)
		refuse(fr, h.StreamID)
		if gone {
			_, fr = e.acceptH2()
		}
		h = nextFrame[*xhttp2.HeadersFrame](t, fr)
		answer200(fr, h.StreamID)
		c.wantResponse(200, "")
		r.record().want(t, "status", 200, "retries", 1)
	}
	goAway := func(f *xhttp2.Framer, id uint32) { f.WriteGoAway(0, xhttp2.ErrCodeNo, nil) }
	refused := func(f *xhttp2.Framer, id uint32) { f.WriteRSTStream(id, xhttp2.ErrCodeRefusedStream) }
	for _, request := range []string{get, post(2) + "ab"} {
		f(request, goAway, true)
		f(request, refused, false)
	}
}

// Weir also repeats a request whose body is on its way, if it has sent only a little of
// the body.
func TestUnprocessedUploadIsRepeated(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, h2cBackend, nil, "@app", e.address)
	c := r.dial("web")
	c.write(postChunked + "5\r\nhello\r\n")
	_, fr := e.acceptH2()
	for range 3 {
		h := nextFrame[*xhttp2.HeadersFrame](t, fr)
		if d := nextFrame[*xhttp2.DataFrame](t, fr); string(d.Data()) != "hello" {
			t.Errorf("%q", d.Data())
		}
		if r.proxy == nil || h.StreamID == 5 {
			c.write("1\r\n!\r\n0\r\n\r\n")
			got := ""
			for got != "!" {
				got += string(nextFrame[*xhttp2.DataFrame](t, fr).Data())
			}
			answer200(fr, h.StreamID)
			break
		}
		fr.WriteRSTStream(h.StreamID, xhttp2.ErrCodeRefusedStream)
	}
	c.wantResponse(200, "")
	r.record().want(t, "status", 200, "retries", 2)

}

// Weir keeps what it has sent of a body until the endpoint takes the request, also when the body fills the
// window that the endpoint allows at first. So a GOAWAY in this time loses no upload.
func TestGoAwayLosesNoUpload(t *testing.T) {
	const size = 1 << 20
	body := strings.Repeat("0123456789abcdef", size/16)
	f := func(chunked bool, refuse func(f *xhttp2.Framer, id uint32)) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, h2cBackend, nil, "@app", e.address)
		c := r.dial("web")
		head, end := post(size), ""
		if chunked {
			head, end = postChunked+fmt.Sprintf("%x\r\n", size), "\r\n0\r\n\r\n"
		}
		go c.write("%s%s%s", head, body, end)
		var fr *xhttp2.Framer
		read := func(want int) (id uint32) {
			t.Helper()
			id = nextFrame[*xhttp2.HeadersFrame](t, fr).StreamID
			for n := 0; n < want; {
				d := nextFrame[*xhttp2.DataFrame](t, fr)
				if got := string(d.Data()); got != body[n:n+len(got)] {
					t.Fatalf("%d other bytes came after %d", len(got), n)
				}
				if n += len(d.Data()); want == size && len(d.Data()) > 0 {
					fr.WriteWindowUpdate(0, uint32(len(d.Data())))
					fr.WriteWindowUpdate(id, uint32(len(d.Data())))
				}
			}
			return id
		}
		for range 3 {
			_, fr = e.acceptH2()
			refuse(fr, read(1<<16-1))
		}
		_, fr = e.acceptH2()
		answer200(fr, read(size))
		c.wantResponse(200, "")
		r.record().want(t, "status", 200, "retries", 3)
	}
	for _, chunked := range []bool{false, true} {
		f(chunked, func(f *xhttp2.Framer, id uint32) { f.WriteGoAway(id-1, xhttp2.ErrCodeNo, nil) })
	}
}

// An endpoint with a large window may get more of a body than weir keeps, before weir knows that the endpoint refuses the
// request. So weir waits for a moment before it sends more.
func TestUntakenLargeBodyIsKept(t *testing.T) {
	const size, window = 400_000, 1 << 20
	f := func(t *testing.T, most time.Duration, status int, refuse func(f *xhttp2.Framer, id uint32)) {
		usual := refusalTime
		refusalTime = most
		t.Cleanup(func() { refusalTime = usual }) // after the rig has ended
		e := newEndpoint(t)
		r := newRig(t, h2cBackend, nil, "@app", e.address)
		c := r.dial("web")
		c.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size+1)
		accept := func() (f *xhttp2.Framer, id uint32) {
			_, f = e.acceptH2(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: window})
			f.WriteWindowUpdate(0, window)
			return f, nextFrame[*xhttp2.HeadersFrame](t, f).StreamID
		}
		read := func(f *xhttp2.Framer, want int) {
			t.Helper()
			for want > 0 {
				want -= len(nextFrame[*xhttp2.DataFrame](t, f).Data())
			}
		}
		fr, id := accept()
		fr.WritePing(false, [8]byte{1})
		nextFrame[*xhttp2.PingFrame](t, fr) // weir knows the windows
		go c.write("%s", strings.Repeat("x", size))
		if status == 503 {
			read(fr, size)
			refuse(fr, id)
		} else {
			read(fr, 64<<10)
			refuse(fr, id)
			fr, id = accept()
			fr.WriteWindowUpdate(id, 1) // it takes the request
			c.write("x")
			read(fr, size+1)
			answer200(fr, id)
		}
		c.wantResponse(status, "*")
	}
	for name, refuse := range map[string]func(f *xhttp2.Framer, id uint32){
		"GOAWAY": func(f *xhttp2.Framer, id uint32) { f.WriteGoAway(id-1, xhttp2.ErrCodeNo, nil) },
		"reset": func(f *xhttp2.Framer, id uint32) {
			f.WriteRSTStream(id, xhttp2.ErrCodeRefusedStream)
			f.WriteGoAway(id, xhttp2.ErrCodeNo, nil)
		},
	} {
		t.Run(name, func(t *testing.T) { f(t, patience, 200, refuse) })
	}
	t.Run("late", func(t *testing.T) { // an endpoint that says nothing for long gets the rest
		f(t, 0, 503, func(f *xhttp2.Framer, id uint32) { f.WriteGoAway(id-1, xhttp2.ErrCodeNo, nil) })
	})
}

// Such attempts do not count for retries.attempts, but only three times for a request. A request whose endpoint
// has opened the window was taken, and weir does not keep its body any longer.
func TestUntakenRequestsEnd(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, h2cBackend, func(c *config.Config) { c.Backends[0].Retries.Attempts = 1 }, "@app", e.address)
	c := r.dial("web")
	c.write(get)
	for range 4 {
		_, fr := e.acceptH2()
		nextFrame[*xhttp2.HeadersFrame](t, fr)
		fr.WriteGoAway(0, xhttp2.ErrCodeNo, nil)
	}
	c.wantResponse(503, "*")
	r.record().want(t, "reason", "endpoint_refused", "retries", 3)
	e.untouched()

	c.write(post(4) + "ab")
	_, fr := e.acceptH2()
	h := nextFrame[*xhttp2.HeadersFrame](t, fr)
	nextFrame[*xhttp2.DataFrame](t, fr)
	fr.WriteWindowUpdate(h.StreamID, 100)
	fr.WritePing(false, [8]byte{1})
	nextFrame[*xhttp2.PingFrame](t, fr) // weir has read the window
	c.write("c")
	nextFrame[*xhttp2.DataFrame](t, fr)
	fr.WriteGoAway(0, xhttp2.ErrCodeNo, nil)
	c.wantResponse(503, "*")
	r.record().want(t, "reason", "endpoint_refused", "retries", 0)
}

// weir does not repeat a request that the endpoint may have processed.
func TestProcessedIsNotRepeated(t *testing.T) {
	f := func(request string, end func(p *peer, f *xhttp2.Framer, id uint32), status int, reason string) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, h2cBackend, nil, "@app", e.address)
		c := r.dial("web")
		c.write(request)
		p, fr := e.acceptH2()
		h := nextFrame[*xhttp2.HeadersFrame](t, fr)
		end(p, fr, h.StreamID)
		c.wantResponse(status, "*")
		r.record().want(t, "status", status, "retries", 0, "reason", reason)
		e.untouched()
	}
	f(get, func(p *peer, f *xhttp2.Framer, id uint32) { f.WriteRSTStream(id, xhttp2.ErrCodeInternal) }, 502, "endpoint_closed")
	f(get, func(p *peer, f *xhttp2.Framer, id uint32) { p.Close() }, 502, "endpoint_closed")
	f(get, func(p *peer, f *xhttp2.Framer, id uint32) { f.WriteGoAway(id, xhttp2.ErrCodeNo, nil); p.Close() }, 502, "endpoint_closed")
	f(get, func(p *peer, f *xhttp2.Framer, id uint32) {
		f.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x40, 1, 'A', 1, 'b'}, EndHeaders: true})
	}, 502, "bad_response_malformed")
	f(get, func(p *peer, f *xhttp2.Framer, id uint32) { f.WriteRawFrame(0xff, 0, 0, make([]byte, 1<<15)) }, 502, "endpoint_closed")
}

// The end of an idle connection does not harm a request that may be repeated.
func TestStaleTrunk(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, h2cBackend, nil, "@app", e.address)
	c := r.dial("web")
	for i := range 3 {
		c.write(get)
		p, fr := e.acceptH2()
		answer200(fr, nextFrame[*xhttp2.HeadersFrame](t, fr).StreamID)
		c.wantResponse(200, "")
		if i == 1 {
			c.write(get)
			nextFrame[*xhttp2.HeadersFrame](t, fr)
		}
		p.Close()
		if i == 1 {
			_, fr := e.acceptH2()
			answer200(fr, nextFrame[*xhttp2.HeadersFrame](t, fr).StreamID)
			c.wantResponse(200, "")
			return
		}
	}
}

// Weir respects the settings of an endpoint.
func TestEndpointSettings(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, h2cBackend, nil, "@app", e.address)
	var running sync.WaitGroup
	client := r.client(true)
	for range 4 {
		running.Go(func() {
			if res, err := client.Get(r.url("/")); err != nil || res.StatusCode != 200 {
				t.Error(res, err)
			} else {
				res.Body.Close()
			}
		})
	}
	answers := make(chan func(), 4)
	for range 4 { // each connection accepts one
		_, fr := e.acceptH2(xhttp2.Setting{ID: xhttp2.SettingMaxConcurrentStreams, Val: 1})
		h := nextFrame[*xhttp2.HeadersFrame](t, fr)
		answers <- func() { answer200(fr, h.StreamID) }
	}
	for range 4 {
		(<-answers)()
	}
	running.Wait()
}

func TestEndpointHeadLimit(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, h2cBackend, nil, "@app", e.address)
	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHost: a\r\nX: %s\r\n\r\n", strings.Repeat("x", 5000))
	e.acceptH2(xhttp2.Setting{ID: xhttp2.SettingMaxHeaderListSize, Val: 4096})
	c.wantResponse(431, "*")
	r.record().want(t, "reason", "head_too_large")
}

// A dial to an endpoint that does not speak HTTP/2 fails.
func TestNoHTTP2Endpoint(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, h2cBackend, nil, "@app", e.address)
	c := r.dial("web")
	c.write(get)
	for range 3 {
		p := e.accept()
		p.write("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
		p.Close()
	}
	c.wantResponse(502, "*")
	r.record().want(t, "reason", "connect", "retries", 2)
}

// The PROXY header names one client for the whole connection, so its connections are not shared.
func TestSendProxyToHTTP2(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, strings.Replace(h2cBackend, "h2c,", "h2c, send_proxy: v1,", 1), nil, "@app", e.address)
	c := r.dial("web")
	for range 2 {
		c.write(get)
		p := e.accept()
		if line, err := p.r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "PROXY TCP4 127.0.0.1 ") {
			t.Errorf("%q, %v", line, err)
		}
		p.wantRead(xhttp2.ClientPreface)
		fr := xhttp2.NewFramer(p, p.r)
		fr.WriteSettings()
		answer200(fr, nextFrame[*xhttp2.HeadersFrame](t, fr).StreamID)
		c.wantResponse(200, "")
		nextFrame[*xhttp2.GoAwayFrame](t, fr)
		p.wantEnd(false)
	}
}

// Waits have deadlines, and a client that disconnects ends only its own stream.
func TestHTTP2EndpointWaits(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, h2cBackend, func(c *config.Config) {
		c.Backends[0].Timeouts.ResponseHead = 500 * time.Millisecond // the last response arrives within this time
		c.Backends[0].Timeouts.BodyIdle, c.Backends[0].Timeouts.StreamIdle = 50*time.Millisecond, 0
	}, "@app", e.address)
	c := r.dial("web")
	c.write(get)
	_, fr := e.acceptH2()
	nextFrame[*xhttp2.HeadersFrame](t, fr)
	c.wantResponse(504, "*")
	if f := nextFrame[*xhttp2.RSTStreamFrame](t, fr); f.ErrCode != xhttp2.ErrCodeCancel {
		t.Error(f)
	}
	rec := r.record()
	rec.want(t, "reason", "response_timeout")
	rec.wantError(t, "backends.app.timeouts.response_head")
	c.write(post(100000)) // a body that the endpoint does not accept and the client does not send
	h := nextFrame[*xhttp2.HeadersFrame](t, fr)
	c.write("%s", strings.Repeat("x", 100000))
	c.wantResponse(504, "*")
	r.record()
	if h.StreamEnded() {
		t.Error("the request has a body")
	}
	c = r.dial("web")
	c.write(get)
	h = nextFrame[*xhttp2.HeadersFrame](t, fr)
	fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: []byte{0x88}, EndHeaders: true})
	c.head()
	c.wantEnd(true)
	rec = r.record()
	rec.want(t, "reason", "response_cut_short")
	rec.wantError(t, "backends.app.timeouts.body_idle")
}

func TestHTTP2EndpointReadsNothing(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, h2cBackend, func(c *config.Config) { c.Backends[0].Timeouts.BodyIdle = 50 * time.Millisecond }, "@app", e.address)
	c := r.dial("web")
	c.write(post(5) + "12345")
	_, fr := e.acceptH2(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 0})
	nextFrame[*xhttp2.HeadersFrame](t, fr)
	c.wantResponse(504, "*")
	r.record().want(t, "reason", "response_timeout", "error", "the endpoint did not read the request within 50ms (backends.app.timeouts.body_idle)")
}

func TestClientGivesUpOnHTTP2(t *testing.T) {
	gone := make(chan error, 2)
	a := newApplication(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		gone <- r.Context().Err()
	}, "h2c")
	r := newRig(t, h2cBackend, nil, "@app", a.address)
	for _, two := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		req, _ := http.NewRequestWithContext(ctx, "GET", r.url("/"), nil)
		res, err := r.client(two).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		res.Body.Close()
		if err := next(t, gone, "end"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if n := a.connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// After a reload that changes the protocol for endpoints, running exchanges continue.
func TestReloadToHTTP2(t *testing.T) {
	started, finish := make(chan struct{}), make(chan struct{})
	a := newApplication(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			w.(http.Flusher).Flush()
			close(started)
			<-finish
		}
		io.WriteString(w, r.Proto)
	}, "h2", "http/1.1")
	r := newRig(t, httpsBackend, nil, "@app", a.address)
	client := r.client(true)
	slow, err := client.Get(r.url("/slow"))
	if err != nil {
		t.Fatal(err)
	}
	<-started
	r.load(strings.Replace(httpsBackend, "https,", "https, http2: false,", 1), nil, "@app", a.address)
	res, err := client.Get(r.url("/"))
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(res.Body); string(b) != "HTTP/1.1" {
		t.Errorf("after the reload: %s", b)
	}
	close(finish)
	if b, err := io.ReadAll(slow.Body); string(b) != "HTTP/2.0" {
		t.Errorf("what ran before: %s, %v", b, err)
	}
	slow.Body.Close()
	res.Body.Close()
	if n := a.connections.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// WebSockets use HTTP/1.1 to https endpoints, and to h2c endpoints HTTP/2 if the endpoint can.
func TestUpgradesToHTTP2Endpoints(t *testing.T) {
	upgrade := "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	a := newApplication(t, func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		io.CopyN(c, rw, 5)
	}, "h2", "http/1.1")
	r := newRig(t, httpsBackend, nil, "@app", a.address)
	c := r.dial("web")
	c.write(upgrade)
	if h := c.head(); !strings.HasPrefix(h, "HTTP/1.1 101 ") {
		t.Fatal(h)
	}
	c.write("hello")
	c.wantRead("hello")
	c.Close()

	b := newApplication(t, echoFields, "h2c")
	r = newRig(t, h2cBackend, nil, "@app", b.address)
	c = r.dial("web")
	c.write(upgrade)
	c.wantResponse(501, "*")
	r.record().want(t, "status", 501, "reason", "upgrade")

	e := newEndpoint(t)
	r = newRig(t, h2cBackend, nil, "@app", e.address)
	c = r.dial("web")
	c.write(upgrade)
	_, fr := e.acceptH2(xhttp2.Setting{ID: xhttp2.SettingEnableConnectProtocol, Val: 1})
	h := nextFrame[*xhttp2.HeadersFrame](t, fr)
	fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: []byte{0x88}, EndHeaders: true})
	if head := c.head(); !strings.HasPrefix(head, "HTTP/1.1 101 ") || !strings.Contains(head, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=") {
		t.Fatal(head)
	}
	c.write("hello")
	if d := nextFrame[*xhttp2.DataFrame](t, fr); string(d.Data()) != "hello" {
		t.Errorf("%q", d.Data())
	}
	fr.WriteData(h.StreamID, false, []byte("world"))
	c.wantRead("world")
	fr.WriteData(h.StreamID, true, nil)
	c.closeWrite()
	if d := nextFrame[*xhttp2.DataFrame](t, fr); !d.StreamEnded() {
		t.Error(d)
	}
	c.wantEnd(false)
	r.record().want(t, "kind", "upgrade", "reason", "eof")
}

func TestManyToHTTP2(t *testing.T) {
	a := newApplication(t, echoFields, "h2c")
	r := newRig(t, h2cBackend, nil, "@app", a.address)
	var all sync.WaitGroup
	for i := range 40 {
		client := r.client(i%2 == 0)
		all.Go(func() {
			for j := range 10 {
				body := bytes.Repeat([]byte{byte(i), byte(j)}, i*j*50)
				var from io.Reader = bytes.NewReader(body)
				if j%2 == 0 {
					from = io.MultiReader(from)
				}
				res, err := client.Post(r.url("/"), "", from)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || !bytes.Equal(got, body) {
					t.Errorf("%d of %d bytes, %v", len(got), len(body), err)
				}
			}
		})
	}
	all.Wait()
	if n := a.connections.Load(); n > 2 {
		t.Errorf("%d connections", n)
	}
}
