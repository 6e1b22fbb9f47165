package main

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/cmd/weir/node"
	"github.com/weirproxy/weir/tls/policy"
)

// tlsReport is the output of weir tls report. For each policy it lists what a stricter
// policy would break, and which clients weir already rejects.
type tlsReport struct {
	Nodes []tlsNode `json:"nodes"`
	// Since is when the last of the nodes began to record clients.
	Since    time.Time         `json:"since"`
	At       time.Time         `json:"at"`
	Notes    []string          `json:"notes,omitempty"` // why the numbers may be incomplete
	Policies []tlsPolicyReport `json:"policies"`
	Failures []tlsFailures     `json:"failures"`
}

type tlsNode struct {
	Node       string    `json:"node"`
	Version    string    `json:"version"`
	ConfigHash string    `json:"config_hash"`
	Since      time.Time `json:"since"`
}

// tlsPolicyReport is the part of the report about one policy.
type tlsPolicyReport struct {
	node.TLSPolicy
	Hosts      []tlsHost         `json:"hosts"`
	Handshakes uint64            `json:"handshakes"` // successful handshakes
	Versions   map[string]uint64 `json:"versions"`
	Suites     map[string]uint64 `json:"suites"` // of TLS 1.0 to 1.2
	Changes    []tlsChange       `json:"changes"`
	// Clients are the clients that a change would reject.
	Clients []tlsAffected `json:"clients"`
}

// tlsHost is a host and its routes.
type tlsHost struct {
	Listener   string   `json:"listener"`
	Host       string   `json:"host"`
	Routes     []string `json:"routes"`
	Handshakes uint64   `json:"handshakes"`
	Old        uint64   `json:"handshakes_below_tls_1_3"`
	noSNI      uint64   // handshakes without SNI below TLS 1.3; for other versions it is not known
}

// tlsChange is one way to make a policy stricter.
type tlsChange struct {
	// One of these fields is set: the new min_version, suites to remove, or
	// sha1_signatures to switch off.
	MinVersion string   `json:"min_version,omitempty"`
	Without    []string `json:"without_suites,omitempty"`
	NoSHA1     bool     `json:"without_sha1_signatures,omitempty"`
	// Breaks counts the handshakes that would have failed.
	Breaks       uint64     `json:"breaks"`
	Networks     int        `json:"networks"`
	Fingerprints int        `json:"fingerprints"`
	Last         *time.Time `json:"last_seen,omitempty"`
	// Moves counts the handshakes that would have negotiated something else.
	Moves uint64 `json:"moves"`
}

// tlsAffected is a line about clients, and the first min_version that rejects them.
type tlsAffected struct {
	policy.SeenClients
	Routes    []string `json:"routes,omitempty"`
	BrokenBy  string   `json:"broken_by_min_version,omitempty"`
	LosesWith string   `json:"broken_without_suite,omitempty"`
	NeedsSHA1 bool     `json:"broken_without_sha1_signatures,omitempty"`
}

// tlsFailures are the handshakes that failed for one reason.
type tlsFailures struct {
	Result     string               `json:"result"`
	Handshakes uint64               `json:"handshakes"`
	Networks   int                  `json:"networks"`
	Clients    []policy.SeenClients `json:"clients"`
}

// soon is the minimum time to observe: a client that connects once a week is not seen
// earlier.
const soon = 7 * 24 * time.Hour

func newTLSReport(nodes []node.TLSClients, now time.Time) *tlsReport {
	r := &tlsReport{At: now.UTC(), Failures: []tlsFailures{}}
	all := merge(nodes)
	for _, n := range nodes {
		r.Nodes = append(r.Nodes, tlsNode{n.Node, n.Version, n.ConfigHash, n.Since.UTC()})
		if n.Since.After(r.Since) {
			r.Since = n.Since.UTC()
		}
	}
	r.note(nodes, all)
	for _, p := range all.Policies {
		r.Policies = append(r.Policies, reportPolicy(p, all))
	}
	slices.SortStableFunc(r.Policies, func(a, b tlsPolicyReport) int {
		return cmp.Or(cmp.Compare(versionNumber(a.MinVersion), versionNumber(b.MinVersion)), cmp.Compare(a.Name, b.Name))
	})
	r.Failures = failures(all.Clients)
	return r
}

