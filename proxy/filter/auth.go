package filter

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/extauthz"
	"github.com/weirproxy/weir/proxy/message"
)

// authGuard is the key of a route that names its authenticator.
const authGuard = "auth"

// The reasons and texts of responses without a user.
var refuseBusy = &message.Refusal{Status: http.StatusServiceUnavailable, Reason: "auth_busy",
	Detail: "too many passwords or tokens are being checked; try again"}

// answerBusy answers a request whose password or token was not checked. gone is the error of Wait
// if its client has gone, or nil.
func answerBusy(x Exchange, gone error) {
	if gone != nil {
		x.GuardFailed(authGuard, refuseBusy, gone)
		return
	}
	res := x.Begin(refuseBusy.Status, refuseBusy.Reason)
	res.AddField("Retry-After", "1")
	x.Send(refuseBusy.Detail + "\n")
}

// Identity is what an authenticator knows about the sender of a request. It never changes, so
// exchanges may share it.
type Identity struct {
	User    string // for the access log
	Fields  []IdentityField
	Cookies []string // values of Set-Cookie for the client
	// OnlyGood means that the client gets Cookies only with responses that are no errors, as
	// add_header of nginx does it.
	OnlyGood bool
	// Kept are headers of the server's response for snippets, with names in lower case.
	Kept []IdentityField
	// Response are headers that the server sets in the response to the client.
	Response []extauthz.Change
}

// givesCookies reports whether the client gets cookies with a response of this status.
func (id *Identity) givesCookies(status int) bool {
	return !id.OnlyGood || isGoodStatus(status)
}

// isGoodStatus reports whether add_header of nginx adds headers to a response of this status.
func isGoodStatus(status int) bool {
	if status == 206 || status >= 200 && status <= 204 && status != 202 && status != 203 {
		return true
	}
	return status >= 301 && status <= 304 || status == 307 || status == 308
}

// Size returns how many bytes of texts id has. id may be nil.
func (id *Identity) Size() (n int) {
	if id == nil {
		return 0
	}
	for i := range id.Fields {
		n += len(id.Fields[i].Name) + len(id.Fields[i].Value)
	}
	for i := range id.Kept {
		n += len(id.Kept[i].Value)
	}
	for _, text := range id.Cookies {
		n += len(text)
	}
	for i := range id.Response {
		n += len(id.Response[i].Name) + len(id.Response[i].Value)
	}
	return n
}

// HasCookies reports whether the client gets cookies from the server that decided. id may be nil.
func (id *Identity) HasCookies() bool { return id != nil && len(id.Cookies) > 0 }

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
type auth struct {
	entry *authEntry
	// enough has the clients that need not be authenticated (satisfy: any); nil: none.
	enough *clients
	route  string // its name
}

func newAuth(r *config.Route, shared *SharedPlan) *auth {
	a := &auth{entry: shared.auth[r.Auth].entry, route: r.Name}
	if r.Satisfy == config.SatisfyAny {
		a.enough = newClients(r.Clients, true)
	}
	return a
}

// GuardName returns the key of a route that authenticates requests.
func (a *auth) GuardName() string { return authGuard }

// Answer refuses a request whose sender is not known.
func (a *auth) Answer(x Exchange) bool {
	if a.enough != nil && a.enough.allows(x.Client().Addr()) {
		return false
	}
	id := a.identify(x)
	if id == nil {
		return true
	}
	x.SetUser(id.User)
	x.SetIdentity(id)
	return false
}

