package annotation

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// OfController begins the names of what the package controller adds to an Ingress from the ConfigMap of
// ingress-nginx's controller. No object of a cluster has such a name, because it is not a valid one.
//
// After the prefix comes the name of an annotation whose value came from the ConfigMap, or of a key of the
// ConfigMap that a family of annotations reads.
const OfController = "\x00controller/"

// closes begins the rest of the name if the ConfigMap has a key that restricts access, and that weir does not
// support.
const closes = OfController + "closes/"

// Closes is the name of what closes all paths of an Ingress because of a key of the ConfigMap.
func Closes(key string) string { return closes + key }

// IsOfController reports whether a name begins with OfController.
func IsOfController(name string) bool { return strings.HasPrefix(name, OfController) }

// ControllerKey returns the value of a key of the ConfigMap of ingress-nginx's controller; empty: the ConfigMap does
// not have the key, or weir reads none.
func ControllerKey(i *networkingv1.Ingress, key string) string {
	return strings.TrimSpace(i.Annotations[OfController+key])
}

// inConfigMap follows the names of annotations that an Ingress does not have itself.
const inConfigMap = " (from the ConfigMap of ingress-nginx)"

// FromConfigMap is the name of a key of the ConfigMap of ingress-nginx's controller among the names of annotations.
func FromConfigMap(key string) string { return key + inConfigMap }

// KeyOf returns the annotation, without its prefix, or the key, if what Unsupported names came from the ConfigMap.
func KeyOf(name string) (key string, ok bool) {
	name, ok = strings.CutSuffix(name, inConfigMap)
	return strings.TrimPrefix(name, Nginx), ok
}

// sourced returns the name of an annotation, and where its value came from.
func sourced(name string, all map[string]string) string {
	if short, ok := strings.CutPrefix(name, Nginx); ok {
		if _, ok := all[OfController+short]; ok {
			return name + inConfigMap
		}
	}
	return name
}

// closingKeys are the keys of the ConfigMap that close all paths, in alphabetical order.
func closingKeys(all map[string]string) (keys []string) {
	for name := range all {
		if key, ok := strings.CutPrefix(name, closes); ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
