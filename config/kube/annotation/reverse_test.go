package annotation

import "testing"

func TestReverse(t *testing.T) {
	f := func(want Reverse, pairs ...string) {
		t.Helper()
		if got := SettingsOf(ingressWith(valuesOf(pairs...))).Reverse; got != want {
			t.Errorf("%q is %+v", pairs, got)
		}
	}
	f(Reverse{CookieDomain: Replacement{"app.internal", "a.example"}}, "proxy-cookie-domain", ".app.internal  .a.example")
	f(Reverse{CookiePath: Replacement{"/", "/app/"}}, "proxy-cookie-path", "/ /app/")
	f(Reverse{Location: Replacement{"http://app/", "/"}}, "proxy-redirect-from", "http://app/", "proxy-redirect-to", "/")
	for _, value := range []string{"off", "", "~* a b", "a", "a b; deny all", "/a $host"} {
		f(Reverse{}, "proxy-cookie-domain", value, "proxy-cookie-path", value)
	}
	for _, value := range []string{"off", "", "~a", "$scheme://a/", "a b"} {
		f(Reverse{}, "proxy-redirect-from", value, "proxy-redirect-to", "/")
		f(Reverse{}, "proxy-redirect-from", "/", "proxy-redirect-to", value)
	}
	f(Reverse{}, "proxy-redirect-from", "default", "proxy-redirect-to", "/")
	f(Reverse{}, "proxy-redirect-from", "/")
}

func TestAccessLog(t *testing.T) {
	for value, want := range map[string]bool{"false": true, "0": true, "true": false, "": false, "no": false} {
		if got := SettingsOf(ingressWith(map[string]string{"enable-access-log": value})).Unlogged; got != want {
			t.Errorf("%q: without a log: %v", value, got)
		}
	}
}

func init() {
	samples["proxy-cookie-domain"] = []sample{{"`off`, and two names", "a b", false}, {"other values, such as regular expressions", "~a b", false}}
	samples["proxy-cookie-path"] = []sample{{"`off`, and two paths", "/a /", false}, {"other values", "~a b", false}}
	for _, name := range []string{"proxy-redirect-from", "proxy-redirect-to"} {
		samples[name] = []sample{{"`off`, `default`, URLs and paths", "http://a/", false}, {"regular expressions, and values with a space", "~a", false}, {"with a variable, or other characters", "$a", false}}
	}
	samples["enable-access-log"] = []sample{{"`true`, `false`", "false", false}, {"other values    ", "no", false}}
}
