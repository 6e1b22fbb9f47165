package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
)

// stuckRoutes have sticky sessions on a backend, and on two backends with weights.
const stuckRoutes = `
listeners:
  web: {address: '@web', protocol: http}
  websecure: {address: '@websecure', protocol: tls}
certificates: [{self_signed: {hosts: [split.shop.test]}}]
routes:
  - {name: stuck, listeners: [web, websecure], hosts: [split.shop.test], paths: [/s, /ws], backend: sticky}
  - {name: pair, listeners: [web], hosts: [split.shop.test], paths: [/w], backends: [{name: blue}, {name: green}]}
backends:
  sticky: {endpoints: ['@one', '@two', '@three'], balance: round_robin, sticky: {cookie: weir, max_age: 1h}}
  blue: {endpoints: ['@one', '@two'], balance: round_robin, sticky: {}}
  green: {endpoints: ['@three', '@two'], balance: round_robin, sticky: {}}
`

// startSticky starts weir with three endpoints, which say who they are.
func startSticky(t *testing.T, config string) (*weir, map[string]*webBackend) {
	t.Helper()
	t.Parallel()
	w, all := newWeir(t), map[string]*webBackend{}
	for _, name := range []string{"one", "two", "three"} {
		all[name] = newWebBackend(t, name)
		w.address[name] = all[name].address
	}
	return w.start(config), all
}

// stuckTo asks with a cookie of weir, and returns the endpoint and the new cookie, if there is one.
func stuckTo(t *testing.T, w *weir, target, value string, lines ...string) (endpoint string, set *http.Cookie) {
	t.Helper()
	if value != "" {
		lines = append(lines, "Cookie: other=1; weir="+value+"; weir=second")
	}
	resp, body := called(t, w, "GET", "split.shop.test", target, lines...)
	var s seen
	if err := json.Unmarshal(body, &s); resp.StatusCode != 200 || err != nil {
		t.Fatalf("%s: %s, %v", resp.Status, body, err)
	}
	return s.Backend, cookieOf(t, resp)
}

func cookieOf(t *testing.T, resp *http.Response) *http.Cookie {
	t.Helper()
	switch set := resp.Cookies(); len(set) {
	case 0:
		return nil
	case 1:
		return set[0]
	default:
		t.Fatalf("%d cookies: %v", len(set), set)
	}
	return nil
}

func TestRouteSticky(t *testing.T) {
	w, all := startSticky(t, stuckRoutes)
	first, set := stuckTo(t, w, "/s", "")
	if set == nil || set.Name != "weir" || set.Path != "/" || set.MaxAge != 3600 || !set.HttpOnly || set.SameSite != http.SameSiteLaxMode || set.Secure {
		t.Fatalf("the cookie is %v", set)
	}
	if strings.Contains(set.Value, "127") || strings.Contains(set.Value, first) {
		t.Errorf("the cookie %q reveals the endpoint", set.Value)
	}
	for range 50 {
		if got, again := stuckTo(t, w, "/s", set.Value); got != first || again != nil {
			t.Fatalf("got %s and the cookie %v, not %s without one", got, again, first)
		}
	}
	for _, value := range []string{"junk", set.Value[:8], set.Value + "A", strings.Repeat("A", 24)} {
		if _, again := stuckTo(t, w, "/s", value); again == nil || again.Value == value {
			t.Errorf("after the cookie %q: %v", value, again)
		}
	}
	w.reload(strings.Replace(stuckRoutes, "name: stuck,", "name: renamed,", 1))
	if got, again := stuckTo(t, w, "/s", set.Value); got != first || again != nil {
		t.Errorf("after a reload: %s with the cookie %v, not %s", got, again, first)
	}
	all[first].close()
	moved, again := stuckTo(t, w, "/s", set.Value)
	if moved == first || again == nil || again.Value == set.Value {
		t.Fatalf("after the end of %s: %s with the cookie %v", first, moved, again)
	}
	for range 20 {
		if got, third := stuckTo(t, w, "/s", again.Value); got != moved || third != nil {
			t.Fatalf("got %s and the cookie %v, not %s without one", got, third, moved)
		}
	}
	if n := w.metric("weir_backend_sticky_requests_total", "backend", "sticky", "result", "kept"); n < 70 {
		t.Errorf("%v requests were kept", n)
	}
	w.wantMetric(1, "weir_backend_sticky_requests_total", "backend", "sticky", "result", "new")
}

