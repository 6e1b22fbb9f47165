package proxy

import (
	"testing"
)

// The route of a preflight is the route of the request after it.
func TestRoutesOfPreflights(t *testing.T) {
	table := tableOf(t, `
listeners: {web: {address: ":80", protocol: http}}
routes:
  - {name: all, listeners: [web], hosts: [a.test], backend: app}
  - {name: cart, listeners: [web], hosts: [a.test], paths: [/cart], backend: app, cors: {origins: ["*"]}}
  - {name: write, listeners: [web], hosts: [a.test], paths: [/cart], match: {methods: [PUT]}, backend: app, cors: {origins: ["*"]}}
  - {name: canary, listeners: [web], hosts: [a.test], paths: [/cart], match: {methods: [PATCH], headers: {X-Canary: "1"}, cookies: {a: b}}, backend: app, cors: {origins: ["*"]}}
  - {name: closed, listeners: [web], hosts: [a.test], paths: [/cart], match: {methods: [DELETE]}, backend: app}
  - {name: queried, listeners: [web], hosts: [a.test], paths: [/cart], match: {query: {v: "1"}}, backend: app, cors: {origins: ["*"]}}
  - {name: options, listeners: [web], hosts: [a.test], paths: [/own], match: {methods: [OPTIONS]}, backend: app}
  - {name: own, listeners: [web], hosts: [a.test], paths: [/own], match: {methods: [POST], headers: {X-Secret: "1"}}, backend: app}
backends: {app: {endpoints: ["192.0.2.1:80"]}}
`)
	f := func(method, target, asks, want string) {
		t.Helper()
		with := "`Origin: https://b.test`"
		if asks != "" {
			with += " `Access-Control-Request-Method: " + asks + "`"
		}
		if got := table.routedFor(method, "a.test", target, with); got != want {
			t.Errorf("%s %s for %s goes to %s, not %s", method, target, asks, got, want)
		}
	}
	f("OPTIONS", "/cart", "GET", "cart")
	f("OPTIONS", "/cart", "PUT", "write")
	f("OPTIONS", "/cart", "PATCH", "canary")
	f("OPTIONS", "/cart?v=1", "GET", "queried")
	f("OPTIONS", "/cart?v=1", "PUT", "write")
	f("OPTIONS", "/cart", "", "cart")
	f("GET", "/cart", "PUT", "cart")
	// A route without cors: another route must not answer for it.
	f("OPTIONS", "/cart", "DELETE", "cors_other_route")
	// An endpoint gets a preflight only by a route that accepts it.
	f("OPTIONS", "/own", "POST", "options")
	f("OPTIONS", "/other", "POST", "all")
}
