package annotation

import (
	"fmt"
	"strings"
	"testing"
)

func TestCORS(t *testing.T) {
	f := func(want, why string, pairs ...string) {
		t.Helper()
		i := ingressWith(valuesOf(append([]string{"enable-cors", "true"}, pairs...)...))
		closed, got := ratingsOf(i)
		if text := fmt.Sprintf("%+v", SettingsOf(i).CORS); closed || text != want && !strings.Contains(text, want) || !strings.Contains(got, why) || why == "" && got != "" {
			t.Errorf("%q sets %s because of %q", pairs, text, got)
		}
	}
	f("{Enabled:true Origins:[*] Methods:GET, PUT, POST, DELETE, PATCH, OPTIONS Headers:DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization Expose: Credentials:true MaxAge:480h0m0s}", "")
	const off = "{Enabled:false Origins:[] Methods: Headers: Expose: Credentials:false MaxAge:0s}"
	f(off, "", "enable-cors", "false", "cors-allow-origin", "!")
	f(off, "takes the value for false", "enable-cors", "yes")
	f("Origins:[https://a.example https://*.b.example:8443 null my://x]", "compares the whole origin", "cors-allow-origin", "https://A.example, https://*.b.example:8443,null,my://x")
	f("Origins:[*]", "", "cors-allow-origin", "https://a.example,*,https://b.example")
	f("Origins:[https://a.example]", "leaves out", "cors-allow-origin", "https://a.example,b.example")
	f("Origins:[]", "leaves out", "cors-allow-origin", "b.example")
	f("Origins:[]", "allows none", "cors-allow-origin", "https://a.example/x")
	f("Methods:GET, PUT Headers:X-A,X_B Expose:*, X-C Credentials:false MaxAge:10m0s", "", "cors-allow-methods", "GET, PUT", "cors-allow-headers", "X-A,X_B",
		"cors-expose-headers", "*, X-C", "cors-allow-credentials", "false", "cors-max-age", "600")
	f("Methods:GET, PUT, POST", "uses its default", "cors-allow-methods", "GET; PUT")
	f("Methods:GET, PUT, POST", "uses its default", "cors-allow-methods", "GET,\nPUT")
	f("Headers:DNT", "uses its default", "cors-allow-headers", "*")
	f("Expose: ", "uses its default", "cors-expose-headers", "X-A:b")
	f("Credentials:true", "uses its default", "cors-allow-credentials", "no")
	f("MaxAge:480h0m0s", "uses its default", "cors-max-age", "10m")
	f("MaxAge:-1s", "", "cors-max-age", "-1")
}

func init() {
	add := func(name, words, value string) {
		others[words] = map[string]string{"enable-cors": "true", name: value}
		samples[name] = append(samples[name], sample{words, value, false})
	}
	add("enable-cors", "`true`, `false` ", "true")
	add("enable-cors", "other values ", "x")
	add("cors-allow-origin", "`*`", "*")
	add("cors-allow-origin", "origins", "https://a.example")
	add("cors-allow-origin", "lists with elements that are no origins", "a.example")
	add("cors-allow-origin", "lists that ingress-nginx cannot read", "/")
	add("cors-allow-methods", "names of methods", "GET")
	add("cors-allow-methods", "other lists of methods", "/")
	add("cors-allow-headers", "names of HTTP headers ", "a")
	add("cors-allow-headers", "other lists of HTTP headers", "*")
	add("cors-expose-headers", "names of HTTP headers, `*`", "a")
	add("cors-expose-headers", "other lists of exposed HTTP headers", "/")
	add("cors-allow-credentials", "`true`, `false`  ", "true")
	add("cors-allow-credentials", "other values  ", "x")
	add("cors-max-age", "numbers", "1")
	add("cors-max-age", "other values   ", "x")
}
