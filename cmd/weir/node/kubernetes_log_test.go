package node

import (
	"fmt"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/weirproxy/weir/config/kube/event"
)

// A fault is logged even if many objects have passing events of another kind.
func TestFaultsDoNotHideEachOther(t *testing.T) {
	core, lines := observer.New(zap.WarnLevel)
	s := newServer(zap.New(core), zap.NewAtomicLevel(), Build{})
	defer s.close()
	var events []event.Event
	add := func(name string, reason event.Reason) {
		e := event.Event{Reason: reason, Message: name}
		e.Object.Kind, e.Object.Name = "Ingress", name
		events = append(events, e)
	}
	for i := range 1000 {
		add(fmt.Sprint("many-", i), event.ReasonUndone)
	}
	add("closed", event.ReasonAccess)
	(&cluster{s: s}).tellFaults(events)
	if n := lines.FilterField(zap.String("reason", string(event.ReasonAccess))).Len(); n != 1 {
		t.Errorf("%d lines about the other fault", n)
	}
	if n := lines.FilterField(zap.String("reason", string(event.ReasonUndone))).Len(); n == 0 || n > 500 {
		t.Errorf("%d lines about 1,000 objects", n)
	}
}