// note adds the reasons why the numbers may be incomplete.
func (r *tlsReport) note(nodes []node.TLSClients, all node.TLSClients) {
	if age := r.At.Sub(r.Since); age < soon {
		r.Notes = append(r.Notes, fmt.Sprintf("the table covers %s only: a client that connects once a week or once a month may be missing", since(age)))
	}
	if all.Evicted > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("there were more kinds of clients than the table has room for: %d lines were dropped early, so \"yes\" covers only the clients that are left", all.Evicted))
	}
	if all.EvictedFailed > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d lines about failed handshakes were dropped early", all.EvictedFailed))
	}
	for _, n := range nodes[1:] {
		if n.ConfigHash != nodes[0].ConfigHash {
			r.Notes = append(r.Notes, fmt.Sprintf("the nodes have different configurations; policies and routes are those of %s", nodes[0].Node))
			break
		}
	}
}

// merge adds the counts of several nodes, with the configuration of the first node.
func merge(nodes []node.TLSClients) node.TLSClients {
	all := nodes[0]
	all.Clients, all.Modern = nil, nil
	all.Evicted, all.EvictedFailed = 0, 0
	at := make(map[string]int)
	for _, n := range nodes {
		all.Evicted += n.Evicted
		all.EvictedFailed += n.EvictedFailed
		all.Modern = append(all.Modern, n.Modern...)
		for _, c := range n.Clients {
			key := strings.Join([]string{c.Listener, c.Host, c.Policy, c.Result, c.Version, c.Suite, c.JA4, c.Network, c.Newest, fmt.Sprint(c.OnlySHA1, c.OnlyMissing)}, "\x00")
			i, ok := at[key]
			if !ok {
				at[key] = len(all.Clients)
				all.Clients = append(all.Clients, c)
				continue
			}
			known := &all.Clients[i]
			known.Count += c.Count
			if c.First.Before(known.First) {
				known.First = c.First
			}
			if c.Last.After(known.Last) {
				known.Last = c.Last
			}
		}
	}
	return all
}

func reportPolicy(p node.TLSPolicy, all node.TLSClients) tlsPolicyReport {
	r := tlsPolicyReport{TLSPolicy: p, Versions: map[string]uint64{}, Suites: map[string]uint64{}, Clients: []tlsAffected{}}
	var mine []policy.SeenClients
	for _, c := range all.Clients {
		if c.Policy == p.Name && c.Result == policy.ResultOK {
			mine = append(mine, c)
			r.Handshakes += c.Count
			r.Versions[c.Version] += c.Count
			r.Suites[c.Suite] += c.Count
		}
	}
	for _, m := range all.Modern {
		if m.Policy == p.Name {
			r.Handshakes += m.Count
			r.Versions["TLS 1.3"] += m.Count
		}
	}
	r.Hosts = hostsOf(p.Name, all)
	r.Changes = append(append(raises(p, mine), removals(p, mine)...), sha1Removal(p, mine)...)
	for _, c := range mine {
		if a := affect(p, c, all); a.BrokenBy != "" || a.LosesWith != "" || a.NeedsSHA1 {
			r.Clients = append(r.Clients, a)
		}
	}
	slices.SortStableFunc(r.Clients, func(a, b tlsAffected) int { // clients that need the oldest settings come first
		return cmp.Or(cmp.Compare(versionNumber(a.Newest), versionNumber(b.Newest)), -cmp.Compare(a.LosesWith, b.LosesWith), -cmp.Compare(a.Count, b.Count), -a.Last.Compare(b.Last))
	})
	return r
}

