package policy

import (
	"cmp"
	"slices"
	"time"
)

// Seen is the content of Clients.
type Seen struct {
	// Since is the time when Clients began to record.
	Since time.Time `json:"since"`
	// Evicted counts lines of served clients that were dropped because there were too
	// many. EvictedFailed counts the same for failed clients.
	Evicted       uint64 `json:"evicted"`
	EvictedFailed uint64 `json:"evicted_failed"`
	// Modern counts the handshakes with TLS 1.3.
	Modern []ModernClients `json:"tls_1_3"`
	// Clients are all other clients, the last one seen first.
	Clients []SeenClients `json:"clients"`
}

// ModernClients are the clients of a host that negotiated TLS 1.3.
type ModernClients struct {
	Listener string    `json:"listener"`
	Host     string    `json:"host"`
	Policy   string    `json:"policy"`
	Count    uint64    `json:"handshakes"`
	Last     time.Time `json:"last_seen"`
}

// SeenClients are clients of one kind and network whose handshakes had the same result.
// Versions, suites and results have the same names as in metrics and logs.
type SeenClients struct {
	Listener string `json:"listener"`
	// Host is as in the routes: "*" for the route without hosts, which serves clients
	// without SNI. It is empty if no route fits the name.
	Host   string `json:"host"`
	Policy string `json:"policy"`
	// Result is "ok", or the reason of the failure.
	Result string `json:"result"`
	// Version and Suite were negotiated; empty if the handshake failed before.
	Version string `json:"version,omitempty"`
	Suite   string `json:"cipher_suite,omitempty"`
	// Newest is the newest version that the client offered.
	Newest string `json:"newest_version,omitempty"`
	// Suites are the suites for TLS 1.0 to 1.2 that the client offered and Go implements.
	Suites []string `json:"offered_suites,omitempty"`
	// OnlySHA1 reports that the client verifies only signatures with SHA-1.
	OnlySHA1 bool `json:"only_sha1,omitempty"`
	// OnlyMissing has the kinds of the client's suites ("DHE", "CAMELLIA", "others"), if
	// there was no common suite because no policy can have any of them.
	OnlyMissing []string `json:"only_suites_without_support,omitempty"`
	// JA4 is empty if weir read no ClientHello, and ManyJA4 if the network had too many.
	JA4 string `json:"ja4,omitempty"`
	// Network is the network of the clients' addresses; empty for a Unix socket.
	Network string    `json:"network,omitempty"`
	Count   uint64    `json:"handshakes"`
	First   time.Time `json:"first_seen"`
	Last    time.Time `json:"last_seen"`
}

// NoSNI returns true if the clients sent no SNI. It reads that from their JA4, so it returns
// false if there is none.
func (s *SeenClients) NoSNI() bool { return len(s.JA4) > 3 && s.JA4[3] == 'i' }

// Seen returns the content of c.
func (c *Clients) Seen() Seen {
	s := Seen{Since: c.since, Modern: c.seenModern(), Clients: []SeenClients{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(time.Now())
	s.Evicted, s.EvictedFailed = c.admitted.evicted, c.failed.evicted
	for _, t := range []*ageing{&c.admitted, &c.failed} {
		for e := t.order.Front(); e != nil; e = e.Next() {
			s.Clients = append(s.Clients, e.Value.(*line).seen())
		}
	}
	slices.SortStableFunc(s.Clients, func(a, b SeenClients) int { return b.Last.Compare(a.Last) })
	return s
}

func (c *Clients) seenModern() []ModernClients {
	list := []ModernClients{}
	forgotten := time.Now().Add(-ClientsKept)
	for k, m := range *c.modern.Load() {
		if last := time.Unix(0, m.last.Load()); last.After(forgotten) {
			list = append(list, ModernClients{k.listener, k.host, k.policy, m.count.Load(), last})
		}
	}
	slices.SortFunc(list, func(a, b ModernClients) int {
		return cmp.Or(cmp.Compare(a.Listener, b.Listener), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Policy, b.Policy))
	})
	return list
}

func (l *line) seen() SeenClients {
	s := SeenClients{Listener: l.key.listener, Host: l.key.host, Policy: l.key.policy, Result: l.key.result,
		Version: VersionName(l.key.version), Suite: SuiteName(l.key.suite), OnlySHA1: l.key.onlySHA1, OnlyMissing: l.key.missing.names(),
		JA4: l.key.ja4, Count: l.count, First: l.first, Last: l.last}
	if l.key.network.IsValid() {
		s.Network = l.key.network.String()
	}
	if l.key.ja4 == "" {
		return s
	}
	s.Newest = VersionName(max(l.able.newest, versionSSL3))
	for i, id := range oldSuites {
		if l.able.suites&(1<<i) != 0 {
			s.Suites = append(s.Suites, SuiteName(id))
		}
	}
	return s
}
