package kube

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
)

// ingress is one Ingress, read.
type ingress struct {
	*networkingv1.Ingress
	name   config.ObjectName
	hosts  []string        // of its rules that can be; "" is every host
	tls    map[string]bool // hosts that it has TLS for; "" is every host
	wants  []*want
	guards []string // annotations that keep clients out, which weir does not: it is refused
}

// want is a host and a path that an Ingress asks for, and where it is to go.
type want struct {
	claim
	by       *ingress
	name     string   // of the route
	implicit bool     // the default backend: what it does not get, nobody asked for in so many words
	written  string   // the path as the Ingress has it
	pattern  bool     // written is no path that weir could match; claim has its beginning, which is closed
	loose    bool     // ingress-nginx goes by the text of the prefix, whatever follows
	guards   []string // by which it is refused
	backend  *networkingv1.IngressBackend
}

// claim is what two Ingresses cannot both have.
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

// shown is a host as messages have it.
func shown(host string) string { return cmp.Or(host, "every host") }

// read finds out what the Ingress wants, without looking at any other.
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
			v.on(i, ReasonHost, "The host %q %v.", rule.Host, err)
			continue
		}
		if !known[host] {
			known[host] = true
			i.hosts = append(i.hosts, host)
		}
		if rule.HTTP == nil && o.Spec.DefaultBackend == nil {
			v.on(i, ReasonPath, "The rule for %s has no paths, and there is no default backend; add paths, or spec.defaultBackend.", shown(host))
		}
		if rule.HTTP != nil {
			v.readPaths(i, host, rule.HTTP.Paths)
		}
	}
	// A prefix with a slash at its end says the same as without; the longer one has it.
	slices.SortStableFunc(i.wants, func(a, b *want) int {
		return cmp.Or(strings.Compare(a.host, b.host), cmp.Compare(len(b.written), len(a.written)))
	})
	v.readDefault(i)
	return i
}

// on notes an event on the Ingress.
func (v *conversion) on(i *ingress, reason Reason, format string, args ...any) {
	v.event(reference("networking.k8s.io/v1", "Ingress", &i.ObjectMeta), reason, format, args...)
}

func (v *conversion) readPaths(i *ingress, host string, paths []networkingv1.HTTPIngressPath) {
	patterns := asksForPatterns(i.Ingress)
	add := func(p *networkingv1.HTTPIngressPath, path config.Path, loose, pattern bool) {
		path.Begins = false // two claims are one however far they reach
		i.wants = append(i.wants, &want{claim: claim{host, path}, by: i, name: i.route(host) + separated(path), written: p.Path, loose: loose, pattern: pattern, backend: &p.Backend})
	}
	for n := range paths {
		p := &paths[n]
		path, err := pathOf(p, patterns)
		if err == nil {
			add(p, path, (patterns || typeOf(p) == networkingv1.PathTypeImplementationSpecific) && !strings.HasSuffix(p.Path, "/"), false)
			continue
		}
		v.on(i, ReasonPath, "The path %q of %s %v.", p.Path, shown(host), err)
		switch {
		case len(i.guards) == 0:
		case errors.As(err, &pattern{}):
			for _, path := range beginnings(p.Path) {
				add(p, path, path.Begins, true)
			}
		default:
			if path, err := pathOf(escaped(p), patterns); err == nil {
				add(p, path, false, false)
			}
		}
	}
}

// readDefault adds the default backend: without rules it is for everything that
// is nobody's, with rules for what is left over on the hosts that they name.
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

// route is the beginning of the names of the Ingress's routes: namespace/ingress/host.
func (i *ingress) route(host string) string { return i.name.String() + "/" + cmp.Or(host, "*") }

// separated is a path as route names have it.
func separated(p config.Path) string {
	if p.Exact {
		return "/" + p.String()
	}
	return p.String()
}

// settle gives each claim to the oldest that wants it. Default backends come
// after everything that somebody asked for by host and path.
func (v *conversion) settle() {
	for _, implicit := range []bool{false, true} {
		for _, i := range v.ingresses {
			for _, w := range i.wants {
				if w.implicit == implicit {
					v.settleOne(w)
				}
			}
		}
	}
}

