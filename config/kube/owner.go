package kube

import (
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// ownHosts finds the namespace that owns each host, with host_ownership: namespace,
// and removes the host from Ingresses of other namespaces.
//
// The oldest Ingress that names a host owns it for its namespace. If it names a
// wildcard, it owns each name below the wildcard that no older Ingress names. A rule without a
// host and a default backend without rules name the host "": it is a host like any
// other, and owns no names below it.
func (v *conversion) ownHosts() {
	v.owners = map[string]*ingress{}
	if v.settings.HostOwnership != config.OwnedByNamespace {
		return
	}
	for _, i := range v.ingresses {
		for _, host := range i.names() {
			switch owner := v.ownerOf(host); {
			case owner == nil:
				v.owners[host] = i
			case owner.Namespace != i.Namespace:
				v.lose(i, host, owner)
			case v.owners[host] == nil:
				v.owners[host] = i // below a wildcard of its own namespace
			}
		}
	}
}

// names are the hosts that the Ingress names.
func (i *ingress) names() []string {
	if len(i.Spec.Rules) == 0 && i.Spec.DefaultBackend != nil {
		return []string{""}
	}
	return i.hosts
}

// ownerOf is the Ingress whose namespace owns the host; nil: no Ingress names it.
func (v *conversion) ownerOf(host string) *ingress {
	if owner := v.owners[host]; owner != nil || host == "" {
		return owner
	}
	if above := wildcardOf(host); above != "" {
		return v.owners[above]
	}
	return nil
}

// lose marks the host as lost for the Ingress, and reports it.
func (v *conversion) lose(i *ingress, host string, owner *ingress) {
	if i.lost == nil {
		i.lost = map[string]bool{}
	}
	i.lost[host] = true
	below := ""
	if v.owners[host] == nil {
		below = ", which names " + wildcardOf(host)
	}
	what, it := "The host "+host+" belongs", "it"
	if host == "" {
		what, it = "Hosts that no Ingress names belong", "them"
	}
	v.on(i, event.ReasonHostTaken, "%s to the namespace %s, because of its older Ingress %s%s (kubernetes.host_ownership in weir's configuration), so this Ingress gets no requests for %s; use another host, or change the older Ingress.",
		what, owner.Namespace, owner.name.Name, below, it)
}

// forgetLost removes the hosts that belong to another namespace.
func (i *ingress) forgetLost() {
	if len(i.lost) == 0 {
		return
	}
	i.hosts = without(i.hosts, func(host string) bool { return i.lost[host] })
	i.wants = without(i.wants, func(w *want) bool { return i.lost[w.host] })
	i.refused = without(i.refused, func(r *refusal) bool { return i.lost[r.host] })
}

// without returns all elements for which out is false.
func without[T any](all []T, out func(T) bool) (kept []T) {
	for _, one := range all {
		if !out(one) {
			kept = append(kept, one)
		}
	}
	return kept
}

// isOthers reports whether a host in spec.tls of the Ingress belongs to another
// namespace. A wildcard of the Ingress itself may cover the host.
func (v *conversion) isOthers(i *ingress, host string) bool {
	if i.lost[host] || i.lost[wildcardOf(host)] && v.owners[host] == nil {
		return true
	}
	owner := v.ownerOf(host)
	return owner != nil && owner.Namespace != i.Namespace
}

// fileServes reports whether the file owns the host on the listener, because it serves
// every path of the host there. Its routes without hosts own no host.
func (v *conversion) fileServes(host string, l *config.Listener) bool {
	return host != "" && v.settings.HostOwnership == config.OwnedByNamespace && v.seen.whole[hostOn{l.Name, host}]
}
