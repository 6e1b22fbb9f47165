package filter

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/ratelimit"
)

// Shared has the state that the filters of several routes use, such as the counts of rate
// limits, by the names in the configuration. It outlives the routes: a reload keeps the state
// of the names that remain. The zero Shared is ready to use.
type Shared struct {
	// RemoteKeys requests the keys of auth from URLs. It is set before the first Commit, if there
	// may be such keys.
	RemoteKeys RemoteKeys

	mu          sync.Mutex
	auth        map[string]*authEntry // the entries in effect
	planned     []config.Auth         // the settings of these entries
	checks      *checks               // of passwords; nil: there was no entry yet
	tokens      *checks               // of tokens; nil: there was no entry yet
	decisions   *decisions            // of servers; nil: there was no entry that has them
	rates       map[string]*rateLimit
	slots       map[string]*slots       // by the name of the route
	routes      []*config.Route         // the routes of these slots
	objectRates *ratelimit.Table        // of the limits of objects; nil: there were none
	sources     map[*keySource]struct{} // that run
	running     sync.WaitGroup          // the goroutines of sources
	closed      bool                    // no source starts any more
}

// SharedPlan is the shared state for one configuration. Routes are compiled with it before it
// takes effect.
type SharedPlan struct {
	shared      *Shared
	auth        map[string]*plannedAuth
	entries     []config.Auth
	rates       map[string]*rateLimit
	settings    map[*rateLimit]*rateSettings // set by Commit
	slots       map[string]*slots
	routes      []*config.Route
	objectRates *ratelimit.Table
	prefixes    conn.Prefixes
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
	p := &SharedPlan{shared: s, auth: auth, entries: cfg.Auth,
		prefixes: conn.Prefixes{IPv4: uint8(cfg.Limits.Clients.PrefixIPv4), IPv6: uint8(cfg.Limits.Clients.PrefixIPv6)}}
	p.planLimits(cfg)
	return p, nil
}

// planLimits adds the limits of rates and of concurrent requests.
func (p *SharedPlan) planLimits(cfg *config.Config) {
	s := p.shared
	p.rates, p.settings = make(map[string]*rateLimit), make(map[*rateLimit]*rateSettings)
	for _, c := range cfg.RateLimits {
		l := s.rates[c.Name]
		if l == nil {
			l = new(rateLimit)
		}
		p.rates[c.Name] = l
		p.settings[l] = newRateSettings(c, p.prefixes, l.settings.Load())
	}
	p.planSlots(cfg)
}

// planSlots adds the limits of concurrent requests. After a change of a cluster, few routes differ
// from those in effect.
func (p *SharedPlan) planSlots(cfg *config.Config) {
	s := p.shared
	p.routes = cfg.Routes
	d := config.Differ(s.routes, cfg.Routes, func(r *config.Route) string { return r.Name })
	if !slices.ContainsFunc(d.Gone, func(i int) bool { return hasSlots(s.routes[i]) }) &&
		!slices.ContainsFunc(d.Added, func(j int) bool { return hasSlots(cfg.Routes[j]) }) {
		p.slots, p.objectRates = s.slots, s.objectRates
		return
	}
	p.slots = make(map[string]*slots)
	for _, r := range cfg.Routes {
		pause.IfDue()
		if r.InFlight != nil {
			p.keepSlots(r.Name)
		}
		if r.Limits != nil {
			p.keepSlots(objectSlots(r.Limits.Name))
			if s.objectRates == nil {
				s.objectRates = ratelimit.NewTable(ratelimit.Limit{Every: time.Second, Burst: 1}, mostObjectKeys)
			}
		}
	}
	p.objectRates = s.objectRates
}

func hasSlots(r *config.Route) bool {
	pause.IfDue()
	return r.InFlight != nil || r.Limits != nil
}

// keepSlots adds the slots of a name: those in effect, or new ones. A route with several TLS
// settings is several Routes.
func (p *SharedPlan) keepSlots(name string) {
	if p.slots[name] != nil {
		return
	}
	if p.slots[name] = p.shared.slots[name]; p.slots[name] == nil {
		p.slots[name] = new(slots)
	}
}

// Commit puts the plan into effect. The caller makes sure that no other plan was committed
// since this one was made.
func (p *SharedPlan) Commit() {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	p.shared.commitAuth(p)
	for l, s := range p.settings {
		l.settings.Store(s)
	}
	p.shared.rates, p.shared.slots, p.shared.routes = p.rates, p.slots, p.routes
}

// Register registers the metrics of the shared state.
func (s *Shared) Register(reg prometheus.Registerer) { reg.MustRegister(sharedMetrics{s}) }

var (
	rateKeysDesc = prometheus.NewDesc("weir_rate_limit_keys",
		"Keys for which a rate limit has counts, by the name of the limit.", []string{"rate_limit"}, nil)
	rateEvictionsDesc = prometheus.NewDesc("weir_rate_limit_evictions_total",
		"Keys that a rate limit forgot before their time, because it had too many, by the name of the limit.", []string{"rate_limit"}, nil)
)

var inFlightDesc = prometheus.NewDesc("weir_in_flight_open",
	"Requests and tunnels that in_flight of a route counts as open, by route.", []string{"route"}, nil)

var keysRefreshedDesc = prometheus.NewDesc("weir_auth_keys_refreshed_timestamp_seconds",
	"Time at which weir last got usable keys from the URL of an entry of auth, in seconds since 1970; 0: not yet.", []string{"auth"}, nil)

type sharedMetrics struct{ *Shared }

// Describe implements prometheus.Collector.
func (m sharedMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- rateKeysDesc
	ch <- rateEvictionsDesc
	ch <- inFlightDesc
	ch <- keysRefreshedDesc
}

// Collect implements prometheus.Collector.
func (m sharedMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, l := range m.rates {
		s := l.settings.Load()
		ch <- prometheus.MustNewConstMetric(rateKeysDesc, prometheus.GaugeValue, float64(s.table.Keys()), name)
		ch <- prometheus.MustNewConstMetric(rateEvictionsDesc, prometheus.CounterValue, float64(s.evicted+s.table.Evictions()), name)
	}
	for k := range m.sources {
		ch <- prometheus.MustNewConstMetric(keysRefreshedDesc, prometheus.GaugeValue, float64(k.refreshed.Load()), k.entry)
	}
	for route, s := range m.slots {
		if strings.HasPrefix(route, objectSlotsOf) {
			continue // there may be one for each Ingress
		}
		ch <- prometheus.MustNewConstMetric(inFlightDesc, prometheus.GaugeValue, float64(s.count()), route)
	}
}
