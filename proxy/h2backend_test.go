package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/config"
)

// application is an endpoint of net/http's.
type application struct {
	*httptest.Server
	address     string
	connections atomic.Int32
	requests    atomic.Int32
	versions    sync.Map // of HTTP that requests came by
}

// newApplication serves h by the given versions of HTTP: h2c, or over TLS "h2" and "http/1.1".
func newApplication(t testing.TB, h http.HandlerFunc, versions ...string) *application {
	t.Helper()
	a := new(application)
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.requests.Add(1)
		a.versions.Store(r.Proto, true)
		h(w, r)
	}))
	a.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			a.connections.Add(1)
		}
	}
	a.Config.Protocols = new(http.Protocols)
	if versions[0] == "h2c" {
		a.Config.Protocols.SetUnencryptedHTTP2(true)
		a.Start()
	} else {
		for _, v := range versions {
			if v == "h2" {
				a.EnableHTTP2 = true
				a.Config.Protocols.SetHTTP2(true)
			} else {
				a.Config.Protocols.SetHTTP1(true)
			}
		}
		a.TLS = &tls.Config{NextProtos: versions}
		a.StartTLS()
	}
	a.address = a.Listener.Addr().String()
	t.Cleanup(a.Close)
	return a
}

// version is the only version of HTTP that requests came by.
func (a *application) version() (v string) {
	a.versions.Range(func(key, _ any) bool {
		v += key.(string)
		return true
	})
	return v
}

const h2cBackend = `
listeners: {web: {address: '@0', protocol: http, http2: {prior_knowledge: true}}}
routes: [{listeners: [web], backend: app}]
backends: {app: {protocol: h2c, endpoints: ['@app']}}
`

const httpsBackend = `
listeners: {web: {address: '@0', protocol: http, http2: {prior_knowledge: true}}}
routes: [{listeners: [web], backend: app}]
backends: {app: {protocol: https, tls: {insecure_skip_verify: true}, endpoints: ['@app']}}
`

