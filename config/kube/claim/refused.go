package claim

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// Refusal is a path that weir cannot match. weir closes its literal prefixes, which
// claims with this Refusal have: otherwise its requests would go to a shorter path, which
// may belong to any tenant.
type Refusal struct {
	Host    string
	Written string // the path in the object
	Why     error  // the text follows the path
	// KeptByFile means that weir's own configuration keeps the requests. The caller of
	// Decide finds that out, before TellRefusals.
	KeptByFile bool

	closed    []config.Path // the paths that are closed for it
	incumbent *Owner        // an older object of another namespace, which keeps the requests
}

// assignRefused gives a refused path the match of its literal prefix, unless another claim has it.
func (d *Decision) assignRefused(c, other *Claim) {
	switch {
	case other == nil:
		d.Winners[c.Match] = c
	case other.Owner.Name.Namespace == c.Owner.Name.Namespace && c.Owner.Guards != nil:
		c.beside = true
	}
}

// closeRefused grants the claims of refused paths. It comes last, when it is known
// which path would get their requests otherwise.
func (d *Decision) closeRefused() {
	served := d.servedPrefixes()
	for _, o := range d.Owners {
		for _, c := range o.Claims {
			if c.Refusal != nil && (d.Winners[c.Match] == c || c.beside) {
				d.closeOne(c, served)
			}
		}
	}
}

func (d *Decision) closeOne(c *Claim, served prefixes) {
	c.closed = c.Owner.Guards
	if c.beside && !c.Served().Begins {
		return // the winner covers all of it
	}
	incumbent, shares := served.incumbent(c)
	if incumbent != nil && !c.defeats {
		c.Refusal.incumbent = incumbent
		if !c.beside {
			delete(d.Winners, c.Match)
		}
		return
	}
	c.plainly = incumbent != nil || shares
	c.Refusal.closed = append(c.Refusal.closed, c.Served())
	d.grant(c)
}

// TellRefusals reports all refused paths, and how weir treats their requests.
func (d *Decision) TellRefusals() {
	for _, o := range d.Owners {
		for _, r := range o.Refusals {
			d.Tell(o, event.ReasonPath, "The path %.300q of %s %v%s", r.Written, HostText(r.Host), r.Why, r.outcome())
		}
	}
}

// outcome is the end of the message: how weir treats the requests of the refused path.
func (r *Refusal) outcome() string {
	switch {
	case r.KeptByFile:
		return ". Until then, weir's configuration serves its requests."
	case len(r.closed) == 0 && r.incumbent != nil:
		return fmt.Sprintf(". Until then, its requests go to the older %v of another namespace.", r.incumbent)
	case len(r.closed) == 0:
		return "." // another object has exactly the literal prefix
	}
	var names []string
	for _, p := range r.closed {
		names = append(names, p.Value)
	}
	more := ""
	if len(names) > 3 {
		names, more = names[:3], " and others"
	}
	if slices.Contains(names, "/") {
		return fmt.Sprintf(". Until then, every path of %s that has no other route answers 503.", HostText(r.Host))
	}
	return ". Until then, paths that begin with " + strings.Join(names, ", ") + more + " answer 503."
}

// prefixes are the served prefixes, by host and by normalized spelling (leveled).
type prefixes map[string]map[string][]*Claim

func (d *Decision) servedPrefixes() prefixes {
	all := prefixes{}
	for _, o := range d.Owners {
		for _, c := range o.Claims {
			if c.Refusal != nil || d.Winners[c.Match] != c {
				continue
			}
			if IsChallenge(c.Path) { // a host with nothing else inherits the routes of its wildcard
				continue
			}
			if all[c.Host] == nil {
				all[c.Host] = map[string][]*Claim{}
			}
			if c.Path.Expression {
				for _, b := range c.Beginnings {
					key := "/"
					if end := strings.LastIndexByte(b, '/'); end > 0 { // the last element may be incomplete
						key = leveled(b[:end])
					}
					all[c.Host][key] = append(all[c.Host][key], c)
				}
				continue
			}
			key := leveled(c.Path.Value)
			if c.Path.Exact { // an exact path wins over every closed prefix
				key = ""
			}
			all[c.Host][key] = append(all[c.Host][key], c)
		}
	}
	return all
}

// incumbent returns the older object of another namespace whose requests the refused
// path c would take, if there is one: without c, the longest matching path belongs to it.
// shares is true if only a shorter path belongs to such an object; that path gets the
// requests in other spellings.
func (p prefixes) incumbent(c *Claim) (incumbent *Owner, shares bool) {
	closed, host := c.Served(), c.Host
	if len(p[host]) == 0 && host != "" { // the host inherits the routes of its wildcard
		if host = WildcardOf(host); len(p[host]) == 0 {
			host = ""
		}
	}
	first := true
	for at := leveled(closed.Value); ; at = at[:max(1, strings.LastIndexByte(at, '/'))] {
		var loses *Claim
		for _, other := range p[host][at] {
			n := len(other.Path.Value) - len(closed.Value)
			if n > 0 || n == 0 && !closed.Exact && host == c.Host {
				continue // the table tries it first
			}
			if loses == nil || isKept(other, c) {
				loses = other
			}
		}
		switch {
		case loses != nil && first && isKept(loses, c):
			return loses.Owner, true
		case loses != nil && isKept(loses, c):
			return nil, true
		case at == "/":
			return nil, false
		}
		first = first && loses == nil
	}
}

// isKept reports whether the object of other keeps its requests, although the refused path covers them
// too: it is older than the object of the refused path, and in another namespace.
func isKept(other, refused *Claim) bool {
	return other.Owner.age < refused.Owner.age && other.Owner.Name.Namespace != refused.Owner.Name.Namespace
}

// leveled is the normalized form of a path: all spellings that a closed path matches have the same one.
func leveled(path string) string {
	if plain, err := url.PathUnescape(path); err == nil {
		path = plain
	}
	var b strings.Builder
	for n := range len(path) {
		if c := path[n]; c != '/' || n == 0 || path[n-1] != '/' {
			b.WriteByte(c)
		}
	}
	if path = strings.ToLower(b.String()); len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	return path
}
