package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// ingress is one Ingress, read.
type ingress struct {
	*networkingv1.Ingress
	name    config.ObjectName
	order   int             // by age; the oldest Ingress that weir serves is the first
	hosts   []string        // the valid hosts of its rules; "" is every host
	lost    map[string]bool // hosts of its rules that belong to another namespace; hosts does not have them
	tls     map[string]bool // hosts for which it has TLS; "" is every host
	wants   []*want
	refused []*refusal // paths that weir cannot match
	guards  []string   // annotations that restrict access, or may, and that weir does not support: its paths are closed
}

// want is a claim of an Ingress, and the backend for its requests.
type want struct {
	claim
	by       *ingress
	name     string   // of the route
	implicit bool     // from the default backend: no rule asks for the claim explicitly
	written  string   // the path in the Ingress
	refusal  *refusal // weir cannot match written; claim has its literal prefix, which is closed. nil: weir can match it
	defeats  bool     // another path, of a younger or the same Ingress, lost the claim to this one; it is closed as well
	plainly  bool     // it closes no other spelling, because another Ingress keeps those
	beside   bool     // another want has the claim, and this one closes more than the other
	pattern  bool     // written is a regular expression, and the Ingress has guards
	loose    bool     // ingress-nginx compares the prefix as text, whatever follows
	guards   []string // the annotations that close it
	guardian string   // the object that has them
	backend  *networkingv1.IngressBackend
}

// claim is a host and path. Only one Ingress can have it.
type claim struct {
	host string // "" is every host
	path config.Path
}

func (c claim) String() string {
	kind := "path"
	if c.path.Exact {
		kind = "exact path"
	}
	return kind + " " + c.path.Value + " of " + shown(c.host)
}

// shown is the host in messages.
func shown(host string) string { return cmp.Or(host, "every host") }

// read reads the Ingress, without regard to others.
func (v *conversion) read(o *networkingv1.Ingress) *ingress {
	i := &ingress{Ingress: o, name: config.ObjectName{Namespace: o.Namespace, Name: o.Name}, tls: tlsHosts(o)}
	i.guards = v.guarded(reference("networking.k8s.io/v1", "Ingress", &o.ObjectMeta), o)
	known := map[string]bool{}
	for n := range o.Spec.Rules {
		rule := &o.Spec.Rules[n]
		host, err := "", error(nil)
		if rule.Host != "" {
			host, err = config.ParseHost(rule.Host)
		}
		if err != nil {
			v.on(i, event.ReasonHost, "The host %q %v.", rule.Host, err)
			continue
		}
		if !known[host] {
			known[host] = true
			i.hosts = append(i.hosts, host)
		}
		if rule.HTTP == nil && o.Spec.DefaultBackend == nil {
			v.on(i, event.ReasonPath, "The rule for %s has no paths, and there is no default backend; add paths, or spec.defaultBackend.", shown(host))
		}
		if rule.HTTP != nil {
			v.readPaths(i, host, rule.HTTP.Paths)
		}
	}
	// A prefix means the same with and without a slash at its end; the longer one wins.
	slices.SortStableFunc(i.wants, func(a, b *want) int {
		return cmp.Or(strings.Compare(a.host, b.host), cmp.Compare(len(b.written), len(a.written)))
	})
	v.readDefault(i)
	return i
}

// on records an event on the Ingress.
func (v *conversion) on(i *ingress, reason event.Reason, format string, args ...any) {
	v.event(reference("networking.k8s.io/v1", "Ingress", &i.ObjectMeta), reason, format, args...)
}

func (v *conversion) readPaths(i *ingress, host string, paths []networkingv1.HTTPIngressPath) {
	patterns := asksForPatterns(i.Ingress)
	for n := range paths {
		p := &paths[n]
		path, err := pathOf(p, patterns)
		if err != nil {
			v.refusePath(i, host, p, patterns, err)
			continue
		}
		i.wants = append(i.wants, &want{claim: claim{host, path}, by: i, name: i.route(host) + separated(path), written: p.Path,
			loose: (patterns || typeOf(p) == networkingv1.PathTypeImplementationSpecific) && !strings.HasSuffix(p.Path, "/"), backend: &p.Backend})
	}
}

// readDefault adds the default backend. Without rules, it gets all requests that no
// other Ingress matches. With rules, it gets the requests for their hosts that match no path.
func (v *conversion) readDefault(i *ingress) {
	b := i.Spec.DefaultBackend
	if b == nil {
		return
	}
	hosts := i.hosts
	if len(i.Spec.Rules) == 0 {
		hosts = []string{""}
	}
	for _, host := range hosts {
		i.wants = append(i.wants, &want{claim: claim{host, everyPath}, by: i, name: i.route(host), implicit: true, backend: b})
	}
}

// route is the prefix of the names of the Ingress's routes: namespace/ingress/host.
func (i *ingress) route(host string) string { return i.name.String() + "/" + cmp.Or(host, "*") }

// separated is the path in names of routes.
func separated(p config.Path) string {
	if p.Exact {
		return "/" + p.String()
	}
	return p.String()
}

// assign gives each claim to the oldest Ingress that wants it. Default backends
// come after all claims for a path.
func (v *conversion) assign() {
	for _, implicit := range []bool{false, true} {
		for _, i := range v.ingresses {
			for _, w := range i.wants {
				if w.implicit == implicit {
					v.assignOne(w)
				}
			}
		}
	}
	v.closeRefused()
}

