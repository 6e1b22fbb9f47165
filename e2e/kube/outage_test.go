//go:build linux

package kube

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
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

// TestWatchesAfterOutage: weir sees the changes that it missed a few seconds after the API server is ready, also after an
// outage in which the attempts to watch have become rare. It says that it can watch again only when it can.
func TestWatchesAfterOutage(t *testing.T) {
	s := newStage(t)
	s.refused = true // a new API server refuses all requests until it has loaded its RBAC rules
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""))
	s.rolledOut("a")
	w := s.weir("")
	w.wantApp("http://web.example/", "a")
	api := s.parts["kube-apiserver"]
	t.Cleanup(func() {
		api.cmd.Process.Signal(syscall.SIGCONT)
		if !s.parts["kube-apiserver"].running() {
			s.startAPI()
		}
	})
	moves := func(host string) {
		t.Helper()
		begun := time.Now()
		s.apply(ingress(host, host+".example", "/", "a", ""))
		s.kubectl("scale", "deployment/a", "--namespace="+s.name, "--replicas=2")
		w.wantApp("http://"+host+".example/", "a")
		took := time.Since(begun)
		t.Logf("%s: %v after the API server was ready weir served the first change", host, took)
		if took > 20*time.Second { // at most 6 s, on a busy machine more
			t.Errorf("%s: it took %v", host, took)
		}
	}
	again := func() int { return strings.Count(w.said(1<<20), "weir can watch the cluster again") }

	api.kill()
	time.Sleep(15 * time.Second) // an outage is a time without answers; nothing happens at its end
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
	api = s.parts["kube-apiserver"]
	moves("killed")
	eventually(t, "weir says once that it can watch again", func() error {
		if n := again(); n != 1 {
			return fmt.Errorf("it said so %d times", n)
		}
		return nil
	})

	before := strings.Count(w.said(1<<20), "weir cannot watch the cluster")
	api.cmd.Process.Signal(syscall.SIGSTOP)
	eventually(t, "weir notices an API server that accepts connections and is silent", func() error {
		if strings.Count(w.said(1<<20), "weir cannot watch the cluster") == before {
			return errors.New("it does not")
		}
		return nil
	})
	api.cmd.Process.Signal(syscall.SIGCONT)
	moves("frozen")
	eventually(t, "weir says again that it can watch", func() error {
		if n := again(); n != 2 {
			return fmt.Errorf("it said so %d times", n)
		}
		return nil
	})
}