// hostsOf lists the hosts that have the policy, and the hosts that had it while weir
// counted.
func hostsOf(name string, all node.TLSClients) []tlsHost {
	type key struct{ listener, host string }
	hosts := map[key]*tlsHost{}
	get := func(listener, host string) *tlsHost {
		k := key{listener, host}
		if hosts[k] == nil {
			hosts[k] = &tlsHost{Listener: listener, Host: host, Routes: routesOf(listener, host, all)}
		}
		return hosts[k]
	}
	for _, h := range all.Hosts {
		if h.Policy == name {
			get(h.Listener, h.Host)
		}
	}
	for _, m := range all.Modern {
		if m.Policy == name {
			get(m.Listener, m.Host).Handshakes += m.Count
		}
	}
	for _, c := range all.Clients {
		if c.Policy == name && c.Result == policy.ResultOK {
			h := get(c.Listener, c.Host)
			h.Handshakes += c.Count
			h.Old += c.Count
			if c.NoSNI() {
				h.noSNI += c.Count
			}
		}
	}
	list := []tlsHost{}
	for _, h := range hosts {
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b tlsHost) int {
		return cmp.Or(-cmp.Compare(a.Old, b.Old), -cmp.Compare(a.Handshakes, b.Handshakes), cmp.Compare(a.Listener, b.Listener), cmp.Compare(a.Host, b.Host))
	})
	return list
}

// routesOf returns the routes for a host. Routes without hosts also apply to clients
// whose host is not known: when they connected, the listener had no such route.
func routesOf(listener, host string, all node.TLSClients) []string {
	host = cmp.Or(host, "*")
	for _, h := range all.Hosts {
		if h.Listener == listener && h.Host == host {
			return h.Routes
		}
	}
	return nil
}

// versionNumber returns the number of a version by its name; 0 if Go has no such version.
func versionNumber(name string) uint16 {
	for v := uint16(tls.VersionTLS10); v <= tls.VersionTLS13; v++ {
		if tls.VersionName(v) == name {
			return v
		}
	}
	return 0
}

// raises are the possible higher values of the policy's min_version.
func raises(p node.TLSPolicy, mine []policy.SeenClients) (list []tlsChange) {
	for v := versionNumber(p.MinVersion) + 1; v <= versionNumber(p.MaxVersion); v++ {
		c := tlsChange{MinVersion: strings.TrimPrefix(tls.VersionName(v), "TLS ")}
		c.count(mine, func(s policy.SeenClients) effect {
			switch {
			case versionNumber(s.Version) >= v:
				return stays
			case versionNumber(s.Newest) >= v:
				return moves
			}
			return breaks
		})
		list = append(list, c)
	}
	return list
}

// removals are the old suites that the policy could remove: all unused suites together,
// and each used suite.
func removals(p node.TLSPolicy, mine []policy.SeenClients) (list []tlsChange) {
	used := map[string]bool{}
	for _, c := range mine {
		used[c.Suite] = true
	}
	var unused []string
	for _, s := range oldSuites(p) {
		if !used[s] {
			unused = append(unused, s)
			continue
		}
		c := tlsChange{Without: []string{s}}
		c.count(mine, func(seen policy.SeenClients) effect { return withoutSuite(p, seen, s) })
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b tlsChange) int { return cmp.Compare(a.Breaks, b.Breaks) })
	if len(unused) > 0 {
		list = append([]tlsChange{{Without: unused}}, list...)
	}
	return list
}

// oldSuites are the policy's suites that Go counts as insecure.
func oldSuites(p node.TLSPolicy) (list []string) {
	for _, s := range tls.InsecureCipherSuites() {
		if slices.Contains(p.CipherSuites, s.Name) {
			list = append(list, s.Name)
		}
	}
	return list
}

// withoutSuite is the effect on clients if the policy loses the suite. A client that
// offers another suite of the policy with the same key exchange negotiates that suite.
// For all other clients the result is unknown, so they count as broken.
func withoutSuite(p node.TLSPolicy, c policy.SeenClients, suite string) effect {
	if c.Suite != suite {
		return stays
	}
	exchange, _, _ := strings.Cut(suite, "_WITH_")
	for _, other := range c.Suites {
		if other == suite || !strings.HasPrefix(other, exchange+"_WITH_") || !slices.Contains(p.CipherSuites, other) {
			continue
		}
		if versionNumber(c.Version) == tls.VersionTLS12 || strings.HasSuffix(other, "_SHA") { // all others connected with TLS 1.2
			return moves
		}
	}
	return breaks
}

