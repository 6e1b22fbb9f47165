package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// This file has redirects by annotations of ingress-nginx. They answer all requests of a claim,
// before the redirect to https and before any restriction, as in ingress-nginx.

// moveOf is the redirect that answers all requests of a claim; nil: there is none.
func (v *conversion) moveOf(c *claim.Claim) *config.Redirect {
	if c.Closed() != nil || c.Refusal != nil {
		return nil
	}
	if move := v.moves[c]; move != nil {
		return move
	}
	if c.Implicit && c.Host == "" {
		return nil // ingress-nginx does not redirect for a default backend without hosts
	}
	return moveBy(v.asked[c.Owner])
}

// moveBy is the redirect that annotations ask for; nil: they ask for none.
func moveBy(s annotation.Settings) *config.Redirect {
	r, w := s.Redirects, s.Rewrite
	to, status := r.Temporal, cmp.Or(r.TemporalStatus, 302)
	if to == "" {
		to, status = r.Permanent, cmp.Or(r.PermanentStatus, 301)
	}
	switch {
	case to == "" && w.Scheme != "":
		return &config.Redirect{Scheme: w.Scheme, Host: w.Host, Port: w.Port, Path: config.Template(w.Path), Status: 302}
	case to == "":
		return nil
	case strings.HasPrefix(to, "/") && !r.Relative:
		to = "{scheme}://{host}" + to
	}
	return &config.Redirect{To: config.Template(to), Status: status}
}

// readMoves adds claims of the hosts of an Ingress that are only redirected: of the path / because
// of app-root, of the other name because of from-to-www-redirect, and of the paths that no Ingress
// has.
func (v *conversion) readMoves(i *ingress) {
	r := v.asked[i.owner].Redirects
	if r.Root != "" {
		for _, host := range i.owner.Hosts {
			c := v.move(i, host, config.Path{Value: "/", Exact: true}, &config.Redirect{Path: config.Template(r.Root), Status: 302, DropQuery: true})
			c.Among = false // it goes before all expressions
		}
	}
	for _, from := range v.twins[i.Ingress] {
		i.owner.Hosts = append(i.owner.Hosts, from)
		v.move(i, from, everyPath, &config.Redirect{Host: twin(from), Status: 308})
	}
	v.readRest(i)
}

// readRest redirects the paths that no Ingress has, for the hosts of whose annotations this Ingress
// decides. A default backend gets them otherwise.
func (v *conversion) readRest(i *ingress) {
	if i.Spec.DefaultBackend != nil || i.owner.Guards != nil {
		return
	}
	for _, host := range v.rests[i.Ingress] {
		c := v.move(i, host, everyPath, moveBy(v.asked[i.owner]))
		c.Implicit, c.Route = true, i.route+host
	}
}

// move adds a claim that is redirected, before all others of its Ingress.
func (v *conversion) move(i *ingress, host string, path config.Path, to *config.Redirect) *claim.Claim {
	c := &claim.Claim{Match: claim.Match{Host: host, Path: path}, Owner: i.owner, Route: i.route + cmp.Or(host, "*") + separated(path), Written: path.Value}
	i.owner.Claims = slices.Insert(i.owner.Claims, 0, c)
	if v.moves == nil {
		v.moves = map[*claim.Claim]*config.Redirect{}
	}
	v.moves[c] = to
	return c
}

// twin is the host with www. at its beginning, or without it; "": there is none.
func twin(host string) string {
	rest, is := strings.CutPrefix(host, "www.")
	switch {
	case host == "" || strings.HasPrefix(host, "*."):
		return ""
	case is:
		return rest
	}
	if other, err := config.ParseHost("www." + host); err == nil {
		return other
	}
	return ""
}

// wantsTwins reports whether an Ingress redirects the other names of its hosts.
func wantsTwins(i *networkingv1.Ingress) bool {
	return i.Annotations[annotation.Nginx+"from-to-www-redirect"] != "" && annotation.SettingsOf(i).Redirects.WWW
}

// twinsWanted finds the oldest Ingress that asks for each other name, and takes it from nobody. The Ingresses are in the
// order of their age.
func (f *furtherNames) twinsWanted(inOrder []*networkingv1.Ingress) map[string]*networkingv1.Ingress {
	wanted := map[string]*networkingv1.Ingress{}
	for _, i := range inOrder {
		if !wantsTwins(i) {
			continue
		}
		for host := range ruleHosts(i) {
			if from := twin(host); from != "" && wanted[from] == nil && f.ownerOf(i, from) == "" && f.settings.RefusesHost(i.Namespace, from) == "" {
				wanted[from] = i
			}
		}
	}
	return wanted
}

// twinsOf finds the hosts that are redirected because of from-to-www-redirect: those that nobody names, and that are no
// aliases. The oldest Ingress gets them. The Ingresses are in the order of their age.
func (f *furtherNames) twinsOf(inOrder []*networkingv1.Ingress) map[*networkingv1.Ingress][]string {
	found := map[*networkingv1.Ingress][]string{}
	for _, i := range inOrder {
		if !wantsTwins(i) {
			continue
		}
		for host := range ruleHosts(i) {
			if from := twin(host); from != "" && f.gets(i, from, "from-to-www-redirect") {
				f.taken[from] = i
				found[i] = append(found[i], from)
			}
		}
	}
	return found
}

// movesAll reports whether an Ingress redirects all requests.
func movesAll(i *networkingv1.Ingress) bool {
	for _, name := range []string{"permanent-redirect", "temporal-redirect", "rewrite-target"} {
		if i.Annotations[annotation.Nginx+name] != "" {
			return !isCanary(i) && moveBy(annotation.SettingsOf(i)) != nil
		}
	}
	return false
}

// restsOf finds the Ingresses that redirect all requests, and the hosts of which they are the
// oldest. In ingress-nginx, the annotations of that Ingress also apply to the paths that no Ingress
// has.
func restsOf(all []*networkingv1.Ingress) map[*networkingv1.Ingress][]string {
	if !slices.ContainsFunc(all, movesAll) {
		return nil
	}
	oldest := map[string]*networkingv1.Ingress{}
	for _, i := range all {
		if isCanary(i) {
			continue
		}
		for host := range ruleHosts(i) {
			if before := oldest[host]; before == nil || compareAges(i, before) < 0 {
				oldest[host] = i
			}
		}
	}
	found := map[*networkingv1.Ingress][]string{}
	for _, host := range slices.Sorted(maps.Keys(oldest)) {
		if i := oldest[host]; host != "" && movesAll(i) {
			found[i] = append(found[i], host)
		}
	}
	return found
}
