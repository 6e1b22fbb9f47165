package backend

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
	"sync/atomic"
	"time"
)

// A sticky session keeps a client with one endpoint: weir gives the client a cookie, and the
// value of the cookie names the endpoint. weir makes the value with a key, so the value reveals
// no address, and a client cannot make the value for an address. The first part of the value is
// the same for all endpoints of a backend, so it also tells which of several weighted backends the
// client has.

// stickyMaker makes the values of the cookies of one backend.
type stickyMaker struct {
	key  string
	name string // of the backend
	own  string // the first part of each value
}

// The bytes of a MAC that are in the two parts of a value. They are few, because a guessed value gains
// nothing: it only chooses an endpoint, and any client may get any endpoint.
const (
	stickyBackendBytes  = 6
	stickyEndpointBytes = 12
)

func newStickyMaker(key, name string) *stickyMaker {
	m := &stickyMaker{key: key, name: name}
	m.own = m.mac("backend", name)[:base64.RawURLEncoding.EncodedLen(stickyBackendBytes)]
	return m
}

// value returns the value that names an endpoint.
func (m *stickyMaker) value(address string) string {
	return m.own + m.mac("endpoint", m.name, address)[:base64.RawURLEncoding.EncodedLen(stickyEndpointBytes)]
}

func (m *stickyMaker) mac(parts ...string) string {
	h := hmac.New(sha256.New, []byte(m.key))
	for _, part := range parts {
		h.Write([]byte(part))
		h.Write([]byte{0}) // no name and no address contains it
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// stickyTable finds endpoints by the values of cookies, among those that requests may go to at
// one moment. It never changes. A nil *stickyTable: the backend has no sticky sessions.
type stickyTable struct {
	maker     *stickyMaker
	endpoints map[string]*Endpoint // by value
}

// stickyCookie is the value of the cookie that names an endpoint.
type stickyCookie struct {
	maker *stickyMaker
	value string
}

// newStickyTable also has the endpoints that are terminating: they keep their clients. The caller
// holds the lock of the backend.
func newStickyTable(m *stickyMaker, use []*Endpoint) *stickyTable {
	if m == nil {
		return nil
	}
	t := &stickyTable{maker: m, endpoints: make(map[string]*Endpoint, len(use))}
	for _, e := range use {
		if e.cookie == nil || e.cookie.maker != m {
			e.cookie = &stickyCookie{m, m.value(e.address)}
		}
		t.endpoints[e.cookie.value] = e
	}
	return t
}

// find returns the endpoint that a cookie names; nil: none that requests may go to.
func (t *stickyTable) find(cookie []byte) *Endpoint {
	if t == nil {
		return nil
	}
	return t.endpoints[string(cookie)]
}

// adoptSticky prepares the values of the settings in effect. Values of the same key stay valid. The
// caller holds b.mu.
func (b *Backend) adoptSticky() {
	key := ""
	if s := b.cfg.Sticky; s != nil {
		key = cmp.Or(string(s.Key), b.opts.stickyKey.get())
	}
	switch {
	case key == "":
		b.sticky = nil
	case b.sticky == nil || b.sticky.key != key:
		b.sticky = newStickyMaker(key, b.name)
	}
}

// StickyResult says what the cookie of a request decided.
type StickyResult int

// The results of sticky sessions.
const (
	// StickyNew: the client brought no cookie.
	StickyNew StickyResult = iota
	// StickyKept: the client stays with the endpoint of its cookie.
	StickyKept
	// StickyMoved: the endpoint of the cookie is not ready, has failed or is unknown.
	StickyMoved
	numStickyResults
)

func (r StickyResult) String() string { return [...]string{"new", "kept", "moved"}[r] }

// AcquireSticky is Acquire for a client that brought this cookie for the backend; nil: it brought
// none. kept is true if the endpoint is the one that the cookie names. The cookie decides only
// about the first attempt.
func (b *Backend) AcquireSticky(cookie []byte, client netip.Addr, tried []*Endpoint, deadline time.Time, by Requester) (e *Endpoint, kept bool, err error) {
	if len(tried) > 0 {
		e, err = b.Acquire(client, tried, deadline, by)
		return e, false, err
	}
	if e, err = b.acquire(cookie, client, nil, deadline, by); err != nil {
		return nil, false, err
	}
	result := StickyNew
	if kept = b.view.Load().sticky.find(cookie) == e; kept {
		result = StickyKept
	} else if len(cookie) > 0 {
		result = StickyMoved
	}
	b.stuck[result].Add(1)
	return e, kept, nil
}

// KnowsCookie reports whether the cookie was made for a client of this backend, even if its
// endpoint has gone since.
func (b *Backend) KnowsCookie(cookie []byte) bool {
	t := b.view.Load().sticky
	return t != nil && len(cookie) > len(t.maker.own) && string(cookie[:len(t.maker.own)]) == t.maker.own
}

// NamesEndpoint reports whether the cookie names an endpoint that requests may go to now.
func (b *Backend) NamesEndpoint(cookie []byte) bool { return b.view.Load().sticky.find(cookie) != nil }

// StickyValue returns the value of the cookie that names the endpoint; empty: the backend has no
// sticky sessions now, or requests may not go to the endpoint any more.
func (b *Backend) StickyValue(e *Endpoint) string {
	if t := b.view.Load().sticky; t != nil {
		value := t.maker.value(e.address) // a client seldom gets a new cookie, so this need not be fast
		if t.endpoints[value] == e {
			return value
		}
	}
	return ""
}

// stickyKey is the key for all backends without a key of their own. It may come after the
// backends.
type stickyKey struct{ text atomic.Pointer[string] }

func (k *stickyKey) get() string {
	if text := k.text.Load(); text != nil {
		return *text
	}
	return ""
}

// SetStickyKey sets the key for the cookies of all backends without a key of their own; empty:
// these backends have no sticky sessions until there is a key. A cookie is valid in each process
// that has its key.
func (s *Set) SetStickyKey(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opts.stickyKey.get() == key {
		return
	}
	s.opts.stickyKey.text.Store(&key)
	for b := range s.all() {
		b.restick()
	}
}

// restick applies a new key.
func (b *Backend) restick() {
	b.mu.Lock()
	defer b.unlock()
	if b.cfg.Sticky == nil {
		return
	}
	before := b.sticky
	if b.adoptSticky(); b.sticky != before {
		b.rebuild()
	}
}
