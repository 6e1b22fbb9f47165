//go:build linux

package kube

import (
	"errors"
	"strings"
	"testing"
)

// TestAPIServerAway: without the API server weir serves as before, also after a reload. When the API server
// is back, weir applies all changes that it missed. A weir that starts without an API server is not ready
// until it is back.
func TestAPIServerAway(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 2), s.secret("web", "web", "web.example"), ingress("web", "web.example", "/", "a", "web"))
	s.rolledOut("a")
	w := s.weir("")
	w.wantApp("https://web.example/", "a")
	l := w.underLoad("https://web.example/")
	t.Cleanup(func() {
		if !s.parts["kube-apiserver"].running() {
			s.startAPI()
		}
	})
	s.refused = true // a new API server refuses all requests until it has loaded its RBAC rules
	s.parts["kube-apiserver"].kill()
	eventually(t, "weir tells of the outage", func() error {
		if !strings.Contains(w.said(1<<20), "weir cannot watch the cluster") || w.metric("weir_kubernetes_watch_errors_total") == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	l.more(200)

	before := w.metric("weir_config_reloads_total", "result", "success")
	w.write("log: {level: info}\n") // weir loads a changed file by itself
	w.wantMetric(before+1, "weir_config_reloads_total", "result", "success")
	l.more(200)

	late := s.newWeir("node-b", "").launch()
	eventually(t, "a weir that knows no objects says that it is not ready", func() error {
		status, text, err := late.page(8086, "/readyz")
		if err == nil && status != 503 {
			err = errors.New(text)
		}
		return err
	})
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
	s.apply(ingress("more", "more.example", "/", "a", ""))
	w.wantApp("http://more.example/", "a")
	late.ready()
	late.wantApp("https://web.example/", "a")
	l.more(200)
	l.stop()
}