// sha1Removal is the change for a policy that accepts clients with SHA-1 signatures.
func sha1Removal(p node.TLSPolicy, mine []policy.SeenClients) []tlsChange {
	if !p.SHA1 {
		return nil
	}
	c := tlsChange{NoSHA1: true}
	c.count(mine, func(s policy.SeenClients) effect {
		if needsSHA1(s) {
			return breaks
		}
		return stays
	})
	return []tlsChange{c}
}

// needsSHA1 reports whether weir signed with SHA-1 for these clients in TLS 1.2. RSA key
// exchange needs no signature.
func needsSHA1(s policy.SeenClients) bool {
	return s.OnlySHA1 && s.Version == "TLS 1.2" && strings.Contains(s.Suite, "_ECDHE_")
}

// effect is the effect of a change on clients.
type effect int

const (
	stays effect = iota
	moves
	breaks
)

func (c *tlsChange) count(mine []policy.SeenClients, judge func(policy.SeenClients) effect) {
	networks, fingerprints := map[string]bool{}, map[string]bool{}
	for _, s := range mine {
		switch judge(s) {
		case moves:
			c.Moves += s.Count
		case breaks:
			c.Breaks += s.Count
			networks[s.Network], fingerprints[s.JA4] = true, true
			if c.Last == nil || s.Last.After(*c.Last) {
				last := s.Last
				c.Last = &last
			}
		}
	}
	c.Networks, c.Fingerprints = len(networks), len(fingerprints)
}

// affect returns which changes reject clients.
func affect(p node.TLSPolicy, c policy.SeenClients, all node.TLSClients) tlsAffected {
	a := tlsAffected{SeenClients: c, Routes: routesOf(c.Listener, c.Host, all), NeedsSHA1: p.SHA1 && needsSHA1(c)}
	able := max(versionNumber(c.Version), versionNumber(c.Newest))
	if able < versionNumber(p.MaxVersion) {
		a.BrokenBy = strings.TrimPrefix(tls.VersionName(able+1), "TLS ")
	}
	if slices.Contains(oldSuites(p), c.Suite) && withoutSuite(p, c, c.Suite) == breaks {
		a.LosesWith = c.Suite
	}
	return a
}

// failures groups failed handshakes by cause, the most frequent first.
func failures(clients []policy.SeenClients) []tlsFailures {
	by := map[string]*tlsFailures{}
	networks := map[string]map[string]bool{}
	for _, c := range clients {
		if c.Result == policy.ResultOK {
			continue
		}
		if by[c.Result] == nil {
			by[c.Result] = &tlsFailures{Result: c.Result}
			networks[c.Result] = map[string]bool{}
		}
		f := by[c.Result]
		f.Handshakes += c.Count
		f.Clients = append(f.Clients, c)
		networks[c.Result][c.Network] = true
		f.Networks = len(networks[c.Result])
	}
	list := []tlsFailures{}
	for _, result := range slices.Sorted(maps.Keys(by)) {
		f := by[result]
		slices.SortStableFunc(f.Clients, func(a, b policy.SeenClients) int {
			return cmp.Or(-cmp.Compare(a.Count, b.Count), -a.Last.Compare(b.Last))
		})
		list = append(list, *f)
	}
	slices.SortStableFunc(list, func(a, b tlsFailures) int { return -cmp.Compare(a.Handshakes, b.Handshakes) })
	return list
}

// only keeps only the policy of that name, and its failures.
func (r *tlsReport) only(name string) error {
	var names []string
	var found []tlsPolicyReport
	for _, p := range r.Policies {
		names = append(names, p.Name)
		if p.Name == name {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("--policy: there is no policy %q in tls_policies; there are %s", name, strings.Join(names, ", "))
	}
	var all []policy.SeenClients
	for _, f := range r.Failures {
		for _, c := range f.Clients {
			if c.Policy == name {
				all = append(all, c)
			}
		}
	}
	r.Policies, r.Failures = found, failures(all)
	return nil
}
