package kube

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// A host with server-alias of ingress-nginx has further names, unless some Ingress names them in a
// rule. Each Ingress of the namespace with the host is read as if it had the same rules for them,
// and the same TLS.

// withAliases returns the Ingresses with the rules for further names. It changes none of them: those
// with such rules are copies.
func withAliases(all []*networkingv1.Ingress) (read map[*networkingv1.Ingress]*networkingv1.Ingress) {
	if !slices.ContainsFunc(all, hasAliases) {
		return nil
	}
	names := aliasesOf(all)
	read = map[*networkingv1.Ingress]*networkingv1.Ingress{}
	for _, i := range all {
		if one := withAliasesOf(i, names); one != nil {
			read[i] = one
		}
	}
	return read
}

// hasAliases reports whether an Ingress gives further names to its hosts.
func hasAliases(i *networkingv1.Ingress) bool {
	return i.Annotations[annotation.Nginx+"server-alias"] != "" && !isCanary(i)
}

// aliasesOf finds the further names of hosts. The oldest Ingress decides about a host and a name.
func aliasesOf(all []*networkingv1.Ingress) map[hostIn][]string {
	taken := map[string]bool{}
	for _, i := range all {
		if !isCanary(i) {
			for host := range ruleHosts(i) {
				taken[host] = true
			}
		}
	}
	names := map[hostIn][]string{}
	for _, i := range slices.SortedFunc(slices.Values(all), compareAges) {
		if !hasAliases(i) {
			continue
		}
		for host := range ruleHosts(i) {
			at := hostIn{i.Namespace, host}
			if names[at] != nil {
				continue // an older Ingress has decided
			}
			for _, name := range aliasHosts(i) {
				if !taken[name] {
					taken[name] = true
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

// withAliasesOf returns a copy of an Ingress with the rules for further names; nil: it has none.
func withAliasesOf(i *networkingv1.Ingress, names map[hostIn][]string) *networkingv1.Ingress {
	one := *i
	added := map[string][]string{}
	for host, rule := range ruleHosts(i) {
		for _, name := range names[hostIn{i.Namespace, host}] {
			same := *rule
			same.Host = name
			one.Spec.Rules = append(slices.Clip(one.Spec.Rules), same)
			if !slices.Contains(added[host], name) {
				added[host] = append(added[host], name)
			}
		}
	}
	if len(added) == 0 {
		return nil
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

// readAs returns the Ingresses with the rules for further names, and the hosts that are redirected
// to another name. Those are only names of hosts in the rules of the objects themselves.
func (v *conversion) readAs(all []*networkingv1.Ingress) ([]*networkingv1.Ingress, map[*networkingv1.Ingress][]string) {
	twins, read := twinsOf(all), withAliases(all)
	if len(read) == 0 {
		return all, twins
	}
	all = slices.Clone(all)
	for n, i := range all {
		if one := read[i]; one != nil {
			all[n] = one
			if from := twins[i]; from != nil {
				twins[one] = from
			}
		}
	}
	return all, twins
}