// client is net/http's client of HTTP/1.1 or, with two, of HTTP/2 with prior knowledge.
func (r *rig) client(two bool) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(!two)
	protocols.SetUnencryptedHTTP2(two)
	tr := &http.Transport{Protocols: &protocols, DisableCompression: true}
	r.Cleanup(tr.CloseIdleConnections)
	r.stop = append(r.stop, tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (r *rig) url(path string) string { return "http://" + r.addrs["web"] + path }

// echoFields tells in fields what came, and returns body and trailers.
func echoFields(w http.ResponseWriter, r *http.Request) {
	for _, name := range []string{"Cookie", "Te", "X-Forwarded-For", "Connection", "Content-Length", "Expect"} {
		if v := r.Header.Values(name); v != nil {
			w.Header().Set("Got-"+name, strings.Join(v, "|"))
		}
	}
	w.Header().Set("Got-Host", r.Host)
	w.Header().Set("Got-Method", r.Method)
	w.Header().Set("Got-Path", r.URL.RequestURI())
	w.Header().Set("Got-Length", fmt.Sprint(r.ContentLength))
	switch r.URL.Path {
	case "/hints":
		w.Header().Set("Link", "</a>; rel=preload")
		w.WriteHeader(103)
	case "/early":
		w.WriteHeader(413)
		io.WriteString(w, "no")
		return
	case "/abort":
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	case "/none":
		w.WriteHeader(204)
		return
	case "/sized":
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		w.Write(b)
		return
	}
	w.Header().Set("Trailer", "X-Trailer")
	buf := make([]byte, 10000)
	for {
		n, err := r.Body.Read(buf)
		if n > 0 {
			w.Write(buf[:n])
			w.(http.Flusher).Flush()
		}
		if err != nil {
			break
		}
	}
	w.Header().Set("X-Trailer", r.Trailer.Get("X-Trailer"))
}

// Clients of both versions reach endpoints of HTTP/2.
func TestHTTP2Endpoints(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 1<<16)
	run := func(t *testing.T, text string, two bool, versions ...string) {
		a := newApplication(t, echoFields, versions...)
		r := newRig(t, text, nil, "@app", a.address)
		client := r.client(two)
		f := func(method, path, body string, known bool, status int) *http.Response {
			t.Helper()
			var from io.Reader = strings.NewReader(body)
			if !known {
				from = io.MultiReader(from)
			}
			if body == "" && known {
				from = nil
			}
			req, _ := http.NewRequest(method, r.url(path), from)
			req.Header.Set("Cookie", "a=1; b=2")
			req.Header.Set("TE", "trailers")
			if !known {
				req.Trailer = http.Header{"X-Trailer": {"t"}}
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(method, path, err)
			}
			defer res.Body.Close()
			got, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != status || status == 200 && method != "HEAD" && string(got) != body {
				t.Fatalf("%s %s of %d bytes: %d with %d bytes, %v", method, path, len(body), res.StatusCode, len(got), err)
			}
			for name, want := range map[string]string{"Got-Cookie": "a=1; b=2", "Got-Host": r.addrs["web"], "Got-Method": method,
				"Got-Path": path, "Got-X-Forwarded-For": "127.0.0.1", "Got-Connection": ""} {
				if res.Header.Get(name) != want {
					t.Errorf("%s %s: %s is %q, not %q", method, path, name, res.Header.Get(name), want)
				}
			}
			if two && res.Header.Get("Got-TE") != "trailers" {
				t.Errorf("TE is %q", res.Header.Get("Got-TE"))
			}
			return res
		}
		f("GET", "/?q=%2f", "", true, 200)
		f("HEAD", "/", "", true, 200)
		f("OPTIONS", "/a//b", "", true, 200)
		f("DELETE", "/none", "", true, 204)
		for _, n := range []int{1, 100, 16 << 10, 70000, 1 << 20} {
			f("POST", "/", large[:n], true, 200)
			if res := f("POST", "/", large[:n], false, 200); res.Trailer.Get("X-Trailer") != "t" {
				t.Errorf("trailers %v", res.Trailer)
			}
			if res := f("PUT", "/sized", large[:n], true, 200); res.ContentLength != int64(n) {
				t.Errorf("Content-Length %d of %d", res.ContentLength, n)
			}
		}
		infos := 0
		trace := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { infos++; return nil }})
		req, _ := http.NewRequestWithContext(trace, "GET", r.url("/hints"), nil)
		if res, err := client.Do(req); err != nil || res.StatusCode != 200 || infos != 1 {
			t.Errorf("%v, %v, %d informational responses", res, err, infos)
		} else {
			res.Body.Close()
		}
		f("POST", "/early", large, true, 413)
		res, err := client.Get(r.url("/abort"))
		if err == nil {
			if _, err = io.ReadAll(res.Body); err == nil {
				t.Error("a response that was cut short looks whole")
			}
			res.Body.Close()
		}
		if n := a.connections.Load(); n != 1 {
			t.Errorf("%d connections", n)
		}
		if v := a.version(); v != "HTTP/2.0" {
			t.Errorf("requests came by %s", v)
		}
	}
	for name, two := range map[string]bool{"1": false, "2": true} {
		t.Run(name+" h2c", func(t *testing.T) { run(t, h2cBackend, two, "h2c") })
		t.Run(name+" https", func(t *testing.T) { run(t, httpsBackend, two, "h2", "http/1.1") })
		t.Run(name+" grpc over TLS", func(t *testing.T) {
			run(t, strings.Replace(httpsBackend, "https", "grpc", 1), two, "h2", "http/1.1")
		})
	}
}

// An https endpoint speaks what it wants to, and may change its mind.
func TestHTTPSEndpointsChoose(t *testing.T) {
	f := func(text, want string, versions ...string) {
		t.Helper()
		a := newApplication(t, echoFields, versions...)
		r := newRig(t, text, nil, "@app", a.address)
		client := r.client(true)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if res, err := client.Post(r.url("/"), "", strings.NewReader("x")); err != nil || res.StatusCode != 200 {
					t.Error(res, err)
				} else {
					res.Body.Close()
				}
			})
		}
		all.Wait()
		if v := a.version(); v != want {
			t.Errorf("requests came by %s, not %s", v, want)
		}
	}
	f(httpsBackend, "HTTP/1.1", "http/1.1")
	f(httpsBackend, "HTTP/2.0", "h2")
	f(httpsBackend, "HTTP/2.0", "h2", "http/1.1")
	f(strings.Replace(httpsBackend, "https,", "https, http2: false,", 1), "HTTP/1.1", "h2", "http/1.1")
}

