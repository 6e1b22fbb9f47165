package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/message"
)

// hostsOf returns the hosts of r, "" for every host. It omits hosts that could not be
// decoded.
func (v *draft) hostsOf(r *Route) []string {
	if !v.given(&r.Hosts) {
		return []string{""}
	}
	return slices.DeleteFunc(slices.Clone(r.Hosts), func(h string) bool { return h == "" })
}

// listenersOf returns the listeners of r that exist and whose protocol is known.
func (v *draft) listenersOf(r *Route) (found []*Listener) {
	for _, name := range r.Listeners {
		if l := v.listenerNamed(name); l != nil && l.Protocol != "" {
			found = append(found, l)
		}
	}
	return found
}

func (v *draft) listenerNamed(name string) *Listener {
	for _, l := range v.listeners {
		if l.Name == name {
			return l
		}
	}
	return nil
}

// backendNamed looks in an index, because each of thousands of routes may have a backend of
// its own.
func (v *draft) backendNamed(name string) *Backend {
	if v.backendsByName == nil {
		v.backendsByName = make(map[string]*Backend, len(v.backends))
		for _, b := range v.backends {
			v.backendsByName[b.Name] = b
		}
	}
	return v.backendsByName[name]
}

func (v *draft) policyNamed(name string) *TLSPolicy {
	for _, t := range v.policies {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// checkRoutes makes all checks of one route, and of several routes together.
func (v *draft) checkRoutes() {
	for _, r := range v.routes {
		pause.IfDue()
		v.checkNames(r)
		v.checkShape(r)
	}
	v.group()
	v.checkDuplicates()
	v.nameRoutes()
	asserted := message.NewNames(assertedBy(values(v.auth)))
	for _, r := range v.routes {
		pause.IfDue()
		v.checkMatch(r, asserted)
		v.checkPassthrough(r)
		v.checkBackend(r)
		v.checkOpenedTunnel(r)
		v.checkRedirect(r)
		v.checkHSTS(r)
		v.checkEdits(r)
		v.checkRespond(r)
		v.checkGuards(r)
		v.checkAuth(r)
		v.checkBackoff(r)
		v.checkGroups(r)
		v.checkErrorPages(r)
		v.checkMirror(r)
		v.checkRateLimit(r)
	}
	v.checkTCPListeners()
	v.checkClientAuth()
}

// checkNames reports names in r that do not exist.
func (v *draft) checkNames(r *Route) {
	for i := range r.Listeners {
		checkName(v, &r.Listeners[i], "listener", v.listeners, func(l *Listener) string { return l.Name })
	}
	if v.backendNamed(r.Backend) == nil {
		checkName(v, &r.Backend, "backend", v.backends, (*Backend).name)
	}
	v.checkWeights(r)
	if r.TLSPolicy != DefaultTLSPolicy {
		checkName(v, &r.TLSPolicy, "TLS policy", v.policies, func(t *TLSPolicy) string { return t.Name })
	}
}

// definedUnder has the keys of the top level for the kinds of names that users look for elsewhere.
var definedUnder = map[string]string{"rate limit": "rate_limits", "way to authenticate": "auth", "backend": "backends", "listener": "listeners"}

// checkName reports an error if no element of all has the name that dst points to.
func checkName[T any](v *draft, dst *string, what string, all []T, name func(T) string) {
	if *dst == "" || slices.ContainsFunc(all, func(one T) bool { return name(one) == *dst }) {
		return
	}
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = name(one)
	}
	at := v.places[dst]
	right := fmt.Sprintf("there is %s", strings.Join(names, ", "))
	if len(names) == 0 {
		right = "none is defined"
		if key := definedUnder[what]; key != "" {
			right += " under " + key + " at the top level"
		}
	}
	if near := nearest(*dst, names); near != "" && !at.hidden() {
		right = fmt.Sprintf("did you mean %q?", near)
	}
	v.failAt(at, "%s is not the name of a %s; %s", v.quote(dst, *dst), what, right)
}

// checkShape reports keys that contradict each other or the listeners.
func (v *draft) checkShape(r *Route) {
	refuse := func(dst any, why string) {
		if v.given(dst) {
			v.failAt(v.places[dst], "%s", why)
		}
	}
	if r.FirstBytes != "" {
		why := "weir compares first_bytes before it reads TLS or a request; take this out, or split this into two routes"
		refuse(&r.Hosts, why)
		refuse(&r.Paths, why)
		refuse(&r.Match, why)
		refuse(&r.TLS, why)
		refuse(&r.TLSPolicy, why)
		for _, dst := range r.requestSettings() {
			refuse(dst, "first_bytes routes carry tunnels, which have no requests; take this out")
		}
	}
	v.checkSilence(r)
	hasTLS := false
	for _, l := range v.listenersOf(r) {
		hasTLS = hasTLS || l.Protocol == ProtocolTLS
		if l.Protocol == ProtocolTCP {
			why := fmt.Sprintf("listener %q is tcp, and weir does not read its connections; take this out, or the listener", l.Name)
			refuse(&r.Hosts, why)
			refuse(&r.Paths, why)
			refuse(&r.Match, why)
			refuse(&r.FirstBytes, why)
			for _, dst := range r.requestSettings() {
				refuse(dst, why)
			}
		}
	}
	if known := v.listenersOf(r); !hasTLS && len(known) > 0 && len(known) == len(r.Listeners) && r.FirstBytes == "" {
		why := "none of the route's listeners is tls; take this out, or name a tls listener"
		refuse(&r.TLSPolicy, why)
		refuse(&r.TLS, why)
	}
	for _, l := range v.listenersOf(r) {
		if hasTLS && r.TLS == TLSPassthrough && l.Protocol != ProtocolTLS {
			refuse(&r.TLS, fmt.Sprintf("listener %q is %s, and only a tls listener has TLS to pass through; make a route of its own for it", l.Name, l.Protocol))
		}
	}
}

// checkSilence reports a wait for silent clients that cannot end before they are closed.
func (v *draft) checkSilence(r *Route) {
	if r.SilentAfter == 0 {
		return
	}
	at := v.places[&r.SilentAfter]
	if r.FirstBytes == "" {
		v.failAt(at, `is only for routes with first_bytes; add "first_bytes: ssh", or take it out`)
	}
	for _, l := range v.listenersOf(r) {
		if l.Protocol != ProtocolTCP && r.SilentAfter >= l.Timeouts.Handshake {
			v.failAt(at, "is %v, but listener %q closes silent clients after %v (timeouts.handshake); write less here, or more there", r.SilentAfter, l.Name, l.Timeouts.Handshake)
		}
	}
}

// checkDuplicates reports two routes for the same connections or requests.
func (v *draft) checkDuplicates() {
	type match struct {
		hostOn
		path       Path
		conditions string
		firstBytes string
	}
	first := map[match]*Route{}
	for _, r := range v.routes {
		pause.IfDue()
		paths, conditions := r.Paths, r.Match.canonical()
		if !v.given(&r.Paths) {
			paths = []Path{{Value: "/"}} // a route without paths matches every path
		}
		for _, l := range v.listenersOf(r) {
			if l.Protocol == ProtocolTCP {
				continue // checkTCPListeners reports a better error
			}
			for _, m := range matches(v.hostsOf(r), paths, r.FirstBytes != "") {
				key := match{hostOn{l.Name, m.host}, m.path, conditions, r.FirstBytes}
				if other := first[key]; other != nil && other != r {
					v.failAt(v.places[r], "%s already matches the same on listener %q (%s); change one of them", v.lineOf(other), l.Name, v.describe(r, m))
					break
				}
				first[key] = r
			}
		}
	}
}

type hostPath struct {
	host string
	path Path
}

func matches(hosts []string, paths []Path, firstBytes bool) (all []hostPath) {
	if firstBytes {
		return []hostPath{{}}
	}
	for _, h := range hosts {
		for _, p := range paths {
			if p.Value != "" {
				all = append(all, hostPath{h, p})
			}
		}
	}
	return all
}

// describe names the host and path of m, unless they came from the environment.
func (v *draft) describe(r *Route, m hostPath) string {
	path := "every path"
	if i := slices.Index(r.Paths, m.path); i >= 0 {
		path = v.mention("path", &r.Paths[i], m.path.String())
	}
	if r.FirstBytes != "" {
		return "first_bytes: " + r.FirstBytes
	}
	if r.Match != nil {
		path += ", the same conditions"
	}
	return v.describeHost(r, m.host) + ", " + path
}

func (v *draft) describeHost(r *Route, host string) string {
	if i := slices.Index(r.Hosts, host); i >= 0 {
		return v.mention("host", &r.Hosts[i], host)
	}
	return "every host"
}

func (v *draft) mention(what string, dst any, value string) string {
	if v.places[dst].hidden() {
		return "a " + what + " from the environment"
	}
	return what + " " + value
}

// nameRoutes fills in default names and reports duplicate names.
func (v *draft) nameRoutes() {
	named := map[string]*Route{}
	for _, r := range v.routes {
		pause.IfDue()
		if r.Name == "" {
			continue
		}
		if other := named[r.Name]; other != nil {
			v.failAt(v.places[&r.Name], "%s already has this name; each route needs its own", v.lineOf(other))
		}
		named[r.Name] = r
	}
	for _, r := range v.routes {
		pause.IfDue()
		if r.Name != "" || v.given(&r.Name) || len(r.Listeners) == 0 {
			continue
		}
		r.Name = v.defaultName(r)
		if len(r.Listeners) > 1 && named[r.Name] != nil { // a route of other listeners may have the same host and path
			r.Name = strings.Join(r.Listeners, "+") + "/" + r.Name
		}
		// If the conditions are equal too, the matches are equal, which was already reported.
		if other := named[r.Name]; other != nil && (v.given(&other.Name) || other.Match.canonical() != r.Match.canonical()) {
			v.failAt(v.places[r], "%s has the name that this one has by default; give one of them another name", v.lineOf(other))
		}
		named[r.Name] = r
	}
}

// defaultName is listener/host/path, with the first host and path, and the names of the conditions. A route of
// several listeners has none of them in its name, because the name stands for the requests of each of them.
func (v *draft) defaultName(r *Route) string {
	name := ""
	if len(r.Listeners) == 1 {
		name = r.Listeners[0] + "/"
	}
	switch l := v.listenerNamed(r.Listeners[0]); {
	case r.FirstBytes != "":
		return name + "first_bytes=" + r.FirstBytes
	case l != nil && l.Protocol == ProtocolTCP:
		return strings.Join(r.Listeners, "+")
	case len(r.Hosts) > 0:
		name += r.Hosts[0]
	default:
		name += "*"
	}
	switch {
	case len(r.Paths) == 0:
	case r.Paths[0].Exact || r.Paths[0].Expression:
		name += "/" + r.Paths[0].String()
	default:
		name += r.Paths[0].String()
	}
	return name + r.Match.label()
}

// checkBackend reports a backend whose protocol does not fit the route.
func (v *draft) checkBackend(r *Route) {
	b := v.firstBackend(r)
	broken := v.given(&r.FirstBytes) && r.FirstBytes == "" || v.given(&r.TLS) && r.TLS == ""
	if b == nil || b.Protocol == "" || broken {
		return
	}
	for _, l := range v.listenersOf(r) {
		for _, h := range v.hostsOf(r) {
			tunnel := v.isTunnel(r, l, h)
			switch {
			case tunnel != "" && b.Protocol != ProtocolTCP:
				v.failAt(v.places[v.backendKey(r)], `backend %q speaks %s, but the route carries raw connections (%s); give the backend "protocol: tcp"`, b.Name, b.Protocol, tunnel)
				return
			case tunnel == "" && b.Protocol == ProtocolTCP && l.Protocol != ProtocolTLS:
				v.failAt(v.places[v.backendKey(r)], `backend %q has "protocol: tcp", but the route carries HTTP from listener %q; use a backend that speaks http, https, h2c or grpc, or a listener with "protocol: tls" or "protocol: tcp"`, b.Name, l.Name)
				return
			}
		}
	}
}

// isTunnel returns the reason why weir forwards connections of r without reading them, or
// "".
func (v *draft) isTunnel(r *Route, l *Listener, host string) string {
	_, mode := v.groups[hostOn{l.Name, host}].effective()
	if r.TLS != "" {
		mode = r.TLS // if this is an error, another check reports it
	}
	switch {
	case r.FirstBytes != "":
		return "first_bytes"
	case l.Protocol == ProtocolTCP:
		return fmt.Sprintf("listener %q is tcp", l.Name)
	case mode == TLSPassthrough:
		return "tls: passthrough"
	}
	return ""
}

// checkTCPListeners reports tcp listeners that do not have exactly one route.
func (v *draft) checkTCPListeners() {
	for _, l := range v.listeners {
		if l.Protocol != ProtocolTCP {
			continue
		}
		var first *Route
		for _, r := range v.routes {
			pause.IfDue()
			switch {
			case !slices.Contains(r.Listeners, l.Name):
			case first == nil:
				first = r
			default:
				v.failAt(v.places[r], "listener %q is tcp and has %s already; a tcp listener has exactly one", l.Name, v.lineOf(first))
			}
		}
		if first == nil {
			v.failAt(v.places[l], `has no route; a tcp listener needs exactly one, such as "{listeners: [%s], backend: app}"`, l.Name)
		}
	}
}
