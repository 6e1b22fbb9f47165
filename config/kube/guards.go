package kube

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/proxy/htpasswd"
	"github.com/weirproxy/weir/proxy/script"
)

// This file reads the objects that annotations of an Ingress name to restrict access. If one of
// them is missing, all paths of the Ingress answer 503.

// readGuards reads the objects for the guards of an Ingress. If weir cannot use one, it sets the
// guards of the owner. It reads all of them, also those of a closed Ingress: events name all that is wrong. hosts are those
// of the rules; empty: every host.
func (v *conversion) readGuards(owner *claim.Owner, hosts []string) {
	s := v.asked[owner]
	if s.AuthTLS.Secret != "" { // also of a closed Ingress: it decides about the paths of others
		h, err := v.readAuthTLS(owner.Name.Namespace, s.AuthTLS)
		if err != nil {
			v.closeFor(owner, "auth-tls-secret", err)
		} else {
			v.hostCerts[owner] = h
		}
	}
	if s.ProxySSL.Secret != "" {
		p, err := v.readProxySSL(owner, s.ProxySSL)
		if err != nil {
			v.closeAs(owner, "proxy-ssl-secret", err, asNginx)
		} else {
			v.proxySSL[owner] = p
		}
	}
	if s.BasicAuth.Secret != "" {
		auth, err := v.basicAuth(owner, s.BasicAuth)
		if err != nil {
			v.closeFor(owner, "auth-secret", err)
		} else {
			v.auth[owner] = &wantedAuth{entry: auth}
		}
	}
	if s.AuthURL.URL != "" {
		auth, err := v.authURLs(owner, &s.AuthURL, hosts)
		if err != nil {
			v.closeFor(owner, "auth-url", err)
		} else {
			v.auth[owner] = auth
		}
	}
}

// wantedAuth is the entry of auth that an Ingress asks for.
type wantedAuth struct {
	entry *config.Auth
	asks  *Backend // the backend of its server; nil: it has none
	// hosts has the entries by the hosts of requests, if they differ; nil: they do not.
	hosts map[string]*wantedAuth
}

// closeFor closes the paths of an Ingress because of one of its annotations.
func (v *conversion) closeFor(owner *claim.Owner, name string, why error) {
	v.closeAs(owner, name, why, "because otherwise everybody would have access")
}

// closeAs is closeFor with another purpose.
func (v *conversion) closeAs(owner *claim.Owner, name string, why error, purpose string) {
	guards := guardsOf(owner.Kind.Name, owner.Name, []string{annotation.Nginx + name})
	guards.Why, _, _ = strings.Cut(why.Error(), ";") // what to do is not for the log of requests
	shut(owner, guards)
	v.events.Put(event.Event{Object: owner.Reference(), Reason: event.ReasonAccess, Unread: errors.As(why, new(unread)),
		Message: fmt.Sprintf("All paths of this %s answer 503, %s: %v.", owner.Kind.Name, purpose, why)})
}

// shut closes an Ingress. If several guards close it, the first one gives the reason, unless a later one also
// closes paths of other Ingresses.
func shut(owner *claim.Owner, guards *claim.Guards) {
	if owner.Guards == nil || guards.OfHost && !owner.Guards.OfHost {
		owner.Guards = guards
	}
}

// unread is an error about an object that does not exist, or that weir has not read.
type unread struct{ error }

