package kube

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Event says what is wrong with an object. All events are warnings.
type Event struct {
	Object corev1.ObjectReference
	Reason Reason
	// Message is a sentence: what is wrong, and what would be right.
	Message string
}

// Reason is what is wrong, in a word for machines.
type Reason string

// The reasons. What is in brackets is what becomes of the object.
const (
	ReasonClass       Reason = "UnclearClass"       // an IngressClass or its use is in doubt (it counts as the message says)
	ReasonHost        Reason = "InvalidHost"        // no such host can be (no route)
	ReasonPath        Reason = "InvalidPath"        // no such path can be, or none that weir could match (no route)
	ReasonTaken       Reason = "AlreadyTaken"       // somebody else has the host and path, or the port (no route)
	ReasonResource    Reason = "ResourceBackend"    // a backend is no Service (503)
	ReasonBackend     Reason = "BackendNotFound"    // the Service or its port is missing (503)
	ReasonUnusable    Reason = "UnusableBackend"    // the Service leads nowhere that weir would go (503)
	ReasonAccess      Reason = "AccessControl"      // annotations keep clients out, or may, and weir does not (503)
	ReasonUndone      Reason = "UndoneAnnotation"   // annotations ask for what weir does not do (served without it)
	ReasonCanary      Reason = "Canary"             // the Ingress is for a share of another's requests (not served)
	ReasonNeverLocal  Reason = "NeverLocal"         // an endpoint on this node is required of a Service that is a name (it is not)
	ReasonProtocol    Reason = "UnknownProtocol"    // the Service speaks what weir does not (it gets HTTP/1.1)
	ReasonCertificate Reason = "InvalidCertificate" // the Secret is missing or unusable, or does not fit (see the message)
	ReasonTLSHost     Reason = "InvalidTLSHost"     // a host of the section tls has nothing in rules (no certificate)
	ReasonPort        Reason = "InvalidPort"        // an entry of the ConfigMap of ports cannot be read (no listener)
	ReasonPortInUse   Reason = "PortUnavailable"    // weir may not listen on a port of the ConfigMap, or somebody else does (no listener)
	ReasonOpen        Reason = "OpenToForgery"      // anybody may claim any client address (served)
	ReasonAnnotation  Reason = "InvalidAnnotation"  // an annotation of weir's has no value that it could have (ignored)
)

// event notes what is wrong with the object, once.
func (v *conversion) event(object corev1.ObjectReference, reason Reason, format string, args ...any) {
	v.events[Event{object, reason, fmt.Sprintf(format, args...)}] = true
}

func inPassing(r Reason) int {
	if r == ReasonUndone {
		return 1
	}
	return 0
}

// reference is how events name an object. Objects of informers do not say their kind.
func reference(apiVersion, kind string, o *metav1.ObjectMeta) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID}
}

// compareEvents puts what is told in passing last: there may be one for every
// object, and the others would wait for them.
func compareEvents(a, b Event) int {
	return cmp.Or(inPassing(a.Reason)-inPassing(b.Reason), strings.Compare(a.Object.Kind, b.Object.Kind), strings.Compare(a.Object.Namespace, b.Object.Namespace),
		strings.Compare(a.Object.Name, b.Object.Name), strings.Compare(string(a.Object.UID), string(b.Object.UID)),
		strings.Compare(string(a.Reason), string(b.Reason)), strings.Compare(a.Message, b.Message))
}
