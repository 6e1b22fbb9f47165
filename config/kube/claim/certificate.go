package claim

import (
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// Certificate is the wish for a certificate for hosts.
type Certificate struct {
	Hosts  []string          // as the object writes them; empty: the hosts for which the certificate is valid, of those that the object names
	Secret config.ObjectName // that has the certificate; empty: the default certificate
}

// Offer is the Secret that an object names for a host.
type Offer struct {
	Owner  *Owner
	Secret config.ObjectName // empty: the default certificate
	Worth  Worth
}

// Worth orders the offers for a host: a missing Secret must not win.
type Worth int

// The values of Worth, from the lowest to the highest.
const (
	Broken  Worth = iota
	Misfit        // usable, but not valid for the host
	Fitting       // valid for the host
)

// Award returns the Secrets that serve the host: all of the object that wins, which may
// have several kinds of keys. That is the oldest object whose Secret is valid for the
// host. An empty name is the default certificate. The offers are for this host, those of
// older objects first; there is at least one.
func (d *Decision) Award(host string, offers []Offer) (secrets []config.ObjectName) {
	winner := offers[0]
	for _, o := range offers {
		if o.Worth > winner.Worth {
			winner = o
		}
	}
	nothing := config.ObjectName{}
	for _, o := range offers {
		if o.Owner == winner.Owner && o.Worth == winner.Worth && o.Secret != nothing && !slices.Contains(secrets, o.Secret) {
			secrets = append(secrets, o.Secret)
		}
	}
	d.tellOffers(host, offers, winner.Owner, secrets)
	if len(secrets) == 0 {
		return []config.ObjectName{nothing}
	}
	return secrets
}

// tellOffers reports the offers for the host that do not serve it, or not well.
func (d *Decision) tellOffers(host string, offers []Offer, winner *Owner, secrets []config.ObjectName) {
	older := true // the offers before the winner's are from older objects
	for _, o := range offers {
		field := o.Owner.Kind.TLS
		switch {
		case o.Owner == winner:
			if older = false; o.Worth == Misfit && o.Secret.Name != "" {
				d.Tell(o.Owner, event.ReasonCertificate, "The certificate in the Secret %s is not valid for %s, so clients will refuse it; use a certificate for this host.", o.Secret, host)
			}
		case o.Secret.Name == "" || slices.Contains(secrets, o.Secret):
		case older:
			d.Tell(o.Owner, event.ReasonCertificate, "The Secret %s has no usable certificate for %s, so weir uses the certificate of the younger %v; use a certificate for this host, or remove the host from %s.", o.Secret, host, winner, field)
		case len(secrets) == 0:
			d.Tell(o.Owner, event.ReasonCertificate, "The older %v uses the default certificate for %s, so weir does not use the Secret %s for it; name the Secret there, or remove the host from %s.", winner, host, o.Secret, field)
		default:
			d.Tell(o.Owner, event.ReasonCertificate, "The older %v has another Secret for %s, so weir does not use the Secret %s for it; name the same Secret in both, or remove the host from %s.", winner, host, o.Secret, field)
		}
	}
}
