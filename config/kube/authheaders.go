package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// This file has the HTTP headers that auth-proxy-set-headers of ingress-nginx takes from a ConfigMap, for requests
// to the server of auth-url. The server may decide by them, so weir closes an Ingress if it cannot read the
// ConfigMap, and not only if the ConfigMap is missing, as ingress-nginx does.

// authHeaders returns the HTTP headers of a ConfigMap for requests to the server of auth-url.
func (v *conversion) authHeaders(owner *claim.Owner, from annotation.ConfigMap) ([]config.HeaderValue, error) {
	if from.Name == "" {
		return nil, nil
	}
	name := config.ObjectName{Namespace: from.Namespace, Name: from.Name}
	m := v.namedMap(name, owner.Created)
	switch {
	case m.Unread == notYet:
		return nil, unread{fmt.Errorf("weir has not read the ConfigMap %s yet, which auth-proxy-set-headers names", name)}
	case m.Unread != "":
		return nil, fmt.Errorf("weir cannot read the ConfigMap %s, which auth-proxy-set-headers names: %s", name, m.Unread)
	case m.Map == nil:
		return nil, fmt.Errorf("the ConfigMap %s, which auth-proxy-set-headers names, does not exist; create it", name)
	}
	all, err := authHeadersOf(m.Map, owner.Name)
	if err != nil {
		return nil, fmt.Errorf("the ConfigMap %s, which auth-proxy-set-headers names, %w", name, err)
	}
	return all, nil
}

// authHeadersOf converts the keys and values of a ConfigMap for an Ingress. The error follows the name of the
// ConfigMap. nginx would send two HTTP headers that differ only in upper and lower case, and weir sends the last one.
func authHeadersOf(m *corev1.ConfigMap, ingress config.ObjectName) (all []config.HeaderValue, err error) {
	if err := checkSize(m); err != nil {
		return nil, err
	}
	values := map[string]config.HeaderValue{} // by the name in lower case
	variables := 0
	for _, name := range slices.Sorted(maps.Keys(m.Data)) {
		value := strings.TrimSpace(m.Data[name])
		switch {
		case !customName.MatchString(name):
			return nil, fmt.Errorf(noHeader, name)
		case strings.ContainsFunc(value, unicode.IsControl):
			return nil, fmt.Errorf("has a value of %s with a line break or another control character; write one line", name)
		}
		if variables += strings.Count(value, "$"); variables > annotation.MaxVariables {
			return nil, fmt.Errorf("has more than %d variables; take some out", annotation.MaxVariables)
		}
		if err := config.CheckAuthHeader(name); err != nil {
			return nil, fmt.Errorf("has %s, which %w", name, err)
		}
		text, err := annotation.AuthText(ingress.Namespace, ingress.Name, value)
		if err != nil {
			return nil, fmt.Errorf("has a value of %s with %w, which weir does not support; take it out", name, err)
		}
		if _, known := values[strings.ToLower(name)]; known && text == "" {
			continue // nginx does not send it
		}
		values[strings.ToLower(name)] = config.HeaderValue{Name: name, Value: config.Template(text)}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all = append(all, values[name])
	}
	return all, nil
}
