package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// mostSaid is the length from which a message takes up no further errors.
const mostSaid = 1000

// Also returns a problem that says both, with the reason of the first, so that a user need not correct one error to see
// the next one. A route may have an error in each of many rules, so a long message ends instead.
func Also(first, next *Problem) *Problem {
	const more = " There are more errors."
	switch {
	case first == nil:
		return next
	case strings.Contains(first.Message, next.Message) || strings.HasSuffix(first.Message, more):
		return first
	case len(first.Message) >= mostSaid:
		return &Problem{first.Reason, first.Message + more}
	}
	return &Problem{first.Reason, first.Message + " " + next.Message}
}

// maxNamed is how many listeners a message names.
const maxNamed = 8

// parentText names the parent of a route at the beginning of a sentence.
func parentText(r *Route, p *gatewayv1.ParentReference) string {
	kind, name := parentOf(r, p)
	return fmt.Sprintf("The %s %s", kind, name)
}

// noListener is the message for a route that names no listener of its parent.
func noListener(r *Route, p *gatewayv1.ParentReference, listeners []*Listener) string {
	text := parentText(r, p) + " has no listener"
	if p.SectionName != nil {
		text += fmt.Sprintf(" called %q", *p.SectionName)
	}
	if p.Port != nil {
		text += fmt.Sprintf(" on port %d", *p.Port)
	}
	if len(listeners) == 0 {
		return text + "."
	}
	return text + "; correct parentRefs. It has " + listed(listeners, func(l *Listener) string { return fmt.Sprintf("%s (port %d)", l.Name, l.Port) }) + "."
}

// notAllowed is the message for a route that none of the listeners that it names allows.
func notAllowed(r *Route, p *gatewayv1.ParentReference, named []*Listener) string {
	parent := parentText(r, p)
	if other := slices.DeleteFunc(slices.Clone(named), func(l *Listener) bool { return !l.allowsKind(r.Kind) }); len(other) > 0 {
		return fmt.Sprintf("%s does not allow routes of the namespace %s on the listeners that this route names; change allowedRoutes.namespaces of one of these: %s.",
			parent, r.Name.Namespace, listed(other, func(l *Listener) string { return l.Name }))
	}
	return fmt.Sprintf("%s does not serve %ss on the listeners that this route names; name another listener in parentRefs, or change the protocol or allowedRoutes.kinds of one of these: %s.",
		parent, r.Kind, listed(named, func(l *Listener) string {
			return fmt.Sprintf("%s (%s)", l.Name, cmp.Or(kindsText(l.Kinds), "serves no routes"))
		}))
}

// noHostname is the message for a route whose hostnames are not those of the listeners that allow it.
func noHostname(r *Route, p *gatewayv1.ParentReference, allowed []*Listener) string {
	return fmt.Sprintf("No hostname of this route fits a listener of the %s; change the hostnames of the route, or that of one of these listeners: %s.",
		strings.TrimPrefix(parentText(r, p), "The "), listed(allowed, func(l *Listener) string { return fmt.Sprintf("%s (%s)", l.Name, l.Hostname) }))
}

func kindsText(all []gatewayv1.RouteGroupKind) string {
	var names []string
	for i := range all {
		names = append(names, string(all[i].Kind))
	}
	return strings.Join(names, ", ")
}

// listed lists some listeners.
func listed(all []*Listener, text func(*Listener) string) string {
	var names []string
	for _, l := range all[:min(len(all), maxNamed)] {
		names = append(names, text(l))
	}
	if more := len(all) - maxNamed; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