func (v *conversion) settleOne(w *want) {
	other := v.claims[w.claim]
	if other != nil && other.by.Namespace == w.by.Namespace && len(w.by.guards) > 0 && !w.implicit {
		if b := v.backend(w); w.served().Begins {
			v.emit(w, b) // it closes more than the path that other has
		}
	}
	switch {
	case other == nil:
		v.claims[w.claim] = w
		v.emit(w, v.backend(w))
	case other.implicit != w.implicit: // a default backend gets what is left over
	case other.by != w.by:
		v.on(w.by, ReasonTaken, "%s is the older Ingress %s's already, so it is not this one's; change it here or there.", sentence(w.claim), other.by.name)
	case w.written == other.written:
		v.on(w.by, ReasonTaken, "%s is there twice; the first has it. Take the other out.", sentence(w.claim))
	}
}

// sentence is a claim at the beginning of a sentence.
func sentence(c claim) string {
	s := c.String()
	return strings.ToUpper(s[:1]) + s[1:]
}

// emit makes routes of w, on each listener where it can be.
func (v *conversion) emit(w *want, backend string) {
	r := config.Route{Name: w.name, TLS: config.TLSTerminate, TLSPolicy: config.DefaultTLSPolicy, Backend: backend}
	if w.host != "" {
		r.Hosts = []string{w.host}
	}
	if !w.implicit {
		path := w.served()
		if path.Closed && v.shut[claim{w.host, path}] {
			return // by one that is written otherwise
		}
		v.shut[claim{w.host, path}] = path.Closed
		r.Paths = []config.Path{path}
	}
	byPolicy := map[string][]string{}
	redirect, unless := r, r // it came by https already
	redirect.Backend, redirect.Redirect = "", &config.Redirect{Port: 443, Status: 308}
	unless.Redirect = redirect.Redirect
	for _, l := range v.plain {
		switch {
		case !v.isFree(w, l, hostTLS{}, false):
		case !v.redirects(w):
			byPolicy[config.DefaultTLSPolicy] = append(byPolicy[config.DefaultTLSPolicy], l.Name)
		case l.HearsOfHTTPS() && !v.protection(w.host).below: // whoever opened TLS asked nobody for a certificate
			unless.Listeners = append(unless.Listeners, l.Name)
		default:
			redirect.Listeners = append(redirect.Listeners, l.Name)
		}
	}
	for _, l := range v.secure {
		if t, itself := v.tlsOn(l.Name, w.host); v.isFree(w, l, t, itself) {
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

// isFree says whether the file leaves host and path of the listener to a cluster.
func (v *conversion) isFree(w *want, l *config.Listener, t hostTLS, itself bool) bool {
	switch name, taken := v.seen.claims[fileClaim{l.Name, w.claim}]; {
	case t.passthrough && (itself || isChallenge(w.path)):
		if itself {
			v.on(w.by, ReasonTaken, "weir's configuration passes the TLS of %s on listener %s through unopened, so no path can be seen there; change the host here, or the configuration.", shown(w.host), l.Name)
		}
		return false
	case taken:
		v.on(w.by, ReasonTaken, "%s is already that of the route %s of weir's configuration on listener %s, so it is not this one's there; change it here or there.", sentence(w.claim), name, l.Name)
		return false
	}
	return true
}

// redirects says whether requests without TLS are sent to https instead.
func (v *conversion) redirects(w *want) bool {
	if v.protection(w.host).below {
		return true
	}
	return v.settings.HTTPSRedirect && len(v.secure) > 0 && !isChallenge(w.path) && w.by.hasTLS(w.host)
}

// hasTLS says whether the Ingress has TLS for the host.
func (i *ingress) hasTLS(host string) bool {
	return i.tls[""] || i.tls[host] || i.tls[wildcardOf(host)]
}

// tlsHosts are the hosts that the Ingress has TLS for. An entry without hosts is for all of them.
func tlsHosts(o *networkingv1.Ingress) map[string]bool {
	all := map[string]bool{}
	for n := range o.Spec.TLS {
		hosts := o.Spec.TLS[n].Hosts
		all[""] = all[""] || len(hosts) == 0
		for _, h := range hosts {
			if host, err := config.ParseHost(h); err == nil {
				all[host] = true
			}
		}
	}
	return all
}
