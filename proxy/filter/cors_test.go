package filter

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

var shop = config.CORS{Origins: []string{"https://app.test", "https://*.app.test", "https://**.deep.test:8443"}, Methods: []string{"GET", "PUT"},
	Headers: []string{"X-Token"}, Expose: []string{"X-Total"}, Credentials: true, MaxAge: 10 * time.Minute}

// The Fetch standard, sections "CORS protocol" and "CORS check".
func TestCORS(t *testing.T) {
	f := func(c config.CORS, request string, answer string, want ...string) {
		t.Helper()
		words := strings.Split(request, "; ")
		x := newExchange(words[0], "/")
		for _, line := range words[1:] {
			name, value, _ := strings.Cut(line, ": ")
			x.req.AddField(name, value)
		}
		chain := Compile(&config.Route{Backend: "b", CORS: &c}, nil)
		if !chain.Answer(x) { // the endpoint's response
			x.res.Status = 200
			for _, line := range []string{"access-control-allow-origin: *", "Access-Control-Allow-Methods: DELETE", "Access-Control-Expose-Headers: X-Secret", "Access-Control-Max-Age: 5", "X-Kept: 1"} {
				name, value, _ := strings.Cut(line, ": ")
				x.res.AddField(name, value)
			}
			want = append([]string{"X-Kept: 1"}, want...)
		}
		chain.EditResponse(x, &x.res)
		if got := lines(&x.res.Head); strings.TrimSpace(x.answer) != answer || !slices.Equal(got, want) {
			t.Errorf("%s: %q with\n%s\nnot\n%s", request, x.answer, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	const vary, credentials, expose = "Vary: Origin", "Access-Control-Allow-Credentials: true", "Access-Control-Expose-Headers: X-Total"
	allowed := func(origin string) string { return "Access-Control-Allow-Origin: " + origin }
	preflight := []string{"Access-Control-Allow-Methods: GET, PUT", "Access-Control-Allow-Headers: X-Token", "Access-Control-Max-Age: 600"}
	ok := func(origin string) []string {
		return append([]string{vary, allowed(origin), credentials}, preflight...)
	}

	const ask = "; Access-Control-Request-Method: PUT"
	f(shop, "OPTIONS; Origin: https://app.test"+ask, "204 cors_preflight", ok("https://app.test")...)
	f(shop, "OPTIONS; Origin: https://a.app.test"+ask, "204 cors_preflight", ok("https://a.app.test")...)
	f(shop, "OPTIONS; Origin: https://a.b.deep.test:8443"+ask+"; Access-Control-Request-Headers: x-other", "204 cors_preflight", ok("https://a.b.deep.test:8443")...)
	// No allow headers for other origins.
	for _, other := range []string{"http://app.test", "https://app.test:8443", "https://app.test.evil.test", "https://evilapp.test", "https://a.b.app.test", "https://.app.test",
		"https://deep.test:8443", "https://a.deep.test", "https://a..b.deep.test:8443", "https://.a.deep.test:8443", "https://a/.app.test", "https://a@b.app.test", "https://a:1.app.test", "HTTPS://app.test", "null", "*"} {
		f(shop, "OPTIONS; Origin: "+other+ask, "204 cors_preflight", vary)
		f(shop, "GET; Origin: "+other, "", vary)
	}
	// These are no preflights.
	f(shop, "OPTIONS; Origin: https://app.test", "", vary, allowed("https://app.test"), credentials, expose)
	f(shop, "OPTIONS"+ask, "", vary)
	f(shop, "GET; Origin: https://app.test"+ask, "", vary, allowed("https://app.test"), credentials, expose)
	f(shop, "GET", "", vary)
	// Every origin: the response is the same for all.
	every := config.CORS{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}}
	f(every, "GET; Origin: null", "", allowed("*"))
	f(every, "GET", "")
	f(every, "OPTIONS; Origin: https://a.test"+ask, "204 cors_preflight", allowed("*"), "Access-Control-Allow-Methods: *", "Access-Control-Allow-Headers: *")
}

// As the Gateway API demands, a star with credentials stands for what the request names, because
// browsers read a literal star in such responses as a name.
func TestCORSEchoes(t *testing.T) {
	f := func(c config.CORS, headers map[string]string, want string) {
		t.Helper()
		c.Echo = true
		x := newExchange(cmp.Or(headers[":method"], "GET"), "/")
		for name, value := range headers {
			if name[0] != ':' {
				x.req.AddField(name, value)
			}
		}
		Compile(&config.Route{CORS: &c}, nil).EditResponse(x, &x.res)
		var got []string
		for i := range x.res.Fields {
			if !x.res.Fields[i].Dropped {
				got = append(got, string(x.res.Name(i))+": "+string(x.res.Value(i)))
			}
		}
		slices.Sort(got)
		if all := strings.Join(got, "; "); all != want {
			t.Errorf("%v gets %q, not %q", headers, all, want)
		}
	}
	stars := config.CORS{Origins: []string{"*"}, Methods: []string{"*"}, Headers: []string{"*"}, Expose: []string{"X-A"}}
	preflight := map[string]string{":method": "OPTIONS", "Origin": "https://a.test", "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "x-b, x-c"}
	f(stars, preflight, "Access-Control-Allow-Headers: *; Access-Control-Allow-Methods: *; Access-Control-Allow-Origin: *; Access-Control-Expose-Headers: X-A")
	stars.Credentials = true
	f(stars, preflight, "Access-Control-Allow-Credentials: true; Access-Control-Allow-Headers: x-b, x-c; Access-Control-Allow-Methods: PUT; Access-Control-Allow-Origin: https://a.test; Access-Control-Expose-Headers: X-A; Vary: Origin")
	f(stars, map[string]string{"Origin": "https://a.test"}, "Access-Control-Allow-Credentials: true; Access-Control-Allow-Origin: https://a.test; Access-Control-Expose-Headers: X-A; Vary: Origin")
	f(stars, nil, "Vary: Origin")
	stars.Methods, stars.Headers = []string{"GET"}, nil
	f(stars, preflight, "Access-Control-Allow-Credentials: true; Access-Control-Allow-Methods: GET; Access-Control-Allow-Origin: https://a.test; Access-Control-Expose-Headers: X-A; Vary: Origin")
}

func TestCORSAfterOtherFilters(t *testing.T) {
	x := newExchange("GET", "/")
	x.req.AddField("Origin", "https://app.test")
	c := Compile(&config.Route{Backend: "b", CORS: &shop, Redirect: &config.Redirect{Host: "b.example", Status: 302},
		Request:  &config.HeaderEdits{Set: []config.HeaderValue{{Name: "Origin", Value: "https://inside.test"}}},
		Response: &config.HeaderEdits{Set: []config.HeaderValue{{Name: "Access-Control-Allow-Origin", Value: "https://evil.test"}}, Add: []config.HeaderValue{{Name: "Vary", Value: "Accept, origin"}}}}, nil)
	c.EditRequest(x)
	c.EditResponse(x, &x.res)
	if got, want := strings.Join(lines(&x.res.Head), "; "), "Vary: Accept, origin; Access-Control-Allow-Origin: https://app.test; Access-Control-Allow-Credentials: true; Access-Control-Expose-Headers: X-Total"; got != want {
		t.Errorf("the headers are %s", got)
	}
	// A preflight is answered before the redirect.
	x = newExchange("OPTIONS", "/")
	x.req.AddField("Origin", "https://app.test")
	x.req.AddField("Access-Control-Request-Method", "PUT")
	if c.Answer(x); x.answer != "204 cors_preflight " {
		t.Errorf("a preflight is answered with %q", x.answer)
	}
}

func TestCORSAllocatesNothing(t *testing.T) {
	c := Compile(&config.Route{Backend: "b", CORS: &shop}, nil)
	x := newExchange("GET", "/")
	x.req.AddField("Origin", "https://a.app.test")
	if n := testing.AllocsPerRun(100, func() {
		x.res.Reset()
		c.Answer(x)
		c.EditResponse(x, &x.res)
	}); n != 0 {
		t.Errorf("CORS allocates %v times", n)
	}
}
