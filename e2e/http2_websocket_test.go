package e2e

import (
	"fmt"
	"net"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
)

// A WebSocket over HTTP/2 (RFC 8441) reaches a backend that speaks HTTP/1.1.
func TestWebSocketByHTTP2(t *testing.T) {
	t.Parallel()
	w, _ := startHTTP2(t)
	for _, listener := range []string{"web", "secure"} {
		h := dialH2(t, w, listener)
		offered := false
		for !offered {
			f, err := h.framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if f, ok := f.(*http2.SettingsFrame); ok && !f.IsAck() {
				v, _ := f.Value(http2.SettingEnableConnectProtocol)
				offered = v == 1
			}
		}
		h.head(1, false, ":method: CONNECT", ":protocol: websocket", ":scheme: https", ":path: /ws?"+listener, ":authority: app.example.org",
			"sec-websocket-version: 13", "origin: https://app.example.org")
		// A WebSocket text frame whose mask is zero, and its echo.
		h.framer.WriteData(1, false, []byte("\x81\x85\x00\x00\x00\x00hello"))
		got := ""
		for got != "\x81\x05hello" {
			f, err := h.framer.ReadFrame()
			if err != nil {
				t.Fatalf("%v behind %q", err, got)
			}
			switch f := f.(type) {
			case *http2.HeadersFrame:
				fields, _ := h.dec.DecodeFull(f.HeaderBlockFragment())
				if fields[0].Value != "200" || f.StreamEnded() {
					t.Fatalf("%v", fields)
				}
			case *http2.DataFrame:
				got += string(f.Data())
			case *http2.RSTStreamFrame:
				t.Fatal(f)
			}
		}
		w.wantMetric(1, "weir_tunnels_open")
		// Other streams of the connection still work.
		h.get(3)
		if status, _, err := h.answer(3); status != "200" || err != nil {
			t.Errorf("%s, %v", status, err)
		}
		h.framer.WriteData(1, true, []byte("\x88\x80\x00\x00\x00\x00")) // the close frame
		if _, _, err := h.answer(1); err != nil {
			t.Errorf("the end: %v", err)
		}
		w.wantMetric(0, "weir_tunnels_open")
		e := w.byHTTP2("/ws?" + listener)
		if e.text("kind") != "upgrade" || e.text("status") != "200" && e.text("status") != "101" {
			t.Errorf("%v", e)
		}
	}
}

// A browser loads a page and opens a WebSocket, both over HTTP/2.
func TestChromium(t *testing.T) {
	t.Parallel()
	needLinux(t)
	chromium := need(t, "chromium-headless-shell")
	w := newWeir(t)
	w.address["app"] = serveHTTP(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/page":
			rw.Header().Set("Content-Type", "text/html")
			fmt.Fprint(rw, `<!doctype html><title>weir</title><script src="/script.js"></script>`)
		case "/script.js":
			rw.Header().Set("Content-Type", "text/javascript")
			fmt.Fprint(rw, `
				const parts = Array.from({length: 50}, (_, i) => fetch('/part/' + i, {method: 'POST', body: 'x'.repeat(i * 1000)}).then(r => r.text()));
				Promise.all(parts).then(all => {
					const socket = new WebSocket('wss://' + location.host + '/ws');
					socket.onopen = () => socket.send('hello ' + all.length + ' ' + all[49]);
					socket.onmessage = m => fetch('/done?' + encodeURIComponent(m.data));
					socket.onerror = () => fetch('/failed');
				}, e => fetch('/failed?' + encodeURIComponent(e)));`)
		case "/ws":
			echoWebSocket(rw, r)
		case "/done", "/failed":
		default:
			n, _ := discard(r)
			fmt.Fprint(rw, n)
		}
	})
	w.start(http2Config)
	_, port, _ := net.SplitHostPort(w.at("secure"))
	runPeer(t, chromium, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--ignore-certificate-errors", "--no-proxy-server",
		"--user-data-dir="+t.TempDir(), "--remote-debugging-port=0", "--host-resolver-rules=MAP app.example.org 127.0.0.1",
		"https://app.example.org:"+port+"/page")
	within(t, 3*patience, "the page is through", func() error {
		for _, e := range w.accessLog() {
			if target := e.text("target"); len(target) >= 7 && (target[:5] == "/done" || target[:7] == "/failed") {
				return nil
			}
		}
		return errNotYet
	})
	w.byHTTP2("/done?hello%2050%2049000")
	w.byHTTP2("/page")
	w.byHTTP2("/part/49")
	eventually(t, "all requests are logged", func() error {
		if n := len(w.accessLog()); n < 53 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	w.wantMetric(1, "weir_tunnels_open")
	for _, e := range w.accessLog() {
		if e.text("http_version") != "2" {
			t.Errorf("not by HTTP/2: %v", e)
		}
	}
}
