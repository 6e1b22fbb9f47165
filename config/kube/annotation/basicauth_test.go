package annotation

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

func TestBasicAuth(t *testing.T) {
	for _, one := range []struct{ kind, secret, secretType, realm, want, why string }{
		{want: "{ false }"},
		{secretType: "x", realm: "\"", want: "{ false }"}, // nothing names users
		{kind: "basic", secret: "users", want: "{users false }"},
		{kind: " basic ", secret: "shop/users", secretType: "auth-map", realm: "Staff only: a/b", want: "{users true Staff only: a/b}"},
		{kind: "basic", secret: "users", secretType: "auth-file", realm: "off", want: "{users false off}", why: "turns authentication off"},
		{secret: "users", want: "closed", why: "auth-type is missing"},
		{kind: "digest", secret: "users", want: "closed", why: "digest"},
		{kind: "Basic", secret: "users", want: "closed", why: "write basic"},
		{kind: "basic", want: "closed", why: "auth-secret is missing"},
		{kind: "basic", secret: "other/users", want: "closed", why: "same namespace"},
		{kind: "basic", secret: "shop/", want: "closed", why: "same namespace"},
		{kind: "basic", secret: "../users", want: "closed", why: "same namespace"},
		{kind: "basic", secret: "users", secretType: "file", want: "closed", why: "auth-map"},
		{kind: "basic", secret: "users", realm: `x", y="`, want: "closed", why: "auth-realm"},
		{kind: "basic", secret: "users", realm: "caf\u00e9", want: "closed", why: "auth-realm"},
	} {
		i := ingressWith(given(map[string]string{"auth-type": one.kind, "auth-secret": one.secret, "auth-secret-type": one.secretType, "auth-realm": one.realm}))
		got := fmt.Sprint(SettingsOf(i).BasicAuth)
		closed, why := ratingsOf(i)
		if closed {
			if got != "{ false }" {
				t.Errorf("%+v is closed, and sets %s", one, got)
			}
			got = "closed"
		}
		if got != one.want || !strings.Contains(why, one.why) || one.why == "" && why != "" {
			t.Errorf("%+v is %s because of %q", one, got, why)
		}
	}
}

// A password is asked for only where weir protects all that ingress-nginx protects.
func TestBasicAuthAndPaths(t *testing.T) {
	i := ingressWith(map[string]string{"auth-type": "basic", "auth-secret": "users"})
	i.Spec.Rules = []networkingv1.IngressRule{{IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
		Paths: []networkingv1.HTTPIngressPath{{Path: "/a b"}}}}}}
	if closed, why := ratingsOf(i); !closed || !strings.Contains(why, "each spelling") || SettingsOf(i).BasicAuth != (BasicAuth{}) {
		t.Errorf("a path with special characters is closed: %v, because of %q", closed, why)
	}
}

func init() {
	const good, loose, noSecret, noType = "`basic`, with `auth-secret`", "`basic`, with other paths than `Prefix`, `Exact` or `/`", "`basic`, without `auth-secret`", "without `auth-type`"
	basic := map[string]string{"auth-type": "basic", "auth-secret": "users"}
	others[good], others[loose], others[noSecret] = basic, basic, map[string]string{"auth-type": "basic"}
	others["`digest`"], others["other types"] = map[string]string{"auth-type": "digest", "auth-secret": "users"}, map[string]string{"auth-type": "x", "auth-secret": "users"}
	others["the name of a Secret"], others["a Secret of another namespace"] = basic, map[string]string{"auth-type": "basic", "auth-secret": "x/users"}
	others[noType] = map[string]string{"auth-secret": "users"}
	others["`auth-file`, `auth-map`"], others["other values of `auth-secret-type`"] = basic, map[string]string{"auth-type": "basic", "auth-secret": "users", "auth-secret-type": "x"}
	others["letters, digits, spaces and `-._~/:`"], others["`off`"] = basic, map[string]string{"auth-type": "basic", "auth-secret": "users", "auth-realm": "off"}
	others["other realms"] = map[string]string{"auth-type": "basic", "auth-secret": "users", "auth-realm": "\""}
	maps.Copy(samples, map[string][]sample{
		"auth-type":        {{good, "basic", false}, {loose, "basic", false}, {noSecret, "basic", false}, {"`digest`", "digest", false}, {"other types", "x", false}},
		"auth-secret":      {{"the name of a Secret", "users", false}, {"a Secret of another namespace", "x/users", false}, {noType, "users", false}},
		"auth-secret-type": {{"`auth-file`, `auth-map`", "auth-map", false}, {"other values of `auth-secret-type`", "x", false}},
		"auth-realm":       {{"letters, digits, spaces and `-._~/:`", "Staff", false}, {"`off`", "off", false}, {"other realms", "\"", false}},
	})
}
