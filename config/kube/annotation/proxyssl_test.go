package annotation

import (
	"fmt"
	"strings"
	"testing"
)

func TestProxySSL(t *testing.T) {
	f := func(want string, closed bool, why string, pairs ...string) {
		t.Helper()
		i := ingressWith(proxySSLValues(pairs...))
		shut, got := ratingsOf(i)
		if text := fmt.Sprintf("%+v", SettingsOf(i).ProxySSL); text != want || shut != closed || !strings.Contains(got, why) || why == "" && got != "" {
			t.Errorf("%q sets %s, closed: %v, because of %q", pairs, text, shut, got)
		}
	}
	const none = "{Secret: Verify:false Name: SendName:false MinVersion:0 MaxVersion:0}"
	namespace := ingressWith(nil).Namespace + "/"
	f(none, false, "")
	f(none, false, "only with proxy-ssl-secret", "verify", "on")
	f(none, false, "", "verify", "off")
	f(none, true, "another namespace", "secret", "elsewhere/s")
	f("{Secret:s Verify:false Name:upstream_balancer SendName:false MinVersion:771 MaxVersion:771}", false, "", "secret", namespace+"s")
	f("{Secret:s Verify:false Name:upstream_balancer SendName:false MinVersion:771 MaxVersion:771}", false, "refuses a name without", "secret", "s")
	f("{Secret:s Verify:true Name:a.example SendName:true MinVersion:771 MaxVersion:772}", false, "", "secret", namespace+"s", "verify", "on", "name", "a.example", "server-name", "on", "protocols", "TLSv1.2 TLSv1.3")
	f("{Secret:s Verify:true Name:upstream_balancer SendName:false MinVersion:772 MaxVersion:772}", false, "must have the name upstream_balancer", "secret", namespace+"s", "verify", "on", "protocols", "TLSv1.3")
	f("{Secret:s Verify:false Name:upstream_balancer SendName:false MinVersion:772 MaxVersion:772}", false, "for off", "secret", namespace+"s", "verify", "yes", "protocols", "TLSv1.3")
	f("{Secret:s Verify:false Name:upstream_balancer SendName:false MinVersion:771 MaxVersion:771}", false, "other versions", "secret", namespace+"s", "protocols", "TLSv1 TLSv1.3", "name", "-", "ciphers", "HIGH", "verify-depth", "2")
}

// proxySSLValues returns annotations from pairs of a name, without proxy-ssl- before it, and a value.
func proxySSLValues(pairs ...string) map[string]string {
	values := map[string]string{}
	for name, value := range valuesOf(pairs...) {
		values["proxy-ssl-"+name] = value
	}
	return values
}

func init() {
	add := func(name, words string, pairs ...string) {
		values := proxySSLValues(pairs...)
		others[words] = values
		samples["proxy-ssl-"+name] = append(samples["proxy-ssl-"+name], sample{words, values["proxy-ssl-"+name], false})
	}
	add("secret", "a name with its namespace, that of the Ingress", "secret", "/s")
	add("secret", "a name without a namespace", "secret", "s")
	add("secret", "a Secret of another namespace ", "secret", "other/s")
	add("verify", "`on` with `proxy-ssl-name`, `off`", "secret", "/s", "verify", "on", "name", "a")
	add("verify", "`on` without `proxy-ssl-name`", "secret", "/s", "verify", "on")
	add("verify", "without `proxy-ssl-secret`", "verify", "on")
	add("verify", "other values      ", "secret", "/s", "verify", "x")
	add("verify-depth", "numbers   ", "secret", "/s", "verify-depth", "1")
	add("name", "names of hosts", "secret", "/s", "name", "a")
	add("name", "other values       ", "secret", "/s", "name", "-")
	add("server-name", "`on`, `off`", "secret", "/s", "server-name", "on")
	add("server-name", "other values        ", "secret", "/s", "server-name", "x")
	add("protocols", "`TLSv1.2`, `TLSv1.3`", "secret", "/s", "protocols", "TLSv1.3")
	add("protocols", "other values         ", "secret", "/s", "protocols", "TLSv1")
	add("ciphers", "`DEFAULT`", "secret", "/s", "ciphers", "DEFAULT")
	add("ciphers", "other values          ", "secret", "/s", "ciphers", "HIGH")
}
