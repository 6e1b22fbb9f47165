package claim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config/kube/event"
)

// Guards are the annotations of an object that restrict access, or may, and that weir
// does not support. All paths of the object answer 503: otherwise everybody would have
// access.
type Guards struct {
	By    string   // the object that has them: its kind and name
	Names []string // of the annotations; at least one
	// Why means that weir supports the annotations, and cannot do what they ask for. It is the
	// part of a sentence after "because". Empty: weir does not support them.
	Why string
	// OfHost means that another controller applies one of them to all paths of a host,
	// whichever object has it.
	OfHost bool
	// Text means that another controller compares the paths that one of them closes as
	// text: /api includes /apis.
	Text bool
}

// list is the names in messages.
func (g *Guards) list() string { return strings.Join(g.Names, ", ") }

// cause is why weir closes the paths, for messages.
func (g *Guards) cause() string {
	if g.Why != "" {
		return fmt.Sprintf("%s (%s of the %s)", g.Why, g.list(), g.By)
	}
	return fmt.Sprintf("weir does not support %s of the %s, which may restrict access", g.list(), g.By)
}

// maxPatterns is the maximum number of regular expressions of one host that weir compares with its paths.
const maxPatterns = 100

// closeHosts finds the hosts that an object also closes for other objects. Objects of
// other namespaces stay open: otherwise the author of one object could close the host of
// any tenant.
func (d *Decision) closeHosts() {
	d.closed = map[hostIn]*Guards{}
	for _, o := range d.Owners {
		if o.Guards == nil || !o.Guards.OfHost {
			continue
		}
		for _, c := range o.Claims {
			d.closeHost(c.hostIn(), o.Guards)
		}
		for _, host := range o.Hosts { // also those without paths
			d.closeHost(hostIn{o.Name.Namespace, host}, o.Guards)
		}
	}
	d.patterns = map[hostIn][]*Claim{}
	for _, o := range d.Owners {
		for _, c := range o.Claims {
			in := c.hostIn()
			switch {
			case !c.Pattern:
			case len(d.patterns[in]) < maxPatterns:
				d.patterns[in] = append(d.patterns[in], c)
			case d.closed[in] == nil:
				d.closed[in] = o.Guards // comparing each path with each expression takes too long
			}
		}
	}
}

// closeHost closes a host, unless an older object has closed it.
func (d *Decision) closeHost(in hostIn, g *Guards) {
	if d.closed[in] == nil {
		d.closed[in] = g
	}
}

// closing returns the guards that close the claim, if there are any.
func (d *Decision) closing(c *Claim) *Guards {
	switch {
	case c.Owner.Guards != nil || c.Refusal != nil:
		return c.Owner.Guards
	case IsChallenge(c.Path):
		return c.Backend.Guards
	}
	switch g := d.closed[c.hostIn()]; {
	case g == nil:
	case g.Why != "":
		d.Tell(c.Owner, event.ReasonAccess, "Paths of %s answer 503: the %s of this namespace restricts access to the whole host by %s, and %s. Events of that object say what to do.",
			HostText(c.Host), g.By, g.list(), g.Why)
		return g
	default:
		d.Tell(c.Owner, event.ReasonAccess, "Paths of %s answer 503: the %s of this namespace restricts access to the whole host, or may, by annotations that weir does not support. Restrict access in the application or in weir's configuration, then remove these annotations there: %s.",
			HostText(c.Host), g.By, g.list())
		return g
	}
	for _, p := range d.patterns[c.hostIn()] {
		if g := p.Owner.Guards; p.shadows(c) {
			d.Tell(c.Owner, event.ReasonAccess, "%s answers 503: the %s of this namespace restricts access to %q, or may, by annotations that weir does not support. weir cannot match this regular expression, so it may include this path. Replace it with prefixes, or restrict access in the application or in weir's configuration and remove these annotations there: %s.",
				c.Sentence(), g.By, p.Written, g.list())
			return g
		}
	}
	return c.Backend.Guards
}

// shadows reports whether ingress-nginx would try the regular expression of p before
// the path of c. If one path of a host is a regular expression there, all paths
// are, and the longest is tried first. c is of another object: the guards of p's object
// close its own claims anyway.
func (p *Claim) shadows(c *Claim) bool {
	top, path := strings.ToLower(strings.TrimSuffix(p.Path.Value, "/")), strings.ToLower(c.Path.Value)
	if c.Path.Expression {
		overlaps := func(b string) bool { return strings.HasPrefix(top, b) || strings.HasPrefix(b, top) }
		return len(c.Written) <= len(p.Written) && slices.ContainsFunc(c.Beginnings, overlaps)
	}
	under := path == top || strings.HasPrefix(path, top+"/") || p.Loose && strings.HasPrefix(path, top)
	return under && len(c.Written) <= len(p.Written)
}
