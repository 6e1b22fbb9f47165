//go:build linux

package kube

import (
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"slices"
	"strings"
	"testing"
)

// newStuckClient returns a client with cookies that sends requests until the load ends.
func (w *weir) newStuckClient(l *load, url string) *stuckClient {
	w.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.Fatal(err)
	}
	c := &stuckClient{Client: client(w.address, false)}
	c.Jar = jar
	if a, err := c.next(url); err != nil || a.Status != 200 {
		w.Fatal(a, err)
	}
	l.again(func() (answer, error) { return c.next(url) })
	return c
}

// apps returns the applications that answered the client, without repetitions.
func (c *stuckClient) apps() string {
	pods, _ := c.state()
	var all []string
	for _, p := range strings.Fields(pods) {
		app, _, _ := strings.Cut(p, "-")
		all = append(all, app)
	}
	return strings.Join(slices.Compact(all), " ")
}

// withHeader is a transport that adds X-Canary.
type withHeader struct {
	http.RoundTripper
	value string
}

func (h withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Canary", h.value)
	return h.RoundTripper.RoundTrip(r)
}

// withAnnotations gives an Ingress annotations of ingress-nginx.
func withAnnotations(manifest, name string, lines ...string) string {
	all := "nginx.ingress.kubernetes.io/" + strings.Join(lines, ", nginx.ingress.kubernetes.io/")
	return strings.Replace(manifest, "metadata: {name: "+name+"}", "metadata: {name: "+name+", annotations: {"+all+"}}", 1)
}

// TestCanaryRollout goes through the life of a canary, with clients that have a cookie of affinity and with others: it
// begins, its weight changes, both applications roll out, it loses all Pods, and it ends. No request may fail, and no
// client with a cookie changes the application while both have Pods.
func TestCanaryRollout(t *testing.T) {
	const url = "https://web.example/"
	s := newStage(t)
	canary := func(weight int) string {
		return withAnnotations(ingress("next", "web.example", "/", "b", "web"), "next", `canary: "true"`, "canary-by-header: X-Canary", fmt.Sprintf(`canary-weight: "%d"`, weight))
	}
	s.apply(deployment("a", 3), deployment("b", 2), s.secret("web", "web", "web.example"),
		withAnnotations(ingress("web", "web.example", "/", "a", "web"), "web", "affinity: cookie"))
	s.rolledOut("a")
	s.rolledOut("b")
	w := s.weir("")
	w.wantApp(url, "a")
	l := w.underLoad(url)
	chosen := map[string]*http.Client{}
	for _, value := range []string{"always", "never"} {
		c := client(w.address, false)
		c.Transport = withHeader{c.Transport, value}
		chosen[value] = c
		l.again(func() (answer, error) { return ask(c, url) })
	}
	none := client(w.address, false)
	only := func(c *http.Client, app string) {
		t.Helper()
		eventually(t, "only "+app+" answers", func() error {
			for range 20 {
				if a, err := ask(c, url); err != nil || !strings.HasPrefix(a.Pod, app+"-") {
					return fmt.Errorf("there is %s, %v", a, err)
				}
			}
			return nil
		})
	}
	clients := map[string][]*stuckClient{}
	for len(clients["a"]) < 4 {
		clients["a"] = append(clients["a"], w.newStuckClient(l, url))
	}
	loyal := func(what string) {
		t.Helper()
		l.more(100)
		for app, all := range clients {
			for _, c := range all {
				if got := c.apps(); got != app {
					t.Errorf("%s: a client of %s had answers of %s", what, app, got)
				}
			}
		}
	}
	rollOut := func(app, version string) {
		t.Helper()
		s.kubectl("set", "env", "--namespace="+s.name, "deployment/"+app, "VERSION="+version)
		s.rolledOut(app)
		loyal(app + " rolled out")
	}

	s.apply(canary(50))
	only(chosen["always"], "b")
	only(chosen["never"], "a")
	for len(clients["b"]) < 4 {
		c := w.newStuckClient(l, url)
		clients[c.apps()] = append(clients[c.apps()], c)
	}
	loyal("the canary began")
	rollOut("b", "two")
	rollOut("a", "two")
	s.apply(canary(100))
	only(none, "b")
	loyal("the canary has all new clients")
	rollOut("b", "three")
	s.apply(canary(0))
	only(none, "a")
	loyal("the canary has no new clients")

	s.kubectl("scale", "--namespace="+s.name, "deployment/b", "--replicas=0")
	only(chosen["always"], "a")
	for _, c := range clients["b"] {
		eventually(t, "the clients of the canary get the main application", func() error {
			if got := c.apps(); got != "b a" {
				return fmt.Errorf("a client had answers of %s", got)
			}
			return nil
		})
	}
	clients["b a"] = clients["b"]
	delete(clients, "b")
	s.kubectl("scale", "--namespace="+s.name, "deployment/b", "--replicas=2")
	s.rolledOut("b")
	only(chosen["always"], "b")
	loyal("the canary has Pods again")

	s.delete("ingress", "next")
	only(chosen["always"], "a")
	rollOut("a", "three")
	if versions := l.stop(); versions["two"] == 0 || versions["three"] == 0 {
		t.Errorf("the answers came from %v, want some of each version", versions)
	}
}
