package kube

import (
	"cmp"
	"strconv"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// This file has the annotation default-backend of ingress-nginx.

// fallback is the default backend of a claim; nil: it has none.
func (v *conversion) fallback(c *claim.Claim) *config.Fallback {
	name := v.defaultBackend(c)
	if name == "" {
		return nil
	}
	return &config.Fallback{Backend: name, Report: errorReport(c)}
}

// errorPages are the errors of a claim that the default backend shows.
func (v *conversion) errorPages(c *claim.Claim) []config.ErrorPage {
	e := v.asked[c.Owner].Errors
	if len(e.Statuses) == 0 {
		return nil
	}
	name := v.defaultBackend(c)
	if name == "" {
		return nil
	}
	page := config.ErrorPage{Backend: name, AsNginx: true, Report: errorReport(c), OnlyOwn: e.OnlyOwn}
	for _, status := range e.Statuses {
		page.Status = append(page.Status, config.StatusRange{Min: status, Max: status})
	}
	return []config.ErrorPage{page}
}

// defaultBackend returns the name of the backend for the first port of the Service that
// default-backend names; empty: there is none.
func (v *conversion) defaultBackend(c *claim.Claim) string {
	service := v.asked[c.Owner].DefaultBackend
	if service == "" {
		return ""
	}
	source := config.ObjectName{Namespace: c.Owner.Name.Namespace, Name: service}
	if v.serviceGuards(source) != nil {
		v.on(c.Owner, event.ReasonBackend, "The default backend %s has annotations that restrict access, or may, and that weir does not support, so it gets no requests; remove these annotations.", source)
		return ""
	}
	b, err := v.serving(source, v.firstOf(source))
	if err != nil {
		v.on(c.Owner, reasonOf(err), "The default backend of this Ingress is %v.", err)
		return ""
	}
	v.letSpeak(&b, &claim.Claim{Match: c.Match, Owner: c.Owner, Backend: claim.Backend{Supported: true, Name: source, Port: b.Port, Protocol: c.Backend.Protocol}})
	return v.keep(b)
}

// firstOf is the first TCP port of a Service.
func (v *conversion) firstOf(name config.ObjectName) (port claim.Port) {
	if s := v.service(name); s != nil {
		for _, p := range s.Spec.Ports {
			if isTCP(&p) {
				return claim.Port{Number: p.Port}
			}
		}
	}
	return port
}

// errorReport is what a default backend learns of a claim.
func errorReport(c *claim.Claim) config.ErrorReport {
	port := c.Backend.Port
	return config.ErrorReport{Namespace: c.Owner.Name.Namespace, Ingress: c.Owner.Name.Name, Source: c.Backend.Name.Name, Port: cmp.Or(port.Name, strconv.Itoa(int(port.Number)))}
}
