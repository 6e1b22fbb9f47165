package kube

import (
	"cmp"
	"fmt"
	"regexp"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// grpc makes the routes of a GRPCRoute. The path of a call is /SERVICE/METHOD.
func (c *gatewayConversion) grpc(a *gateway.Attachment) {
	served := 0
	for i := range a.GRPC.Rules {
		if c.grpcRule(a, &a.GRPC.Rules[i], i) {
			served++
		}
	}
	rejectUnlessServed(a, served)
}

func (c *gatewayConversion) grpcRule(a *gateway.Attachment, rule *gatewayv1.GRPCRouteRule, index int) (served bool) {
	base := &config.Route{Name: ruleName(a.Route, rule.Name, index), Namespace: a.Name.Namespace, TLS: config.TLSTerminate}
	f := httpFilters{conversion: c, attachment: a, route: base}
	err := f.apply(httpFiltersOf(rule.Filters))
	refs := make([]gatewayv1.HTTPBackendRef, len(rule.BackendRefs))
	for i := range rule.BackendRefs {
		refs[i] = gatewayv1.HTTPBackendRef{BackendRef: rule.BackendRefs[i].BackendRef, Filters: httpFiltersOf(rule.BackendRefs[i].Filters)}
	}
	if err = cmp.Or(err, c.session(a, base, rule.SessionPersistence, refs)); err != nil {
		c.dropRule(a, base, index, err)
	}
	matches := rule.Matches
	if len(matches) == 0 {
		matches = []gatewayv1.GRPCRouteMatch{{}}
	}
	all := routeMatches{conversion: c, attachment: a, base: base, rule: index}
	for n := range matches {
		path, match, err := grpcMatch(&matches[n])
		all.add(n, path, match, err)
	}
	return all.end() && err == nil
}

// httpFiltersOf returns filters of gRPC as those of HTTP.
func httpFiltersOf(all []gatewayv1.GRPCRouteFilter) (as []gatewayv1.HTTPRouteFilter) {
	for i := range all {
		f := &all[i]
		as = append(as, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef})
	}
	return as
}

// grpcMatch converts a match. The error ends a sentence that begins with the match.
func grpcMatch(m *gatewayv1.GRPCRouteMatch) (path config.Path, match *config.Match, err error) {
	if path, err = grpcPath(m.Method); err != nil {
		return path, nil, err
	}
	var c config.Match
	for i := range m.Headers {
		h := &m.Headers[i]
		kind := config.ConditionEqual
		if h.Type != nil && *h.Type == gatewayv1.GRPCHeaderMatchRegularExpression {
			kind = config.ConditionLike
		}
		if c.Headers, err = addCondition(c.Headers, string(h.Name), h.Value, kind, true); err != nil {
			return path, nil, err
		}
	}
	if len(c.Headers) == 0 {
		return path, nil, nil
	}
	return path, &c, nil
}

// grpcPath returns the path of the calls to a method.
func grpcPath(m *gatewayv1.GRPCMethodMatch) (config.Path, error) {
	service, method, expression := "", "", false
	if m != nil {
		service, method = pointed(m.Service), pointed(m.Method)
		expression = m.Type != nil && *m.Type == gatewayv1.GRPCMethodMatchRegularExpression
	}
	switch {
	case service == "" && method == "":
		return config.Path{Value: "/"}, nil
	case !expression && service != "" && method != "":
		text := "/" + service + "/" + method
		p, err := config.ParsePath("=" + text)
		return p, pathError(text, err)
	case !expression && method == "":
		text := "/" + service
		p, err := config.ParsePath(text)
		return p, pathError(text, err)
	case !expression:
		method = regexp.QuoteMeta(method)
	}
	text := fmt.Sprintf("/(?:%s)/(?:%s)$", cmp.Or(service, "[^/]+"), cmp.Or(method, "[^/]+"))
	return config.Path{Expression: true, Value: text}, expressionError(text, service, method)
}

// pointed returns what p points to, or the zero value.
func pointed[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// speakGRPC sets the protocol of a backend of a GRPCRoute: gRPC, unless the port of the Service
// demands HTTP/2 or TLS.
func (c *gatewayConversion) speakGRPC(b *Backend, port servicePort, own speech) *gateway.Problem {
	switch {
	case own.protocol == config.ProtocolGRPC || own.protocol == config.ProtocolH2C:
		b.speak(own)
		return nil
	case own.protocol == config.ProtocolHTTPS:
		own = appProtocols["grpcs"]
	case port.protocol == "":
		own = appProtocols["grpc"]
	default:
		return &gateway.Problem{Reason: string(gatewayv1.RouteReasonUnsupportedProtocol), Message: fmt.Sprintf(
			"The Service %s has the appProtocol %q, over which there is no gRPC; write kubernetes.io/h2c, https, grpc or grpcs.", b.Source, port.protocol)}
	}
	b.speak(own)
	b.Name += suffixes[own]
	return nil
}
