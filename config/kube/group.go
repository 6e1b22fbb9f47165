package kube

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// A group is a set of Ingresses that no Ingress outside of it affects: they share hosts, or
// have hosts that affect each other. So the conversion of a group depends only on its
// Ingresses and on the Services and Secrets that they name. Most groups have one Ingress, and
// a change of an object converts one group again.
//
// Backends and Secrets may be shared by several groups; merge.go puts their parts together.

// traits is what decides about the group of an Ingress.
type traits struct {
	hosts []string // of its rules and its certificates; "" is every host
	// special means that it has challenges or paths that weir cannot match. A host that has
	// nothing else depends on its wildcard, on every host, and on the limit of its namespace.
	special bool
}

func traitsOf(o *networkingv1.Ingress) *traits {
	t, follows := &traits{}, isCanary(o)
	add := func(host string) {
		if !slices.Contains(t.hosts, host) {
			t.hosts = append(t.hosts, host)
		}
	}
	known := map[string]bool{}
	for n := range o.Spec.Rules {
		rule := &o.Spec.Rules[n]
		host, err := "", error(nil)
		if rule.Host != "" {
			host, err = config.ParseHost(rule.Host)
		}
		if err != nil {
			continue
		}
		if !known[host] {
			known[host] = true
			t.hosts = append(t.hosts, host)
		}
		if rule.HTTP != nil && !follows {
			t.special = t.special || slices.ContainsFunc(rule.HTTP.Paths, func(p networkingv1.HTTPIngressPath) bool {
				// Whether it is a regular expression also depends on other Ingresses.
				path, err := textOf(&p)
				_, errPattern := annotation.CompilePattern(p.Path)
				return err != nil || errPattern != nil || claim.IsChallenge(path)
			})
		}
	}
	if follows {
		if len(o.Spec.Rules) == 0 {
			add("")
		}
		return t
	}
	if hasAliases(o) {
		for _, host := range aliasHosts(o) {
			add(host)
		}
	}
	if wantsTwins(o) {
		for host := range ruleHosts(o) {
			add(twin(host))
		}
	}
	if len(o.Spec.Rules) == 0 && o.Spec.DefaultBackend != nil {
		add("")
	}
	for n := range o.Spec.TLS {
		for _, written := range o.Spec.TLS[n].Hosts {
			if host, err := config.ParseHost(written); err == nil && !known[host] {
				known[host] = true
				t.hosts = append(t.hosts, host)
			}
		}
	}
	return t
}

// grouping joins Ingresses to groups. An Ingress is its index.
type grouping struct {
	above  []int          // another Ingress of the group, or itself
	named  map[string]int // an Ingress with the host
	closed map[string]int // a special Ingress of the namespace
}

// groups divides Ingresses into groups. With owned, each host belongs to one namespace.
func groups(all []*networkingv1.Ingress, traits func(*networkingv1.Ingress) *traits, owned bool) [][]*networkingv1.Ingress {
	g := grouping{above: make([]int, len(all)), named: make(map[string]int, len(all)), closed: map[string]int{}}
	for i, o := range all {
		g.above[i] = i
		for _, host := range traits(o).hosts {
			g.join(i, g.named, host)
		}
	}
	for i, o := range all {
		if t := traits(o); t.special || owned {
			g.joinAbove(i, t)
			if t.special {
				g.join(i, g.closed, o.Namespace)
			}
		}
	}
	at := make([]int, len(all)) // the place of the group, plus one
	var found [][]*networkingv1.Ingress
	for i, o := range all {
		top := g.top(i)
		if at[top] == 0 {
			found = append(found, nil)
			at[top] = len(found)
		}
		found[at[top]-1] = append(found[at[top]-1], o)
	}
	return found
}

// joinAbove joins an Ingress to the Ingresses with the wildcards of its hosts, and to those
// for every host.
func (g *grouping) joinAbove(i int, t *traits) {
	for _, host := range t.hosts {
		for _, above := range []string{claim.WildcardOf(host), ""} {
			if other, named := g.named[above]; named {
				g.above[g.top(i)] = g.top(other)
			}
		}
	}
}

// join joins an Ingress to those with the same key.
func (g *grouping) join(i int, by map[string]int, key string) {
	other, known := by[key]
	if !known {
		by[key] = i
		return
	}
	g.above[g.top(i)] = g.top(other)
}

// top returns the Ingress that stands for the group.
func (g *grouping) top(i int) int {
	for g.above[i] != i {
		g.above[i] = g.above[g.above[i]]
		i = g.above[i]
	}
	return i
}
