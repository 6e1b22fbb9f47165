package annotation

import (
	"fmt"
	"testing"
)

func TestCustomErrors(t *testing.T) {
	f := func(value, disable, want string) {
		t.Helper()
		s := SettingsOf(ingressWith(map[string]string{"custom-http-errors": value, "disable-proxy-intercept-errors": disable, "default-backend": "errors"}))
		if got := fmt.Sprint(s.Errors); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
	f("503, 404,404", "", "{[404 503] false}")
	f("404", "true", "{[404] true}")
	for _, value := range []string{"", "200", "4xx", "404;", "404,"} {
		f(value, "false", "{[] false}")
	}
}

func init() {
	others["statuses, with `default-backend`"] = map[string]string{"default-backend": "errors"}
	keysOf["statuses, with `kubernetes.ingress_nginx.default_backend`"] = map[string]string{ErrorsOfAll: "web/errors"}
	samples["custom-http-errors"] = []sample{{"statuses, with `default-backend`", "404", false}, {"statuses, with `kubernetes.ingress_nginx.default_backend`", "404", false}, {"statuses, without `default-backend`", "404", false}, {"other values, or statuses below 400", "302", false}}
	samples["disable-proxy-intercept-errors"] = []sample{{"`true`, `false`     ", "true", false}}
}
