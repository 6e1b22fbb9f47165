package kube

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// Annotations of ingress-nginx give hosts further names: server-alias, and from-to-www-redirect, which redirects them. A
// further name takes nothing from rules, nor from routes and listeners of Gateways in other namespaces (see
// contestFurther). Each Ingress of the namespace with a host that has aliases is read as if it had the same rules for
// them, and the same TLS.

// furtherNames finds the further names that Ingresses get.
type furtherNames struct {
	*conversion
	rulers  map[string][]*networkingv1.Ingress // by host: those that have it by a rule
	wanting map[string]*networkingv1.Ingress   // by www name: the oldest Ingress that asks for it
	taken   map[string]*networkingv1.Ingress   // by further name: the Ingress that has it
}

// readAs returns the Ingresses with the rules for further names. It finds the hosts that are redirected to another name:
// only names of hosts in the rules of the objects themselves.
func (v *conversion) readAs(all []*networkingv1.Ingress) []*networkingv1.Ingress {
	v.twins, v.further = nil, nil
	if !slices.ContainsFunc(all, func(i *networkingv1.Ingress) bool { return hasAliases(i) || wantsTwins(i) }) {
		return all
	}
	inOrder := slices.DeleteFunc(slices.SortedFunc(slices.Values(all), compareAges), isCanary)
	f := &furtherNames{v, v.rulersOf(inOrder), nil, map[string]*networkingv1.Ingress{}}
	f.wanting = f.twinsWanted(inOrder)
	aliases := f.aliasesOf(inOrder)
	twins := f.twinsOf(inOrder)
	v.twins, v.further = map[*networkingv1.Ingress][]string{}, map[*networkingv1.Ingress]map[string]bool{}
	all = slices.Clone(all)
	for n, i := range all {
		names := map[string]bool{}
		if one := withAliases(i, aliases, names); len(names) > 0 {
			all[n] = one
		}
		for _, name := range twins[i] {
			names[name] = true
		}
		if len(names) > 0 {
			v.twins[all[n]], v.further[all[n]] = twins[i], names
		}
	}
	return all
}

// rulersOf finds the Ingresses that have each host by a rule, and do not lose it to another namespace. The Ingresses are
// in the order of their age.
func (v *conversion) rulersOf(inOrder []*networkingv1.Ingress) map[string][]*networkingv1.Ingress {
	rulers := map[string][]*networkingv1.Ingress{}
	for _, i := range inOrder {
		for host := range ruleHosts(i) {
			_, lost := v.contests.lostBy(namedBy(i, host))
			if lost || host == "" || v.settings.RefusesHost(i.Namespace, host) != "" || v.settings.HostOwnership == config.OwnedByNamespace &&
				(stranger(i, rulers[host]) != nil || len(rulers[host]) == 0 && stranger(i, rulers[claim.WildcardOf(host)]) != nil) {
				continue
			}
			rulers[host] = append(rulers[host], i)
		}
	}
	return rulers
}

// stranger returns the first of some Ingresses that is of another namespace than i; nil: none is.
func stranger(i *networkingv1.Ingress, all []*networkingv1.Ingress) *networkingv1.Ingress {
	for _, other := range all {
		if other.Namespace != i.Namespace {
			return other
		}
	}
	return nil
}

func namedBy(i *networkingv1.Ingress, host string) namedHost {
	return namedHost{host: host, by: (&member{Ingress: i}).namer()}
}

// ownerOf is the object of another namespace from which an Ingress would take a further name, in the words of messages;
// "": there is none.
func (f *furtherNames) ownerOf(i *networkingv1.Ingress, name string) string {
	if owner, lost := f.contests.lostBy(namedBy(i, name)); lost {
		return owner.String()
	}
	if owner := stranger(i, f.rulers[name]); owner != nil {
		return "Ingress " + owner.Namespace + "/" + owner.Name
	}
	above := claim.WildcardOf(name)
	if owner := stranger(i, f.rulers[above]); owner != nil && f.rulers[name] == nil {
		return "Ingress " + owner.Namespace + "/" + owner.Name + ", which names " + above
	}
	return ""
}

// gets reports whether an Ingress gets a further name for which it asks by an annotation, and tells it who has the name
// otherwise.
func (f *furtherNames) gets(i *networkingv1.Ingress, name, by string) bool {
	if why := f.settings.RefusesHost(i.Namespace, name); why != "" {
		f.event(reference(ingressKind.APIVersion, ingressKind.Name, &i.ObjectMeta), event.ReasonHostTaken,
			"The annotation %s asks for the host %s, which %s, so this Ingress gets no requests for it; use another name, or change the list.", by, name, why)
		return false
	}
	owner, first := f.ownerOf(i, name), f.taken[name]
	if want := f.wanting[name]; first == nil && want != nil && compareAges(want, i) < 0 {
		first = want
	}
	if owner == "" && first != nil && first.Namespace != i.Namespace {
		owner = "Ingress " + first.Namespace + "/" + first.Name + ", which asked for it first"
	}
	if owner != "" {
		f.event(reference(ingressKind.APIVersion, ingressKind.Name, &i.ObjectMeta), event.ReasonHostTaken,
			"The annotation %s asks for the host %s, which belongs to the %s, so this Ingress gets no requests for it. Names by annotations take nothing from a rule, a route or a listener of another namespace; use another name.", by, name, owner)
		return false
	}
	return f.taken[name] == nil && f.rulers[name] == nil
}

// hasAliases reports whether an Ingress gives further names to its hosts.
func hasAliases(i *networkingv1.Ingress) bool {
	return i.Annotations[annotation.Nginx+"server-alias"] != "" && !isCanary(i)
}

// aliasesOf finds the further names of hosts. The oldest Ingress decides about a host and a name.
func (f *furtherNames) aliasesOf(inOrder []*networkingv1.Ingress) map[hostIn][]string {
	names := map[hostIn][]string{}
	for _, i := range inOrder {
		if !hasAliases(i) {
			continue
		}
		for host := range ruleHosts(i) {
			at := hostIn{i.Namespace, host}
			if names[at] != nil {
				continue // an older Ingress has decided
			}
			for _, name := range aliasHosts(i) {
				if f.gets(i, name, "server-alias") {
					f.taken[name] = i
					names[at] = append(names[at], name)
				}
			}
		}
	}
	return names
}

// aliasHosts are the valid further names that an Ingress gives.
func aliasHosts(i *networkingv1.Ingress) (hosts []string) {
	for _, name := range annotation.SettingsOf(i).Aliases {
		if host, err := config.ParseHost(name); err == nil {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// withAliases returns an Ingress with the rules for the aliases of its hosts, which it adds to names. With such rules it
// is a copy.
func withAliases(i *networkingv1.Ingress, aliases map[hostIn][]string, names map[string]bool) *networkingv1.Ingress {
	one := *i
	added := map[string][]string{}
	for host, rule := range ruleHosts(i) {
		for _, name := range aliases[hostIn{i.Namespace, host}] {
			same := *rule
			same.Host = name
			one.Spec.Rules = append(slices.Clip(one.Spec.Rules), same)
			if names[name] = true; !slices.Contains(added[host], name) {
				added[host] = append(added[host], name)
			}
		}
	}
	one.Spec.TLS = slices.Clone(i.Spec.TLS)
	for n := range one.Spec.TLS {
		entry := &one.Spec.TLS[n]
		entry.Hosts = slices.Clip(entry.Hosts)
		for _, written := range i.Spec.TLS[n].Hosts {
			if host, err := config.ParseHost(written); err == nil {
				entry.Hosts = append(entry.Hosts, added[host]...)
			}
		}
	}
	return &one
}
