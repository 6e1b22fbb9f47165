package kube

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
)

// object is a pointer to a Kubernetes object.
type object interface {
	comparable
	metav1.Object
}

// ordered returns the same objects in the order of their names.
func (o *Objects) ordered() *Objects {
	if o.inOrder {
		return o
	}
	return &Objects{Classes: ordered(o.Classes), Ingresses: ordered(o.Ingresses), Services: ordered(o.Services), Secrets: ordered(o.Secrets),
		Namespaces: ordered(o.Namespaces), Controller: o.Controller, TCP: o.TCP, Gateway: o.Gateway, Maps: o.Maps, inOrder: true}
}

func ordered[T object](all []T) []T {
	all = slices.Clone(all)
	slices.SortStableFunc(all, compareObjects)
	return all
}

func compareObjects[T metav1.Object](a, b T) int {
	return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
}

func objectName(o metav1.Object) config.ObjectName {
	return config.ObjectName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// isSilent reports whether an object was replaced by one that is alike for weir.
func (o *Objects) isSilent(old, now any) bool {
	was, known := o.silent[now]
	return known && was == old
}

// changes yields the objects by which two lists differ: the old and the new object of a name.
// One of them may be nil. Both lists are in order, and share the objects that have not changed.
func changes[T object](before, after []T) iter.Seq2[T, T] {
	return func(yield func(old, now T) bool) {
		var none T
		for len(before) > 0 || len(after) > 0 {
			old, now, c := none, none, 0
			switch {
			case len(before) == 0:
				c = 1
			case len(after) == 0:
				c = -1
			case before[0] == after[0]:
				before, after = before[1:], after[1:]
				continue
			default:
				c = compareObjects(before[0], after[0])
			}
			if c <= 0 {
				old, before = before[0], before[1:]
			}
			if c >= 0 {
				now, after = after[0], after[1:]
			}
			if !yield(old, now) {
				return
			}
		}
	}
}

// put replaces an object by its name, which it returns. One of the two may be nil.
func put[T object](all map[config.ObjectName]T, old, now T) (name config.ObjectName) {
	var none T
	if now == none {
		name = objectName(old)
		delete(all, name)
		return name
	}
	name = objectName(now)
	all[name] = now
	return name
}

// arrival is the newest state of an object that the next conversion takes.
type arrival struct {
	now  any  // nil: it was removed
	loud bool // it is not alike for weir
}

// mostSilent is the number of silent arrivals after which there is a conversion. Until then the
// old objects stay in memory.
const mostSilent = 1000

// arrive notes an object for the next conversion, and reports whether that is due because of silent
// arrivals. s.mu is held.
func (s *Source) arrive(kind Kind, old, now any, alike bool) (due bool) {
	switch kind {
	case IngressClasses, Ingresses, Services, Secrets, Namespaces:
	default: // conversions find the others in other ways
		return false
	}
	o, ok := now.(metav1.Object)
	if now == nil {
		o, ok = old.(metav1.Object)
	}
	if !ok {
		return false // an object of another kind, which no API server sends
	}
	all := s.arrived[kind]
	if all == nil {
		all = map[config.ObjectName]arrival{}
		s.arrived[kind] = all
	}
	name := objectName(o)
	all[name] = arrival{now, all[name].loud || !alike}
	return alike && len(all)%mostSilent == 0
}

// objects are all known objects. They share the lists that have not changed.
func (s *Source) objects() *Objects {
	s.mu.Lock()
	arrived := s.arrived
	s.arrived = map[Kind]map[config.ObjectName]arrival{}
	s.mu.Unlock()
	before, silent := s.held, map[any]any{}
	s.held = &Objects{
		Classes: withArrivals(before.Classes, arrived[IngressClasses], silent), Ingresses: withArrivals(before.Ingresses, arrived[Ingresses], silent),
		Services: withArrivals(before.Services, arrived[Services], silent), Secrets: withArrivals(before.Secrets, arrived[Secrets], silent),
		Namespaces: withArrivals(before.Namespaces, arrived[Namespaces], silent), inOrder: true, silent: silent}
	k := s.converter.File.Kubernetes
	if k.TCP != nil {
		s.held.TCP = get[*corev1.ConfigMap](s, ConfigMaps, k.TCP.ConfigMap)
	}
	if k.IngressNginx != nil {
		if m := get[*corev1.ConfigMap](s, ConfigMaps, k.IngressNginx.ConfigMap); m != nil {
			s.controller = m
		}
		s.held.Controller = s.controller
	}
	s.held.Gateway, s.held.Maps = s.gatewayObjects(), s.named.known()
	return s.held
}

// withArrivals returns a list in the order of names with the objects that have arrived. It notes
// in silent those that replaced others without a difference for weir.
func withArrivals[T object](list []T, arrived map[config.ObjectName]arrival, silent map[any]any) []T {
	var e edits[T, config.ObjectName]
	for name, a := range arrived {
		at, known := slices.BinarySearchFunc(list, name, func(o T, name config.ObjectName) int { return compareNames(objectName(o), name) })
		if known {
			e.remove(list[at : at+1])
		}
		now, exists := a.now.(T)
		if exists {
			e.added = append(e.added, now)
		}
		if known && exists && !a.loud {
			silent[now] = list[at]
		}
	}
	next, _ := e.apply(list, func(o T) config.ObjectName { return objectName(o) }, compareNames)
	return next
}
