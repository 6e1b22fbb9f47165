package kube

import (
	"iter"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// A group is a set of Ingresses that no Ingress outside of it affects: they share hosts, or
// have hosts that affect each other. So the conversion of a group depends only on its
// Ingresses and on the Services and Secrets that they name. Most groups have one Ingress, and
// a change of an object converts one group again.
//
// Backends and Secrets may be shared by several groups; results.go puts their parts together.

// traits is what decides about the group of an Ingress.
type traits struct {
	hosts []string // of its rules and its certificates; "" is every host
	ruled int      // the number of those of its rules, which come first; 0: it is a canary
	own   int      // the number of those that the rules have themselves; those until ruled are further names
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
	if len(o.Spec.Rules) == 0 && o.Spec.DefaultBackend != nil {
		add("")
	}
	t.own = len(t.hosts)
	if hasAliases(o) {
		for _, host := range aliasHosts(o) {
			add(host)
		}
	}
	if wantsTwins(o) {
		for host := range ruleHosts(o) {
			if other := twin(host); other != "" {
				add(other)
			}
		}
	}
	t.ruled = len(t.hosts)
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

// further are the names that an Ingress gives its hosts by annotations.
func (t *traits) further() []string { return t.hosts[t.own:t.ruled] }

// member is an Ingress that a Converter knows.
type member struct {
	*networkingv1.Ingress                       // as ingress-nginx reads it with its ConfigMap
	written               *networkingv1.Ingress // the object itself

	ours   bool      // weir serves it
	events event.Set // about its class; nil: none
	traits *traits   // nil until weir serves it for the first time
	part   *part     // the result of its group; nil: it must be converted, or weir does not serve it
}

// joint is a host, or the closed paths of a namespace. It joins its Ingresses to a group.
type joint struct {
	named []*member // the Ingresses that have the host
	below []*member // Ingresses of other hosts, which this host affects if some Ingress has it
	round uint64    // the search that visited it last
}

// joints are the groups of the Ingresses that weir serves.
type joints struct {
	hosts  map[string]*joint
	closed map[string]*joint // the special Ingresses of each namespace
	owned  bool              // each host belongs to one namespace
	round  uint64            // counts the searches
}

func newJoints(owned bool) *joints {
	return &joints{hosts: map[string]*joint{}, closed: map[string]*joint{}, owned: owned}
}

// add adds an Ingress that weir serves.
func (g *joints) add(m *member) {
	if m.traits == nil {
		m.traits = traitsOf(m.Ingress)
	}
	for _, host := range m.traits.hosts {
		at(g.hosts, host).named = append(at(g.hosts, host).named, m)
	}
	for host := range g.above(m) {
		at(g.hosts, host).below = append(at(g.hosts, host).below, m)
	}
	if m.traits.special {
		at(g.closed, m.Namespace).named = append(at(g.closed, m.Namespace).named, m)
	}
}

// remove removes an Ingress that was added.
func (g *joints) remove(m *member) {
	for _, host := range m.traits.hosts {
		if j := g.hosts[host]; j != nil { // the same host may occur twice
			j.named = without(j.named, m)
			g.tidy(g.hosts, host)
		}
	}
	for host := range g.above(m) {
		if j := g.hosts[host]; j != nil {
			j.below = without(j.below, m)
			g.tidy(g.hosts, host)
		}
	}
	if m.traits.special {
		g.closed[m.Namespace].named = without(g.closed[m.Namespace].named, m)
		g.tidy(g.closed, m.Namespace)
	}
}

func (g *joints) tidy(all map[string]*joint, key string) {
	if j := all[key]; len(j.named)+len(j.below) == 0 {
		delete(all, key)
	}
}

func at(all map[string]*joint, key string) *joint {
	j := all[key]
	if j == nil {
		j = &joint{}
		all[key] = j
	}
	return j
}

func without(all []*member, m *member) []*member {
	return slices.DeleteFunc(all, func(other *member) bool { return other == m })
}

// above are the hosts that affect an Ingress, besides its own: the wildcards of its hosts, and
// every host. Further names depend on their wildcards at least.
func (g *joints) above(m *member) iter.Seq[string] {
	return func(yield func(string) bool) {
		hosts, every := m.traits.hosts, m.traits.special || g.owned
		if !every {
			hosts = m.traits.further()
		}
		for _, host := range hosts {
			if wildcard := claim.WildcardOf(host); wildcard != "" && !yield(wildcard) {
				return
			}
		}
		if every && len(hosts) > 0 {
			yield("")
		}
	}
}

// groupOf returns the group of an Ingress.
func (g *joints) groupOf(m *member) []*member {
	g.round++
	s := search{joints: g, found: map[*member]bool{m: true}, group: []*member{m}}
	for i := 0; i < len(s.group); i++ {
		s.visit(s.group[i])
	}
	return s.group
}

// search finds a group.
type search struct {
	*joints
	found map[*member]bool
	group []*member
}

// visit adds the Ingresses that share a joint with m.
func (s *search) visit(m *member) {
	for _, host := range m.traits.hosts {
		s.cross(s.hosts[host])
	}
	for host := range s.above(m) {
		if j := s.hosts[host]; len(j.named) > 0 {
			s.cross(j)
		}
	}
	if m.traits.special {
		s.cross(s.closed[m.Namespace])
	}
}

// cross adds the Ingresses of a joint, once.
func (s *search) cross(j *joint) {
	if j.round == s.round {
		return
	}
	j.round = s.round
	for _, all := range [][]*member{j.named, j.below} {
		for _, m := range all {
			if !s.found[m] {
				s.found[m] = true
				s.group = append(s.group, m)
			}
		}
	}
}
