package annotation

import (
	"fmt"
	"strings"
	"testing"
)

// authTLSValues returns annotations from pairs of a name, without auth-tls- before it, and a value.
func authTLSValues(pairs ...string) map[string]string {
	values := map[string]string{}
	for name, value := range valuesOf(pairs...) {
		values["auth-tls-"+name] = value
	}
	return values
}

func init() {
	add := func(name, words string, pairs ...string) {
		values := authTLSValues(pairs...)
		others[words] = values
		samples["auth-tls-"+name] = append(samples["auth-tls-"+name], sample{words, values["auth-tls-"+name], false})
	}
	add("secret", "a Secret of the namespace of the Ingress, with the namespace", "secret", "/s")
	add("secret", "a Secret without a namespace", "secret", "s")
	add("secret", "a Secret of a different namespace", "secret", "other/s")
	add("verify-client", "`on`, `off`, `optional`, `optional_no_ca`", "secret", "/s", "verify-client", "on")
	add("verify-client", "without `auth-tls-secret`", "verify-client", "on")
	add("verify-client", "values other than these four", "secret", "/s", "verify-client", "x")
	add("verify-depth", "numbers above 0", "secret", "/s", "verify-depth", "2")
	add("verify-depth", "`0`, or no number", "secret", "/s", "verify-depth", "0")
	add("verify-depth", "a number below 0", "secret", "/s", "verify-depth", "-1")
	add("error-page", "a whole URL", "secret", "/s", "error-page", "https://a.example/page")
	add("error-page", "a path without a host", "secret", "/s", "error-page", "/page")
	add("error-page", "values that are no URL and no path", "secret", "/s", "error-page", "a b")
	add("pass-certificate-to-upstream", "`true` or `false`", "secret", "/s", "pass-certificate-to-upstream", "true")
	add("pass-certificate-to-upstream", "values that are no truth value", "secret", "/s", "pass-certificate-to-upstream", "yes")
	add("match-cn", "`CN=` and a regular expression", "secret", "/s", "match-cn", "CN=(a|b)")
	add("match-cn", "a regular expression of more than 1024 bytes", "secret", "/s", "match-cn", "CN="+strings.Repeat("a", 1100))
	add("match-cn", "values that do not begin with `CN=`, or are no regular expression", "secret", "/s", "match-cn", "a")
}

func TestAuthTLS(t *testing.T) {
	f := func(want string, closed bool, why string, pairs ...string) {
		t.Helper()
		i := ingressWith(authTLSValues(pairs...))
		shut, got := ratingsOf(i)
		if text := fmt.Sprintf("%+v", SettingsOf(i).AuthTLS); text != want || shut != closed || !strings.Contains(got, why) || why == "" && got != "" {
			t.Errorf("%q sets %s, closed: %v, because of %q", pairs, text, shut, got)
		}
	}
	const none = "{Secret: Verify: Depth:0 Subject: ErrorPage: Forward:false}"
	secret := ingressWith(nil).Namespace + "/ca"
	f(none, false, "")
	f(none, false, "only with auth-tls-secret", "verify-client", "on")
	f(none, false, "only with auth-tls-secret", "match-cn", "CN=a")
	f(none, true, "another namespace", "secret", "elsewhere/ca")
	f("{Secret:ca Verify:on Depth:1 Subject: ErrorPage: Forward:false}", false, "", "secret", secret)
	f("{Secret:ca Verify:on Depth:1 Subject: ErrorPage: Forward:false}", false, "refuses a name without", "secret", "ca")
	f("{Secret:ca Verify:optional_no_ca Depth:3 Subject:CN=(a|b) ErrorPage:http://a.example:8080/x Forward:true}", false, "",
		"secret", secret, "verify-client", "optional_no_ca", "verify-depth", "3", "match-cn", "CN=(a|b)", "error-page", "http://a.example:8080/x", "pass-certificate-to-upstream", "true")
	f("{Secret:ca Verify:on Depth:1 Subject: ErrorPage: Forward:false}", false, "for on", "secret", secret, "verify-client", "ON")
	f("{Secret:ca Verify:on Depth:1 Subject: ErrorPage: Forward:false}", false, "for 1", "secret", secret, "verify-depth", "0")
	f("{Secret:ca Verify:on Depth:1 Subject: ErrorPage: Forward:false}", false, "does not start", "secret", secret, "verify-depth", "-1")
	f("{Secret:ca Verify:off Depth:1 Subject: ErrorPage: Forward:false}", false, "for false", "secret", secret, "verify-client", "off", "pass-certificate-to-upstream", "on")
	for _, cn := range []string{"a", "cn=a", "CN=(", "CN=[b-a]"} {
		f("{Secret:ca Verify:on Depth:1 Subject: ErrorPage: Forward:false}", true, "ignores an Ingress", "secret", secret, "match-cn", cn)
	}
	for _, page := range []string{"/page", "@named", "a b", "javascript:x"} {
		f("{Secret:ca Verify:on Depth:1 Subject: ErrorPage: Forward:false}", true, "https://www.example.org/certificates", "secret", secret, "error-page", page)
	}
}
