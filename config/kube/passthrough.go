package kube

import (
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// This file has the annotation ssl-passthrough of ingress-nginx: weir forwards the TLS connections of
// a host, by SNI, to the Service of its path "/", without decrypting them. Requests without TLS are
// served as before, and go to that Service over TLS.

// findPassthrough finds the claims that get the TLS connections of their host.
func (v *conversion) findPassthrough() {
	v.through = map[string]*claim.Claim{}
	asking := map[hostIn]*claim.Owner{}
	for _, o := range v.decision.Owners {
		if !v.asked[o].Passthrough {
			continue
		}
		for _, host := range o.Hosts {
			if at := (hostIn{o.Name.Namespace, host}); asking[at] == nil {
				asking[at] = o
			}
		}
	}
	for at, o := range asking {
		if c := v.passing(at, o); c != nil {
			v.through[at.host] = c
		}
	}
}

// passing returns the claim that gets the TLS connections of a host; nil: weir decrypts them, and
// the event on o says why.
func (v *conversion) passing(at hostIn, o *claim.Owner) *claim.Claim {
	const why = "ssl-passthrough has no effect for %s, so weir decrypts its TLS connections: "
	tell := func(rest string, args ...any) *claim.Claim {
		v.on(o, event.ReasonAnnotation, why+rest, append([]any{claim.HostText(at.host)}, args...)...)
		return nil
	}
	root := v.decision.Winners[claim.Match{Host: at.host, Path: everyPath}]
	switch first := v.firstWith(at.host); {
	case at.host == "":
		return tell("SNI needs a host; name one in the rule.")
	case root == nil || root.Implicit || root.Refusal != nil || root.Owner.Name.Namespace != at.namespace || v.moves[root] != nil:
		return tell("the Service of the path / of an Ingress in this namespace would get them, and there is none; add the path.")
	case first.Name.Namespace != at.namespace:
		return tell("the host also belongs to the older %v of another namespace; use another host.", first)
	case root.Closed() != nil:
		return nil // the events about access tell it
	case v.protection(at.host).below:
		return tell("weir's configuration, or auth-tls-secret, requires client certificates for it; change the host, or remove the annotation.")
	}
	return root
}

// firstWith is the oldest object that names a host.
func (v *conversion) firstWith(host string) *claim.Owner {
	for _, o := range v.decision.Owners {
		if slices.Contains(o.Hosts, host) {
			return o
		}
	}
	return nil
}

// overTLS makes a claim reach the Service of passed connections over TLS.
func (v *conversion) overTLS(c *claim.Claim) {
	if root := v.through[c.Host]; root != nil && c.Backend.Name == root.Backend.Name && c.Backend.Port == root.Backend.Port {
		if c.Backend.Protocol == nil || *c.Backend.Protocol != "GRPCS" {
			c.Backend.Protocol = new("HTTPS")
		}
	}
}

// passesOn reports whether the TLS connections of a host pass through on a listener. The file keeps
// the hosts that it names.
func (v *conversion) passesOn(host string, l *config.Listener) bool {
	_, itself := v.seen.on(l.Name, host)
	return v.through[host] != nil && !itself
}

// routePassthrough makes the route of the TLS connections of a host, like r otherwise, on the
// listeners where the file leaves the host to objects.
func (v *conversion) routePassthrough(c *claim.Claim, r config.Route) {
	raw := config.Route{Name: r.Name, Namespace: r.Namespace, Ingress: r.Ingress, IngressHost: r.IngressHost, Hosts: r.Hosts,
		TLS: config.TLSPassthrough, TLSPolicy: config.DefaultTLSPolicy, Clients: r.Clients, Unlogged: r.Unlogged}
	for _, l := range v.secure {
		if v.passesOn(c.Host, l) {
			raw.Listeners = append(raw.Listeners, l.Name)
		}
	}
	if len(raw.Listeners) == 0 {
		return
	}
	b, _ := v.serving(c.Backend.Name, c.Backend.Port)
	b.Name += "/tcp"
	b.Protocol = config.ProtocolTCP
	raw.Backend = v.keep(b)
	v.routes = append(v.routes, &raw)
}
