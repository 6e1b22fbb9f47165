package filter

import (
	"sync"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// Shared has the state that the filters of several routes use, such as the counts of rate
// limits, by the names in the configuration. It outlives the routes: a reload keeps the state
// of the names that remain. The zero Shared is ready to use.
type Shared struct {
	mu      sync.Mutex
	auth    map[string]*authEntry // the entries in effect
	planned []config.Auth         // from which they were made
	checks  *checks               // of passwords; nil: there was no entry yet
}

// SharedPlan is the shared state for one configuration. Routes are compiled with it before it
// takes effect.
type SharedPlan struct {
	shared   *Shared
	auth     map[string]*plannedAuth
	entries  []config.Auth
	prefixes conn.Prefixes
}

// Plan returns the state for a configuration: what the configuration before it had by the same
// names, and new objects for new names. It may read files and wait for them. Nothing changes
// before Commit, and a plan may be dropped without it. One goroutine at a time uses a plan. server
// returns the server of a backend of the configuration, for the requests of guards; it may be nil if
// no guard asks one.
func (s *Shared) Plan(cfg *config.Config, server func(backend string) Decider) (*SharedPlan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	auth, err := s.planAuth(cfg.Auth, server)
	if err != nil {
		return nil, err
	}
	return &SharedPlan{shared: s, auth: auth, entries: cfg.Auth, prefixes: conn.Prefixes{IPv4: uint8(cfg.Limits.Clients.PrefixIPv4), IPv6: uint8(cfg.Limits.Clients.PrefixIPv6)}}, nil
}

// Commit puts the plan into effect. The caller makes sure that no other plan was committed
// since this one was made.
func (p *SharedPlan) Commit() {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	p.shared.commitAuth(p)
}
