package kube

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/controller"
	"github.com/weirproxy/weir/config/kube/event"
)

// sameUnsupported reports whether two states of an object have the same unsupported
// annotations.
func sameUnsupported(a, b metav1.Object) bool {
	guardsA, othersA := annotation.Unsupported(a)
	guardsB, othersB := annotation.Unsupported(b)
	return slices.Equal(guardsA, guardsB) && slices.Equal(othersA, othersB)
}

// tellUnsupported reports the unsupported annotations of an object. If there are guards, the
// paths of the object answer 503: otherwise everybody would have access.
func (v *conversion) tellUnsupported(at corev1.ObjectReference, guards, others []string) {
	own, keys := v.byOrigin(guards)
	if len(own) > 0 {
		v.events.Put(event.Event{Object: at, Reason: event.ReasonAccess, Rated: true, Message: fmt.Sprintf("All paths of this %s answer 503, because otherwise everybody would have access: it has annotations that restrict access, or may, and that weir does not support. Run weir lint to see what to write instead. Otherwise restrict access in the application or in weir's configuration, then remove these annotations: %s.",
			at.Kind, strings.Join(own, ", "))})
	}
	if len(keys) > 0 {
		v.event(at, event.ReasonAccess, "All paths of this %s answer 503, because otherwise everybody would have access: the ConfigMap %s of ingress-nginx has keys that restrict access, or may, and that weir does not support here. Restrict access in the application or in weir's configuration, then remove these keys: %s.",
			at.Kind, v.settings.IngressNginx.ConfigMap, strings.Join(keys, ", "))
	}
	others = slices.DeleteFunc(others, func(name string) bool { return name == AnnotationProtocol }) // letSpeak reports it
	if len(others) > 0 {
		v.events.Put(event.Event{Object: at, Reason: event.ReasonUndone, Rated: true, Message: fmt.Sprintf("weir serves this %s without the annotations that it does not support. Run weir lint to see what to do instead, then remove them: %s.",
			at.Kind, strings.Join(others, ", "))})
	}
}

// byOrigin divides guards into annotations of the object, and keys of the ConfigMap of ingress-nginx.
func (v *conversion) byOrigin(guards []string) (own, keys []string) {
	if v.settings.IngressNginx == nil {
		return guards, nil
	}
	var data map[string]string
	if v.o.Controller != nil {
		data = v.o.Controller.Data
	}
	for _, name := range guards {
		key, ok := annotation.KeyOf(name)
		if !ok {
			own = append(own, name)
			continue
		}
		keys = append(keys, controller.KeysFor(data, key)...)
	}
	slices.Sort(keys)
	return own, slices.Compact(keys)
}

// guardsOf returns the guards of an object from their names; nil: there are none.
func guardsOf(kind string, name config.ObjectName, names []string) *claim.Guards {
	if len(names) == 0 {
		return nil
	}
	return &claim.Guards{By: kind + " " + name.String(), Names: names, OfHost: slices.ContainsFunc(names, annotation.IsOfHost),
		Text: slices.ContainsFunc(names, annotation.IsText)}
}

// serviceGuards returns the guards of a Service; nil: it has none, or does not exist.
func (v *conversion) serviceGuards(name config.ObjectName) *claim.Guards {
	s := v.service(name)
	if s == nil || len(s.Annotations) == 0 {
		return nil
	}
	found, known := v.guards[name]
	if !known {
		guards, _ := annotation.Unsupported(s)
		found = guardsOf("Service", name, guards)
		v.guards[name] = found
	}
	return found
}

// tellService reports the unsupported annotations of a Service that a claim uses.
func (v *conversion) tellService(name config.ObjectName) {
	if s := v.service(name); s != nil && len(s.Annotations) > 0 {
		guards, others := annotation.Unsupported(s)
		v.tellUnsupported(reference("v1", "Service", &s.ObjectMeta), guards, others)
	}
}
