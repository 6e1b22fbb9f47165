package main

import (
	"fmt"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/weirproxy/weir/config/kube"
)

// A fault has a log line, however many objects have events in passing of another kind.
func TestFaultsDoNotHideEachOther(t *testing.T) {
	core, lines := observer.New(zap.WarnLevel)
	s := newServer(zap.New(core), zap.NewAtomicLevel())
	defer s.close()
	var events []kube.Event
	add := func(name string, reason kube.Reason) {
		e := kube.Event{Reason: reason, Message: name}
		e.Object.Kind, e.Object.Name = "Ingress", name
		events = append(events, e)
	}
	for i := range 1000 {
		add(fmt.Sprint("many-", i), kube.ReasonUndone)
	}
	add("closed", kube.ReasonAccess)
	(&cluster{s: s}).tellFaults(events)
	if n := lines.FilterField(zap.String("reason", string(kube.ReasonAccess))).Len(); n != 1 {
		t.Errorf("%d lines about the other fault", n)
	}
	if n := lines.FilterField(zap.String("reason", string(kube.ReasonUndone))).Len(); n == 0 || n > 500 {
		t.Errorf("%d lines about 1,000 objects", n)
	}
}