// basicAuth returns the entry of auth for a Secret of users.
func (v *conversion) basicAuth(owner *claim.Owner, a annotation.BasicAuth) (*config.Auth, error) {
	name := config.ObjectName{Namespace: owner.Name.Namespace, Name: a.Secret}
	s := v.secret(name)
	if s == nil {
		return nil, unread{fmt.Errorf("the Secret %s, which auth-secret names, does not exist; create it", name)}
	}
	users, err := usersOf(s, a.Map)
	if err != nil {
		return nil, fmt.Errorf("the Secret %s, which auth-secret names, %w", name, err)
	}
	if _, errs := htpasswd.ParseSome(users); len(errs) > 0 {
		v.event(reference("v1", "Secret", &s.ObjectMeta), event.ReasonUsers,
			"weir refuses users of this Secret (number: %d), because it cannot check their passwords. The first one: %v.", len(errs), errs[0])
	}
	kind := "file"
	if a.Map {
		kind = "map"
	}
	// The users are a part of the name's object, so all Ingresses with the same settings share an entry.
	return &config.Auth{Name: fmt.Sprintf("%s/basic/%s/%s", name, kind, a.Realm), Basic: &config.BasicAuth{
		Realm: a.Realm, Object: "Secret " + name.String(), Users: config.Secret(users)}}, nil
}

// authFileKey is the key of a Secret with a file of users.
const authFileKey = "auth"

// usersOf returns a file of users from a Secret. The error follows its name.
func usersOf(s *corev1.Secret, isMap bool) ([]byte, error) {
	if !isMap {
		file, found := s.Data[authFileKey]
		if !found {
			return nil, errors.New("has no key auth; store the output of htpasswd there, or write auth-secret-type: auth-map")
		}
		return file, nil
	}
	var b strings.Builder
	for _, user := range slices.Sorted(maps.Keys(s.Data)) {
		if hash := string(s.Data[user]); htpasswd.IsHash(hash) {
			fmt.Fprintf(&b, "%s:%s\n", user, strings.TrimSpace(hash))
		}
	}
	return []byte(b.String()), nil
}

// authTimeout limits the request to the server of auth-url, as in ingress-nginx.
const authTimeout = time.Minute

