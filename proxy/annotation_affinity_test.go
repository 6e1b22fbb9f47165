package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// The cases of ingress-nginx's test/e2e/annotations/affinity.go. TestIngressAliases has the one about aliases.
func TestIngressAffinity(t *testing.T) {
	const on, name = "affinity: cookie", "session-cookie-name: SERVERID"
	i := newIngressRig(t, "",
		ingress("a/sticky", 1, "sticky.foo.com Prefix / app", on, name)+
			ingress("a/path", 1, "path.foo.com Prefix /something app, path.foo.com Prefix /somewhereelse app", on, name)+
			ingress("a/expires", 1, "expires.foo.com Prefix / app", on, "session-cookie-name: ExpiresCookie", "session-cookie-expires: 172800", "session-cookie-max-age: 259200")+
			ingress("a/domain", 1, "domain.foo.com Prefix / app", on, "session-cookie-name: DomainCookie", "session-cookie-domain: foo.bar")+
			ingress("a/regex", 1, "useregex.foo.com ImplementationSpecific /foo/.* app", on, name, "use-regex: true", "session-cookie-path: /foo/bar")+
			ingress("a/regexes", 1, "useregex2.foo.com ImplementationSpecific /foo(/|$)(.*) app, useregex2.foo.com ImplementationSpecific /bar.* app", on, name, "use-regex: true")+
			ingress("a/separate1", 1, "separate.foo.com Prefix /foo/bar app", on)+ingress("a/separate2", 1, "separate.foo.com Prefix /foo app")+
			ingress("a/nohost", 1, "- Prefix / app", on, name)+
			ingress("a/secure", 1, "secure.foo.com Prefix /bar app", on, name, "session-cookie-secure: true")+
			ingress("a/insecure", 1, "a.example Prefix /bar app", on, name, "session-cookie-secure: false")+
			ingress("a/samesite", 1, "samesite.foo.com Prefix / app", on, name, "session-cookie-samesite: none", "session-cookie-conditional-samesite-none: true")+
			ingress("a/none", 1, "none.foo.com Prefix / app", name, "session-cookie-secure: true"))
	for request, want := range map[string]string{
		"http://sticky.foo.com/":            "SERVERID=*; Path=/; HttpOnly",
		"http://path.foo.com/something":     "SERVERID=*; Path=/something; HttpOnly",
		"http://path.foo.com/somewhereelse": "SERVERID=*; Path=/somewhereelse; HttpOnly",
		"http://expires.foo.com/":           "ExpiresCookie=*; Expires=*; Max-Age=259200; Path=/; HttpOnly",
		"http://domain.foo.com/":            "DomainCookie=*; Domain=foo.bar; Path=/; HttpOnly",
		"http://useregex.foo.com/foo/bar":   "SERVERID=*; Path=/foo/bar; HttpOnly",
		"http://useregex2.foo.com/foo/bar":  "SERVERID=*; Path=/foo; HttpOnly",
		"http://useregex2.foo.com/bar":      "SERVERID=*; Path=/; HttpOnly",
		"http://separate.foo.com/foo":       "",
		"http://separate.foo.com/foo/bar":   "INGRESSCOOKIE=*; Path=/foo/bar; HttpOnly",
		"http://any.test/":                  "SERVERID=*; Path=/; HttpOnly",
		"http://secure.foo.com/bar":         "SERVERID=*; Path=/bar; Secure; HttpOnly",
		"http://a.example/bar":              "SERVERID=*; Path=/bar; HttpOnly",
		"https://a.example/bar":             "SERVERID=*; Path=/bar; Secure; HttpOnly", // false has no effect
		"http://samesite.foo.com/":          "SERVERID=*; Path=/; HttpOnly; SameSite=None",
		"http://samesite.foo.com/\nUser-Agent: Mozilla/5.0 (Linux) Chrome/60.1": "SERVERID=*; Path=/; HttpOnly",
		"http://none.foo.com/": "",
	} {
		got := i.ask("GET " + request).Header.Get("Set-Cookie")
		for _, part := range strings.Split(got, "; ") {
			name, value, _ := strings.Cut(part, "=")
			if name == "Expires" {
				at, err := http.ParseTime(value)
				if err != nil || time.Until(at) < 48*time.Hour-time.Minute || time.Until(at) > 48*time.Hour {
					t.Errorf("%s: %s, %v", request, part, err)
				}
			} else if !strings.HasSuffix(name, "COOKIE") && !strings.HasSuffix(name, "Cookie") && name != "SERVERID" {
				continue
			}
			got = strings.Replace(got, part, name+"=*", 1)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}

// A client stays with its Pod, whatever its next request is, and clients of other Ingresses do not.
func TestIngressAffinityKeepsPods(t *testing.T) {
	i := newIngressRig(t, "", ingress("a/sticky", 1, "sticky.foo.com Prefix /x three", "affinity: cookie")+ingress("a/other", 1, "other.foo.com Prefix / three"))
	for range 5 {
		first := i.ask("GET http://sticky.foo.com/x")
		cookie, _, _ := strings.Cut(first.Header.Get("Set-Cookie"), ";")
		for range 6 {
			again := i.ask("GET http://sticky.foo.com/x/y\nCookie: " + cookie)
			if again.Header.Get("Pod") != first.Header.Get("Pod") || again.Header.Get("Set-Cookie") != "" {
				t.Errorf("Pod %s, and then %s with the cookie %q", first.Header.Get("Pod"), again.Header.Get("Pod"), again.Header.Get("Set-Cookie"))
			}
		}
	}
	if cookie := i.ask("GET http://other.foo.com/").Header.Get("Set-Cookie"); cookie != "" {
		t.Errorf("an Ingress without affinity sets the cookie %q", cookie)
	}
	if moved := i.ask("GET http://sticky.foo.com/x\nCookie: INGRESSCOOKIE=1700000000.1.1.1|0123").Header.Get("Set-Cookie"); moved == "" {
		t.Error("a client with a cookie of ingress-nginx gets no cookie of weir")
	}
}

// If the Pod of a client does not answer, another one does. The client keeps its cookie, unless
// session-cookie-change-on-failure is set.
func TestIngressAffinityAfterFailures(t *testing.T) {
	for _, moves := range []bool{false, true} {
		i := newIngressRig(t, "", ingress("a/sticky", 1, "sticky.foo.com Prefix / three", "affinity: cookie", fmt.Sprint("session-cookie-change-on-failure: ", moves)))
		first := i.ask("GET http://sticky.foo.com/")
		cookie, _, _ := strings.Cut(first.Header.Get("Set-Cookie"), ";")
		pod := 0
		fmt.Sscan(first.Header.Get("Pod"), &pod)
		for name, servers := range i.servers {
			if len(servers) == 3 && strings.HasSuffix(name, "/sticky") {
				servers[pod].Close()
			}
		}
		again := i.ask("GET http://sticky.foo.com/\nCookie: " + cookie)
		if again.StatusCode != 200 || again.Header.Get("Pod") == first.Header.Get("Pod") || (again.Header.Get("Set-Cookie") != "") != moves {
			t.Errorf("change-on-failure %v: status %d from Pod %s, cookie %q", moves, again.StatusCode, again.Header.Get("Pod"), again.Header.Get("Set-Cookie"))
		}
	}
}

func TestIngressAffinityChangesName(t *testing.T) {
	named := func(name string) string {
		return ingress("a/sticky", 1, "change.foo.com Prefix / app", "affinity: cookie", "session-cookie-name: "+name)
	}
	i := newIngressRig(t, "", named("SERVERID"))
	for _, name := range []string{"SERVERID", "OTHERCOOKIENAME"} {
		i.change(named(name))
		if got := i.ask("GET http://change.foo.com/").Header.Get("Set-Cookie"); !strings.HasPrefix(got, name+"=") {
			t.Errorf("the cookie is %q, want %s", got, name)
		}
	}
}

// The case "Check persistent affinity mode" of ingress-nginx's test/e2e/annotations/affinitymode.go.
func TestIngressAffinityWhileScaling(t *testing.T) {
	manifest := ingress("a/sticky", 1, "affinity-mode-persistent.com Prefix / three", "affinity: cookie", "session-cookie-name: hello-cookie",
		"session-cookie-expires: 172800", "session-cookie-max-age: 172800", "ssl-redirect: false", "affinity-mode: persistent", "session-cookie-hash: sha1")
	i := newIngressRig(t, "", manifest)
	first := i.ask("GET http://affinity-mode-persistent.com/")
	cookie, _, _ := strings.Cut(first.Header.Get("Set-Cookie"), ";")
	again := func() reaction { return i.ask("GET http://affinity-mode-persistent.com/\nCookie: " + cookie) }
	for range 5 {
		i.pods++
		i.change(manifest)
		if got := again(); got.Header.Get("Pod") != first.Header.Get("Pod") {
			t.Errorf("beside %d Pods the client gets Pod %s, and had %s", i.pods, got.Header.Get("Pod"), first.Header.Get("Pod"))
		}
	}
	i.pods = 0
	i.change(manifest)
	if got := again(); got.StatusCode != 503 {
		t.Errorf("without Pods: status %d", got.StatusCode)
	}
	for name := range i.servers { // the next Pods have other addresses
		for _, s := range i.servers[name] {
			s.Close()
		}
		delete(i.servers, name)
	}
	i.pods = 2
	i.change(manifest)
	if got := again(); got.StatusCode != 200 || !strings.HasPrefix(got.Header.Get("Set-Cookie"), "hello-cookie=") {
		t.Errorf("with new Pods: status %d, cookie %q", got.StatusCode, got.Header.Get("Set-Cookie"))
	}
}

// The cases of canary.go about affinity.
func TestIngressAffinityOfCanaries(t *testing.T) {
	f := func(behavior string, annotations ...string) (toCanary int, cookie string) {
		t.Helper()
		annotations = append(annotations, "canary: true", "canary-by-header: ForceCanary", "canary-by-header-value: yes", "canary-weight: 1")
		i := newIngressRig(t, "", ingress("a/main", 1, "foo.test Prefix /info main", "affinity: cookie", "session-cookie-name: aff")+ingress("a/canary", 2, "foo.test Prefix /info alt", annotations...))
		forced := i.ask("GET http://foo.test/info\nForceCanary: yes")
		if !strings.HasPrefix(forced.first, "alt ") {
			t.Errorf("%s: the header leads to %q", behavior, forced.first)
		}
		cookie, _, _ = strings.Cut(forced.Header.Get("Set-Cookie"), ";")
		for range 50 {
			if strings.HasPrefix(i.ask("GET http://foo.test/info\nCookie: "+cookie).first, "alt ") {
				toCanary++
			}
		}
		main, _, _ := strings.Cut(i.ask("GET http://foo.test/info").Header.Get("Set-Cookie"), ";")
		if got := i.ask("GET http://foo.test/info\nForceCanary: yes\nCookie: " + main).first; !strings.HasPrefix(got, "main ") {
			t.Errorf("%s: a client of the main Ingress gets %q", behavior, got)
		}
		return toCanary, cookie
	}
	if n, cookie := f("default"); n != 50 || !strings.HasPrefix(cookie, "aff=") {
		t.Errorf("%d of 50 requests go to the canary, with the cookie %q", n, cookie)
	}
	if n, _ := f("sticky", "affinity-canary-behavior: sticky"); n != 50 {
		t.Errorf("%d of 50 requests go to the canary", n)
	}
	if n, cookie := f("legacy", "affinity-canary-behavior: legacy"); n == 50 || cookie != "" {
		t.Errorf("%d of 50 requests go to the canary, with the cookie %q", n, cookie)
	}
}

func TestRefusesNone(t *testing.T) {
	for agent, want := range map[string]bool{
		"": false, "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/80.0.3987.87 Safari/537.36": false,
		"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/51.0.2704.103 Safari/537.36":      true,
		"Mozilla/5.0 (iPhone; CPU iPhone OS 12_4 like Mac OS X)":                                                         true,
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_14_6) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/12 Safari/605": true,
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_6) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/13 Safari/605": false,
	} {
		c := &config.StickyCookie{Name: "a", Path: "/", SameSite: "None", NoneIfKnown: true}
		if got := !strings.Contains(stickyCookieField(c, "v", true, []byte(agent), time.Now()), "SameSite"); got != want {
			t.Errorf("%q refuses None: %v", agent, got)
		}
	}
}
