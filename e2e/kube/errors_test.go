//go:build linux

package kube

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// TestErrorsOfAllIngresses: the Service of kubernetes.ingress_nginx.default_backend may come later and lose its endpoints,
// and a reload may name another one. Without it, clients get the original response.
func TestErrorsOfAllIngresses(t *testing.T) {
	s := newStage(t)
	s.settingsOf(map[string]string{"custom-http-errors": "404"})
	var pages []string
	for _, o := range s.echoes() {
		if strings.Contains(o, "{name: errors") {
			pages = append(pages, o)
		} else {
			s.apply(o)
		}
	}
	s.apply(strings.Replace(annotated("web", "errors.example"), "service: {name: a,", "service: {name: app,", 1))
	config := func(more string) string {
		return strings.Replace(underSettings, "ingress-nginx-controller}", "ingress-nginx-controller"+more+"}", 1)
	}
	w := s.weir(config(", default_backend: @stage/errors"))
	from := func(want string) {
		t.Helper()
		r := &request{host: "errors.example", method: "GET", target: "/", body: -1, headers: []string{"Do-Status: 404"}}
		eventually(t, want+" answers", func() error {
			switch a := r.once(w.address); {
			case a.err != nil:
				return a.err
			case a.status != 404 || a.backend == nil || a.backend.Backend != want:
				return errors.New("another Service does, or with another status")
			}
			return nil
		})
	}
	from("app")
	if message := s.wantEvent("Ingress", "web", "BackendNotFound"); !strings.Contains(message, "(kubernetes.ingress_nginx.default_backend) is the Service "+s.name+"/errors, which does not exist") {
		t.Errorf("the event says %q", message)
	}
	s.apply(pages...)
	from("errors")
	s.delete("endpointslice", "errors")
	from("app")
	s.apply(pages...)
	from("errors")

	for _, x := range []struct{ more, want string }{{", default_backend: @stage/other", "other"}, {"", "app"}, {", default_backend: @stage/errors", "errors"}} {
		w.write(config(x.more))
		if err := w.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		from(x.want)
	}
}
