package annotation

import (
	"fmt"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

func TestAuthURL(t *testing.T) {
	const check = "http://auth.shop.svc/check"
	f := func(want, why string, pairs ...string) {
		t.Helper()
		i := ingressWith(valuesOf(append([]string{"auth-url", check}, pairs...)...))
		a := SettingsOf(i).AuthURL
		closed, got := ratingsOf(i)
		text := fmt.Sprintf("%+v", a)
		if closed {
			if a.URL != "" {
				t.Errorf("%q is closed, and sets %s", pairs, text)
			}
			text = "closed"
		}
		if !strings.Contains(text, want) || !strings.Contains(got, why) || why == "" && got != "" {
			t.Errorf("%q sets %s because of %q", pairs, text, got)
		}
	}
	f("{URL:http://auth.shop.svc:8080 Path:/check Host:auth.shop.svc Method: Headers:[] SignIn: Redirect:{uri} AlwaysCookies:false CacheBy: Cache:[] HeadersFrom:{Namespace: Name:} Add:[] Global:false}", "", "auth-url", "http://auth.shop.svc:8080/check")
	f("URL:https://auth.test Path:/ Host:auth.test", "internal path", "auth-url", "https://auth.test")
	f("Path:/check?a={uri}&h={host} ", "", "auth-url", check+"?a=$request_uri&h=$host")
	f("Path:/?q= ", "", "auth-url", "http://auth.shop.svc?q=$args")
	f("closed", "no URL", "auth-url", "auth.shop.svc/check")
	f("closed", "no URL", "auth-url", "ftp://auth.shop.svc/check")
	f("closed", "no URL", "auth-url", "http:///check")
	f("closed", "no URL", "auth-url", "http://a..b/check")
	f("closed", "no URL", "auth-url", "http://a/%2e")
	f("URL:https://$host Path:/oauth2/auth Host:$host ", "", "auth-url", "https://$host/oauth2/auth")
	f("URL:https://$host:8443 Path:/a Host:$host ", "", "auth-url", "https://$host:8443/a")
	for _, bad := range []string{"http://$http_host/check", "http://auth.$host/check", "http://$host.example/check", "http://$hostname/check"} {
		f("closed", "the host of the URL has a variable", "auth-url", bad)
	}
	f("closed", "the variable $uri", "auth-url", check+"$uri")
	f("closed", "$arg_", "auth-url", check+"?a=$arg_b")
	f("closed", "auth-type", "auth-type", "basic", "auth-secret", "x")
	f("closed", "allow-snippet-annotations", "auth-snippet", "proxy_set_header A b;")
	f("HeadersFrom:{Namespace:shop Name:auth-headers}", "replaces one of the same name", "auth-proxy-set-headers", "shop/auth-headers")
	f("HeadersFrom:{Namespace:shop Name:auth-headers}", "without namespace", "auth-proxy-set-headers", "auth-headers")
	f("closed", "another namespace", "auth-proxy-set-headers", "other/auth-headers")
	for _, bad := range []string{"a/b/c", "/b", "a/", "Headers", "$host"} {
		f("closed", "no name of a ConfigMap", "auth-proxy-set-headers", bad)
	}
	f("Method:POST", "", "auth-method", "POST")
	f("closed", "method", "auth-method", "post")
	f("closed", "method", "auth-method", "CONNECT")
	f("Headers:[X-User Authorization x_y]", "", "auth-response-headers", "X-User, Authorization,, x_y")
	f("closed", "names", "auth-response-headers", "X-User; X-Group")
	f("SignIn:https://{host}/oauth2/start?rd={uri_encoded} ", "", "auth-signin", "https://$host/oauth2/start?rd=$escaped_request_uri")
	f("SignIn:https://login.test/in?rd={scheme}://{authority}{uri_encoded} ", "", "auth-signin", "https://login.test/in")
	f("SignIn:https://login.test/in?a=b&to={scheme}://{authority}{uri_encoded} ", "", "auth-signin", "https://login.test/in?a=b", "auth-signin-redirect-param", "to")
	f("SignIn:https://login.test/in?rd={scheme}", "uses rd", "auth-signin", "https://login.test/in", "auth-signin-redirect-param", "a$b")
	f("SignIn: ", "get 401", "auth-signin", "https://login.test/{in}")
	f("SignIn: ", "the variable $server_name", "auth-signin", "https://$server_name/in")
	f("Redirect:https://a.test/x ", "", "auth-request-redirect", "https://a.test/x")
	f("closed", "without variables", "auth-request-redirect", "https://$host/")
	f("AlwaysCookies:true", "", "auth-always-set-cookie", "True")
	f("closed", "true or false", "auth-always-set-cookie", "yes")
	f("CacheBy:{user}{header.authorization} Cache:[{Statuses:[200 202 401] For:5m0s}]", "does not remember", "auth-cache-key", "$remote_user$http_authorization")
	f("CacheBy:a-{cookie.s} Cache:[{Statuses:[200 202] For:10m0s} {Statuses:[401] For:1s} {Statuses:[] For:5ms}]", "does not remember", "auth-cache-key", "a-${cookie_s}", "auth-cache-duration", "200 202 10m, 401 1s, any 5ms")
	f("Cache:[{Statuses:[200 202 401] For:5m0s}]", "does not remember", "auth-cache-key", "x")
	f("Cache:[{Statuses:[200 301 302] For:24h0m0s}]", "does not remember", "auth-cache-key", "x", "auth-cache-duration", "1d")
	f("CacheBy: ", "ignores the value", "auth-cache-key", "$host/$uri")
	f("CacheBy: ", "the variable $uri", "auth-cache-key", "$uri")
	for _, bad := range []string{"200", "10m 200", "200 10", "200 10x", "abc 10m", "99 1m", "200 99999999999999999999y", "200 9999999999y"} {
		f("closed", "no list of statuses", "auth-cache-duration", bad)
	}
	f("Method:", "", "auth-keepalive", "10", "auth-keepalive-share-vars", "true")
}

// auth-snippet sets HTTP headers for the server.
func TestAuthSnippet(t *testing.T) {
	f := func(snippet, want string, closed bool, why string) {
		t.Helper()
		i := ingressWith(map[string]string{"auth-url": "http://auth.shop.svc/check", "auth-snippet": snippet})
		i.Annotations[OfController+"allow-snippet-annotations"] = "true"
		shut, got := ratingsOf(i)
		if headers := fmt.Sprint(SettingsOf(i).AuthURL.Add); headers != want || shut != closed || !strings.Contains(got, why) || why == "" && got != "" {
			t.Errorf("%q sets %s, closed: %v, because of %q", snippet, headers, shut, got)
		}
	}
	f("proxy_set_header X-Forwarded-Host $http_host;", "[{X-Forwarded-Host {authority}}]", false, "") // authentik
	f("proxy_set_header X-Forwarded-Method $request_method; # Authelia\nproxy_set_header X-A \"a b\";", "[{X-Forwarded-Method {method}} {X-A a b}]", false, "")
	f("proxy_set_header X-A b; proxy_set_header x-a c;", "[{x-a c}]", false, "")
	f("proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;", "[{X-Forwarded-Proto {scheme}}]", false, "nothing for proxy_set_header X-Forwarded-For")
	f("proxy_set_header X-Original-URI $request_uri;", "[{X-Original-URI {uri}}]", false, "nginx sends both")
	f("proxy_set_header Authorization $http_authorization; proxy_read_timeout 5s;", "[{Authorization {header.authorization}}]", false, "nothing for proxy_read_timeout")
	for snippet, why := range map[string]string{"proxy_set_header Host a.example;": "the HTTP header Host", "proxy_set_header A $uri;": "the variable $uri", "proxy_pass http://a;": "the directive proxy_pass",
		"proxy_set_header A b": "no semicolon", "deny all;": "the directive deny", "proxy_set_header A \"b\\nC: d\";": "control character", "if ($uri) { return 200; }": "the directive if",
		"proxy_set_header A \"" + strings.Repeat("$host", 33) + "\";": "more than 32 variables"} {
		f(snippet, "[]", true, why)
	}
	i := ingressWith(map[string]string{"auth-url": "http://auth.shop.svc/check", "auth-snippet": "proxy_set_header A b;"})
	i.Annotations[OfController+"auth-snippet"] = "proxy_set_header A b;" // global-auth-snippet
	if closed, why := ratingsOf(i); closed || len(SettingsOf(i).AuthURL.Add) != 1 {
		t.Errorf("a snippet of the ConfigMap: %v, %q", closed, why)
	}
}

// $host is the host of the rule. A rule for more than one host closes the Ingress, because clients would choose the server.
func TestAuthURLOfHost(t *testing.T) {
	f := func(hosts string, rest *networkingv1.IngressBackend, closed bool) {
		t.Helper()
		i := ingressWith(map[string]string{"auth-url": "https://$host/oauth2/auth"})
		i.Spec.DefaultBackend = rest
		for _, host := range strings.Fields(hosts) {
			i.Spec.Rules = append(i.Spec.Rules, networkingv1.IngressRule{Host: strings.Trim(host, "-")})
		}
		got, why := ratingsOf(i)
		if a := SettingsOf(i).AuthURL; got != closed || closed == (a.URL != "") || closed && !strings.Contains(why, "clients would choose the server") {
			t.Errorf("with the hosts %s it is closed: %v, because of %q, and sets %+v", hosts, got, why, a)
		}
	}
	f("a.example b.example", nil, false)
	f("a.example *.example", nil, true)
	f("a.example -", nil, true)
	f("", &networkingv1.IngressBackend{}, true)
	f("a.example", &networkingv1.IngressBackend{}, false) // it also gets only requests for a.example
	if a := (AuthURL{URL: "https://$host:8443", Host: HostVariable}).For("a.example"); a.URL != "https://a.example:8443" || a.Host != "a.example" {
		t.Errorf("for a.example it is %+v", a)
	}
	if a := (AuthURL{URL: "https://auth.example", Host: "auth.example"}).For("a.example"); a.URL != "https://auth.example" || a.Host != "auth.example" {
		t.Errorf("without the variable it is %+v", a)
	}
}

// Without auth-url, the annotations beside it have no effect.
func TestNoAuthURL(t *testing.T) {
	i := ingressWith(map[string]string{"auth-signin": "https://$server_name/", "auth-method": "x", "auth-always-set-cookie": "x", "auth-cache-duration": "x", "auth-proxy-set-headers": "x"})
	if closed, why := ratingsOf(i); closed || why != "" || SettingsOf(i).AuthURL.URL != "" {
		t.Errorf("it is closed: %v, because of %q, and sets %+v", closed, why, SettingsOf(i).AuthURL)
	}
}

func init() {
	add := func(name, words string, pairs ...string) {
		values := valuesOf(append([]string{"auth-url", "http://auth.shop.svc/check"}, pairs...)...)
		others[words] = values
		samples[name] = append(samples[name], sample{words, values[name], false})
	}
	add("auth-url", "http and https URLs, in their path and query with variables that weir knows")
	add("auth-url", "URLs without a path", "auth-url", "http://auth.shop.svc")
	add("auth-url", "`$host` as the host", "auth-url", "https://$host/oauth2/auth")
	add("auth-url", "`$host` as the host, with a wildcard or without a host in a rule", "auth-url", "https://$host/oauth2/auth")
	add("auth-url", "another variable in the host", "auth-url", "http://$server_name/")
	add("auth-url", "variables that weir does not know", "auth-url", "http://a.b/$uri")
	add("auth-url", "no URL", "auth-url", "x")
	add("auth-url", "with `auth-type`", "auth-type", "basic")
	add("auth-url", "URLs, with other paths than `Prefix`, `Exact` or `/`")
	add("auth-method", "`GET`, `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE`, `OPTIONS`", "auth-method", "GET")
	add("auth-method", "other methods", "auth-method", "x")
	add("auth-response-headers", "names of HTTP headers", "auth-response-headers", "a")
	add("auth-response-headers", "other texts", "auth-response-headers", "a;b")
	add("auth-signin", "URLs, with variables that weir knows", "auth-signin", "https://$host/in")
	add("auth-signin", "URLs, with other variables", "auth-signin", "https://$server_name/in")
	add("auth-signin", "texts that are no URLs", "auth-signin", "{")
	add("auth-signin-redirect-param", "names of parameters", "auth-signin-redirect-param", "rd")
	add("auth-signin-redirect-param", "other names", "auth-signin-redirect-param", "{")
	add("auth-request-redirect", "URLs without variables", "auth-request-redirect", "/")
	add("auth-request-redirect", "other URLs", "auth-request-redirect", "$host")
	add("auth-cache-key", "keys with variables that weir knows", "auth-cache-key", "$http_authorization")
	add("auth-cache-key", "keys with other variables", "auth-cache-key", "$uri")
	add("auth-cache-key", "keys with characters that ingress-nginx does not accept", "auth-cache-key", "/")
	add("auth-cache-duration", "lists of statuses and a time", "auth-cache-duration", "200 10m")
	add("auth-cache-duration", "other lists", "auth-cache-duration", "200")
	add("auth-always-set-cookie", "`true`, `false`", "auth-always-set-cookie", "true")
	add("auth-always-set-cookie", "others than `true` and `false`", "auth-always-set-cookie", "x")
	add("auth-snippet", "not allowed", "auth-snippet", "proxy_set_header A b;")
	for _, one := range [][2]string{{"`proxy_set_header` with variables that weir knows", "proxy_set_header A b;"}, {"HTTP headers that ingress-nginx sends as well", "proxy_set_header X-Real-IP b;"}, {"with something else", "deny all;"}} {
		add("auth-snippet", one[0]+", allowed", "auth-snippet", one[1])
		keysOf[one[0]+", allowed"] = map[string]string{"allow-snippet-annotations": "true"}
	}
	add("auth-proxy-set-headers", "a name with its namespace, that of the Ingress ", "auth-proxy-set-headers", "shop/x")
	keysOf["a name with its namespace, that of the Ingress "] = map[string]string{"allow-cross-namespace-resources": "true"}
	add("auth-proxy-set-headers", "a name without a namespace ", "auth-proxy-set-headers", "x")
	add("auth-proxy-set-headers", "a ConfigMap of another namespace ", "auth-proxy-set-headers", "other/x")
	add("auth-proxy-set-headers", "no name of a ConfigMap", "auth-proxy-set-headers", "/")
}
