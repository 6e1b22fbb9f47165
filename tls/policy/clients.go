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

// The limits of Clients.
const (
	// ClientsKept is how long weir remembers clients after their last handshake.
	ClientsKept = 30 * 24 * time.Hour
	// maxClients limits the lines of clients that weir served, and separately the lines
	// of failed clients. So strangers that fail in ever new ways displace no client that
	// weir serves.
	maxClients = 4096
	// maxPerNetwork limits the lines of one network: clients choose their fingerprints,
	// so a client that invents new ones must not fill the table.
	maxPerNetwork = 64
)

// ManyJA4 replaces the further fingerprints of a network that has maxPerNetwork lines.
const ManyJA4 = "many"

// Clients remembers which TLS features clients need, so that an operator can tighten a
// policy without guessing: it lists clients that did not get TLS 1.3, and clients whose
// handshakes failed. It only counts clients with TLS 1.3. Its size is limited, it forgets
// old clients, and it outlives reloads. It stores networks of clients, not addresses.
type Clients struct {
	since time.Time

	// modern holds the counts of TLS 1.3. The map is replaced, never changed, so
	// that counting takes no lock and allocates nothing.
	modern atomic.Pointer[map[modernKey]*modernCount]
	change sync.Mutex

	mu       sync.Mutex
	admitted ageing
	failed   ageing
	networks map[netip.Prefix]int // number of lines in both tables
}

type modernKey struct{ listener, host, policy string }

type modernCount struct {
	count atomic.Uint64
	last  atomic.Int64 // Unix time, nanoseconds
}

// NewClients returns an empty Clients.
func NewClients() *Clients {
	c := &Clients{since: time.Now(), networks: make(map[netip.Prefix]int)}
	c.admitted.lines, c.failed.lines = make(map[clientKey]*list.Element), make(map[clientKey]*list.Element)
	c.modern.Store(&map[modernKey]*modernCount{})
	return c
}

// Handshake is one handshake, after its end.
type Handshake struct {
	// Listener, Host (as in the routes) and Policy belong to the handshake. Host and
	// Policy are empty if not known.
	Listener, Host, Policy string
	// Client is the client's address; the zero value is a Unix socket.
	Client netip.Addr
	// Hello is what the client offered; nil if weir did not read it.
	Hello *tls.ClientHelloInfo
	// Version and Suite are those of the tls.ConnectionState; zero if not negotiated.
	Version, Suite uint16
	// Err is the error of the handshake; nil: it succeeded.
	Err error
}

// Note records h. It keeps nothing that h points to. For a successful handshake with TLS
// 1.3 it takes no lock and allocates nothing.
func (c *Clients) Note(h Handshake) {
	if h.Err == nil && h.Version == tls.VersionTLS13 {
		c.countModern(modernKey{h.Listener, h.Host, h.Policy})
		return
	}
	result := HandshakeResult(h.Err)
	if result == ResultCut {
		return // weir caused it, not the client
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

// networkOf returns the part of a client's address that Clients stores.
func networkOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 24
	if a.Is6() {
		bits = 48
	}
	n, _ := a.Prefix(bits) // the zero Prefix if there is no address
	return n
}

// clientKey identifies a line of the table.
type clientKey struct {
	listener, host, policy, result string
	version, suite                 uint16
	ja4                            string
	onlySHA1                       bool
	missing                        missing // see onlyMissing; set only for ResultNoCommonSuite
	network                        netip.Prefix
}

// abilities are the TLS version and the cipher suites that a client supports. The negotiated
// ones may be older.
type abilities struct {
	newest uint16 // highest version offered
	suites uint32 // bit set of oldSuites, by index
}

// oldSuites are the suites for TLS 1.0 to 1.2 that crypto/tls implements.
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

// ageing is a table that drops lines that were not seen for ClientsKept. If it has too
// many lines, it drops the line that was seen longest ago.
type ageing struct {
	lines   map[clientKey]*list.Element
	order   list.List // has a *line in each element; the line that was seen last is the first
	evicted uint64
}

// note counts k. The caller holds c.mu.
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
	l.able.newest, l.able.suites = min(l.able.newest, able.newest), l.able.suites&able.suites // differ only for ManyJA4
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
