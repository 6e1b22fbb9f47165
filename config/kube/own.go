package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// ownAnnotations are the annotations of weir's own, by the kind of objects on which they have an effect.
var ownAnnotations = map[string][]string{
	"Service":               {AnnotationPreferLocal, AnnotationRequireLocal, AnnotationRampUp, AnnotationSendProxy},
	gateway.KindGateway:     {gateway.AnnotationHeaderPolicy, gateway.Issuer, gateway.AnnotationSSH},
	gateway.KindListenerSet: {gateway.Issuer},
}

// movable are the kinds to which an annotation can be moved.
var movable = []string{"Service", gateway.KindGateway}

// EachUnknownAnnotation calls tell for each annotation with weir's prefix that has no effect on its object.
func EachUnknownAnnotation(m *Manifests, tell func(kind string, o metav1.Object, message string)) {
	eachUnknown("Ingress", m.Ingresses, tell)
	eachUnknown("Service", m.Services, tell)
	if g := m.Gateway; g != nil {
		eachUnknown(gateway.KindGateway, g.Gateways, tell)
		eachUnknown(gateway.KindListenerSet, g.Sets, tell)
		eachUnknown(gateway.KindHTTPRoute, g.HTTP, tell)
		eachUnknown(gateway.KindGRPCRoute, g.GRPC, tell)
		eachUnknown(gateway.KindTLSRoute, g.TLS, tell)
		eachUnknown(gateway.KindTCPRoute, g.TCP, tell)
	}
}

func eachUnknown[T metav1.Object](kind string, all []T, tell func(string, metav1.Object, string)) {
	for _, o := range all {
		for _, message := range unknownAnnotations(kind, o) {
			tell(kind, o, message)
		}
	}
}

// unknownAnnotations are the messages about the annotations with weir's prefix that have no effect on an object.
func unknownAnnotations(kind string, o metav1.Object) (messages []string) {
	written := o.GetAnnotations()
	if len(written) == 0 {
		return nil
	}
	known := ownAnnotations[kind]
	for _, name := range slices.Sorted(maps.Keys(written)) {
		if strings.HasPrefix(name, annotation.Own) && !slices.Contains(known, name) {
			messages = append(messages, unknownAnnotation(kind, name))
		}
	}
	return messages
}

// unknownAnnotation is the message about an annotation that has no effect.
func unknownAnnotation(kind, name string) string {
	for _, other := range movable {
		if slices.Contains(ownAnnotations[other], name) {
			return fmt.Sprintf("The annotation %s has an effect only on a %s; move it there.", name, other)
		}
	}
	if known := ownAnnotations[kind]; len(known) > 0 {
		return fmt.Sprintf("weir does not know the annotation %s, so it has no effect; correct the name (weir knows %s), or remove it.", name, strings.Join(known, ", "))
	}
	return fmt.Sprintf("weir does not know the annotation %s, so it has no effect; remove it.", name)
}

// tellUnknown records an event for each annotation with weir's prefix that has no effect on an object.
func (v *conversion) tellUnknown(apiVersion, kind string, o *metav1.ObjectMeta) {
	for _, message := range unknownAnnotations(kind, o) {
		v.event(reference(apiVersion, kind, o), event.ReasonAnnotation, "%s", message)
	}
}
