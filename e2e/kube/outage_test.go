//go:build linux

package kube

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestAPIServerFrozen: an API server that accepts connections and sends nothing does not stop weir. If another one serves
// new connections, as behind a load balancer, weir uses it, and its endpoints are right. Otherwise weir says that it cannot
// watch. It is the first test here: after TestAPIServerAway the controllers of the cluster need a while.
func TestAPIServerFrozen(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 2), ingress("web", "web.example", "/", "a", ""))
	s.rolledOut("a")
	path, freeze := s.balanced()
	w := s.newWeir("node-a", "kubernetes: {kubeconfig: "+path+", class: '@stage', lease: weir/@stage}\n")
	w.launch("HTTP2_READ_IDLE_TIMEOUT_SECONDS=2", "HTTP2_PING_TIMEOUT_SECONDS=2").ready()
	w.wantApp("http://web.example/", "a")

	freeze()
	s.kubectl("delete", "pods", "--namespace="+s.name, "--selector=app=a", "--wait=false") // others replace them
	w.seesChange("another")
	s.rolledOut("a")
	w.wantApp("http://web.example/", "a")

	api := s.parts["kube-apiserver"].cmd.Process
	before := strings.Count(w.said(1<<20), cannotWatch)
	api.Signal(syscall.SIGSTOP)
	t.Cleanup(func() { api.Signal(syscall.SIGCONT) })
	eventually(t, "weir says that it cannot watch", func() error {
		if strings.Count(w.said(1<<20), cannotWatch) == before {
			return errors.New("it does not")
		}
		return nil
	})
	api.Signal(syscall.SIGCONT)
	eventually(t, "the API server is ready again", func() error { return answers(s.api, "https://"+apiAddress+":6443/readyz") })
	w.seesChange("frozen")
	w.watchesAgain()
}

// TestAPIServerAway: without the API server weir serves as before, also after a reload. When the API server
// is back, weir soon applies all changes that it missed. A weir that starts without an API server is not ready
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
	w.seesChange("more")
	w.watchesAgain()
	late.ready()
	late.wantApp("https://web.example/", "a")
	l.more(200)
	l.stop()
}

// seesChange changes objects, and checks that weir soon serves the change.
func (w *weir) seesChange(host string) {
	w.Helper()
	w.apply(ingress(host, host+".example", "/", "a", ""))
	begun := time.Now()
	w.wantApp("http://"+host+".example/", "a")
	took := time.Since(begun)
	w.Logf("weir served a change %v after the API server had it", took)
	if took > 20*time.Second { // at most 6 s, on a busy machine more
		w.Errorf("weir served a change only %v after the API server had it", took)
	}
}

const cannotWatch, canWatch = "weir cannot watch the cluster", "weir can watch the cluster again"

// watchesAgain waits until weir has said that it can watch again.
func (w *weir) watchesAgain() {
	w.Helper()
	eventually(w, "weir says that it can watch again", func() error {
		if text := w.said(1 << 20); strings.LastIndex(text, canWatch) <= strings.LastIndex(text, cannotWatch) {
			return errors.New("it does not")
		}
		return nil
	})
}

// balanced starts a load balancer in front of the API server. It returns a kubeconfig, and a function after which the
// connections are open and silent. New connections work.
func (s *stage) balanced() (kubeconfig string, freeze func()) {
	s.Helper()
	l, err := net.Listen("tcp", "10.10.0.11:0")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { l.Close() })
	var frozen atomic.Int32 // how often freeze was called
	pass := func(to, from net.Conn, since int32) {
		defer to.Close()
		for buffer := make([]byte, 32<<10); ; {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if frozen.Load() == since {
				to.Write(buffer[:n])
			}
		}
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", apiAddress+":6443")
			if err != nil {
				in.Close()
				continue
			}
			since := frozen.Load()
			go pass(in, out, since)
			go pass(out, in, since)
		}
	}()
	text, err := os.ReadFile(s.rights)
	if err != nil {
		s.Fatal(err)
	}
	kubeconfig = filepath.Join(s.TempDir(), "kubeconfig")
	changed := strings.Replace(string(text), `server: "https://`+apiAddress+`:6443"`, `tls-server-name: `+apiAddress+`, server: "https://`+l.Addr().String()+`"`, 1)
	if err := os.WriteFile(kubeconfig, []byte(changed), 0o600); err != nil {
		s.Fatal(err)
	}
	return kubeconfig, func() { frozen.Add(1) }
}
