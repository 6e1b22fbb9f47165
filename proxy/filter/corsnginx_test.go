package filter

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// What ingress-nginx sends, checked beside it by e2e/kube.
func TestNginxCORS(t *testing.T) {
	every := config.CORS{Origins: []string{"*"}, Methods: []string{"GET, PUT"}, Headers: []string{"X-A,X-B"}, Credentials: true, MaxAge: time.Minute, AsNginx: true}
	some := config.CORS{Origins: []string{"https://a.test", "null", "https://*.b.test:8443"}, Methods: []string{"GET"}, Headers: []string{"X-A"}, Expose: []string{"X-C"}, AsNginx: true}
	f := func(c config.CORS, request, answer string, want ...string) {
		t.Helper()
		words := strings.Split(request, "; ")
		x := newExchange(words[0], "/").with(strings.Join(words[1:], "|"))
		chain := Compile(&config.Route{Backend: "b", CORS: &c, Clients: &config.Clients{Deny: nil, Allow: nil}}, nil)
		if !chain.Answer(x) { // the endpoint's response
			x.res.Status = 200
			x.res.AddField("access-control-allow-origin", "https://theirs.test")
			x.res.AddField("Access-Control-Expose-Headers", "X-Theirs")
		}
		chain.EditResponse(x, &x.res)
		if got := lines(&x.res.Head); strings.TrimSpace(x.answer) != answer || !slices.Equal(got, want) {
			t.Errorf("%s: %q with\n%s\nnot\n%s", request, x.answer, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	const theirs = "Access-Control-Expose-Headers: X-Theirs"
	all := []string{"Access-Control-Allow-Origin: *", "Access-Control-Allow-Credentials: true", "Access-Control-Allow-Methods: GET, PUT", "Access-Control-Allow-Headers: X-A,X-B", "Access-Control-Max-Age: 60"}
	f(every, "OPTIONS", "204 cors_preflight", all...)
	f(every, "OPTIONS; Origin: https://x.test; Access-Control-Request-Method: PUT", "204 cors_preflight", all...)
	f(every, "GET", "", append([]string{theirs}, all...)...)
	f(every, "GET; Origin: https://x.test", "", append([]string{theirs}, all...)...)
	for _, origin := range []string{"https://a.test", "https://x.b.test:8443", "null", "HTTPS://A.test"} {
		ok := []string{"Vary: Origin", "Access-Control-Allow-Origin: " + origin, "Access-Control-Allow-Methods: GET", "Access-Control-Allow-Headers: X-A", "Access-Control-Expose-Headers: X-C", "Access-Control-Max-Age: 0"}
		f(some, "OPTIONS; Origin: "+origin, "204 cors_preflight", ok...)
		f(some, "GET; Origin: "+origin, "", ok...)
	}
	for _, origin := range []string{"https://a.test.evil", "xhttps://a.test", "https://a.test:8443", "https://x.y.b.test:8443", "https://evilnull", "NULLX"} {
		f(some, "OPTIONS; Origin: "+origin, "", "access-control-allow-origin: https://theirs.test", theirs, "Vary: Origin")
	}
	f(some, "OPTIONS", "", "access-control-allow-origin: https://theirs.test", theirs, "Vary: Origin")
}
