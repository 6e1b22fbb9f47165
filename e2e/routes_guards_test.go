package e2e

import (
	"bufio"
	"net/http"
	"testing"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// guardsTogether has a route for each kind of refusal, with CORS and response headers.
const guardsTogether = `
listeners: {web: {address: '@web', protocol: http}}
auth: {staff: {basic: {file: '@@dir/users.htpasswd', realm: Staff}}}
rate_limits: {one: {rate: 1/h, burst: 1, per: route}}
routes:
  - {listeners: [web], hosts: [auth.test], auth: staff, mirror: [{backend: copy}], cors: {origins: ["https://app.test"]}, response: {set: {X-A: b}}, backend: app}
  - {listeners: [web], hosts: [rate.test], rate_limit: one, cors: {origins: ["https://app.test"]}, response: {set: {X-A: b}}, backend: app}
  - {listeners: [web], hosts: [clients.test], clients: {deny: [127.0.0.0/8]}, cors: {origins: ["https://app.test"]}, response: {set: {X-A: b}}, backend: app}
  - {listeners: [web], hosts: [none.test], cors: {origins: ["https://app.test"]}, response: {set: {X-A: b}}, backend: none}
backends:
  app: {endpoints: ['@app']}
  copy: {endpoints: ['@copy']}
  none: {endpoints: ['@none'], health_check: {tcp: {}}}
`

// Scripts of other origins can read refusals, which also have the route's response headers. A
// password that weir has checked reaches neither the endpoint nor a mirror.
func TestRouteGuardsTogether(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	writeUsers(t, w, staffUsers)
	copies := make(chan http.Header, 10)
	l, err := freeport.Listen(w.at("copy"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { copies <- r.Header })}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	w.address["app"] = newWebBackend(t, "app").address
	w.start(guardsTogether)
	for _, test := range []struct {
		host   string
		status int
	}{{"auth.test", 401}, {"rate.test", 200}, {"rate.test", 429}, {"clients.test", 403}, {"none.test", 503}} {
		c := dial(t, w.at("web"))
		resp, _, err := ask(c, bufio.NewReader(c), "GET", test.host, "/", "Origin: https://app.test")
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
		if h := resp.Header; resp.StatusCode != test.status || h.Get("Access-Control-Allow-Origin") != "https://app.test" || h.Get("X-A") != "b" {
			t.Errorf("%s: %s with %v, want %d with the headers of CORS and of response", test.host, resp.Status, h, test.status)
		}
	}
	c := dial(t, w.at("web"))
	defer c.Close()
	got, err := askSeen(c, "auth.test", "/", "Authorization: Basic YWRhOmxvdmVsYWNl")
	if err != nil || got.Header.Get("Authorization") != "" || got.Header.Get("X-Forwarded-User") != "ada" {
		t.Errorf("the endpoint got %v, %v", got.Header, err)
	}
	select {
	case h := <-copies:
		if h.Get("Authorization") != "" || h.Get("X-Forwarded-User") != "ada" {
			t.Errorf("the mirror got %v", h)
		}
	case <-time.After(patience):
		t.Error("the mirror got no copy")
	}
}
