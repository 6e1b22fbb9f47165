package e2e

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// weir explain names the route that a request gets: for the file, and for the weir that runs it.
func TestExplainAgreesWithRequests(t *testing.T) {
	m := startMatch(t)
	f := func(route, url string, args ...string) {
		t.Helper()
		for _, of := range [][]string{{"-c", m.config}, {"--admin", m.at("admin")}} {
			all := append(append([]string{"explain", "--json", "--client", "192.0.2.1"}, of...), append(args, url)...)
			out, err := exec.Command(executable(t), all...).Output()
			var x struct{ Route, Listener string }
			if decoded := json.Unmarshal(out, &x); decoded != nil || x.Route != route || (err == nil) != (route != "") {
				t.Errorf("weir %s: %v, %s, want %s", strings.Join(all, " "), err, out, route)
			}
		}
		method, target := "GET", strings.TrimPrefix(url, "http://")
		if len(args) > 0 {
			method = args[1]
		}
		m.wants(route, method+" "+target, "Content-Length: 0")
	}
	f("plain", "http://shop.test/cart")
	f("by-method", "http://shop.test/cart", "--method", "PUT")
	f("by-query", "http://shop.test/cart?beta&v=7")
	f("expression", "http://shop.test/v22/items/7?x=1")
	f("one-label", "http://eu.shop.test/")
	f("any-depth", "http://a.b.eu.shop.test/x")
	f("plain", "http://shop.test/admin")
	f("", "http://a.b.shop.test/")
}