// identify returns who sent the request; nil: it has answered the request.
func (a *auth) identify(x Exchange) *Identity {
	of := a.entry.authenticator()
	if s, is := of.(*subrequest); is {
		return s.authenticateFor(x, a.route)
	}
	return of.authenticate(x)
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

// EditTrailers drops what the client claims in trailers with the names of headers that a server sets.
func (a *auth) EditTrailers(trailers *message.Head) {
	s, is := a.entry.authenticator().(asserter)
	if !is {
		return // Forwarding does it
	}
	for i := range trailers.Fields {
		if s.claims(trailers.Name(i)) {
			trailers.Fields[i].Dropped = true
		}
	}
}

// EditResponse passes the cookies of the server that decided to the client.
func (a *auth) EditResponse(x Exchange, res *message.Response) {
	if id := x.Identity(); id.HasCookies() && id.givesCookies(res.Status) {
		for _, value := range id.Cookies {
			res.AddField("Set-Cookie", value)
		}
	}
	if id := x.Identity(); id != nil {
		for i := range id.Response {
			setHeader(&res.Head, &id.Response[i])
		}
	}
}

// asserter is an authenticator of objects of a cluster, which sets headers only for its own routes.
type asserter interface {
	// claims reports whether the client could claim a header of the server by one of this name.
	claims(name []byte) bool
}

// fileAuthenticator is an authenticator whose users or keys come from a file.
type fileAuthenticator interface {
	authenticator
	file() string
	// reread returns an authenticator for the content of the file: itself if nothing has
	// changed. The error is the end of a sentence that begins with the file's name.
	reread(data []byte) (authenticator, error)
	// with returns the authenticator with the settings of an entry, for the same content of the
	// file; nil: the entry is of another kind.
	with(c *config.Auth) authenticator
}

// newAuthenticator makes the authenticator of an entry. before is the one in effect with the same
// name, or nil. newAuthenticator returns it if nothing has changed. If the file of an entry cannot be
// used, its content in effect stays in use.
func (s *Shared) newAuthenticator(c *config.Auth, before authenticator) (authenticator, error) {
	next, err := s.fromFile(c, before)
	if err != nil {
		return nil, fmt.Errorf("auth.%s: %w", c.Name, err)
	}
	return next, nil
}

func (s *Shared) fromFile(c *config.Auth, before authenticator) (authenticator, error) {
	var file string
	switch {
	case c.Basic != nil:
		file = c.Basic.File
	case c.JWT != nil:
		file = c.JWT.Keys
	}
	data, err := config.ReadAuthFile(file)
	if f, is := before.(fileAuthenticator); is && f.file() == file && f.with(c) != nil {
		if err == nil {
			if next, err := f.reread(data); err == nil {
				f = next.(fileAuthenticator)
			}
		}
		return f.with(c), nil
	}
	var next authenticator
	switch {
	case err != nil:
	case c.Basic != nil:
		next, err = newBasic(*c.Basic, data, s.checks)
	default:
		next, err = newBearer(c, data, s.tokens)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %w", file, err)
	}
	return next, nil
}

// InUse returns true if users or keys of a file are in use.
func (s *Shared) InUse(file string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.auth {
		if f, is := e.authenticator().(fileAuthenticator); is && f.file() == file {
			return true
		}
	}
	return false
}

// Reload reads the files of users and keys again, and puts changed ones into effect. It returns
// the changed files. If it cannot use a file, its content in effect stays in use, and err says
// why.
func (s *Shared) Reload() (changed []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, e := range s.auth {
		f, is := e.authenticator().(fileAuthenticator)
		if !is || f.file() == "" {
			continue
		}
		data, err := config.ReadAuthFile(f.file())
		var next authenticator
		if err == nil {
			next, err = f.reread(data)
		}
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s %w", f.file(), err))
		case next != f:
			e.current.Store(&next)
			changed = append(changed, f.file())
		}
	}
	return changed, errors.Join(errs...)
}

// planAuth returns the authenticators of a configuration by their names.
func (s *Shared) planAuth(all []config.Auth, server func(backend string) Decider) (map[string]*plannedAuth, error) {
	planned := make(map[string]*plannedAuth, len(all))
	if len(all) > 0 && s.checks == nil {
		s.checks = newChecks(mostWaitingPasswords, mostPasswordsOfNetwork)
		s.tokens = newChecks(mostWaitingTokens, mostTokensOfNetwork)
	}
	unchanged := len(all) > 0 && len(s.planned) == len(all) && &s.planned[0] == &all[0] // objects of a cluster changed
	var err error
	for i := range all {
		c := &all[i]
		p := &plannedAuth{entry: s.auth[c.Name]}
		var before authenticator
		if p.entry == nil {
			p.entry = &authEntry{name: c.Name}
		} else {
			before = p.entry.authenticator()
		}
		if c.Subrequest != nil {
			p.next = s.newSubrequest(c, before, server(c.Subrequest.Backend))
		}
		if c.External != nil {
			p.next = newExternal(c, before, server(c.External.Backend))
		}
		if planned[c.Name] = p; unchanged || c.Subrequest != nil || c.External != nil {
			continue
		}
		if c.Forward != nil {
			if p.next, err = newForward(c, server(c.Backend())); err != nil {
				return nil, err
			}
			continue
		}
		if c.JWT != nil && c.JWT.KeysURL() {
			if p.next, err = s.newRemoteBearer(c, before, server(c.Backend())); err != nil {
				return nil, err
			}
			continue
		}
		if c.Basic != nil && c.Basic.Object != "" {
			p.next = newBasicOfObject(*c.Basic, before, s.checks)
			continue
		}
		next, err := s.newAuthenticator(c, before)
		if err != nil {
			return nil, err
		}
		p.next = next
	}
	return planned, nil
}

// plannedAuth is an entry and the authenticator that it gets.
type plannedAuth struct {
	entry *authEntry
	next  authenticator // nil: it keeps the one that it has
}

// commitAuth puts planned authenticators into effect. Entries that are gone remain with the
// routes that still use them.
func (s *Shared) commitAuth(p *SharedPlan) {
	s.auth, s.planned = make(map[string]*authEntry, len(p.auth)), p.entries
	for name, one := range p.auth {
		if one.next != nil {
			one.entry.current.Store(&one.next)
		}
		s.auth[name] = one.entry
	}
	if s.checks != nil {
		s.checks.setPrefixes(p.prefixes)
		s.tokens.setPrefixes(p.prefixes)
	}
}
