package annotation

import (
	"fmt"
	"maps"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSourceRanges(t *testing.T) {
	for _, one := range []struct{ allow, white, deny, want string }{
		{white: "10.0.0.0/8", want: "[10.0.0.0/8] []"},
		{white: " 10.1.2.3/8 ,\n192.0.2.7, 2001:db8::/32,2001:db8::1", want: "[10.0.0.0/8 192.0.2.7/32 2001:db8::/32 2001:db8::1/128] []"},
		{allow: "10.0.0.0/8", white: "11.0.0.0/8", want: "[10.0.0.0/8] []"},
		{allow: "0.0.0.0/0, ::/0", white: "11.0.0.0/8", want: "[] []"},
		{white: "0.0.0.0/0", want: "[0.0.0.0/0] []"}, // IPv6 clients get 403
		{white: "0.0.0.0/0,::/0,10.0.0.0/8", want: "[] []"},
		{deny: "10.0.0.0/8,::1", want: "[] [10.0.0.0/8 ::1/128]"},
		{deny: "0.0.0.0/0,::/0", want: "[] [0.0.0.0/0 ::/0]"},
		{white: "10.0.0.0/8", deny: "10.1.0.0/16", want: "[10.0.0.0/8] [10.1.0.0/16]"},
		{white: "10.0.0.0/8,", want: "closed"},
		{white: "10.0.0.0/8 11.0.0.0/8", want: "closed"},
		{white: "office", want: "closed"},
		{white: "10.0.0.0/33", want: "closed"},
		{white: "fe80::1%eth0", want: "closed"},
		{white: "::ffff:10.0.0.0/104", want: "closed"},
		{white: " ", want: "closed"},
		{deny: "10.0.0", want: "closed"},
		{allow: "10.0.0.0/8", white: "office", want: "closed"},
	} {
		i := ingressWith(given(map[string]string{"allowlist-source-range": one.allow, "whitelist-source-range": one.white, "denylist-source-range": one.deny}))
		s := SettingsOf(i)
		got := fmt.Sprint(s.Allow, s.Deny)
		if guards, _ := Unsupported(i); len(guards) > 0 {
			got = "closed"
		}
		if got != one.want {
			t.Errorf("%+v is %s", one, got)
		}
	}
}

// A list is applied only where weir protects all that ingress-nginx protects.
func TestSourceRangesAndPaths(t *testing.T) {
	exact, prefix, any := networkingv1.PathTypeExact, networkingv1.PathTypePrefix, networkingv1.PathTypeImplementationSpecific
	f := func(path string, kind *networkingv1.PathType, other string, closed bool) {
		t.Helper()
		i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{Nginx + "whitelist-source-range": "10.0.0.0/8", Nginx + other: "true"}}}
		i.Spec.Rules = []networkingv1.IngressRule{{}, {IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
			Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix}, {Path: path, PathType: kind}}}}}}
		guards, _ := Unsupported(i)
		if got := len(guards) > 0; got != closed || closed == (SettingsOf(i).Allow != nil) {
			t.Errorf("%s with %s is closed: %v", path, other, got)
		}
	}
	for list, want := range map[string]map[string]bool{"0.0.0.0/0,::/0": {"whitelist-source-range": false, "denylist-source-range": true}, "10.0.0.0/8": {"whitelist-source-range": true, "denylist-source-range": true}} {
		for name, closed := range want {
			if rating, _ := nginx[name].set(list, context{loose: &loosePath{}}, &Settings{}); (rating == guard) != closed {
				t.Errorf("%s: %s, with paths that are text, is %s", name, list, rating)
			}
		}
	}
	f("/a", &prefix, "", false)
	f("/a", &exact, "", false)
	f("/a", &any, "", false) // SetDefaultNGINXPathType makes it Prefix
	f("/a", nil, "", false)
	f("/a/", &any, "", false)
	f("/a/", nil, "", false)
	f("", nil, "", false)
	f("/", &any, "", false)
	f("/", &any, "use-regex", false)
	f("/", &prefix, "rewrite-target", false)
	f("/a", &prefix, "use-regex", false) // weir compares expressions as ingress-nginx does
	f("/a(/|$)(.*)", &any, "use-regex", false)
	f("/a", &exact, "rewrite-target", false)
	f("/a(?=/)", &any, "use-regex", true)
	f("/a|/b", &any, "use-regex", true) // in ingress-nginx it also matches /c/b
	f("/(a|b)[|]", &any, "use-regex", false)
	f("/a(/|$)(.*)", &prefix, "", true)
	f("/a%2f", &prefix, "", true)
	f("/caf\u00e9", &exact, "", true)
	f("/a b", &exact, "", true)
}

func init() {
	maps.Copy(samples, map[string][]sample{
		"allowlist-source-range": {{"networks and addresses", "10.0.0.0/8", false}, {"networks and addresses, with other paths than `Prefix`, `Exact` or `/`", "10.0.0.0/8", false}, {"other values", "office", false}},
		"denylist-source-range":  {{"networks and addresses", "10.0.0.0/8", false}, {"networks and addresses, with other paths than `Prefix`, `Exact` or `/`", "10.0.0.0/8", false}, {"other values", "office", false}},
		"whitelist-source-range": {{"networks and addresses", "10.0.0.0/8", false}, {"networks and addresses, with other paths than `Prefix`, `Exact` or `/`", "10.0.0.0/8", false}, {"other values", "office", false}},
	})
}

// ingress-nginx serves everybody if whitelist-source-range is empty. It serves nobody if the list has only spaces, or
// if another list is empty.
func TestEmptySourceRanges(t *testing.T) {
	for _, one := range []struct {
		name, value string
		closed      bool
	}{{"whitelist-source-range", "", false}, {"whitelist-source-range", " ", true}, {"allowlist-source-range", "", true}, {"denylist-source-range", "", true}} {
		i := ingressWith(map[string]string{one.name: one.value})
		s := SettingsOf(i)
		if guards, _ := Unsupported(i); len(guards) > 0 != one.closed || len(s.Allow)+len(s.Deny) > 0 || s.Everybody {
			t.Errorf("%s of %q: %q %+v", one.name, one.value, guards, s)
		}
	}
}

// ingress-nginx also reads truth values from numbers and single letters.
func TestTruthValues(t *testing.T) {
	for _, name := range []string{"enable-modsecurity", "enable-owasp-core-rules", "enable-global-auth"} {
		for value, closed := range map[string]bool{"false": false, "False": false, "0": false, "f": false, "F": false, "true": true, "1": true, "no": true} {
			if guards, _ := Unsupported(ingressWith(map[string]string{name: value})); len(guards) > 0 != closed {
				t.Errorf("%s: %s: %q", name, value, guards)
			}
		}
	}
	for value, want := range map[string]Rating{"0": Exact, "false": Near} {
		if r, _, _ := rate(Nginx+"proxy-max-temp-file-size", value, context{}); r != want {
			t.Errorf("a size of %s: %s, want %s", value, r, want)
		}
	}
}
