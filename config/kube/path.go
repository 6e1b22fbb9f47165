package kube

import (
	"errors"
	"fmt"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
)

// pathOf is the path of an Ingress as weir matches it. Prefix goes by elements
// between slashes, and a slash at its end means nothing, as the documentation
// of Ingress has it. ImplementationSpecific is Prefix.
func pathOf(p *networkingv1.HTTPIngressPath) (config.Path, error) {
	kind := networkingv1.PathTypeImplementationSpecific
	if p.PathType != nil {
		kind = *p.PathType
	}
	text := p.Path
	switch kind {
	case networkingv1.PathTypeExact:
		if !strings.HasPrefix(text, "/") {
			return config.Path{}, errors.New("does not begin with a slash; write one such as /status")
		}
		return config.ParsePath("=" + text)
	case networkingv1.PathTypePrefix:
	case networkingv1.PathTypeImplementationSpecific:
		if text == "" {
			text = "/"
		}
		if looksLikeRegexp(text) {
			return config.Path{}, errors.New("looks like a regular expression, and weir matches paths by their text; write pathType: Prefix or Exact if it is text, or prefixes in its place")
		}
	default:
		return config.Path{}, fmt.Errorf("has the pathType %q, which weir does not know; write Exact or Prefix", kind)
	}
	if !strings.HasPrefix(text, "/") {
		return config.Path{}, errors.New("does not begin with a slash; write one such as /api")
	}
	if len(text) > 1 {
		text = strings.TrimSuffix(text, "/")
	}
	return config.ParsePath(text)
}

// looksLikeRegexp says whether whoever wrote the path meant an expression, as
// ingress-nginx takes them. Parentheses and a dollar alone may be text.
func looksLikeRegexp(s string) bool {
	return strings.ContainsAny(s, `^|*[]{}\`) || strings.HasSuffix(s, "$") || strings.Contains(s, ".+") || strings.Contains(s, "(.")
}