// Over TLS the cookie is Secure. HTTP/2 brings cookies in pieces.
func TestRouteStickyOverTLS(t *testing.T) {
	w, _ := startSticky(t, stuckRoutes)
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, w.at("websecure"))
		}}
	defer transport.CloseIdleConnections()
	request := func(value string) (string, *http.Cookie) {
		t.Helper()
		req, err := http.NewRequest("GET", "https://split.shop.test/s", nil)
		if err != nil {
			t.Fatal(err)
		}
		if value != "" {
			req.Header["Cookie"] = []string{"other=1", "weir=" + value}
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var s seen
		if err := json.NewDecoder(resp.Body).Decode(&s); err != nil || resp.ProtoMajor != 2 {
			t.Fatal(resp.Proto, err)
		}
		return s.Backend, cookieOf(t, resp)
	}
	first, set := request("")
	if set == nil || !set.Secure || !set.HttpOnly {
		t.Fatalf("the cookie is %v", set)
	}
	for range 10 {
		if got, again := request(set.Value); got != first || again != nil {
			t.Fatalf("got %s and the cookie %v, not %s without one", got, again, first)
		}
	}
}

// The cookie also decides which of two weighted backends a client gets, even after the end of its
// endpoint.
func TestRouteStickyWeights(t *testing.T) {
	w, all := startSticky(t, stuckRoutes)
	mine, theirs := "", ""
	for mine == "" || theirs == "" { // the weights alternate
		switch first, set := stuckTo(t, w, "/w", ""); first {
		case "one":
			mine = set.Value
		case "three":
			theirs = set.Value
		}
	}
	for range 20 {
		if got, again := stuckTo(t, w, "/w", mine); got != "one" || again != nil {
			t.Fatalf("the client of one got %s and the cookie %v", got, again)
		}
		if got, again := stuckTo(t, w, "/w", theirs); got != "three" || again != nil {
			t.Fatalf("the client of three got %s and the cookie %v", got, again)
		}
	}
	all["one"].close()
	for range 10 {
		if got, again := stuckTo(t, w, "/w", mine); got != "two" || again == nil {
			t.Fatalf("after the end of one: %s with the cookie %v", got, again)
		}
	}
}

// A key keeps clients with their endpoints over a restart, and so does a storage.
func TestRouteStickyRestart(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][2]string{
		"key":     {"sticky: {cookie: weir, max_age: 1h, key: '${STICKY_KEY}'}", ""},
		"storage": {"sticky: {cookie: weir, max_age: 1h}", "storage: '@@dir/storage'\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := strings.Replace(stuckRoutes, "sticky: {cookie: weir, max_age: 1h}", settings[0], 1) + settings[1]
			w := newWeir(t)
			for _, backend := range []string{"one", "two", "three"} {
				w.address[backend] = newWebBackend(t, backend).address
			}
			w.env = append(w.env, "STICKY_KEY="+strings.Repeat("k", 32))
			w.start(config)
			first, set := stuckTo(t, w, "/s", "")
			if w.terminate() != 0 {
				t.Error("weir did not end well")
			}
			w.start(config)
			for range 10 {
				if got, again := stuckTo(t, w, "/s", set.Value); got != first || again != nil {
					t.Fatalf("after a restart: %s with the cookie %v, not %s", got, again, first)
				}
			}
		})
	}
}

// A WebSocket goes to the endpoint of the cookie. The 101 for a client without a cookie brings one.
func TestRouteStickyUpgrade(t *testing.T) {
	w, _ := startSticky(t, stuckRoutes)
	upgrade := func(lines ...string) *http.Cookie {
		t.Helper()
		c := dial(t, w.at("web"))
		defer c.Close()
		resp, err := handshake(c, append(lines, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")...)
		if err != nil || resp.StatusCode != 101 {
			t.Fatal(resp, err)
		}
		return cookieOf(t, resp)
	}
	set := upgrade()
	if set == nil {
		t.Fatal("the 101 has no cookie")
	}
	for range 5 {
		if again := upgrade("Cookie: weir=" + set.Value); again != nil {
			t.Errorf("another 101 has the cookie %v", again)
		}
	}
}

func handshake(c net.Conn, lines ...string) (*http.Response, error) {
	if _, err := c.Write([]byte("GET /ws HTTP/1.1\r\nHost: split.shop.test\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n")); err != nil {
		return nil, err
	}
	return http.ReadResponse(bufio.NewReader(c), nil)
}
