package policy

import (
	"container/list"
	"crypto/tls"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of Clients.
const (
	// ClientsKept is for how long clients are remembered after they were last seen.
	ClientsKept = 30 * 24 * time.Hour
	// maxClients bounds the clients that got in, and those that did not: strangers
	// who fail in ever new ways push nobody out who is served.
	maxClients = 4096
	// maxPerNetwork bounds the lines of one network: fingerprints are the client's
	// choice, and one that makes up new ones is to fill no table with them.
	maxPerNetwork = 64
)

// ManyJA4 stands for the fingerprints of a network that shows more of them than are kept apart.
const ManyJA4 = "many"

// Clients remembers what clients need of TLS, so that a policy can be tightened
// without guessing: who did not get TLS 1.3, and who got nothing at all. Who got
// TLS 1.3 is only counted. It is bounded and forgets, and it outlives reloads.
// It keeps networks of clients and no addresses.
type Clients struct {
	since time.Time

	// modern holds the counts of TLS 1.3. The map is replaced, never changed, so
	// that counting takes no lock and allocates nothing.
	modern atomic.Pointer[map[modernKey]*modernCount]
	change sync.Mutex

	mu       sync.Mutex
	admitted ageing
	failed   ageing
	networks map[netip.Prefix]int // lines in both
}

type modernKey struct{ listener, host, policy string }

type modernCount struct {
	count atomic.Uint64
	last  atomic.Int64 // Unix time, nanoseconds
}

// NewClients returns a memory that is empty.
func NewClients() *Clients {
	c := &Clients{since: time.Now(), networks: make(map[netip.Prefix]int)}
	c.admitted.lines, c.failed.lines = make(map[clientKey]*list.Element), make(map[clientKey]*list.Element)
	c.modern.Store(&map[modernKey]*modernCount{})
	return c
}

// Handshake is one handshake, as it ended.
type Handshake struct {
	// Listener, Host (as the routes have it) and Policy say what it was for; the
	// last two are empty where that was not known.
	Listener, Host, Policy string
	// Client is the client's address; the zero value is a Unix socket.
	Client netip.Addr
	// Hello is what the client offered; nil if that was not read.
	Hello *tls.ClientHelloInfo
	// Version and Suite are those of the tls.ConnectionState, zero where they were not agreed on.
	Version, Suite uint16
	// Err is how it failed, nil if it did not.
	Err error
}

// Note remembers h. It keeps nothing that h points to. A handshake with TLS 1.3
// that succeeded takes no lock and allocates nothing.
func (c *Clients) Note(h Handshake) {
	if h.Err == nil && h.Version == tls.VersionTLS13 {
		c.countModern(modernKey{h.Listener, h.Host, h.Policy})
		return
	}
	result := HandshakeResult(h.Err)
	if result == ResultCut {
		return // not the client's doing
	}
	k := clientKey{listener: h.Listener, host: h.Host, policy: h.Policy, result: result,
		version: h.Version, suite: h.Suite, network: networkOf(h.Client)}
	var able abilities
	if h.Hello != nil {
		k.ja4, k.onlySHA1 = JA4(h.Hello), onlySHA1Offered(h.Hello)
		if result == ResultNoCommonSuite {
			k.missing = onlyMissing(h.Hello)
		}
		able = abilitiesOf(h.Hello)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(k, able, time.Now())
}

func (c *Clients) countModern(k modernKey) {
	m, ok := (*c.modern.Load())[k]
	if !ok {
		m = c.addModern(k)
	}
	m.count.Add(1)
	m.last.Store(time.Now().UnixNano())
}

func (c *Clients) addModern(k modernKey) *modernCount {
	c.change.Lock()
	defer c.change.Unlock()
	next := maps.Clone(*c.modern.Load())
	if next[k] == nil {
		next[k] = new(modernCount)
		next[k].last.Store(time.Now().UnixNano())
	}
	forgotten := time.Now().Add(-ClientsKept).UnixNano()
	maps.DeleteFunc(next, func(_ modernKey, m *modernCount) bool { return m.last.Load() < forgotten })
	c.modern.Store(&next)
	return next[k]
}

// networkOf is what is kept of a client's address.
func networkOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 24
	if a.Is6() {
		bits = 48
	}
	n, _ := a.Prefix(bits) // the zero Prefix where there is no address
	return n
}

// clientKey is what lines of the table differ in.
type clientKey struct {
	listener, host, policy, result string
	version, suite                 uint16
	ja4                            string
	onlySHA1                       bool
	missing                        missing // of all that it offered for TLS 1.0 to 1.2
	network                        netip.Prefix
}

// abilities is what a client could do beside what it got.
type abilities struct {
	newest uint16 // version
	suites uint32 // of oldSuites, by their index
}

// oldSuites are those for TLS 1.0 to 1.2 that crypto/tls implements.
var oldSuites = func() (ids []uint16) {
	for _, s := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		if s.SupportedVersions[0] < tls.VersionTLS13 {
			ids = append(ids, s.ID)
		}
	}
	return ids[:min(len(ids), 32)]
}()

func abilitiesOf(h *tls.ClientHelloInfo) abilities {
	a := abilities{newest: newest(h.SupportedVersions)}
	for _, id := range h.CipherSuites {
		if i := slices.Index(oldSuites, id); i >= 0 {
			a.suites |= 1 << i
		}
	}
	return a
}

// line is one line of the table.
type line struct {
	key         clientKey
	able        abilities
	count       uint64
	first, last time.Time
}

// ageing is a table whose lines go when they were not seen for long, or when
// there are too many, the one seen longest ago first.
type ageing struct {
	lines   map[clientKey]*list.Element
	order   list.List // of *line, last seen in front
	evicted uint64
}

// note counts k, under c.mu.
func (c *Clients) note(k clientKey, able abilities, now time.Time) {
	t := &c.admitted
	if k.result != ResultOK {
		t = &c.failed
	}
	e := t.lines[k]
	if e == nil && c.networks[k.network] >= maxPerNetwork && k.ja4 != "" {
		k.ja4 = ManyJA4
		e = t.lines[k]
	}
	if e == nil {
		c.forget(now)
		if t.order.Len() >= maxClients {
			c.drop(t, t.order.Back())
			t.evicted++
		}
		e = t.order.PushFront(&line{key: k, able: able, first: now})
		t.lines[k] = e
		c.networks[k.network]++
	}
	l := e.Value.(*line)
	l.able.newest, l.able.suites = min(l.able.newest, able.newest), l.able.suites&able.suites // differ where ja4 is ManyJA4
	l.count++
	l.last = now
	t.order.MoveToFront(e)
}

func (c *Clients) drop(t *ageing, e *list.Element) {
	l := t.order.Remove(e).(*line)
	delete(t.lines, l.key)
	if c.networks[l.key.network]--; c.networks[l.key.network] == 0 {
		delete(c.networks, l.key.network)
	}
}

// forget drops lines that are too old.
func (c *Clients) forget(now time.Time) {
	for _, t := range []*ageing{&c.admitted, &c.failed} {
		for e := t.order.Back(); e != nil && now.Sub(e.Value.(*line).last) > ClientsKept; e = t.order.Back() {
			c.drop(t, e)
		}
	}
}
