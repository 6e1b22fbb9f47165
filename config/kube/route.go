package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// route makes the routes of a granted claim, on each listener where the file allows it.
func (v *conversion) route(c *claim.Claim) {
	v.overTLS(c)
	r := config.Route{Name: c.Route, Namespace: c.Owner.Name.Namespace, TLS: config.TLSTerminate, TLSPolicy: config.DefaultTLSPolicy, Closure: c.Closure()}
	auto := isAuto(c)
	if auto {
		c.Backend.Protocol = new("HTTP")
	}
	if r.Redirect = v.moveOf(c); r.Redirect == nil {
		v.setBackends(&r, c)
	}
	if c.Owner.Kind == ingressKind {
		r.Ingress, r.IngressHost = c.Owner.Name.Name, cmp.Or(c.Host, "*")
	}
	if c.Host != "" {
		r.Hosts = []string{c.Host}
	}
	serves := r.Closure == nil && !v.bare[c]
	if serves {
		applySettings(&r, c, v.asks(c), v.settings)
	}
	if r.Closure == nil {
		v.applyScript(&r, c)
		r.ClientCert = v.certRules(c)
	}
	if serves {
		v.applyGuards(&r, c)
		applyController(&r, v.controller)
		applyHeaders(&r, v.headers[c.Owner])
	}
	if r.Redirect != nil {
		r.DropGuards()
		r.Compress = false
	} else if serves && r.Closure == nil {
		setPrefix(&r, v.asked[c.Owner].Forward.Prefix)
		v.mirror(&r, c, v.asked[c.Owner].Mirror)
	}
	if !c.Implicit {
		path := c.Served()
		if path.Closed {
			if v.shut[claim.Match{Host: c.Host, Path: path}] {
				return // a path with another spelling has closed it
			}
			v.shut[claim.Match{Host: c.Host, Path: path}] = true
		}
		path.Among = c.Among
		r.Paths = []config.Path{path}
	}
	byPolicy := map[string][]string{} // the listeners of routes to the backend, by TLS policy
	v.routePlain(c, r, byPolicy)
	if v.through[c.Host] == c {
		v.routePassthrough(c, r)
	}
	for _, l := range v.secure {
		if v.passesOn(c.Host, l) {
			continue
		}
		if t, itself := v.tlsOn(l.Name, c.Host); v.isFree(c, l, t, itself) && !v.fileHas(c, l) {
			byPolicy[t.policy] = append(byPolicy[t.policy], l.Name)
		}
	}
	for _, policy := range slices.Sorted(maps.Keys(byPolicy)) {
		for _, one := range v.byScheme(c, r, byPolicy[policy], auto) {
			one.TLSPolicy = policy
			if one.HSTS = v.hsts(one.Listeners); setsHSTS(r.Response) {
				one.HSTS = nil
			}
			v.routes = append(v.routes, &one)
		}
	}
}

// setBackends sets the backends of a route to those of its claim.
func (v *conversion) setBackends(r *config.Route, c *claim.Claim) {
	if v.bare[c] && r.Closure == nil {
		r.Order = afterAll // a route of a Gateway may have all paths of the host
		r.Respond = &config.Respond{Status: 404, Body: "no route matches the host and path\n", Type: "text/plain; charset=utf-8"}
		return
	}
	r.Backend, r.Backends, r.Canary = v.backend(c), nil, nil
	v.addCanary(r, c)
	if r.Closure == nil {
		r.Fallback, r.Errors = v.fallback(c), v.errorPages(c)
	}
}

