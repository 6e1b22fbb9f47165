package claim

import (
	"slices"

	"github.com/weirproxy/weir/config/kube/event"
)

// Options are the settings of a Decision.
type Options struct {
	// HostOwnership means that each host belongs to one namespace.
	HostOwnership bool
	// Rival returns the older object of another kind that owns a host of o, in the words of messages;
	// "": none. A nil Rival returns "" for every host.
	Rival func(o *Owner, host string) string
	// Refuses returns why the configuration gives a host to no object like o, in words that follow the host; "": it does
	// not. nil: it returns "" for every host.
	Refuses func(o *Owner, host string) string
	// Events gets the errors of objects.
	Events event.Set
}

// Decision is the result of Decide. Nobody changes its exported fields.
type Decision struct {
	Owners []*Owner // the oldest first
	// Granted are the claims that get a route, in a fixed order. If two of them close
	// one path, by different spellings, the first one does.
	Granted []*Claim
	// Winners are the claims that have their match. A granted claim may close a path
	// beside the winner. A refused path that closes nothing is not a winner.
	Winners map[Match]*Claim

	options  Options
	hosts    map[string]*Owner   // which object owns the host, if each host belongs to one namespace
	closed   map[hostIn]*Guards  // guards of one object that close a host for all
	patterns map[hostIn][]*Claim // paths that are closed by a regular expression
	overTLS  map[string]bool     // hosts for which an object has TLS
}

// hostIn is a host as the objects of one namespace have it.
type hostIn struct{ namespace, host string }

func (c *Claim) hostIn() hostIn { return hostIn{c.Owner.Name.Namespace, c.Host} }

// Decide decides about the claims of all owners. It sorts the owners, and keeps them.
func Decide(owners []*Owner, options Options) *Decision {
	slices.SortStableFunc(owners, byAge)
	claims := 0
	for n, o := range owners {
		o.age = n
		claims += len(o.Claims)
	}
	d := &Decision{Owners: owners, Granted: make([]*Claim, 0, claims), Winners: make(map[Match]*Claim, claims), options: options, hosts: map[string]*Owner{}}
	if options.Refuses != nil {
		d.refuseHosts()
	}
	if options.Rival != nil {
		d.yieldHosts()
	}
	if options.HostOwnership {
		d.ownHosts()
	}
	d.findTLS()
	d.closeHosts()
	d.assign()
	d.closeRefused()
	return d
}

// Tell records an error of the object.
func (d *Decision) Tell(o *Owner, reason event.Reason, format string, args ...any) {
	d.options.Events.Add(o.Reference(), reason, format, args...)
}

// findTLS finds the hosts for which an object has TLS. An object counts only for hosts
// that it names.
func (d *Decision) findTLS() {
	d.overTLS = map[string]bool{}
	for _, o := range d.Owners {
		for _, host := range o.Hosts {
			if o.HasTLS(host) {
				d.overTLS[host] = true
			}
		}
	}
}

// IsOverTLS reports whether an object has TLS for the host of the claim, whichever
// object that is: a browser sends the cookies of the host to each path. Objects of
// different tenants share the host "", so only the object itself counts there.
func (d *Decision) IsOverTLS(c *Claim) bool {
	return c.Owner.HasTLS(c.Host) || c.Host != "" && d.overTLS[c.Host]
}

// assign gives each match to the oldest object that wants it. Implicit claims come after
// all others.
func (d *Decision) assign() {
	for _, implicit := range []bool{false, true} {
		for _, o := range d.Owners {
			for _, c := range o.Claims {
				if c.Implicit == implicit {
					d.assignOne(c)
				}
			}
		}
	}
}

func (d *Decision) assignOne(c *Claim) {
	other := d.Winners[c.Match]
	if c.Refusal != nil {
		d.assignRefused(c, other)
		return
	}
	switch {
	case other == nil:
		d.win(c)
	case c.Implicit && other.Refusal != nil && !other.defeats && isKept(c, other):
		other.Refusal.incumbent = c.Owner
		d.win(c)
	default:
		d.closeBeside(c, other)
		d.defeat(c, other)
	}
}

// win gives the match to the claim.
func (d *Decision) win(c *Claim) {
	d.Winners[c.Match] = c
	d.grant(c)
}

// grant gives a route to the claim.
func (d *Decision) grant(c *Claim) {
	c.closed = d.closing(c)
	d.Granted = append(d.Granted, c)
}

// closeBeside grants a claim that lost its match within its namespace, if it is closed and
// closes more than the path of the winner.
func (d *Decision) closeBeside(c, winner *Claim) {
	if c.Implicit || c.Owner.Guards == nil || winner.Owner.Name.Namespace != c.Owner.Name.Namespace {
		return
	}
	if c.closed = c.Owner.Guards; c.Served().Begins {
		d.grant(c)
	}
}

// defeat reports that a claim lost its match.
func (d *Decision) defeat(c, winner *Claim) {
	switch {
	case winner.Implicit != c.Implicit: // an implicit claim gets only requests that no other claim gets
	case winner.Refusal != nil && winner.Owner == c.Owner:
		winner.defeats = true
		d.Tell(c.Owner, event.ReasonPath, "%s is the literal prefix of %q, which weir cannot match, so it answers 503 as well; replace the other path.", c.Sentence(), winner.Written)
	case winner.Owner != c.Owner:
		winner.defeats = true
		d.Tell(c.Owner, event.ReasonTaken, "%s belongs to the older %v, so this %s does not get it; change the host or the path in one of them.", c.Sentence(), winner.Owner, c.Owner.Kind.Name)
	case c.Written == winner.Written:
		d.Tell(c.Owner, event.ReasonTaken, "%s occurs twice in this %s, and the first one gets it; remove the other.", c.Sentence(), c.Owner.Kind.Name)
	}
}
