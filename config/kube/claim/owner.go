package claim

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// Kind is a kind of Kubernetes objects that have claims.
type Kind struct {
	APIVersion string // such as networking.k8s.io/v1
	Name       string // such as Ingress
	TLS        string // the field that names Secrets with certificates, such as spec.tls
}

// Owner is one object, and all that it wishes for. Decide removes the wishes for hosts
// that belong to another namespace.
type Owner struct {
	Kind    *Kind
	Name    config.ObjectName
	UID     types.UID
	Created time.Time
	Hosts   []string        // the valid hosts that it names; "" is every host
	Further map[string]bool // those of Hosts that are further names of others; they take nothing from hosts that are not
	TLS     map[string]bool // hosts for which it has TLS; "" is every host
	// Claims are in the order of precedence: if two have one match, the first gets it.
	Claims   []*Claim
	Refusals []*Refusal // of its paths
	Guards   *Guards    // nil: none
	// Certificates are those that it names.
	Certificates []Certificate

	age  int             // the oldest owner has the lowest
	lost map[string]bool // hosts that it names and that belong to another namespace
}

// String is the kind and the name, for messages.
func (o *Owner) String() string { return o.Kind.Name + " " + o.Name.String() }

// Reference is the object in events.
func (o *Owner) Reference() corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: o.Kind.APIVersion, Kind: o.Kind.Name, Namespace: o.Name.Namespace, Name: o.Name.Name, UID: o.UID}
}

// HasTLS reports whether the object has TLS for the host.
func (o *Owner) HasTLS(host string) bool {
	return o.TLS[""] || o.TLS[host] || o.TLS[WildcardOf(host)]
}

// HasLost reports whether the object names the host, and the host belongs to another
// namespace.
func (o *Owner) HasLost(host string) bool { return o.lost[host] }

// HasLostAny reports whether HasLost is true for any host.
func (o *Owner) HasLostAny() bool { return len(o.lost) > 0 }

// byAge compares two owners so that the older one comes first. Equally old ones are
// sorted by name, so that all replicas agree.
func byAge(a, b *Owner) int { return cmp.Or(a.Created.Compare(b.Created), ByName(a, b)) }

// ByName compares two owners by their namespace, name and kind.
func ByName(a, b *Owner) int {
	return cmp.Or(strings.Compare(a.Name.Namespace, b.Name.Namespace), strings.Compare(a.Name.Name, b.Name.Name), strings.Compare(a.Kind.Name, b.Kind.Name))
}

// ownHosts finds the namespace that owns each host, and removes the host from owners of
// other namespaces.
//
// The oldest object that names a host owns it for its namespace. If it names a
// wildcard, it owns each name below the wildcard that no older object names. The host ""
// is a host like any other, and owns no names below it. Further names come after all others.
func (d *Decision) ownHosts() {
	for _, further := range []bool{false, true} {
		for _, o := range d.Owners {
			for _, host := range o.Hosts {
				if o.Further[host] == further {
					d.ownHost(o, host)
				}
			}
		}
	}
	for _, o := range d.Owners {
		o.forgetLost()
	}
}

func (d *Decision) ownHost(o *Owner, host string) {
	switch owner := d.HostOwner(host); {
	case owner == nil:
		d.hosts[host] = o
	case owner.Name.Namespace != o.Name.Namespace:
		d.lose(o, host, owner)
	case d.hosts[host] == nil:
		d.hosts[host] = o // below a wildcard of its own namespace
	}
}

// refuseHosts removes the hosts that the configuration does not give to an object.
func (d *Decision) refuseHosts() {
	for _, o := range d.Owners {
		for _, host := range o.Hosts {
			why := d.options.Refuses(o, host)
			if why == "" {
				continue
			}
			o.markLost(host)
			what := "The host " + host
			if host == "" {
				what = "The catch-all, a rule without a host or a default backend without rules,"
			}
			d.Tell(o, event.ReasonHostTaken, "%s %s, so this %s gets no requests for it; use another host, or change the list.", what, why, o.Kind.Name)
		}
		o.forgetLost()
	}
}

// yieldHosts removes the hosts that an object of another kind owns.
func (d *Decision) yieldHosts() {
	for _, o := range d.Owners {
		for _, host := range o.Hosts {
			rival := d.options.Rival(o, host)
			if rival == "" {
				continue
			}
			o.markLost(host)
			d.Tell(o, event.ReasonHostTaken, "The host %s belongs to the older %s, so this %s gets no requests for it; use another host, or change the older object.", host, rival, o.Kind.Name)
		}
		o.forgetLost()
	}
}

// HostOwner is the object whose namespace owns the host; nil: no object names it, or
// hosts belong to no namespace.
func (d *Decision) HostOwner(host string) *Owner {
	if owner := d.hosts[host]; owner != nil || host == "" {
		return owner
	}
	if above := WildcardOf(host); above != "" {
		return d.hosts[above]
	}
	return nil
}

// lose marks the host as lost for o, and reports it.
func (d *Decision) lose(o *Owner, host string, owner *Owner) {
	o.markLost(host)
	below := ""
	if d.hosts[host] == nil {
		below = ", which names " + WildcardOf(host)
	}
	what, it := "The host "+host+" belongs", "it"
	if host == "" {
		what, it = "Hosts that no "+o.Kind.Name+" names belong", "them"
	}
	d.Tell(o, event.ReasonHostTaken, "%s to the namespace %s, because of its older %s %s%s (kubernetes.host_ownership in weir's configuration), so this %s gets no requests for %s; use another host, or change the older %[3]s.",
		what, owner.Name.Namespace, owner.Kind.Name, owner.Name.Name, below, o.Kind.Name, it)
}

func (o *Owner) markLost(host string) {
	if o.lost == nil {
		o.lost = map[string]bool{}
	}
	o.lost[host] = true
}

// forgetLost removes the hosts that belong to another namespace.
func (o *Owner) forgetLost() {
	if len(o.lost) == 0 {
		return
	}
	o.Hosts = without(o.Hosts, func(host string) bool { return o.lost[host] })
	o.Claims = without(o.Claims, func(c *Claim) bool { return o.lost[c.Host] })
	o.Refusals = without(o.Refusals, func(r *Refusal) bool { return o.lost[r.Host] })
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

// IsOthers reports whether a host for which the object wants a certificate belongs to
// another namespace. A wildcard of the object itself may cover the host.
func (d *Decision) IsOthers(o *Owner, host string) bool {
	if above := WildcardOf(host); o.lost[host] || above != "" && o.lost[above] && !slices.Contains(o.Hosts, host) {
		return true
	}
	owner := d.HostOwner(host)
	return owner != nil && owner.Name.Namespace != o.Name.Namespace
}
