package kube

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// This file has what Services and mirrors learn of requests by annotations of ingress-nginx.

// hostFor is the Host header for the Service of a claim; empty: the client's.
func hostFor(c *claim.Claim, host string) string {
	port := cmp.Or(c.Backend.Port.Name, strconv.Itoa(int(c.Backend.Port.Number)))
	return strings.NewReplacer("$service_name", c.Backend.Name.Name, "$service_port", port, "$namespace", c.Owner.Name.Namespace, "$ingress_name", c.Owner.Name.Name).Replace(host)
}

// setPrefix adds X-Forwarded-Prefix to requests whose path is rewritten, as in ingress-nginx.
func setPrefix(r *config.Route, prefix string) {
	if prefix == "" || r.Rewrite == nil || r.Rewrite.Path == "" {
		return
	}
	edits := config.HeaderEdits{}
	if r.Request != nil {
		edits = *r.Request
	}
	edits.Set = append(slices.Clip(edits.Set), config.HeaderValue{Name: "X-Forwarded-Prefix", Value: config.Template(prefix)})
	r.Request = &edits
}

// mirror gives the route of a claim the mirror of its Ingress.
func (v *conversion) mirror(r *config.Route, c *claim.Claim, m annotation.Mirror) {
	if m.URL == "" || r.FirstBackend() == "" {
		return
	}
	b, err := urlBackend(c.Owner.Name.Namespace, m.URL)
	if err != nil {
		v.on(c.Owner, event.ReasonAnnotation, "weir copies no requests, because mirror-target %v.", err)
		return
	}
	one := config.Mirror{Backend: v.keep(*b), Percent: 100, Path: config.Template(m.Path), KeepQuery: m.KeepQuery, Host: m.Host, NoBody: m.NoBody}
	switch m.Host {
	case "$host":
		one.Host = ""
	case "":
		if u, err := url.Parse(m.URL); err == nil {
			one.Host = u.Hostname()
		}
	}
	r.Mirror = []config.Mirror{one}
}

// isAuto reports whether a Service is reached over TLS for the clients that use TLS.
func isAuto(c *claim.Claim) bool {
	return c.Backend.Protocol != nil && strings.EqualFold(strings.TrimSpace(*c.Backend.Protocol), "AUTO_HTTP")
}

// byScheme returns the routes of a claim, like r, for some listeners: one, or with AUTO_HTTP one
// for listeners without TLS and one for those with TLS.
func (v *conversion) byScheme(c *claim.Claim, r config.Route, listeners []string, auto bool) []config.Route {
	r.Listeners = listeners
	if !auto || r.Closure != nil || r.Redirect != nil {
		return []config.Route{r}
	}
	over := r
	r.Listeners, over.Listeners = nil, nil
	for _, name := range listeners {
		if slices.ContainsFunc(v.secure, func(l *config.Listener) bool { return l.Name == name }) {
			over.Listeners = append(over.Listeners, name)
		} else {
			r.Listeners = append(r.Listeners, name)
		}
	}
	one := *c
	one.Backend.Protocol = new("HTTPS")
	v.setBackends(&over, &one)
	return slices.DeleteFunc([]config.Route{r, over}, func(r config.Route) bool { return len(r.Listeners) == 0 })
}
