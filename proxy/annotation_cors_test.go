package proxy

import (
	"fmt"
	"strings"
	"testing"
)

// The cases of ingress-nginx's test/e2e/annotations/cors.go: which origins an Ingress with enable-cors allows, and what it
// tells pages of other origins.
func TestIngressCORS(t *testing.T) {
	type want map[string]string // the value of Access-Control-Allow-Origin by the origin; empty: none
	cases := []struct {
		name, annotation string
		want             want
	}{
		{"should enable cors", "", want{"": "*"}},
		{"should allow origin for cors", "cors-allow-origin: https://origin.cors.com:8080", want{"https://origin.cors.com:8080": "https://origin.cors.com:8080"}},
		{"should allow - single origin for multiple cors values", "cors-allow-origin: https://origin.cors.com:8080, https://origin2.cors.com", want{"https://origin.cors.com:8080": "https://origin.cors.com:8080"}},
		{"should not allow - single origin for multiple cors values", "cors-allow-origin: http://origin2.cors.com, https://origin.com", want{"http://no.origin.com": ""}},
		{"should allow correct origins - single origin for multiple cors values", "cors-allow-origin: origin.cors.com:8080, https://origin2.cors.com, https://origin.com",
			want{"origin.cors.com:8080": "", "https://origin2.cors.com": "https://origin2.cors.com", "https://origin.com": "https://origin.com"}},
		{"should not break functionality", "cors-allow-origin: *", want{"": "*"}},
		{"should not break functionality - without `*`", "", want{"": "*"}},
		{"should not break functionality with extra domain", "cors-allow-origin: *, foo.bar.com", want{"": "*"}},
		{"should not match", "cors-allow-origin: https://foo.bar.com", want{"https://fooxbar.com": ""}},
		{"should allow - single origin with required port", "cors-allow-origin: http://origin.cors.com:8080, http://origin.com:8080", want{"http://origin.com:8080": "http://origin.com:8080"}},
		{"should not allow - single origin with port and origin without port", "cors-allow-origin: https://origin2.cors.com, http://origin.com", want{"http://origin.com:8080": ""}},
		{"should not allow - single origin without port and origin with required port", "cors-allow-origin: http://origin.cors.com:8080, http://origin.com:8080", want{"http://origin.com": ""}},
		{"should allow - matching origin with wildcard origin (2 subdomains)", "cors-allow-origin: http://*.origin.cors.com, http://*.origin.com:8080",
			want{"http://foo.origin.cors.com": "http://foo.origin.cors.com", "http://bar-foo.origin.cors.com": "http://bar-foo.origin.cors.com"}},
		{"should not allow - unmatching origin with wildcard origin (2 subdomains)", "cors-allow-origin: http://*.origin.cors.com, http://*.origin.com:8080", want{"http://bar.foo.origin.cors.com": ""}},
		{"should allow - matching origin+port with wildcard origin", "cors-allow-origin: http://origin.cors.com:8080, http://*.origin.com:8080", want{"http://abc.origin.com:8080": "http://abc.origin.com:8080"}},
		{"should not allow - portless origin with wildcard origin", "cors-allow-origin: http://origin.cors.com:8080, http://*.origin.com:8080", want{"http://abc.origin.com": ""}},
		{"should allow correct origins - missing subdomain + origin with wildcard origin and correct origin", "cors-allow-origin: http://origin.cors.com:8080, http://*.origin.com:8080",
			want{"http://origin.com:8080": "", "http://bar.origin.com:8080": "http://bar.origin.com:8080"}},
		{"should allow - missing origins (should allow all origins)", "cors-allow-origin:      ", want{"http://origin.com": "*", "http://book.origin.com": "*", "test.origin.com": "*"}},
		{"should allow correct origin but not others - cors allow origin annotations contain trailing comma", "cors-allow-origin: https://origin-123.cors.com:8080,   ,https://origin-321.cors.com:8080,",
			want{"https://origin-123.cors.com:8080": "https://origin-123.cors.com:8080", "https://origin-321.cors.com:8080": "https://origin-321.cors.com:8080", "https://unknown.cors.com:8080": ""}},
		{"should allow - origins with non-http[s] protocols", "cors-allow-origin: test://localhost, tauri://localhost:3000", want{"test://localhost": "test://localhost", "tauri://localhost:3000": "tauri://localhost:3000"}},
	}
	manifests := ""
	host := func(n int) string { return fmt.Sprintf("cors%d.foo.com", n) }
	for n, c := range cases {
		annotations := []string{"enable-cors: true"}
		if c.annotation != "" {
			annotations = append(annotations, c.annotation)
		}
		manifests += ingress(fmt.Sprint("a/cors", n), 1, host(n)+" Prefix / app", annotations...)
	}
	// The values of other HTTP headers: annotation, HTTP header, value.
	values := [][3]string{
		{"cors-allow-methods: POST, GET", "Access-Control-Allow-Methods", "POST, GET"},
		{"cors-max-age: 200", "Access-Control-Max-Age", "200"},
		{"cors-allow-credentials: false", "Access-Control-Allow-Credentials", ""},
		{"cors-allow-headers: DNT, User-Agent", "Access-Control-Allow-Headers", "DNT, User-Agent"},
		{"cors-expose-headers: X-CustomResponseHeader, X-CustomSecondHeader", "Access-Control-Expose-Headers", "X-CustomResponseHeader, X-CustomSecondHeader"},
	}
	for n, c := range values {
		manifests += ingress(fmt.Sprint("a/values", n), 1, fmt.Sprintf("values%d.foo.com Prefix / app", n), "enable-cors: true", c[0])
	}
	i := newIngressRig(t, "", manifests)
	for n, c := range cases {
		for origin, want := range c.want {
			field := ""
			if origin != "" {
				field = "\nOrigin: " + origin
			}
			got := i.ask("GET http://" + host(n) + "/" + field)
			if allowed := got.Header.Get("Access-Control-Allow-Origin"); got.StatusCode != 200 || allowed != want {
				t.Errorf("%s: %q is answered by %d and allows %q, want %q", c.name, origin, got.StatusCode, allowed, want)
			}
		}
	}
	for n, c := range values {
		if got := strings.Join(i.ask(fmt.Sprintf("GET http://values%d.foo.com/\nOrigin: http://a.test", n)).Header[c[1]], "|"); got != c[2] {
			t.Errorf("%s: %s is %q, want %q", c[0], c[1], got, c[2])
		}
	}
}
