package kube

import (
	"cmp"
	"strconv"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// This file has the default backends of ingress-nginx: the annotation default-backend, and the Service that shows errors for
// Ingresses without it.

// fallback is the default backend of a claim; nil: it has none.
func (v *conversion) fallback(c *claim.Claim) *config.Fallback {
	b := v.defaultBackend(c)
	if b == nil {
		return nil
	}
	v.letSpeak(b, speaker(c, c.Backend.Protocol))
	return &config.Fallback{Backend: v.keep(*b), Report: errorReport(c)}
}

// errorPages are the errors of a claim that a default backend shows: its own while it has an endpoint, and otherwise the one
// of all Ingresses.
func (v *conversion) errorPages(c *claim.Claim) (pages []config.ErrorPage) {
	e := v.asked[c.Owner].Errors
	if len(e.Statuses) == 0 {
		return nil
	}
	var statuses []config.StatusRange
	for _, status := range e.Statuses {
		statuses = append(statuses, config.StatusRange{Min: status, Max: status})
	}
	own := v.defaultBackend(c)
	for _, b := range []*Backend{own, v.sharedBackend(c, own == nil)} {
		if b != nil {
			v.letSpeak(b, speaker(c, nil)) // ingress-nginx asks for error pages without backend-protocol
			pages = append(pages, config.ErrorPage{Status: statuses, Backend: v.keep(*b), AsNginx: true, Report: errorReport(c), OnlyOwn: e.OnlyOwn})
		}
	}
	return pages
}

// defaultBackend returns the backend for the first port of the Service that default-backend names; nil: there is none.
func (v *conversion) defaultBackend(c *claim.Claim) *Backend {
	service := v.asked[c.Owner].DefaultBackend
	if service == "" {
		return nil
	}
	return v.standIn(c, config.ObjectName{Namespace: c.Owner.Name.Namespace, Name: service}, "default backend of this Ingress", true)
}

// sharedBackend is the same for the Service that shows errors for all Ingresses. tell reports faults by events.
func (v *conversion) sharedBackend(c *claim.Claim, tell bool) *Backend {
	n := v.settings.IngressNginx
	if n == nil || n.DefaultBackend.Name == "" {
		return nil
	}
	return v.standIn(c, n.DefaultBackend, "default backend in weir's configuration (kubernetes.ingress_nginx.default_backend)", tell)
}

// standIn returns the backend for the first port of a default backend; nil: the Service cannot get requests. If tell is
// true, an event says why. what names the default backend in the event.
func (v *conversion) standIn(c *claim.Claim, source config.ObjectName, what string, tell bool) *Backend {
	b, err := v.serving(source, v.firstOf(source))
	guarded := v.serviceGuards(source) != nil
	switch {
	case !guarded && err == nil:
		return &b
	case !tell:
	case guarded:
		v.on(c.Owner, event.ReasonBackend, "The %s, the Service %s, has annotations that restrict access, or may, and that weir does not support, so it gets no requests; remove these annotations.", what, source)
	default:
		v.on(c.Owner, reasonOf(err), "The %s is %v.", what, err)
	}
	return nil
}

// speaker is a claim of the same object by which letSpeak chooses a protocol.
func speaker(c *claim.Claim, protocol *string) *claim.Claim {
	return &claim.Claim{Owner: c.Owner, Backend: claim.Backend{Protocol: protocol}}
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
	return config.ErrorReport{Namespace: c.Owner.Name.Namespace, Ingress: c.Owner.Name.Name, Source: c.Backend.Name.Name, Port: portText(c)}
}

// portText is the port of the Service as the Ingress writes it.
func portText(c *claim.Claim) string {
	return cmp.Or(c.Backend.Port.Name, strconv.Itoa(int(c.Backend.Port.Number)))
}
