//go:build linux

package kube

import "testing"

func TestSmoke(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 2))
	s.rolledOut("a")
	t.Log(s.objects("pods"))
	s.apply(s.secret("tls", "one", "a.example"))
	s.apply(ingress("web", "a.example", "/", "a", "tls"))
}
