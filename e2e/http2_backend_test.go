package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// startNghttpd runs nghttpd as a backend, and returns a weir in front of it. If secure is true, weir uses TLS
// and ALPN for nghttpd, otherwise prior knowledge.
func startNghttpd(t *testing.T, secure bool, options ...string) *weir {
	t.Helper()
	nghttpd := need(t, "nghttpd")
	w := newWeir(t)
	if err := os.WriteFile(filepath.Join(w.dir, "file"), pattern(3_000_000), 0o644); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(w.at("app"))
	args := append(options, "--address=127.0.0.1", "--htdocs="+w.dir, "--trailer", "x-trailer: end", "--no-tls", port)
	protocol := "protocol: h2c"
	if secure {
		c := writeCertificate(t, w.dir, "backend", false, "app.internal")
		args = append(args[:len(args)-2], port, c.key, c.cert)
		protocol = fmt.Sprintf("protocol: https, tls: {server_name: app.internal, ca: %s}", c.cert)
	}
	runPeer(t, nghttpd, args...).listening(w.at("app"))
	return w.start(strings.Replace(http2Config, "app: {endpoints", "app: {"+protocol+", endpoints", 1))
}

// Clients of every kind get correct responses from nghttpd, with its default limits and with low ones.
func TestNghttpdAsBackend(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		for _, options := range [][]string{{"--echo-upload"}, {"--echo-upload", "-m", "3", "-w", "14", "-W", "14"}} {
			t.Run(fmt.Sprint(secure, len(options)), func(t *testing.T) {
				w := startNghttpd(t, secure, options...)
				clients := map[string]*http.Client{
					"http://" + w.at("web"):       goHTTP2(t, true),
					"https://" + w.at("secure"):   goHTTP2(t, false),
					"http://" + w.at("web") + "/": {Transport: &http.Transport{}, Timeout: 3 * patience},
				}
				var all sync.WaitGroup
				for base, client := range clients {
					for i := range 10 {
						all.Go(func() { askNghttpd(t, client, strings.TrimSuffix(base, "/"), 1+i*30_000) })
					}
				}
				all.Wait()
			})
		}
	}
}

func askNghttpd(t *testing.T, client *http.Client, base string, n int) {
	res, err := client.Get(base + "/file")
	if err != nil {
		t.Error(err)
		return
	}
	got, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || sum256(got) != sum256(pattern(3_000_000)) || res.ProtoMajor == 2 && res.Trailer.Get("X-Trailer") != "end" {
		t.Errorf("%d bytes, %v, trailers %v", len(got), err, res.Trailer)
	}
	res, err = client.Post(base+"/up", "", bytes.NewReader(pattern(n)))
	if err != nil {
		t.Error(err)
		return
	}
	got, err = io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || !bytes.Equal(got, pattern(n)) {
		t.Errorf("%d bytes of %d came back, %v", len(got), n, err)
	}
	if res, err = client.Head(base + "/file"); err != nil || res.ContentLength != 3_000_000 {
		t.Errorf("%v, %v", res, err)
	}
	if res, err = client.Get(base + "/missing"); err != nil || res.StatusCode != 404 {
		t.Errorf("%v, %v", res, err)
	} else {
		res.Body.Close()
	}
}

// Many streams share few connections to an endpoint.
func TestStreamsShareConnectionsToTheEndpoint(t *testing.T) {
	t.Parallel()
	app := &webBackend{name: "app", address: freePort(t), held: make(chan struct{}, 1000), release: make(chan struct{})}
	l, err := net.Listen("tcp", app.address)
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	app.server = &http.Server{Handler: app, Protocols: &protocols, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			app.connections.Add(1)
		}
	}}
	go app.server.Serve(l)
	t.Cleanup(func() { app.server.Close() })
	w := newWeir(t)
	w.address["app"] = app.address
	w.start(strings.Replace(http2Config, "app: {endpoints", "app: {protocol: h2c, endpoints", 1))
	h2load(t, "2000", "-c", "4", "-m", "50", "http://"+w.at("web")+"/bytes/1000")
	h2load(t, "500", "--h1", "-c", "50", "http://"+w.at("web")+"/bytes/1000")
	if n := app.connections.Load(); n > 8 {
		t.Errorf("weir opened %d connections to one endpoint", n)
	}
	// A request over HTTP/1.1 reaches the endpoint over HTTP/2.
	if s := curlSeen(t, "http://"+w.at("web")+"/x"); s.Proto != "HTTP/2.0" {
		t.Errorf("%+v", s)
	}
}

// nginx ends each connection after keepalive_requests, and leaves out the requests that came after these. No
// request fails, whatever its body is, and weir soon sends no more requests on a connection than nginx takes.
func TestNginxThatEndsConnectionsLosesNoRequest(t *testing.T) {
	t.Parallel()
	for _, most := range []int{10, 100} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			w := newWeir(t)
			reader := serveHTTP(t, func(rw http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				fmt.Fprint(rw, n)
			})
			runProxy(t, "nginx", w.dir, fmt.Sprintf(`
    server {
        listen %s http2;
        keepalive_requests %d;
        client_max_body_size 0;
        location / { proxy_pass http://%s; }
    }
`, w.at("app"), most, reader)).listening(w.at("app"))
			w.start(strings.Replace(http2Config, "app: {endpoints", "app: {protocol: h2c, endpoints", 1))
			upload := func(client *http.Client, size int, chunked bool) {
				var body io.Reader = bytes.NewReader(pattern(size))
				if chunked {
					body = struct{ io.Reader }{body}
				}
				res, err := client.Post("http://"+w.at("web")+"/", "", body)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 || string(got) != fmt.Sprint(size) {
					t.Errorf("%s for %d bytes: %q, %v", res.Status, size, got, err)
				}
			}
			sizes := []int{1, 64 << 10, 1 << 20}
			for _, client := range []*http.Client{goHTTP2(t, true), {Transport: &http.Transport{MaxIdleConnsPerHost: 50}, Timeout: 3 * patience}} {
				var all sync.WaitGroup
				for i := range 50 {
					all.Go(func() {
						for k := range 12 {
							upload(client, sizes[(i+k)%3], k%2 == 0)
						}
					})
				}
				all.Wait()
				for k := range 2*most + 5 {
					upload(client, sizes[k%3], false)
				}
			}
			if n := w.metric("weir_backend_retries_total", "backend", "app", "reason", "refused"); n > 150 { // of 1250 or more
				t.Errorf("nginx left out %v requests", n)
			}
		})
	}
}
