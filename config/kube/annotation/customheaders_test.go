package annotation

import (
	"strings"
	"testing"
)

func init() {
	const here, there = "/headers", "edge/headers" // the namespace of a sample is empty
	some := map[string]string{AllowedHeaders: "X-A"}
	for _, one := range []struct {
		words, value string
		keys         map[string]string
	}{
		{"`NAMESPACE/NAME` of the namespace of the Ingress", here, some},
		{"only a name", "headers", some},
		{"`NAMESPACE/NAME` of another namespace", there, some},
		{"the same, with `allow-cross-namespace-resources`", there, map[string]string{AllowedHeaders: "X-A", "allow-cross-namespace-resources": "true"}},
		{"without `global-allowed-response-headers`", here, map[string]string{AllowedHeaders: ""}},
		{"without `kubernetes.ingress_nginx`", here, nil},
		{"no name of a ConfigMap", "a;b", some},
	} {
		keysOf[one.words] = one.keys
		samples["custom-headers"] = append(samples["custom-headers"], sample{one.words, one.value, false})
	}
}

func TestCustomHeaders(t *testing.T) {
	f := func(value string, keys map[string]string, want CustomHeaders, rating Rating, part string) {
		t.Helper()
		i := ingressWith(map[string]string{"custom-headers": value})
		for name, value := range keys {
			i.Annotations[OfController+name] = value
		}
		if got := SettingsOf(i).CustomHeaders; got != want {
			t.Errorf("%q with %q is %+v", value, keys, got)
		}
		if all := Rate(i); len(all) != 1 || all[0].Rating != rating || all[0].Guard || !strings.Contains(all[0].Why, part) {
			t.Errorf("%q with %q is rated %+v", value, keys, all)
		}
	}
	allow := map[string]string{AllowedHeaders: "X-A,X-B"}
	across := map[string]string{AllowedHeaders: "X-A", "allow-cross-namespace-resources": "true"}
	f("shop/headers", allow, CustomHeaders{"shop", "headers", "X-A,X-B"}, Exact, "")
	f("headers", allow, CustomHeaders{"shop", "headers", "X-A,X-B"}, Near, "without namespace")
	f("edge/headers", allow, CustomHeaders{}, No, "another namespace")
	f("edge/headers", across, CustomHeaders{"edge", "headers", "X-A"}, Exact, "")
	f("shop/headers", map[string]string{AllowedHeaders: ""}, CustomHeaders{"shop", "headers", ""}, Near, "503")
	f("shop/headers", nil, CustomHeaders{}, No, "kubernetes.ingress_nginx")
	f("", allow, CustomHeaders{}, Exact, "")
	for _, value := range []string{"shop/a;b", "shop/a/b", "shop/", "shop/$x", "shop/a\nb"} {
		f(value, allow, CustomHeaders{}, Near, "ignores")
	}
}
