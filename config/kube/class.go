package kube

import (
	"cmp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
)

// oldClass is the annotation that Ingresses had before spec.ingressClassName.
const oldClass = "kubernetes.io/ingress.class"

// readIngresses reads the Ingresses that weir serves, the oldest first: who came
// first has what two want. Equally old ones go by name, so that all replicas agree.
func (v *conversion) readIngresses() {
	v.aboutClasses()
	namespaces := v.namespaces()
	for _, i := range v.o.Ingresses {
		if namespaces(i.Namespace) && v.isOurs(i) && !v.leaveOut(i) {
			v.ingresses = append(v.ingresses, v.read(i))
		}
	}
	slices.SortStableFunc(v.ingresses, func(a, b *ingress) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), compareNames(a.name, b.name))
	})
	v.closeHosts()
}

// namespaces says which namespaces are looked at.
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

// isOurs says whether the Ingress is of a class of ours. The annotation goes
// before the field, as Kubernetes wants it for compatibility.
func (v *conversion) isOurs(i *networkingv1.Ingress) bool {
	name, annotated := i.Annotations[oldClass]
	if field := i.Spec.IngressClassName; field != nil {
		if annotated && *field != name && (v.isOurClass(name) || v.isOurClass(*field)) {
			v.event(reference("networking.k8s.io/v1", "Ingress", &i.ObjectMeta), ReasonClass,
				"The annotation %s says %q and spec.ingressClassName %q; the annotation goes first. Take it out.", oldClass, name, *field)
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

// isOurClass says whether weir serves the class. One that is asked for by name
// need not exist: the annotation never needed an IngressClass.
func (v *conversion) isOurClass(name string) bool {
	c, wanted := v.classes[name], v.settings.Class
	if c == nil {
		return wanted != "" && name == wanted
	}
	return c.Spec.Controller == v.settings.Controller && (wanted == "" || name == wanted)
}

// defaultClass is that of Ingresses without a class, the one that the API
// server itself would enter: the newest that is marked.
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

// aboutClasses tells what is in doubt about the classes that weir serves.
func (v *conversion) aboutClasses() {
	for _, c := range v.o.Classes {
		at := reference("networking.k8s.io/v1", "IngressClass", &c.ObjectMeta)
		switch wanted := v.settings.Class; {
		case c.Name == wanted && c.Spec.Controller != v.settings.Controller:
			v.event(at, ReasonClass, "weir is to serve this class, which names the controller %q; weir is %q. Change spec.controller, or kubernetes.controller in weir's configuration.",
				c.Spec.Controller, v.settings.Controller)
		case c.Spec.Parameters != nil && v.isOurClass(c.Name):
			v.event(at, ReasonClass, "weir reads no parameters of a class; they have no effect. Take spec.parameters out.")
		}
	}
}