func (v *conversion) assignOne(w *want) {
	other := v.claims[w.claim]
	if w.refusal != nil {
		v.assignRefused(w, other)
		return
	}
	if other != nil && other.by.Namespace == w.by.Namespace && len(w.by.guards) > 0 && !w.implicit {
		if w.guards = w.by.guards; w.served().Begins {
			v.emit(w, v.backend(w)) // it closes more than the path of other
		}
	}
	switch {
	case other == nil:
		v.claims[w.claim] = w
		v.emit(w, v.backend(w))
	case w.implicit && other.refusal != nil && !other.defeats && isKept(w, other):
		other.refusal.incumbent = w.by
		v.claims[w.claim] = w
		v.emit(w, v.backend(w))
	case other.implicit != w.implicit: // a default backend gets only requests that no path claims
	case other.refusal != nil && other.by == w.by:
		other.defeats = true
		v.on(w.by, event.ReasonPath, "%s is the literal prefix of %q, which weir cannot match, so it answers 503 as well; replace the other path.", sentence(w.claim), other.written)
	case other.by != w.by:
		other.defeats = true
		v.on(w.by, event.ReasonTaken, "%s belongs to the older Ingress %s, so this Ingress does not get it; change the host or the path in one of them.", sentence(w.claim), other.by.name)
	case w.written == other.written:
		v.on(w.by, event.ReasonTaken, "%s occurs twice in this Ingress, and the first one gets it; remove the other.", sentence(w.claim))
	}
}

// assignRefused gives a refused path the claim for its literal prefix, unless another Ingress has it.
func (v *conversion) assignRefused(w, other *want) {
	switch {
	case other == nil:
		v.claims[w.claim] = w
	case other.by.Namespace == w.by.Namespace && len(w.by.guards) > 0:
		w.beside = true
	}
}

// sentence is the claim at the beginning of a sentence.
func sentence(c claim) string {
	s := c.String()
	return strings.ToUpper(s[:1]) + s[1:]
}

// emit makes the routes of w, on each listener where the file allows it.
func (v *conversion) emit(w *want, backend string) {
	r := config.Route{Name: w.name, Namespace: w.by.Namespace, TLS: config.TLSTerminate, TLSPolicy: config.DefaultTLSPolicy, Backend: backend, Closure: w.closure()}
	if w.host != "" {
		r.Hosts = []string{w.host}
	}
	if !w.implicit {
		path := w.served()
		if path.Closed && v.shut[claim{w.host, path}] {
			return // a path with another spelling has closed it
		}
		v.shut[claim{w.host, path}] = path.Closed
		r.Paths = []config.Path{path}
	}
	byPolicy := map[string][]string{}
	redirect, unless := r, r // unless: redirect only requests that a trusted proxy did not receive by https
	redirect.Closure = nil
	redirect.Backend, redirect.Redirect = "", &config.Redirect{Port: v.httpsPort(), Status: 308}
	unless.Redirect = redirect.Redirect
	for _, l := range v.plain {
		switch {
		case !v.isFree(w, l, hostTLS{}, false) || v.fileHas(w, l):
		case !v.redirects(w):
			byPolicy[config.DefaultTLSPolicy] = append(byPolicy[config.DefaultTLSPolicy], l.Name)
		case l.HearsOfHTTPS() && !v.protection(w.host).below: // a proxy that terminates TLS requests no client certificate
			unless.Listeners = append(unless.Listeners, l.Name)
		default:
			redirect.Listeners = append(redirect.Listeners, l.Name)
		}
	}
	for _, l := range v.secure {
		if t, itself := v.tlsOn(l.Name, w.host); v.isFree(w, l, t, itself) && !v.fileHas(w, l) {
			byPolicy[t.policy] = append(byPolicy[t.policy], l.Name)
		}
	}
	for _, r := range []config.Route{redirect, unless} {
		if len(r.Listeners) > 0 {
			v.routes = append(v.routes, r)
		}
	}
	for _, policy := range slices.Sorted(maps.Keys(byPolicy)) {
		r.TLSPolicy, r.Listeners = policy, byPolicy[policy]
		v.routes = append(v.routes, r)
	}
}

// isFree reports whether the file leaves the host and path on the listener to Ingresses.
func (v *conversion) isFree(w *want, l *config.Listener, t hostTLS, itself bool) bool {
	switch name, taken := v.seen.claims[fileClaim{l.Name, w.claim}]; {
	case t.raw() && (itself || isChallenge(w.path)):
		if itself {
			does := "forwards the TLS of %s on listener %s without decrypting it (tls: passthrough)"
			if t.tunnel && !t.passthrough {
				does = "sends all connections for %s on listener %s to a tcp backend"
			}
			v.on(w.by, event.ReasonTaken, "weir's configuration "+does+", so this Ingress gets no requests there; use another host, or change the configuration.", shown(w.host), l.Name)
		}
		return false
	case v.fileServes(w.host, l):
		v.on(w.by, event.ReasonHostTaken, "weir's configuration serves every path of %s on listener %s, and so owns the host there (kubernetes.host_ownership). This Ingress gets no requests there; use another host, or change the configuration.", shown(w.host), l.Name)
		return false
	case taken:
		v.on(w.by, event.ReasonTaken, "%s belongs to the route %s of weir's configuration on listener %s, so this Ingress does not get it there; change the host or the path in one of them.", sentence(w.claim), name, l.Name)
		return false
	}
	return true
}