// authURLs returns the entries of auth for auth-url: one for each host, if the server has the host of the request.
func (v *conversion) authURLs(owner *claim.Owner, a *annotation.AuthURL, hosts []string) (*wantedAuth, error) {
	if a.Host != annotation.HostVariable {
		return v.authURL(owner, a, "")
	}
	all := &wantedAuth{hosts: map[string]*wantedAuth{}}
	for _, host := range hosts {
		if _, err := v.authOf(owner, all, host); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// authOf returns the entry of auth for requests for a host.
func (v *conversion) authOf(owner *claim.Owner, a *wantedAuth, host string) (*wantedAuth, error) {
	switch {
	case a.hosts == nil:
		return a, nil
	case a.hosts[host] != nil:
		return a.hosts[host], nil
	case host == "" || strings.HasPrefix(host, "*."): // server-alias of another Ingress may have added it
		return nil, fmt.Errorf("auth-url has the host $host, and %s is not one host, so clients would choose the server; write the host into auth-url", claim.HostText(host))
	}
	one := v.asked[owner].AuthURL.For(host)
	auth, err := v.authURL(owner, &one, "/"+host)
	if err == nil {
		a.hosts[host] = auth
	}
	return auth, err
}

// authURL returns an entry of auth for auth-url, and the backend of its server. suffix ends the name of the entry.
func (v *conversion) authURL(owner *claim.Owner, a *annotation.AuthURL, suffix string) (*wantedAuth, error) {
	from := ""
	if a.Global && v.settings.IngressNginx != nil {
		from = fmt.Sprintf("in the ConfigMap %s of ingress-nginx, global-", v.settings.IngressNginx.ConfigMap)
	}
	for _, name := range a.Headers {
		if err := config.CheckRequestHeader(name); err != nil {
			return nil, fmt.Errorf("%sauth-response-headers lists %s, which %w", from, name, err)
		}
	}
	b, err := urlBackend(owner.Name.Namespace, a.URL)
	if err != nil {
		return nil, fmt.Errorf("%sauth-url %w", from, err)
	}
	headers, err := v.authHeaders(owner, a.HeadersFrom)
	if err != nil {
		return nil, err
	}
	s := &config.Subrequest{Backend: b.Name, Path: config.Template(a.Path), Host: a.Host, Method: a.Method, Headers: a.Headers, Keep: script.AnswersOf(v.asked[owner].Snippets.Location),
		Add: []config.HeaderValue{{Name: "X-Auth-Request-Redirect", Value: config.Template(a.Redirect)}}, SignIn: config.Template(a.SignIn),
		AlwaysCookies: a.AlwaysCookies, CacheBy: config.Template(a.CacheBy), Timeout: authTimeout}
	s.Add = append(s.Add, headers...)
	for _, h := range a.Add {
		s.Add = append(s.Add, config.HeaderValue{Name: h.Name, Value: config.Template(h.Value)})
	}
	for _, r := range a.Cache {
		s.Cache = append(s.Cache, config.CacheTime{Statuses: r.Statuses, For: r.For})
	}
	return &wantedAuth{entry: &config.Auth{Name: owner.Name.String() + "/auth-url" + suffix, Subrequest: s}, asks: b}, nil
}

// urlBackend returns the backend for a server that an annotation names by a URL, such as
// http://auth.shop.svc. The author of the object chose its address, so weir does not connect to
// addresses of its own machine, and nginx does not verify its certificate.
func urlBackend(namespace, server string) (b *Backend, err error) {
	b = &Backend{}
	if b.Backend, _, err = config.BackendOfURL(namespace+"/"+server, server+"/"); err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(b.Endpoints[0].Address)
	if err != nil || isOwn(strings.ToLower(host)) {
		return nil, fmt.Errorf("names %s: weir does not connect to loopback, link-local, multicast and unspecified addresses; name another machine", host)
	}
	b.Host, b.HTTP2 = "", false
	b.Namespace, b.Endpoints[0].Foreign = namespace, true
	b.TLS.InsecureSkipVerify = true
	return b, nil
}

// applyGuards gives a route the guards of its Ingress that need other objects.
func (v *conversion) applyGuards(r *config.Route, c *claim.Claim) {
	owner := c.Owner
	s, a := v.asked[owner], v.auth[owner]
	if a != nil {
		var err error
		if a, err = v.authOf(owner, a, c.Host); err != nil { // a host that no rule has, such as that of from-to-www-redirect
			r.Closure = &config.Closure{Reason: "closed_by_annotation", Why: "the path is closed because " + err.Error()}
			return
		}
	}
	r.Limits = limitsOf(owner, &s.Limits)
	if a == nil || s.Any && s.Everybody { // nobody needs authentication
		return
	}
	r.Auth = a.entry.Name
	if s.Any && len(s.Allow) > 0 {
		r.Satisfy = config.SatisfyAny
	}
	v.entries[r.Auth] = a.entry
	if a.asks != nil {
		v.keep(*a.asks)
	}
}

// corsOf is how routes of an Ingress treat requests from pages of other origins; nil: endpoints
// decide.
func corsOf(c *annotation.CORS) *config.CORS {
	if !c.Enabled {
		return nil
	}
	return &config.CORS{Origins: c.Origins, Methods: listOf(c.Methods), Headers: listOf(c.Headers), Expose: listOf(c.Expose),
		Credentials: c.Credentials, MaxAge: c.MaxAge, AsNginx: true}
}

// listOf is a value of a HTTP header as an element that is written as it is.
func listOf(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// limitsOf are the limits of the routes of an Ingress, which share them; nil: none.
func limitsOf(owner *claim.Owner, l *annotation.Limits) *config.ObjectLimits {
	if !l.Any() {
		return nil
	}
	all := &config.ObjectLimits{Name: owner.Name.String(), RateStatus: l.RateStatus, InFlight: l.Open, OpenStatus: l.OpenStatus, Except: l.Except}
	for _, r := range []config.Rate{{Number: l.PerSecond, Per: time.Second}, {Number: l.PerMinute, Per: time.Minute}} {
		if r.Number > 0 {
			all.Rates = append(all.Rates, config.ObjectRate{Rate: r, Burst: min(r.Number*l.Multiplier, mostBurst)})
		}
	}
	return all
}

// mostBurst is the same limit as in the file. A whole burst at the slowest rate then takes less time
// than a time.Duration can hold.
const mostBurst = 1_000_000