func TestHTTPSEndpointChangesItsMind(t *testing.T) {
	cert := newApplication(t, echoFields, "h2").TLS.Certificates
	var mu sync.Mutex
	versions := []string{"h2", "http/1.1"}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		mu.Lock()
		defer mu.Unlock()
		return &tls.Config{Certificates: cert, NextProtos: versions}, nil
	}}
	server.StartTLS()
	defer server.Close()
	r := newRig(t, httpsBackend, nil, "@app", server.Listener.Addr().String())
	client := r.client(false)
	for _, want := range []string{"HTTP/2.0", "HTTP/1.1", "HTTP/1.1", "HTTP/2.0", "HTTP/2.0"} {
		mu.Lock()
		if versions = []string{"http/1.1"}; want == "HTTP/2.0" {
			versions = []string{"h2", "http/1.1"}
		}
		mu.Unlock()
		server.CloseClientConnections()
		eventually(t, want, func() error { // the end of the old connections has to be noticed
			res, err := client.Get(r.url("/"))
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); string(b) != want {
				return fmt.Errorf("%s, %v", b, err)
			}
			return nil
		})
	}
}

// Exchanges at the same time share connections, however they come.
func TestHTTP2EndpointsAreShared(t *testing.T) {
	var mu sync.Mutex
	arrived, most := 0, 0
	all := make(chan struct{})
	a := newApplication(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if arrived++; arrived == 100 {
			close(all)
		}
		most = max(most, arrived)
		mu.Unlock()
		select {
		case <-all:
		case <-time.After(patience):
		}
	}, "h2c")
	r := newRig(t, h2cBackend, nil, "@app", a.address)
	client := r.client(true)
	var running sync.WaitGroup
	for range 100 {
		running.Go(func() {
			if res, err := client.Get(r.url("/")); err != nil || res.StatusCode != 200 {
				t.Error(res, err)
			} else {
				res.Body.Close()
			}
		})
	}
	running.Wait()
	if n := a.connections.Load(); n != 1 {
		t.Errorf("%d connections for 100 exchanges", n)
	}
}

// A connection that ends with many exchanges is replaced by one, not by many.
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

// acceptH2 takes a connection and greets.
func (e *endpoint) acceptH2(settings ...xhttp2.Setting) (*peer, *xhttp2.Framer) {
	e.Helper()
	p := e.accept()
	p.wantRead(xhttp2.ClientPreface)
	f := xhttp2.NewFramer(p, p.r)
	f.WriteSettings(settings...)
	return p, f
}

// nextFrame is the next frame of type T.
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

// What an endpoint did not act on goes to it again, by another connection, whatever the method.
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

// So does a body that is on its way, if little of it was sent.
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

	c.write(postChunked + "8000\r\n" + strings.Repeat("x", 1<<15) + "\r\n")
	h := nextFrame[*xhttp2.HeadersFrame](t, fr)
	for n := 0; n < 1<<15; {
		n += len(nextFrame[*xhttp2.DataFrame](t, fr).Data())
	}
	fr.WriteRSTStream(h.StreamID, xhttp2.ErrCodeRefusedStream)
	c.wantResponse(503, "*")
	r.record().want(t, "reason", "endpoint_refused", "retries", 0)
}

// What an endpoint may have acted on is not.
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

// An idle connection that ended costs a request nothing that may be repeated.
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

// The settings of an endpoint are respected.
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
	for range 4 { // each connection takes one
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

// An endpoint that does not speak HTTP/2 is one that does not connect.
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

// The PROXY header names one client for good: its connections are not shared.
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

// Waits have their deadlines, and a client that goes away ends its stream alone.
func TestHTTP2EndpointWaits(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, h2cBackend, func(c *config.Config) {
		c.Backends[0].Timeouts.ResponseHead = 50 * time.Millisecond
		c.Backends[0].Timeouts.BodyIdle = 50 * time.Millisecond
	}, "@app", e.address)
	c := r.dial("web")
	c.write(get)
	_, fr := e.acceptH2()
	nextFrame[*xhttp2.HeadersFrame](t, fr)
	c.wantResponse(504, "*")
	if f := nextFrame[*xhttp2.RSTStreamFrame](t, fr); f.ErrCode != xhttp2.ErrCodeCancel {
		t.Error(f)
	}
	r.record().want(t, "reason", "response_timeout")
	c.write(post(100000)) // a body that nobody takes, and nobody sends
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
	r.record().want(t, "reason", "response_cut_short")
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

// A reload that changes how endpoints are spoken to leaves what runs alone.
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

// WebSockets go to https endpoints by HTTP/1.1, and to h2c endpoints as they can.
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
