package annotation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/proxy/script"
)

func TestSnippetsOfIngresses(t *testing.T) {
	f := func(values map[string]string, want Snippets, closed bool, why string) {
		t.Helper()
		i := ingressWith(values)
		i.Annotations[OfController+"allow-snippet-annotations"] = "true"
		shut, got := ratingsOf(i)
		if s := SettingsOf(i).Snippets; s != want || shut != closed || !strings.Contains(got, why) || why == "" && got != "" {
			t.Errorf("%q is %+v, closed: %v, because of %q", values, s, shut, got)
		}
		delete(i.Annotations, OfController+"allow-snippet-annotations")
		if s := SettingsOf(i).Snippets; s != (Snippets{}) {
			t.Errorf("%q is read, although snippets are not allowed", values)
		}
	}
	type m = map[string]string
	f(m{"configuration-snippet": "return 403;"}, Snippets{Location: "return 403;"}, false, "")
	f(m{"server-snippet": "set $a b;", "configuration-snippet": "add_header A $a;"}, Snippets{"set $a b;", "add_header A $a;"}, false, "")
	f(m{"configuration-snippet": "add_header A $a;"}, Snippets{}, false, "does not support the variable $a")
	f(m{"configuration-snippet": "proxy_set_header A $a;"}, Snippets{}, true, "the variable $a")
	f(m{"server-snippet": "location /a { deny all; }", "configuration-snippet": "add_header A b;"}, Snippets{"location /a { deny all; }", "add_header A b;"}, false, "")
	f(m{"server-snippet": "location /a { proxy_pass http://b; }"}, Snippets{}, true, "location /a with the directive proxy_pass")
	f(m{"configuration-snippet": "location /a { deny all; }"}, Snippets{}, true, "the directive location")
	f(m{"configuration-snippet": "proxy_set_header A \"$service_name $proxy_upstream_name\";"}, Snippets{Location: "proxy_set_header A \"$service_name $proxy_upstream_name\";"}, false, "")
	f(m{"configuration-snippet": "real_ip_header A;"}, Snippets{Location: "real_ip_header A;"}, false, "nothing for real_ip_header")
	f(m{"server-snippet": "real_ip_header A;\ndeny 10.0.0.1;"}, Snippets{}, true, "trust_forwarded")
	f(m{"server-snippet": "real_ip_header A;", "denylist-source-range": "10.0.0.1"}, Snippets{}, true, "trust_forwarded")
	f(m{"server-snippet": "real_ip_header A; location /admin { allow 10.0.0.0/8; deny all; return 204; }"}, Snippets{}, true, "trust_forwarded")
	f(m{"server-snippet": "real_ip_header A; if ($Remote_Addr !~ \"^10\\.\") { return 403; }"}, Snippets{}, true, "trust_forwarded")
	f(m{"server-snippet": "set $a ${remote_addr};", "configuration-snippet": "set_real_ip_from 10.0.0.0/8;\nif ($a = b) { return 403; }"}, Snippets{}, true, "trust_forwarded")
	f(m{"server-snippet": "set_real_ip_from 10.0.0.0/8;", "configuration-snippet": "if ($remote_addr != 10.0.0.1) { return 403; }"}, Snippets{}, true, "trust_forwarded")
	f(m{"server-snippet": "set_real_ip_from 10.0.0.0/8;", "whitelist-source-range": "10.0.0.0/8"}, Snippets{}, true, "trust_forwarded")
	f(m{"server-snippet": "real_ip_recursive on;", "limit-rps": "1", "limit-whitelist": "10.0.0.0/8"}, Snippets{}, true, "trust_forwarded")
	f(m{"server-snippet": "real_ip_header A;", "auth-url": "http://auth.shop.svc/"}, Snippets{}, true, "trust_forwarded")
	f(m{"server-snippet": "real_ip_header A; add_header Access-Control-Allow-Origin b;"}, Snippets{Host: "real_ip_header A; add_header Access-Control-Allow-Origin b;"}, false, "nothing for real_ip_header")
	f(m{"configuration-snippet": "access_by_lua_block { ngx.exit(403) }"}, Snippets{}, true, "cookies of the response of auth-url")
	f(m{"server-snippet": "add_header A b;", "configuration-snippet": "auth_basic a;"}, Snippets{}, true, "the directive auth_basic")
	f(m{"configuration-snippet": "gzip on; proxy_read_timeout 1h;"}, Snippets{Location: "gzip on; proxy_read_timeout 1h;"}, false, "nothing for gzip, proxy_read_timeout")
	f(m{"configuration-snippet": "allow 10.0.0.0/8; deny all;"}, Snippets{Location: "allow 10.0.0.0/8; deny all;"}, false, "")
	f(m{"configuration-snippet": "allow office;"}, Snippets{}, true, "allow or deny of office")
	f(m{"configuration-snippet": "deny all;", "satisfy": "any"}, Snippets{}, true, "satisfy: any")
	f(m{"server-snippet": "deny all;", "satisfy": "any"}, Snippets{}, true, "satisfy: any")

	f(m{"server-snippet": "return 301 https://$server_name/x;"}, Snippets{Host: "return 301 https://$server_name/x;"}, false, "")
	wide := ingressWith(m{"server-snippet": "return 301 https://$server_name/x;"})
	wide.Annotations[OfController+"allow-snippet-annotations"] = "true"
	wide.Spec.Rules = []networkingv1.IngressRule{{Host: "*.example"}}
	if closed, why := ratingsOf(wide); !closed || !strings.Contains(why, "$server_name") {
		t.Errorf("the name of a server for many hosts: %v, %q", closed, why)
	}
	deep := ingressOf([]string{"/", "/a"}, "server-snippet: rewrite ^/b /c last;")
	deep.Annotations[OfController+"allow-snippet-annotations"] = "true"
	if closed, why := ratingsOf(deep); !closed || !strings.Contains(why, "other paths than /") {
		t.Errorf("a rewrite of a host with paths: %v, %q", closed, why)
	}
	deep.Spec.Rules[0].HTTP.Paths = deep.Spec.Rules[0].HTTP.Paths[:1]
	if closed, why := ratingsOf(deep); closed || why != "" {
		t.Errorf("a rewrite of a host without paths: %v, %q", closed, why)
	}
	i := ingressWith(m{"configuration-snippet": "return 403;"})
	if closed, why := ratingsOf(i); !closed || !strings.Contains(why, "allow-snippet-annotations") {
		t.Errorf("a snippet that is not allowed: %v, %q", closed, why)
	}
	i.Annotations[OfController+"configuration-snippet"] = "return 403;" // location-snippet of the ConfigMap
	if closed, why := ratingsOf(i); closed || SettingsOf(i).Snippets.Location == "" {
		t.Errorf("a snippet of the ConfigMap: %v, %q", closed, why)
	}
}

