package proxy

import (
	"encoding/base64"
	"testing"
)

// The cases of ingress-nginx's test/e2e/annotations/auth.go about auth-type.
func TestIngressBasicAuth(t *testing.T) {
	const foo = "foo:{SHA}Ys23Ag/5IOWqZCw9QGaVDdHwH00=" // bar
	auth := func(secret string, more ...string) []string {
		return append([]string{"auth-type: basic", "auth-secret: " + secret, "auth-realm: test auth"}, more...)
	}
	i := newIngressRig(t, "", secretManifest("a/test", "auth", foo+"\n")+secretManifest("a/map", "foo", foo[len("foo:"):])+secretManifest("a/invalid", "auth", "foo:")+
		ingress("a/none", 1, "none.test Prefix / app")+
		ingress("a/missing", 1, "missing.test Prefix / app", auth("something")...)+
		ingress("a/auth", 1, "auth.test Prefix / app", auth("test")...)+
		ingress("a/cors", 1, "cors.test Prefix / app", auth("test", "enable-cors: true")...)+
		ingress("a/map", 1, "map.test Prefix / app", auth("map", "auth-secret-type: auth-map")...)+
		ingress("a/invalid", 1, "invalid.test Prefix / app", auth("invalid")...))
	as := func(user string) string {
		return "\nAuthorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user))
	}
	for request, want := range map[string]int{
		"none.test/":                       200,
		"missing.test/" + as("foo:bar"):    503,
		"auth.test/":                       401,
		"auth.test/" + as("user:password"): 401,
		"auth.test/" + as("foo:bar"):       200,
		"cors.test/":                       401,
		"map.test/" + as("foo:bar"):        200,
		"map.test/" + as("foo:other"):      401,
		"invalid.test/" + as("foo:bar"):    401,
		"invalid.test/" + as("foo:"):       401,
	} {
		if got := i.ask("GET http://" + request); got.StatusCode != want {
			t.Errorf("%s: %d, want %d", request, got.StatusCode, want)
		}
	}
	if got := i.ask("GET http://cors.test/").Header.Get("Access-Control-Allow-Origin"); got != "*" {
		t.Errorf("a response with 401 allows the origin %q, want *", got)
	}
	if got := i.ask("GET http://auth.test/").Header.Get("WWW-Authenticate"); got != `Basic realm="test auth"` {
		t.Errorf("WWW-Authenticate is %q", got)
	}
}
