package node

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	writer "github.com/weirproxy/weir/config/kube/control"
	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/listener"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/listener/pressure"
	"github.com/weirproxy/weir/listener/sockets"
	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/tls/certs"
	"github.com/weirproxy/weir/tls/policy"
)

// server is the running weir. It connects all parts; no other code connects them. apply
// puts a configuration into effect, the first one and each later one.
type server struct {
	log          *zap.Logger
	level        zap.AtomicLevel
	build        Build
	lines        atomic.Pointer[accessLog]
	closingLines sync.WaitGroup         // the access logs and the receivers of spans of earlier configurations
	tracing      *tracing               // nil: no traces; guarded by change
	access       atomic.Pointer[access] // rules of the admin port; never nil

	registry   *prometheus.Registry
	metrics    *serverMetrics
	handshakes *policy.Metrics
	proxy      *proxy.Proxy
	backends   *backend.Set
	filters    filter.Shared
	shown      *backend.Metrics
	expiries   *certs.Metrics
	checks     *health.Checker
	node       *health.Node
	health     *health.Port
	tickets    *certs.Tickets
	tracker    *listener.Tracker
	drains     sync.Mutex // held while a drain begins or ends
	limits     *listener.Limits
	memory     *memory.Process
	lm         *listener.Metrics
	refusals   *listener.Repeats
	limited    *listener.Repeats // of lines in weir's own log
	guarded    *listener.Repeats // of lines about guards that could not decide
	faults     *listener.Repeats // of faults of objects
	often      *listener.Repeats // of refused connections and failed requests: one line, and then a number each minute

	observed
	certificates
	shared      sharedTickets // guarded by loading
	sticky      stickyKeys    // guarded by change
	cluster     *cluster      // the cluster whose objects weir serves; nil: none; guarded by change
	objects     *kube.Metrics
	written     *writer.Metrics
	openLogFile func(path string) (*os.File, error)                          // accesslog.OpenFile
	lookup      func(ctx context.Context, host string) ([]netip.Addr, error) // resolves names of backends
	connect     func(*config.Kubernetes) (reader, error)
	begin       func(*config.Config) (control, error) // newControl
	patience    time.Duration                         // for the first objects of a new cluster
	retryAfter  time.Duration                         // time until objects that are not in effect are tried again
	emptyAfter  time.Duration                         // how long a backend must have no endpoint before events report it
	orderWithin time.Duration                         // how long the state of an order may be unknown
	retelling   atomic.Bool                           // a timer will call tellAgain

	confined *confined // the rights that this process gave up; nil: none
	pidFile  string    // path of the file that has the id of this process; empty: none

	terminal     bool   // the log goes to a terminal
	showRequests bool   // standard output is a terminal: the access log goes there unless the configuration sets another path
	path         string // of the configuration; weir cannot read "" or "-" again
	watcher

	upgrade *upgrade
	former  *former          // the process that this one takes over from; nil: none
	gate    chan struct{}    // closed when this process may accept; nil: it may
	beside  atomic.Int64     // the Parts of pressure.Beside; 0: no other weir uses the same memory
	budget  *pressure.Memory // nil: not limited

	generations *generations

	ctx      context.Context // ends when the server ends
	stop     context.CancelFunc
	waits    context.Context // for reloads that wait for a cluster or a storage; ends when shutdown begins
	endWaits context.CancelFunc

	plans     sync.WaitGroup  // the plans that may hold sockets
	change    sync.Mutex      // held while a plan or an update of endpoints takes effect; no I/O happens under it
	ended     bool            // no configuration is applied any more
	changes   uint64          // counts what took effect, so that a plan notices that it was overtaken
	closing   *sync.WaitGroup // the removed listeners and ports that are not closed yet; nil: none
	effect    atomic.Pointer[inEffect]
	ofFile    ofFile      // made from the file's configuration alone
	owned     policies    // of objects
	sockets   sockets.Set // of listeners and ports
	listeners map[string]*listener.Listener
	ports     map[string]*runningPort // "health", "metrics" and "admin"
	answering sync.WaitGroup          // the admin and metrics ports that may still have answers to write
}

// inEffect is the configuration in effect. It is replaced as a whole, so its two parts
// always belong together.
type inEffect struct {
	file   *config.Config // the configuration file
	config *config.Config // file with the objects of the cluster
	loaded time.Time      // when file took effect
}

// fileInEffect returns the configuration file in effect, or nil before the first.
func (s *server) fileInEffect() *config.Config {
	if e := s.effect.Load(); e != nil {
		return e.file
	}
	return nil
}

// configInEffect returns the configuration in effect, with the objects of the cluster, or
// nil before the first.
func (s *server) configInEffect() *config.Config {
	if e := s.effect.Load(); e != nil {
		return e.config
	}
	return nil
}

