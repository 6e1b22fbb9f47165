package proxy

import (
	"strings"
	"testing"
)

// The cases of ingress-nginx's test/e2e/annotations/mirror.go: the copies that the target gets. weir copies nothing to
// loopback.
func TestIngressMirrors(t *testing.T) {
	i := newIngressRig(t, "", ingress("a/local", 1, "local.test Prefix / app", "mirror-target: http://localhost/mirror")+
		ingress("a/uri", 1, "mirror.foo.com Prefix / app", "mirror-target: https://test.env.com/$request_uri")+
		ingress("a/path", 1, "path.test Prefix / app", "mirror-target: http://mirror.test.env.com:8080/mirror")+
		ingress("a/nobody", 1, "nobody.test Prefix / app", "mirror-target: http://test.env.com/mirror", "mirror-request-body: off")+
		ingress("a/host", 1, "host.test Prefix / app", "mirror-target: http://test.env.com$request_uri", "mirror-host: inner.example")+
		ingress("a/same", 1, "same.test Prefix / app", "mirror-target: http://test.env.com$request_uri", "mirror-host: $host"))
	for request, want := range map[string]string{
		"http://local.test/x":        "",
		"http://mirror.foo.com/x?y":  "POST test.env.com /x?y 2", // nginx sends //x?y
		"http://path.test/x?y":       "POST mirror.test.env.com /mirror?y 2",
		"http://nobody.test/x":       "POST test.env.com /mirror 0",
		"http://host.test/a%20b?c=d": "POST inner.example /a%20b?c=d 2",
		"http://same.test/":          "POST same.test / 2",
	} {
		if got := i.ask("POST " + request + "\nContent-Length: 2\n\nxx").first; !strings.HasPrefix(got, "app POST ") {
			t.Errorf("%s: the client gets %q", request, got)
		}
		if want == "" {
			continue
		}
		if got := next1(t, i.copied); got != want {
			t.Errorf("%s: the target gets %q, want %q", request, got, want)
		}
	}
	for name := range i.servers {
		if strings.Contains(name, "localhost") {
			t.Errorf("weir has the backend %s", name)
		}
	}
	if n := len(i.copied); n != 0 {
		t.Errorf("the targets got %d further requests", n)
	}
}
