package filter

import (
	"fmt"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// authGuard is the key of a route that names its authenticator.
const authGuard = "auth"

// Identity is what an authenticator knows about the sender of a request. It never changes, so
// exchanges may share it.
type Identity struct {
	User   string // for the access log
	Fields []IdentityField
}

// IdentityField is an HTTP header for the endpoint. Its value has no control characters.
type IdentityField struct{ Name, Value string }

// authenticator decides whether the sender of a request is known. An entry of auth has one. It
// may block. Several goroutines use it.
type authenticator interface {
	// authenticate returns who sent the request. It returns nil if it has answered the request.
	authenticate(x Exchange) *Identity
	// hidesCredentials returns true if no endpoint may get the Authorization of a request.
	hidesCredentials() bool
}

// authEntry is an entry of auth. Routes keep it over reloads; Commit replaces the authenticator.
type authEntry struct {
	name    string
	current atomic.Pointer[authenticator]
}

func (e *authEntry) authenticator() authenticator { return *e.current.Load() }

// auth authenticates the requests of a route (auth of a route).
type auth struct{ entry *authEntry }

// GuardName returns the key of a route that authenticates requests.
func (a *auth) GuardName() string { return authGuard }

// Answer refuses a request whose sender is not known.
func (a *auth) Answer(x Exchange) bool {
	id := a.entry.authenticator().authenticate(x)
	if id == nil {
		return true
	}
	x.SetUser(id.User)
	x.SetIdentity(id)
	return false
}

// EditRequest tells the endpoint who sent the request, and removes credentials that are for weir.
func (a *auth) EditRequest(x Exchange) {
	req := x.Request()
	if a.entry.authenticator().hidesCredentials() {
		req.Drop(message.Authorization)
	}
	if id := x.Identity(); id != nil {
		for i := range id.Fields {
			req.AddField(id.Fields[i].Name, id.Fields[i].Value)
		}
	}
}

// newAuthenticator makes the authenticator of an entry. before is the one with the same name, or
// nil; it is returned if nothing has changed.
func newAuthenticator(c *config.Auth, before authenticator) (authenticator, error) {
	return nil, fmt.Errorf("auth.%s cannot be used yet", c.Name)
}

// planAuth returns the authenticators of a configuration by their names.
func (s *Shared) planAuth(all []config.Auth) (map[string]*plannedAuth, error) {
	planned := make(map[string]*plannedAuth, len(all))
	for i := range all {
		c := &all[i]
		p := &plannedAuth{entry: s.auth[c.Name]}
		var before authenticator
		if p.entry == nil {
			p.entry = &authEntry{name: c.Name}
		} else {
			before = p.entry.authenticator()
		}
		next, err := newAuthenticator(c, before)
		if err != nil {
			return nil, err
		}
		p.next = next
		planned[c.Name] = p
	}
	return planned, nil
}

// plannedAuth is an entry and the authenticator that it gets.
type plannedAuth struct {
	entry *authEntry
	next  authenticator
}

// commitAuth puts planned authenticators into effect. Entries that are gone remain with the
// routes that still use them.
func (s *Shared) commitAuth(planned map[string]*plannedAuth) {
	s.auth = make(map[string]*authEntry, len(planned))
	for name, p := range planned {
		p.entry.current.Store(&p.next)
		s.auth[name] = p.entry
	}
}
