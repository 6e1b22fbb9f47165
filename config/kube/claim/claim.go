// Package claim decides which Kubernetes objects get the requests of a host and path.
//
// An object asks for requests by its claims. The converter of each kind makes Owners with
// Claims from its objects. This package knows no kind. Decide makes these decisions for all
// kinds together:
//   - the namespace that owns a host
//   - the object that gets a host and path, if several objects ask for them
//   - the paths that weir closes because of access control
//   - the answer for paths that weir cannot match
//
// Decide records an event for each claim that is not granted.
//
// All claims of one Decision share their listeners.
package claim

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/weirproxy/weir/config"
)

// Match is the condition that selects the requests of a claim. Only one claim can have
// it. Further conditions, of methods or HTTP headers, belong here.
type Match struct {
	Host string // "" is every host
	Path config.Path
}

func (m Match) String() string {
	kind := "path"
	switch {
	case m.Path.Expression:
		kind = "regular expression"
	case m.Path.Exact:
		kind = "exact path"
	}
	return kind + " " + m.Path.Value + " of " + HostText(m.Host)
}

// Sentence is the match at the beginning of a sentence.
func (m Match) Sentence() string {
	s := m.String()
	return strings.ToUpper(s[:1]) + s[1:]
}

// HostText is the host in messages.
func HostText(host string) string { return cmp.Or(host, "every host") }

// Claim is the wish of an object for the requests of a host and path. The exported
// fields are the wish, and Decide does not change them.
type Claim struct {
	Match
	Owner *Owner
	Route string // the name of its route
	// Implicit means that the object asks for the match only as a default: the claim gets
	// requests that no other claim gets.
	Implicit bool
	// Written is the path in the object. The path of Match may be another one.
	Written string
	// Type is the type of the path in the object, as the object has it.
	Type string
	// Beginnings are texts in lower case, with one of which each path begins that Path matches.
	Beginnings []string
	// Among means that the path is tried among the expressions of its host, see config.Path.
	Among bool
	// Loose means that the refused path begins with this text: /api includes /apis.
	Loose bool
	// Pattern means that Written is a regular expression and that the object has guards.
	Pattern bool
	// Refusal means that weir cannot match Written. The path of Match is its literal
	// prefix, which is closed. nil: weir can match it.
	Refusal *Refusal
	Backend Backend

	closed  *Guards // the guards that close it; nil: none
	defeats bool    // another claim, of a younger object or the same one, lost the match to this one, which closes that path as well
	plainly bool    // it closes no other spelling, because another object keeps those
	beside  bool    // another claim has the match, and this one closes more than the other
}

// Backend is the destination of the requests of a claim.
type Backend struct {
	// Supported means that Name is a Service. weir supports no other kind: otherwise Kind
	// and Name are of another object, or empty if the claim names no backend.
	Supported bool
	Kind      string // of an object that is not a Service
	Name      config.ObjectName
	Port      Port
	// Protocol is the protocol that the object demands, as it writes it; nil: the Service
	// decides.
	Protocol *string
	Guards   *Guards // of the Service; nil: none
}

// Port is a port of a Service, by its name or else by its number.
type Port struct {
	Name   string
	Number int32
}

// Closed returns the guards because of which weir closes a granted claim; nil: none.
func (c *Claim) Closed() *Guards { return c.closed }

// Served is the path of the route of a granted claim. A closed path must not be reachable by
// the route of a shorter path: so it also matches the spellings that an application or
// another controller treats as the same path.
func (c *Claim) Served() config.Path {
	p := c.Path
	switch {
	case p.Expression: // it matches every spelling
		p.Closed = c.closed != nil
		return p
	case c.plainly:
		p.Begins = c.Loose && !c.defeats
		return p
	case c.closed == nil && c.Refusal == nil:
		return p
	}
	p.Closed = true
	if plain, err := url.PathUnescape(p.Value); err == nil {
		p.Value = plain
	}
	if !p.Exact && c.closed != nil { // the closed path /a%2f must cover /a too: another object may serve /a
		p.Value = cmp.Or(strings.TrimRight(p.Value, "/"), "/")
	}
	text := c.closed != nil && c.closed.Text && !strings.HasSuffix(c.Written, "/")
	p.Exact = p.Exact && !c.Loose // an expression at other controllers
	p.Begins = !p.Exact && (c.Loose || text)
	return p
}

// Closure is why the path of a granted claim is closed; nil: it is served.
func (c *Claim) Closure() *config.Closure {
	switch {
	case c.closed != nil:
		return &config.Closure{Reason: "closed_by_annotation", Why: "the path is closed because " + c.closed.cause()}
	case c.Refusal != nil:
		return &config.Closure{Reason: "closed_path", Why: fmt.Sprintf(
			"the path is closed because the path %.300q of the %v %v", c.Refusal.Written, c.Owner, c.Refusal.Why)}
	}
	return nil
}

// ChallengePath is the path of HTTP-01 challenges (RFC 8555, section 8.3).
const ChallengePath = "/.well-known/acme-challenge"

// IsChallenge reports whether the path is the path of an ACME challenge, as solvers of
// cert-manager have it.
func IsChallenge(p config.Path) bool {
	return p.Value == ChallengePath || strings.HasPrefix(p.Value, ChallengePath+"/")
}

// WildcardOf is the wildcard that covers a host; "" if the host is a wildcard itself.
func WildcardOf(host string) string {
	_, rest, ok := strings.Cut(host, ".")
	if !ok || strings.HasPrefix(host, "*.") {
		return ""
	}
	return "*." + rest
}
