package kube

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// maxMatches is the maximum number of matches of a rule.
const maxMatches = 128

// http makes the routes of an HTTPRoute.
func (c *gatewayConversion) http(a *gateway.Attachment) {
	served := 0
	for i := range a.HTTP.Rules {
		if c.httpRule(a, &a.HTTP.Rules[i], i) {
			served++
		}
	}
	rejectUnlessServed(a, served)
}

// rejectUnlessServed says that a route is not accepted if none of its rules is served.
func rejectUnlessServed(a *gateway.Attachment, served int) {
	if served == 0 && a.Partly != nil && a.Accept == nil {
		a.Reject(a.Partly)
	}
}

// httpRule makes the routes of a rule: one for the matches that differ only in their paths. It
// returns false if weir cannot do what the rule demands.
func (c *gatewayConversion) httpRule(a *gateway.Attachment, rule *gatewayv1.HTTPRouteRule, index int) (served bool) {
	base := &config.Route{Name: ruleName(a.Route, rule.Name, index), Namespace: a.Name.Namespace, TLS: config.TLSTerminate}
	f := httpFilters{conversion: c, attachment: a, route: base}
	err := f.apply(rule.Filters)
	if err == nil {
		err = f.tries(rule)
	}
	if base.Redirect == nil {
		c.httpBackends(a, base, rule.BackendRefs)
	}
	if err != nil {
		c.dropRule(a, base, index, err)
	}
	matches := rule.Matches
	if len(matches) == 0 {
		matches = []gatewayv1.HTTPRouteMatch{{}}
	}
	var last *config.Route
	var lastConditions *gatewayv1.HTTPRouteMatch
	for n := range matches {
		m := &matches[n]
		path, match, err := httpMatch(m)
		if err != nil {
			a.Partly = cmp.Or(a.Partly, &gateway.Problem{Reason: string(gatewayv1.RouteReasonUnsupportedValue), Message: fmt.Sprintf("Dropped Rule %d: its match %d %v.", index, n, err)})
			continue
		}
		if last != nil && sameConditions(lastConditions, m) {
			last.Paths = append(last.Paths, path)
			continue
		}
		one := *base
		one.Paths, one.Match, one.Order = []config.Path{path}, match, routeOrder(a.Route, index*maxMatches+n)
		if last != nil {
			c.bind(a, last, redirectToPort)
		}
		last, lastConditions = &one, m
	}
	if last != nil {
		c.bind(a, last, redirectToPort)
	}
	return err == nil && last != nil
}

// dropRule makes a rule answer with 500, because weir cannot do what it demands.
func (c *gatewayConversion) dropRule(a *gateway.Attachment, r *config.Route, index int, err error) {
	a.Partly = cmp.Or(a.Partly, &gateway.Problem{Reason: string(gatewayv1.RouteReasonUnsupportedValue), Message: fmt.Sprintf("Dropped Rule %d: %v.", index, err)})
	*r = config.Route{Name: r.Name, Namespace: r.Namespace, TLS: r.TLS, Backend: c.missingBackend(a.Name.Namespace, false)}
}

// redirectToPort makes a redirect without a scheme and a port lead to the port of the listener.
func redirectToPort(r *config.Route, l *gateway.Listener) {
	if r.Redirect != nil && r.Redirect.Port == 0 && r.Redirect.Scheme == "" {
		d := *r.Redirect
		d.Port = l.Port
		r.Redirect = &d
	}
}

// httpBackends sets the backends of a rule.
func (c *gatewayConversion) httpBackends(a *gateway.Attachment, r *config.Route, refs []gatewayv1.HTTPBackendRef) {
	var all []config.WeightedBackend
	some := false
	for i := range refs {
		ref := &refs[i]
		b := config.WeightedBackend{Name: c.backendOf(a, &ref.BackendObjectReference, false), Weight: 1}
		if ref.Weight != nil {
			b.Weight = int(*ref.Weight)
		}
		some = some || b.Weight > 0
		all = append(all, b)
	}
	if !some {
		r.Backend = c.missingBackend(a.Name.Namespace, false)
		return
	}
	shareBackends(r, all)
}

// sameConditions reports whether two matches differ only in their paths.
func sameConditions(a, b *gatewayv1.HTTPRouteMatch) bool {
	if len(a.Headers)+len(b.Headers)+len(a.QueryParams)+len(b.QueryParams) > 0 {
		return false
	}
	return a.Method == b.Method || a.Method != nil && b.Method != nil && *a.Method == *b.Method
}

// httpMatch converts a match. The error ends a sentence that begins with the match.
func httpMatch(m *gatewayv1.HTTPRouteMatch) (path config.Path, match *config.Match, err error) {
	if path, err = httpPath(m.Path); err != nil {
		return path, nil, err
	}
	var c config.Match
	if m.Method != nil {
		c.Methods = []string{string(*m.Method)}
	}
	for i := range m.Headers {
		h := &m.Headers[i]
		kind := config.ConditionEqual
		if h.Type != nil && *h.Type == gatewayv1.HeaderMatchRegularExpression {
			kind = config.ConditionLike
		}
		if c.Headers, err = addCondition(c.Headers, string(h.Name), h.Value, kind, true); err != nil {
			return path, nil, err
		}
	}
	for i := range m.QueryParams {
		q := &m.QueryParams[i]
		kind := config.ConditionEqual
		if q.Type != nil && *q.Type == gatewayv1.QueryParamMatchRegularExpression {
			kind = config.ConditionLike
		}
		if c.Query, err = addCondition(c.Query, string(q.Name), q.Value, kind, false); err != nil {
			return path, nil, err
		}
	}
	if len(c.Methods)+len(c.Headers)+len(c.Query) == 0 {
		return path, nil, nil
	}
	return path, &c, nil
}

// addCondition adds a condition. Of several with one name the first counts.
func addCondition(all []config.Condition, name, value string, kind config.ConditionKind, fold bool) ([]config.Condition, error) {
	for i := range all {
		if all[i].Name == name || fold && strings.EqualFold(all[i].Name, name) {
			return all, nil
		}
	}
	if kind == config.ConditionLike {
		if err := config.CheckWholeExpression(value); err != nil {
			return all, fmt.Errorf("has an expression for %s that weir cannot use: %w", name, err)
		}
	}
	return append(all, config.Condition{Name: name, Kind: kind, Value: value}), nil
}

// httpPath converts the path of a match. A prefix means the same with and without a slash at its end.
func httpPath(m *gatewayv1.HTTPPathMatch) (config.Path, error) {
	kind, text := gatewayv1.PathMatchPathPrefix, "/"
	if m != nil && m.Type != nil {
		kind = *m.Type
	}
	if m != nil && m.Value != nil {
		text = *m.Value
	}
	switch kind {
	case gatewayv1.PathMatchExact:
		p, err := config.ParsePath("=" + text)
		return p, pathError(text, err)
	case gatewayv1.PathMatchPathPrefix:
		if len(text) > 1 {
			text = strings.TrimSuffix(text, "/")
		}
		p, err := config.ParsePath(text)
		return p, pathError(text, err)
	case gatewayv1.PathMatchRegularExpression:
		text = "(?:" + text + ")$"
		return config.Path{Expression: true, Value: text}, pathError(text, config.CheckExpression(text))
	}
	return config.Path{}, fmt.Errorf("has the type %s, which weir does not know", kind)
}

func pathError(text string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("has the path %q, which %w", text, err)
}

// apiDuration reads a duration of the Gateway API. 0 switches a limit off.
func apiDuration(d *gatewayv1.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	return time.ParseDuration(string(*d))
}
