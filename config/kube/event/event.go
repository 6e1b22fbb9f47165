// Package event describes errors of Kubernetes objects, for events and metrics.
package event

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Event reports an error of an object. All events are warnings.
type Event struct {
	Object corev1.ObjectReference
	Reason Reason
	// Message names the error, its effect and the correction.
	Message string
	// Unread means that the error is about an object that does not exist, or that weir has not read. weir lint leaves it
	// out, because manifests are rarely complete.
	Unread bool
	// Rated means that the ratings of annotations say the same. weir lint leaves it out.
	Rated bool
}

// Reason names the kind of an error, for machines.
type Reason string

// The reasons. The text in brackets is how weir treats the object.
const (
	ReasonClass         Reason = "UnclearClass"       // an IngressClass or its use is ambiguous (the message says how weir treats it)
	ReasonHost          Reason = "InvalidHost"        // the host is not a valid name (no route)
	ReasonPath          Reason = "InvalidPath"        // the path is invalid, or weir cannot match it (503 for its literal prefix)
	ReasonTaken         Reason = "AlreadyTaken"       // the host and path, or the port, belong to another object (no route)
	ReasonHostTaken     Reason = "HostTaken"          // another namespace owns the host (no route, no certificate)
	ReasonHostContested Reason = "HostContested"      // objects of another kind name the host as well (they do not get it)
	ReasonResource      Reason = "ResourceBackend"    // a backend is not a Service (503)
	ReasonBackend       Reason = "BackendNotFound"    // the Service or its port is missing (503)
	ReasonNoEndpoints   Reason = "NoEndpoints"        // the Service has no ready endpoint (503)
	ReasonUnusable      Reason = "UnusableBackend"    // weir must not connect to the address of the Service (503)
	ReasonAccess        Reason = "AccessControl"      // annotations restrict access, or may, and weir does not support them (503)
	ReasonUsers         Reason = "UnusableUsers"      // weir cannot check passwords of a Secret of users (these users are refused)
	ReasonUndone        Reason = "UndoneAnnotation"   // weir does not support some annotations (served without them)
	ReasonCanary        Reason = "Canary"             // the Ingress is a canary (not served)
	ReasonNeverLocal    Reason = "NeverLocal"         // an ExternalName must have an endpoint on this node (no effect)
	ReasonOperator      Reason = "OperatorOnly"       // an annotation affects the health of nodes, and its namespace may not do that (no effect)
	ReasonProtocol      Reason = "UnknownProtocol"    // weir does not support the protocol of the Service (HTTP/1.1)
	ReasonCertificate   Reason = "InvalidCertificate" // the Secret is missing, unusable, or not valid for the host (see the message)
	ReasonTLSHost       Reason = "InvalidTLSHost"     // a host in spec.tls has no rule (no certificate)
	ReasonPort          Reason = "InvalidPort"        // weir cannot parse an entry of the ConfigMap for raw TCP (no listener)
	ReasonPortInUse     Reason = "PortUnavailable"    // weir may not bind a port for raw TCP, or another process uses it (no listener)
	ReasonTooMany       Reason = "TooMany"            // an object has too many errors, or a namespace too many routes (see the message)
	ReasonOpen          Reason = "OpenToForgery"      // any peer can forge client addresses (served)
	ReasonSetting       Reason = "UndoneSetting"      // weir does not apply a key of ingress-nginx's ConfigMap (see the message)
	ReasonAnnotation    Reason = "InvalidAnnotation"  // an annotation of weir has an invalid value (ignored)
)

// Set is the events that a conversion has found so far.
type Set map[Event]bool

// Add adds an error of the object, once.
func (s Set) Add(object corev1.ObjectReference, reason Reason, format string, args ...any) {
	s.Put(Event{Object: object, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// Put adds an error, once.
func (s Set) Put(e Event) { s[e] = true }

// Sorted returns the events in a fixed order, at most MaxOfObject of each object. The
// last event of an object with more errors gives their number.
func (s Set) Sorted() (all []Event) {
	for e := range s {
		all = append(all, e)
	}
	slices.SortFunc(all, compare)
	return fewer(all)
}

// InPassing reports whether weir serves the object in spite of this event.
func (e Event) InPassing() bool { return inPassing(e.Reason) > 0 }

func inPassing(r Reason) int {
	if r == ReasonUndone || r == ReasonHostContested {
		return 1
	}
	return 0
}

// compare sorts events in passing last: there may be one for every object,
// and the others would have to wait for them.
func compare(a, b Event) int {
	return cmp.Or(inPassing(a.Reason)-inPassing(b.Reason), strings.Compare(a.Object.Kind, b.Object.Kind), strings.Compare(a.Object.Namespace, b.Object.Namespace),
		strings.Compare(a.Object.Name, b.Object.Name), strings.Compare(string(a.Object.UID), string(b.Object.UID)),
		strings.Compare(string(a.Reason), string(b.Reason)), strings.Compare(a.Message, b.Message))
}

// MaxOfObject is the maximum number of events of one object. An Ingress has room for
// thousands of paths, and its author may make an error in each.
const MaxOfObject = 20

// fewer keeps at most MaxOfObject events of each object. The last one gives the
// number of all others. The events are sorted.
func fewer(all []Event) (kept []Event) {
	count := map[corev1.ObjectReference]int{}
	for _, e := range all {
		count[e.Object]++
	}
	told := map[corev1.ObjectReference]int{}
	for _, e := range all {
		told[e.Object]++
		switch n := told[e.Object]; {
		case n < MaxOfObject || count[e.Object] == MaxOfObject:
			kept = append(kept, e)
		case n == MaxOfObject:
			kept = append(kept, Event{Object: e.Object, Reason: ReasonTooMany, Message: fmt.Sprintf("This object has %d more errors; correct those in the other events first.", count[e.Object]-MaxOfObject+1)})
		}
	}
	return kept
}

// Spread orders events for a reader that can report only some of them: the first
// of each namespace, then the second of each, and so on. So no namespace waits for
// the thousands of another one. Events in passing stay last.
func Spread(all []Event) []Event {
	type turn struct {
		passing, of int
		Event
	}
	turns := make([]turn, 0, len(all))
	seen := map[string]int{}
	for _, e := range all {
		turns = append(turns, turn{inPassing(e.Reason), seen[e.Object.Namespace], e})
		seen[e.Object.Namespace]++
	}
	slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Or(a.passing-b.passing, a.of-b.of) })
	spread := make([]Event, 0, len(all))
	for _, t := range turns {
		spread = append(spread, t.Event)
	}
	return spread
}
