package kube

import (
	"cmp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// oldClass is the annotation for the class from before spec.ingressClassName.
const oldClass = "kubernetes.io/ingress.class"

// isServed reports whether weir serves an Ingress. It records events about the class.
func (v *conversion) isServed(i *networkingv1.Ingress) bool {
	return v.chosen(i.Namespace) && v.isOurs(i)
}

// namespaces returns a function that reports whether weir serves a namespace.
func (v *conversion) namespaces() func(name string) bool {
	if all := v.settings.Namespaces; len(all) > 0 {
		return func(name string) bool { return slices.Contains(all, name) }
	}
	if len(v.settings.NamespaceLabels) == 0 {
		return func(string) bool { return true }
	}
	chosen := map[string]bool{}
	for _, n := range v.o.Namespaces {
		chosen[n.Name] = !slices.ContainsFunc(v.settings.NamespaceLabels, func(l config.Label) bool {
			value, ok := n.Labels[l.Key]
			return !ok || value != l.Value
		})
	}
	return func(name string) bool { return chosen[name] }
}

// isOurs reports whether weir serves the class of the Ingress. The annotation takes
// precedence over the field, as Kubernetes demands for compatibility.
func (v *conversion) isOurs(i *networkingv1.Ingress) bool {
	name, annotated := i.Annotations[oldClass]
	if field := i.Spec.IngressClassName; field != nil {
		if annotated && *field != name && (v.isOurClass(name) || v.isOurClass(*field)) {
			v.event(reference("networking.k8s.io/v1", "Ingress", &i.ObjectMeta), event.ReasonClass,
				"The annotation %s is %q, but spec.ingressClassName is %q. The annotation takes precedence; remove it.", oldClass, name, *field)
		}
		if !annotated {
			name = *field
		}
	} else if !annotated {
		c := v.defaultClass()
		return c != nil && v.isOurClass(c.Name)
	}
	return v.isOurClass(name)
}

// isOurClass reports whether weir serves the class. The class in kubernetes.class need
// not exist: the old annotation needs no IngressClass.
func (v *conversion) isOurClass(name string) bool {
	c, wanted := v.classes[name], v.settings.Class
	if c == nil {
		return wanted != "" && name == wanted
	}
	return c.Spec.Controller == v.settings.Controller && (wanted == "" || name == wanted)
}

// defaultClass returns the IngressClass for Ingresses that name none: of those with the
// annotation is-default-class, the newest, as the API server chooses.
func (v *conversion) defaultClass() (found *networkingv1.IngressClass) {
	for _, c := range v.classes {
		if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] != "true" {
			continue
		}
		if found == nil || cmp.Or(found.CreationTimestamp.Compare(c.CreationTimestamp.Time), strings.Compare(c.Name, found.Name)) < 0 {
			found = c
		}
	}
	return found
}

// aboutClasses reports ambiguities of the classes that weir serves.
func (v *conversion) aboutClasses() {
	for _, c := range v.o.Classes {
		at := reference("networking.k8s.io/v1", "IngressClass", &c.ObjectMeta)
		switch wanted := v.settings.Class; {
		case c.Name == wanted && c.Spec.Controller != v.settings.Controller:
			v.event(at, event.ReasonClass, "kubernetes.class in weir's configuration names this class, but the controller of the class is %q and weir's is %q, so weir does not serve it; change spec.controller, or kubernetes.controller in weir's configuration.",
				c.Spec.Controller, v.settings.Controller)
		case c.Spec.Parameters != nil && v.isOurClass(c.Name):
			v.event(at, event.ReasonClass, "weir does not read the parameters of a class, so they have no effect. Remove spec.parameters.")
		}
	}
}