// newServer makes a server that serves nothing yet.
func newServer(log *zap.Logger, level zap.AtomicLevel, build Build) *server {
	s := &server{log: log, level: level, build: build, registry: prometheus.NewRegistry(),
		listeners: make(map[string]*listener.Listener), ports: make(map[string]*runningPort)}
	s.log = s.observed.begin(log)
	s.upgrade = newUpgrade()
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.waits, s.endWaits = context.WithCancel(s.ctx)
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.metrics = newServerMetrics(s.registry, build)
	s.access.Store(new(access))

	s.checks = health.NewChecker()
	s.lookup = backend.SystemLookup
	s.backends = backend.NewSet(backend.Options{Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) { return s.lookup(ctx, host) },
		StartCheck: s.startCheck, Gone: s.endpointGone, Notify: s.backendEvent, RefusalsChanged: s.tellSoon})
	s.filters.Register(s.registry)
	s.filters.RemoteKeys = filter.RemoteKeys{Get: s.requestKeys, Tell: s.keysRequested}
	s.shown = backend.NewMetrics(s.registry, s.backends)
	s.node = health.NewNode(s.localReady)
	health.NewMetrics(s.registry, s.node)
	s.objects, s.written = kube.NewMetrics(s.registry), writer.NewMetrics(s.registry)
	s.connect, s.begin = connectKube, s.newControl
	s.patience, s.retryAfter, s.emptyAfter, s.orderWithin = clusterPatience, retryObjects, emptyAfter, orderWithin
	s.health = health.NewPort(s.node)

	s.newCertificates()
	s.tickets = certs.NewTickets()
	s.handshakes = policy.NewMetrics(s.registry)

	s.tracker = new(listener.Tracker)
	s.limits = listener.NewLimits(config.Limits{})
	s.memory = memory.NewProcess(s.ctx)
	s.memory.Notify = s.memoryEvent
	memory.Collect(s.registry, s.memory)
	s.lm = listener.NewMetrics(s.registry, s.tracker)
	s.generations = s.newGenerations()
	s.refusals = &listener.Repeats{PerSecond: 10, More: s.moreRefusals}
	s.limited = &listener.Repeats{PerSecond: 5, More: s.moreLines}
	s.guarded = &listener.Repeats{More: s.moreGuardFailures}
	s.faults = &listener.Repeats{PerSecond: 20, More: s.moreFaults}
	s.often = &listener.Repeats{Every: time.Minute, More: s.moreOften}

	s.proxy = &proxy.Proxy{Memory: s.memory, Metrics: proxy.NewMetrics(s.registry), Handshakes: s.handshakes, Refused: s.refusedByProxy,
		Orphaned: func(c conn.Cuttable) { s.tunnelsGone([]conn.Cuttable{c}) }, Clients: policy.NewClients(), Panicked: s.panicked, Looped: s.looped, GuardFailed: s.guardFailed, EndpointFailed: s.endpointFailed, Challenges: s.acme}
	go s.tickets.Run(s.ctx)
	go s.observe(s.ctx)
	return s
}

// adopt makes the plan the configuration in effect. No step of adopt can fail, or waits.
func (s *server) adopt(p *plan) {
	s.changes++
	s.adoptCertificates(p)
	setLevel(s.level, p.cfg.Log)
	before := s.lines.Swap(p.lines)
	defer s.closeLines(before, p.lines)
	if p.lines != nil {
		s.proxy.SetLog(s.logRecord)
	} else {
		s.proxy.SetLog(nil)
	}
	s.adoptTraces(p.cfg)
	s.limits.Set(p.cfg.Limits)
	s.proxy.SetLimits(http1.Limits{HeadBytes: p.cfg.Limits.HeadBytes, Fields: p.cfg.Limits.HeadFields})
	s.proxy.SetLoop(p.cfg.Limits.Loop)
	policy.AdmitSHA1(policy.WantsSHA1(p.cfg.TLSPolicies, p.file.Backends)) // objects have no such setting
	if k := p.cfg.Kubernetes; k != nil {
		s.proxy.Metrics.SetLimit(k.Metrics)
		s.shown.SetLimit(k.Metrics)
		s.expiries.SetLimit(k.Metrics)
	}
	if s.effect.Load() == nil {
		s.proxy.Metrics.Shape(p.cfg.MetricsOrDefault())
	}
	s.shown.SetPerEndpoint(p.cfg.MetricsOrDefault().PerEndpoint)
	orphans := s.proxy.Swap(p.table)
	s.node.SetRequireLocal(requireLocal(p.cfg))
	s.ofFile, s.owned = p.ofFile, p.owned
	loaded := time.Now()
	if p.again {
		loaded = s.effect.Load().loaded
	}
	s.effect.Store(&inEffect{p.file, p.cfg, loaded}) // before a port can serve a request for it
	s.access.Store(p.access)
	s.limitMemory()
	s.adoptObjects(p)
	p.sockets.Commit()
	s.closeBehind(slices.Concat(s.adoptListeners(p), s.adoptPorts(p)))
	s.handshakes.Retain(func(l, name string) bool {
		_, known := p.policies[name]
		known = known || p.owned[name] != nil
		return s.listeners[l] != nil && (known || name == "" || name == proxy.ChallengePolicy)
	})
	if !p.again {
		p.crls.Commit()
		s.metrics.applied(p.cfg)
	}
	s.node.SetSynced(p.objects.known()) // first: otherwise weir would be ready for a moment without the objects
	s.node.SetLoaded(true)
	s.node.SetBound(true)
	s.retire(orphans, p.cfg.Drain.Timeout)
	if c := s.cluster; c != nil { // last: what a status says has taken effect
		c.tellEffect(p.file)
	}
}

