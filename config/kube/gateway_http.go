package kube

import (
	"cmp"
	"fmt"
	"slices"
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

// httpRule makes the routes of a rule. It returns false if weir cannot do what the rule demands.
func (c *gatewayConversion) httpRule(a *gateway.Attachment, rule *gatewayv1.HTTPRouteRule, index int) (served bool) {
	base := &config.Route{Name: ruleName(a.Route, rule.Name, index), Namespace: a.Name.Namespace, TLS: config.TLSTerminate}
	f := httpFilters{conversion: c, attachment: a, route: base, rule: index}
	err := f.apply(rule.Filters)
	if err == nil {
		err = f.tries(rule)
	}
	if base.Redirect == nil {
		err = cmp.Or(err, c.session(a, base, rule.SessionPersistence, rule.BackendRefs))
	}
	err = cmp.Or(err, f.guard())
	if err != nil {
		c.dropRule(a, base, index, err)
	}
	matches := rule.Matches
	if len(matches) == 0 {
		matches = []gatewayv1.HTTPRouteMatch{{}}
	}
	all := routeMatches{conversion: c, attachment: a, base: base, rule: index}
	for n := range matches {
		path, match, err := httpMatch(&matches[n])
		all.add(n, path, match, err)
	}
	return all.end() && err == nil
}

// routeMatches makes the routes of the matches of a rule: one for matches that differ only in their
// paths.
type routeMatches struct {
	conversion *gatewayConversion
	attachment *gateway.Attachment
	base       *config.Route
	rule       int

	last *config.Route // not bound yet; nil: none
	some bool
}

// add adds a match. err is why weir cannot match it.
func (m *routeMatches) add(n int, path config.Path, match *config.Match, err error) {
	if err != nil {
		m.attachment.Partly = gateway.Also(m.attachment.Partly, &gateway.Problem{Reason: string(gatewayv1.RouteReasonUnsupportedValue), Message: fmt.Sprintf("Dropped Rule %d: its match %d %v. Other routes get its requests: weir does not close its path, as it does for an Ingress.", m.rule, n, err)})
		return
	}
	m.some = true
	if m.last != nil && sameConditions(m.last.Match, match) {
		m.last.Paths = append(m.last.Paths, path)
		return
	}
	m.bind()
	one := *m.base
	one.Paths, one.Match, one.Order = []config.Path{path}, match, routeOrder(m.attachment.Route, m.rule*maxMatches+n)
	m.last = &one
}

func (m *routeMatches) bind() {
	if m.last != nil {
		m.conversion.bind(m.attachment, m.last, redirectToPort)
	}
}

// end makes the last route. It returns false if there is no match.
func (m *routeMatches) end() bool {
	m.bind()
	return m.some
}

// dropRule makes a rule answer with 500, because weir cannot do what it demands.
func (c *gatewayConversion) dropRule(a *gateway.Attachment, r *config.Route, index int, err error) {
	a.Partly = gateway.Also(a.Partly, &gateway.Problem{Reason: string(gatewayv1.RouteReasonUnsupportedValue), Message: fmt.Sprintf("Dropped Rule %d: %v. Its requests get 500.", index, err)})
	*r = config.Route{Name: r.Name, Namespace: r.Namespace, TLS: r.TLS, Backend: c.missingBackend(a, false)}
}

// redirectToPort makes a redirect without a scheme and a port lead to the port of the listener.
func redirectToPort(r *config.Route, l *gateway.Listener) {
	if r.Redirect != nil && r.Redirect.Port == 0 && r.Redirect.Scheme == "" {
		d := *r.Redirect
		d.Port = l.Port
		r.Redirect = &d
	}
}

// session sets the backends of a rule, which may keep sessions.
func (c *gatewayConversion) session(a *gateway.Attachment, r *config.Route, from *gatewayv1.SessionPersistence, refs []gatewayv1.HTTPBackendRef) (err error) {
	if r.Sticky, err = sessionOf(from); err != nil {
		return err
	}
	c.sticky = r.Sticky != nil
	defer func() { c.sticky = false }()
	return c.httpBackends(a, r, refs)
}

// httpBackends sets the backends of a rule.
func (c *gatewayConversion) httpBackends(a *gateway.Attachment, r *config.Route, refs []gatewayv1.HTTPBackendRef) error {
	var all []config.WeightedBackend
	some := false
	for i := range refs {
		ref := &refs[i]
		b := config.WeightedBackend{Name: c.backendOf(a, &ref.BackendObjectReference, forRequests), Weight: 1}
		if ref.Weight != nil {
			b.Weight = int(*ref.Weight)
		}
		some = some || b.Weight > 0
		if err := c.backendFilters(&b, ref.Filters); err != nil {
			return err
		}
		all = append(all, b)
	}
	if !some {
		r.Backend = c.missingBackend(a, false)
		return nil
	}
	shareBackends(r, all)
	return nil
}

// backendFilters applies the filters of one of several backends.
func (c *gatewayConversion) backendFilters(b *config.WeightedBackend, all []gatewayv1.HTTPRouteFilter) (err error) {
	for i := range all {
		if all[i].Type != gatewayv1.HTTPRouteFilterRequestHeaderModifier {
			return fmt.Errorf("the filter %s of a backend is not supported by weir; use it for the rule", all[i].Type)
		}
		if b.Request, err = headerModifier(b.Request, all[i].RequestHeaderModifier, config.CheckRequestHeader); err != nil {
			return fmt.Errorf("the filter %s of a backend %w", all[i].Type, err)
		}
	}
	return nil
}

// sameConditions reports whether two matches without headers and parameters have the same
// conditions.
func sameConditions(a, b *config.Match) bool {
	if a == nil || b == nil {
		return a == b
	}
	return len(a.Headers)+len(b.Headers)+len(a.Query)+len(b.Query) == 0 && slices.Equal(a.Methods, b.Methods)
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
		whole := "(?:" + text + ")$"
		return config.Path{Expression: true, Value: whole}, expressionError(whole, text)
	}
	return config.Path{}, fmt.Errorf("has the type %s, which weir does not know", kind)
}

func pathError(text string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("has the path %q, which %w", text, err)
}

// expressionError returns why weir cannot match an expression, or nil. The expression is made of the parts, which the
// author wrote: the error names the part that is wrong.
func expressionError(whole string, parts ...string) error {
	err := config.CheckExpression(whole)
	if err == nil {
		return nil
	}
	for _, part := range parts {
		if wrong := config.CheckExpression(part); wrong != nil {
			err = wrong
			break
		}
	}
	return fmt.Errorf("cannot be used: %w", err)
}

// apiDuration reads a duration of the Gateway API. 0 switches a limit off.
func apiDuration(d *gatewayv1.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	return time.ParseDuration(string(*d))
}
