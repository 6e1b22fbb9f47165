package proxy

import (
	"context"
	"crypto/tls"
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
)

// application is an endpoint made with net/http.
type application struct {
	*httptest.Server
	address     string
	connections atomic.Int32
	requests    atomic.Int32
	versions    sync.Map // HTTP versions of the requests
}

// newApplication serves h with the given versions of HTTP: h2c, or over TLS "h2" and "http/1.1".
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

// version returns the only HTTP version of all requests.
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

// client returns a net/http client of HTTP/1.1 or, if two is true, of HTTP/2 with prior knowledge.
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

// echoFields returns the request's properties in fields, and its body and trailers.
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
		w.Header().Set(http.TrailerPrefix+"X-Trailer", r.Trailer.Get("X-Trailer"))
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
			if res := f("PUT", "/sized", large[:n], false, 200); two && res.Trailer.Get("X-Trailer") != "t" { // not announced
				t.Errorf("trailers behind a Content-Length: %v", res.Trailer)
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

// An https endpoint chooses its protocol, and may change it.
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
		eventually(t, want, func() error { // weir must first notice the end of the old connections
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

// Concurrent exchanges share connections, for clients of both versions.
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

// If endpoints break off because of a request, weir does not send it again and again. A reset counts as an
// answer and as a failure of the endpoint.
func TestResetByTheEndpointIsNoIdleEnd(t *testing.T) {
	bad := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bad" {
			panic(http.ErrAbortHandler)
		}
	}
	a, b := newApplication(t, bad, "h2c"), newApplication(t, bad, "h2c")
	r := newRig(t, strings.Replace(h2cBackend, "['@app']", "['@app', '@other'], retries: {attempts: 5}", 1), nil, "@app", a.address, "@other", b.address)
	client := r.client(false)
	get := func(path string) int {
		res, err := client.Get(r.url(path))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		r.record()
		return res.StatusCode
	}
	for a.requests.Load() == 0 || b.requests.Load() == 0 { // repeat until there is a connection to each endpoint
		if status := get("/"); status != 200 {
			t.Fatalf("status %d", status)
		}
	}
	before := a.requests.Load() + b.requests.Load()
	if status := get("/bad"); status != 502 {
		t.Errorf("status %d", status)
	}
	if n := a.requests.Load() + b.requests.Load() - before; n > 2 {
		t.Errorf("one request was sent %d times to two endpoints", n)
	}
}