func requireLocal(cfg *config.Config) []string {
	if cfg.Health == nil {
		return nil
	}
	return cfg.Health.RequireLocal
}

// adoptListeners starts new listeners, and updates those that stay. It returns functions
// that close the removed ones.
func (s *server) adoptListeners(p *plan) (closing []func()) {
	keep := make(map[string]*listener.Listener)
	for _, l := range p.cfg.Listeners {
		name := l.Name
		settings := listener.Settings{Policy: p.headers[l.HeaderPolicy], MaxConnections: l.MaxConnections,
			Handle: func(c *conn.Conn) { s.proxy.Serve(c, name) }}
		socket := p.sockets.Opened(ownerName(name))
		if socket == nil {
			keep[name] = s.listeners[name]
			keep[name].Update(settings)
			delete(s.listeners, name)
			continue
		}
		started := listener.New(socket, listener.Options{
			Name: name, Limits: s.limits, Tracker: s.tracker, Metrics: s.lm,
			Refused: s.refusedByListener, Trouble: s.acceptTrouble, Settings: settings})
		keep[name] = started
		s.log.Info("listening", zap.String("listener", name), zap.String("protocol", string(l.Protocol)), zap.Stringer("address", started.Addr()))
		go s.serveListener(started)
	}
	for name, old := range s.listeners {
		closing = append(closing, func() { old.Close() })
		if keep[name] == nil {
			s.lm.Forget(name)
		}
	}
	s.listeners = keep
	return closing
}

// closeBehind closes removed listeners and ports while the configuration is in effect: they
// first empty their accept queues. Then endpoints may have their addresses. s.change is held.
func (s *server) closeBehind(closing []func()) {
	if len(closing) == 0 {
		return
	}
	before, all := s.closing, new(sync.WaitGroup)
	for _, f := range closing {
		all.Go(f)
	}
	s.closing = new(sync.WaitGroup)
	s.closing.Go(func() {
		all.Wait()
		s.noteOwn()
		if before != nil {
			before.Wait()
		}
	})
}

// awaitClosing waits until all removed listeners and ports are closed, so that their
// addresses are free.
func (s *server) awaitClosing() {
	s.change.Lock()
	closing := s.closing
	s.change.Unlock()
	if closing != nil {
		closing.Wait()
	}
}

func (s *server) serveListener(l *listener.Listener) {
	s.awaitGate(nil) // a listener that is closed before does not serve
	if err := l.Serve(); err != nil {
		s.log.Error("a listener failed", zap.String("listener", l.Name()), zap.Error(err))
	}
}

// startCheck starts the active check of an endpoint.
func (s *server) startCheck(c *backend.Check) (stop func()) {
	return s.checks.Start(c, c.Settings, c.WasReady)
}

// localReady counts a backend's ready endpoints on this node, for the verdict.
func (s *server) localReady(name string) int {
	if b := s.backends.Backend(name); b != nil {
		return b.LocalReady()
	}
	return 0
}

// endpointGone drains the tunnels to an endpoint that a reload or the name server
// removed.
func (s *server) endpointGone(_ *backend.Endpoint, tunnels []conn.Cuttable) { s.tunnelsGone(tunnels) }

// tunnelsGone drains tunnels, with the timeout of the configuration in effect.
func (s *server) tunnelsGone(tunnels []conn.Cuttable) {
	after := 2 * time.Minute
	if cfg := s.configInEffect(); cfg != nil {
		after = cfg.Drain.Timeout
	}
	s.retire(tunnels, after)
}

// retire gives tunnels without a route or endpoint time to end, and then cuts them.
func (s *server) retire(tunnels []conn.Cuttable, after time.Duration) {
	if len(tunnels) == 0 {
		return
	}
	s.log.Info("draining tunnels whose route or endpoint was removed", zap.Int("tunnels", len(tunnels)), zap.Duration("timeout", after))
	time.AfterFunc(after, func() {
		for _, c := range tunnels {
			c.Cut()
		}
	})
}

// close stops all remaining parts. The caller has ended all connections.
func (s *server) close() { s.closeBy(time.Now()) }

// closeBy is close with a time limit: until ends, weir removes the published addresses from
// the cluster.
func (s *server) closeBy(ends time.Time) {
	s.stop()
	if c := s.current(); c != nil {
		c.closeBy(ends, errDrainOver)
	}
	s.closePorts()
	s.acme.Close()
	if s.shared.storage != nil {
		s.shared.storage.close()
	}
	s.checks.Close()
	s.filters.Close()
	s.backends.Close()
	if a := s.lines.Load(); a != nil {
		s.endLines(a)
	}
	if s.tracing != nil {
		s.tracing.close()
	}
	s.closingLines.Wait()
}