// routePlain makes the routes on http listeners that redirect requests to https, like r
// otherwise. It adds the http listeners that do not redirect to byPolicy.
func (v *conversion) routePlain(c *claim.Claim, r config.Route, byPolicy map[string][]string) {
	redirect, unless := r, r // unless: redirect only requests that a trusted proxy did not receive by https
	redirect.Closure = nil
	applySettings(&redirect, c, annotation.Settings{}, &config.Kubernetes{})              // it forwards nothing
	redirect.Auth, redirect.Satisfy, redirect.Limits, redirect.CORS = "", "", nil, r.CORS // nginx answers OPTIONS before it redirects
	redirect.Backend, redirect.Backends, redirect.Canary, redirect.Redirect = "", nil, nil, &config.Redirect{Port: v.httpsPort(), Status: v.redirectStatus()}
	redirect.Respond, redirect.Fallback, redirect.Mirror, redirect.Request, redirect.ClientCert, redirect.Compress = nil, nil, nil, nil, nil, false
	moves := r.Redirect != nil
	unless.Redirect = redirect.Redirect
	for _, l := range v.plain {
		switch {
		case !v.isFree(c, l, hostTLS{}, false) || v.fileHas(c, l):
		case moves && !v.protection(c.Host).below, !v.redirects(c):
			byPolicy[config.DefaultTLSPolicy] = append(byPolicy[config.DefaultTLSPolicy], l.Name)
		case l.HearsOfHTTPS() && !v.protection(c.Host).below: // a proxy that terminates TLS requests no client certificate
			unless.Listeners = append(unless.Listeners, l.Name)
		default:
			redirect.Listeners = append(redirect.Listeners, l.Name)
		}
	}
	for _, one := range []config.Route{redirect, unless} {
		if len(one.Listeners) > 0 {
			v.routes = append(v.routes, &one)
		}
	}
}

// isFree reports whether the file leaves the host and path on the listener to objects.
func (v *conversion) isFree(c *claim.Claim, l *config.Listener, t hostTLS, itself bool) bool {
	kind := c.Owner.Kind.Name
	switch name, taken := v.seen.routes[matchOn{l.Name, c.Match}]; {
	case t.raw() && (itself || claim.IsChallenge(c.Path)):
		if itself {
			does := "forwards the TLS of %s on listener %s without decrypting it (tls: passthrough)"
			if t.tunnel && !t.passthrough {
				does = "sends all connections for %s on listener %s to a tcp backend"
			}
			v.on(c.Owner, event.ReasonTaken, "weir's configuration "+does+", so this %s gets no requests there; use another host, or change the configuration.", claim.HostText(c.Host), l.Name, kind)
		}
		return false
	case v.fileServes(c.Host, l):
		v.on(c.Owner, event.ReasonHostTaken, "weir's configuration serves every path of %s on listener %s, and so owns the host there (kubernetes.host_ownership). This %s gets no requests there; use another host, or change the configuration.", claim.HostText(c.Host), l.Name, kind)
		return false
	case taken:
		v.on(c.Owner, event.ReasonTaken, "%s belongs to the route %s of weir's configuration on listener %s, so this %s does not get it there; change the host or the path in one of them.", c.Sentence(), name, l.Name, kind)
		return false
	}
	return true
}

// fileServes reports whether the file owns the host on the listener, because it serves
// every path of the host there. Its routes without hosts own no host.
func (v *conversion) fileServes(host string, l *config.Listener) bool {
	return host != "" && v.settings.HostOwnership == config.OwnedByNamespace && v.seen.whole[hostOn{l.Name, host}]
}

// fileHas reports whether the file keeps the requests of a refused path on the listener:
// it has a prefix of the path, and no object has a longer one.
func (v *conversion) fileHas(c *claim.Claim, l *config.Listener) bool {
	if c.Refusal == nil {
		return false
	}
	for at := c.Path.Value; ; at = at[:max(1, strings.LastIndexByte(at, '/'))] {
		m := claim.Match{Host: c.Host, Path: config.Path{Value: at}}
		if _, taken := v.seen.routes[matchOn{l.Name, m}]; taken {
			c.Refusal.KeptByFile = true
			return true
		}
		if other := v.decision.Winners[m]; at == "/" || other != nil && other != c && other.Refusal == nil && !other.Implicit {
			return false
		}
	}
}