// A snippet that may refuse requests needs paths that mean the same in weir, unless it is for all paths.
func TestSnippetsAndPaths(t *testing.T) {
	f := func(path, name, value string, ofConfigMap, closed bool) {
		t.Helper()
		i := ingressOf([]string{path}, name+": "+value)
		i.Annotations[OfController+"allow-snippet-annotations"] = "true"
		if ofConfigMap {
			i.Annotations[OfController+name] = value
		}
		if got, why := ratingsOf(i); got != closed {
			t.Errorf("%s: %q of the path %s is closed: %v, %s", name, value, path, got, why)
		}
	}
	const refuses = "if ($request_method = TRACE) { return 405; }"
	f("/jenkins", "configuration-snippet", refuses, false, false) // ImplementationSpecific is Prefix
	f("/a+b", "configuration-snippet", refuses, false, true)
	f("/a+b", "configuration-snippet", refuses, true, false)
	f("/a+b", "configuration-snippet", "deny all;", false, true)
	f("/a+b", "server-snippet", refuses, false, false)
	f("/a+b", "server-snippet", "deny all;", false, false)
}

// Clients agrees with nginx, where the first directive that contains the client's address decides.
func TestClientsOfSnippets(t *testing.T) {
	addresses := []string{"10.0.0.0", "10.0.0.1", "10.0.0.2", "10.1.0.1", "10.255.255.255", "11.0.0.1", "192.0.2.1", "0.0.0.0", "255.255.255.255", "2001:db8::1", "2001:db9::1", "::1"}
	f := func(text string) {
		t.Helper()
		var entries []script.Entry
		for _, line := range strings.Split(text, ";") {
			if words := strings.Fields(line); len(words) == 2 {
				entries = append(entries, script.Entry{Allow: words[0] == "allow", Network: words[1]})
			}
		}
		allow, deny, err := Clients(entries)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		contain := func(all []netip.Prefix, a netip.Addr) bool {
			return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
		}
		for _, text2 := range addresses {
			a := netip.MustParseAddr(text2)
			want := true
			for _, e := range entries {
				if n, ok := network(e.Network); e.Network == "all" || ok && n.Contains(a) {
					want = e.Allow
					break
				}
			}
			if got := !contain(deny, a) && (len(allow) == 0 || contain(allow, a)); got != want {
				t.Errorf("%s: %s may use it: %v (allow %v, deny %v)", text, a, got, allow, deny)
			}
		}
	}
	f("")
	f("allow all")
	f("deny all")
	f("allow 10.0.0.0/8; deny all")
	f("deny 10.0.0.1; allow 10.0.0.0/8; deny all")
	f("allow 10.0.0.1; deny 10.0.0.0/8; allow all")
	f("allow 10.0.0.1; deny 10.0.0.0/8")
	f("deny 10.0.0.0/8; allow 10.0.0.1")
	f("deny 10.0.0.0/8; allow 10.0.0.1; deny all")
	f("allow 2001:db8::/32; allow 10.0.0.2; deny all; allow 192.0.2.1")
	f("allow 10.0.0.2; deny 0.0.0.0/0; deny ::/0")
	f("allow ::/0; deny all")

	var many []script.Entry
	for n := range 200 {
		many = append(many, script.Entry{Allow: true, Network: fmt.Sprintf("2001:db8:%x::1", n)})
	}
	if _, _, err := Clients(append(many, script.Entry{Network: "::/0"})); err == nil {
		t.Error("there is no limit")
	}
}

func init() {
	allowed := map[string]string{"allow-snippet-annotations": "true"}
	for n, name := range []string{"configuration-snippet", "server-snippet"} {
		add := func(words, value string, keys map[string]string) {
			words += strings.Repeat(" ", n) // the words of each sample are its own
			others[words], keysOf[words] = map[string]string{name: value}, keys
			samples[name] = append(samples[name], sample{words, value, false})
		}
		add("not allowed, and restricting access", "deny all;", nil)
		add("not allowed, and without effect on access", "add_header A b;", nil)
		add("directives that weir supports", "add_header A b;", allowed)
		add("with directives about compression, sizes, times and logs", "gzip on;", allowed)
		add("with something else that does not restrict access", "more_set_headers -s 404 A;", allowed)
		add("with something else", "auth_basic a;", allowed)
		if name == "server-snippet" {
			add("locations that only deny or return", "location = /xmlrpc.php { deny all; }", allowed)
			add("a location with something else", "location /a { proxy_pass http://b; }", allowed)
		}
	}
}
