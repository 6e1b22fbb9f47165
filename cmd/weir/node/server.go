package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
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
	"github.com/weirproxy/weir/listener/sockets"
	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/tls/acme"
	"github.com/weirproxy/weir/tls/certs"
	"github.com/weirproxy/weir/tls/policy"
)

// server is the running weir. It connects all parts; no other code connects them. apply
// puts a configuration into effect, the first one and each later one.
type server struct {
	log    *zap.Logger
	level  zap.AtomicLevel
	build  Build
	lines  atomic.Pointer[accessLog]
	access atomic.Pointer[access] // rules of the admin port; never nil

	registry   *prometheus.Registry
	metrics    *serverMetrics
	handshakes *policy.Metrics
	proxy      *proxy.Proxy
	backends   *backend.Set
	shown      *backend.Metrics
	expiries   *certs.Metrics
	checks     *health.Checker
	node       *health.Node
	health     *health.Port
	tickets    *certs.Tickets
	tracker    *listener.Tracker
	limits     *listener.Limits
	memory     *memory.Process
	lm         *listener.Metrics
	refusals   *listener.Repeats
	limited    *listener.Repeats // of lines in weir's own log
	faults     *listener.Repeats // of faults of objects

	certificates
	shared     sharedTickets // guarded by loading
	cluster    *cluster      // the cluster whose objects weir serves; nil: none; guarded by change
	objects    *kube.Metrics
	written    *writer.Metrics
	lookup     func(ctx context.Context, host string) ([]netip.Addr, error) // resolves names of backends
	connect    func(*config.Kubernetes) (listing, error)
	begin      func(*config.Config) (control, error) // newControl
	patience   time.Duration                         // for the first objects of a new cluster
	retryAfter time.Duration                         // time until objects that are not in effect are tried again
	emptyAfter time.Duration                         // how long a backend must have no endpoint before events report it
	retelling  atomic.Bool                           // a timer will call tellRefusals

	confined *confined // the rights that this process gave up; nil: none

	terminal     bool   // the log goes to a terminal
	showRequests bool   // standard output is a terminal: the access log goes there unless the configuration sets another path
	path         string // of the configuration; weir cannot read "" or "-" again
	watcher

	ctx      context.Context // ends when the server ends
	stop     context.CancelFunc
	waits    context.Context // for reloads that wait for a cluster or a storage; ends when shutdown begins
	endWaits context.CancelFunc

	change    sync.Mutex // held while a configuration is applied
	ended     bool       // no configuration is applied any more
	effect    atomic.Pointer[inEffect]
	ofFile    ofFile      // made from the file's configuration alone
	sockets   sockets.Set // of listeners and ports
	listeners map[string]*listener.Listener
	ports     map[string]*runningPort // "health", "metrics" and "admin"
}

// inEffect is the configuration in effect. It is replaced as a whole, so its two parts
// always belong together.
type inEffect struct {
	file   *config.Config // the configuration file
	config *config.Config // file with the objects of the cluster
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
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.waits, s.endWaits = context.WithCancel(s.ctx)
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.metrics = newServerMetrics(s.registry, build)
	s.access.Store(new(access))

	s.checks = health.NewChecker()
	s.lookup = backend.SystemLookup
	s.backends = backend.NewSet(backend.Options{Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) { return s.lookup(ctx, host) },
		StartCheck: s.startCheck, Gone: s.endpointGone, Notify: s.backendEvent, RefusalsChanged: s.refusalsChanged})
	s.shown = backend.NewMetrics(s.registry, s.backends)
	s.node = health.NewNode(s.localReady)
	health.NewMetrics(s.registry, s.node)
	s.objects, s.written = kube.NewMetrics(s.registry), writer.NewMetrics(s.registry)
	s.connect, s.begin = connectKube, s.newControl
	s.patience, s.retryAfter, s.emptyAfter = clusterPatience, retryObjects, emptyAfter
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
	s.refusals = &listener.Repeats{PerSecond: 10, More: s.moreRefusals}
	s.limited = &listener.Repeats{PerSecond: 5, More: s.moreLines}
	s.faults = &listener.Repeats{PerSecond: 20, More: s.moreFaults}

	s.proxy = &proxy.Proxy{Memory: s.memory, Metrics: proxy.NewMetrics(s.registry), Handshakes: s.handshakes, Refused: s.refusedByProxy,
		Orphaned: func(c conn.Linked) { s.tunnelsGone([]conn.Linked{c}) }, Clients: policy.NewClients(), Panicked: s.panicked, Looped: s.looped, Challenges: s.acme}
	go s.tickets.Run(s.ctx)
	return s
}

// plan is a configuration that is ready to take effect: all steps that can fail are done.
type plan struct {
	file, cfg *config.Config // cfg is file with the objects of the cluster
	objects   *objects       // of the cluster; nil: none
	again     bool           // file is already in effect, and weir does not process it again
	answers   *backend.Answers
	files     *certs.Files // of file; nil if again
	lines     *accessLog
	ofFile
	certificates *certs.Plan
	headers      map[string]*listener.Policy
	sockets      *sockets.Plan // nil until prepare opens them
	table        *proxy.Table
}

// ofFile is the part of a plan that depends on the file alone.
type ofFile struct {
	ech      []tls.EncryptedClientHelloKey
	policies map[string]*policy.Policy
	crls     *policy.CRLPlan
	access   *access    // rules of the admin port
	managed  *acme.Plan // certificates from authorities
}

// ahead is the part of a plan that is made before the other parts, without the lock
// change. It needs only the file, and it waits for the file system, for name servers and for
// the storage of ticket keys. Changes of a cluster's endpoints can take effect meanwhile.
type ahead struct {
	ofFile
	files   *certs.Files
	answers *backend.Answers
}

// apply puts the configuration of a file into effect, together with the objects of the
// cluster that the file names. On an error nothing has changed. If other goroutines may
// apply files, the caller holds loading.
func (s *server) apply(file *config.Config) error {
	a, err := s.readFile(file)
	if err != nil {
		return err
	}
	shared := s.shareAhead(file)
	a.answers = s.backends.Resolve(file.Backends, backend.FilePatience, nil)
	if err := s.applyAhead(file, a); err != nil {
		return err
	}
	if !shared {
		s.syncTickets()
	}
	return nil
}

func (s *server) applyAhead(file *config.Config, a *ahead) error {
	if file.Kubernetes != nil {
		return s.applyBeside(file, a)
	}
	before := s.current()
	if err := s.put(a.plan(file)); err != nil {
		return err
	}
	if before != nil {
		before.leave()
	}
	return nil
}

// plan returns a plan without objects; the caller may add them.
func (a *ahead) plan(file *config.Config) *plan {
	return &plan{file: file, cfg: file, answers: a.answers, files: a.files, ofFile: a.ofFile}
}

// errEnded means that weir applies no configuration any more, or no objects of this
// cluster.
var errEnded = errors.New("weir is shutting down, or already serves other objects")

// put puts a plan into effect; p.cfg must be complete. On an error nothing has changed.
func (s *server) put(p *plan) error {
	s.change.Lock()
	defer s.change.Unlock()
	if s.ended || p.again && p.objects.of != s.cluster {
		return errEnded
	}
	if err := s.prepare(p); err != nil {
		p.abandon(s)
		s.backends.SetOwn(s.sockets.Addresses())
		return err
	}
	if !p.again {
		s.shareTickets(p.cfg)
	}
	s.adopt(p)
	return nil
}

// prepare does the steps that can fail. The backends come last, because their change
// cannot be undone.
func (s *server) prepare(p *plan) (err error) {
	if p.again {
		p.ofFile = s.ofFile
	}
	if err := s.planCertificates(p); err != nil {
		return err
	}
	p.headers = make(map[string]*listener.Policy)
	for _, c := range p.cfg.HeaderPolicies {
		p.headers[c.Name] = listener.NewPolicy(c)
	}
	if err := s.openAccessLog(p); err != nil {
		return err
	}
	if err := s.openSockets(p); err != nil {
		return err
	}
	s.backends.SetOwn(s.sockets.Addresses()) // before backends get endpoints that may lead to these sockets
	update := s.backends.UpdateResolved
	if p.again {
		update = s.backends.UpdateObjects
	}
	backends, err := update(p.cfg.Backends, backend.NodeInfo{Name: p.cfg.Node, Explicit: p.cfg.NodeExplicit, Zone: p.cfg.Zone}, p.answers)
	if err != nil {
		return err
	}
	parts := proxy.Parts{Backends: backends, Policies: p.policies, Metrics: s.proxy.Metrics, ECH: p.ech}
	if p.again { // the policies are the same
		parts.Before = s.proxy.Table()
	}
	p.table, err = proxy.NewTable(p.cfg, parts)
	return err
}

// readFile reads the files that a configuration names, and prepares everything that is
// made of them. It waits for the file system, and changes nothing.
func (s *server) readFile(file *config.Config) (*ahead, error) {
	of, err := s.prepareTLS(file)
	if err != nil {
		return nil, err
	}
	a := &ahead{ofFile: of}
	if err := s.readCertificates(a, file); err != nil {
		return nil, err
	}
	return a, nil
}

// prepareTLS makes the TLS policies of a file and the access rules of its admin port.
func (s *server) prepareTLS(file *config.Config) (of ofFile, err error) {
	if of.access, err = newAccess(file.Admin, s.access.Load()); err != nil {
		return of, err
	}
	if of.ech, err = checkTLS(file); err != nil {
		return of, err
	}
	if of.crls, err = s.crls.Plan(file.TLSPolicies); err != nil {
		return of, err
	}
	of.policies = make(map[string]*policy.Policy)
	for _, c := range file.TLSPolicies {
		if of.policies[c.Name], err = policy.New(c, s.certs.Get, s.tickets.Attach); err != nil {
			return of, err
		}
		of.policies[c.Name].RetryECH(of.ech)
		of.policies[c.Name].Revoke(of.crls, c.ClientAuthCRL)
	}
	return of, nil
}

// openSockets opens the sockets that are not in effect yet. The error names all addresses
// that weir cannot listen on.
func (s *server) openSockets(p *plan) error {
	p.sockets = s.sockets.Plan(s.wantedSockets(p))
	var errs unbound
	for _, l := range p.cfg.Listeners {
		err := p.sockets.Err(ownerName(l.Name))
		switch {
		case err == nil:
		case p.objects.has(l.Name): // this affects no other listener
			p.withoutListener(l.Name, err)
		default:
			errs = append(errs, fmt.Errorf("%s.address: %w", ownerName(l.Name), err))
		}
	}
	for _, w := range s.wantedPorts(p) {
		if err := p.sockets.Err(w.name); err != nil {
			errs = append(errs, fmt.Errorf("%s.address: %w", w.name, err))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// wantedSockets returns the sockets of all listeners and ports of a plan.
func (s *server) wantedSockets(p *plan) (wants []sockets.Want) {
	for _, l := range p.cfg.Listeners {
		wants = append(wants, sockets.Want{Owner: ownerName(l.Name), Network: l.Network, Address: l.Address})
	}
	for _, w := range s.wantedPorts(p) {
		if w.address != "" {
			wants = append(wants, sockets.Want{Owner: w.name, Network: w.network, Address: w.address})
		}
	}
	return wants
}

// ownerName returns the key of a listener in the configuration, by which it owns its socket.
func ownerName(listener string) string { return "listeners." + listener }

// abandon closes the sockets and files that prepare opened.
func (p *plan) abandon(s *server) {
	if p.sockets != nil {
		p.sockets.Abandon()
	}
	p.lines.closeUnless(s.lines.Load())
}

// adopt makes the plan the configuration in effect. No step of adopt can fail.
func (s *server) adopt(p *plan) {
	s.adoptCertificates(p)
	setLevel(s.level, p.cfg.Log)
	defer s.lines.Swap(p.lines).closeUnless(p.lines)
	if p.lines != nil {
		s.proxy.SetLog(s.logRecord)
	} else {
		s.proxy.SetLog(nil)
	}
	s.limits.Set(p.cfg.Limits)
	s.proxy.SetLimits(http1.Limits{HeadBytes: p.cfg.Limits.HeadBytes, Fields: p.cfg.Limits.HeadFields})
	s.proxy.SetLoop(p.cfg.Limits.Loop)
	policy.AdmitSHA1(policy.WantsSHA1(p.cfg.TLSPolicies, p.cfg.Backends))
	if k := p.cfg.Kubernetes; k != nil {
		s.proxy.Metrics.SetLimit(k.Metrics.Routes)
		s.shown.SetLimit(k.Metrics)
		s.expiries.SetLimit(k.Metrics.CertificateNames)
	}
	orphans := s.proxy.Swap(p.table)
	s.node.SetRequireLocal(requireLocal(p.cfg))
	s.ofFile = p.ofFile
	s.effect.Store(&inEffect{p.file, p.cfg}) // before a port can serve a request for it
	s.access.Store(p.access)
	s.limitMemory()
	s.adoptObjects(p)
	p.sockets.Commit()
	s.adoptListeners(p)
	s.adoptPorts(p)
	s.backends.SetOwn(s.sockets.Addresses())
	s.handshakes.Retain(func(l, name string) bool {
		_, known := p.policies[name]
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
}

func requireLocal(cfg *config.Config) []string {
	if cfg.Health == nil {
		return nil
	}
	return cfg.Health.RequireLocal
}

// adoptListeners starts new listeners, updates those that stay, and closes removed
// listeners. It closes old listeners after the new ones have started.
func (s *server) adoptListeners(p *plan) {
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
	// The next configuration may use the address again, so wait until it is free.
	var closing sync.WaitGroup
	for name, old := range s.listeners {
		closing.Go(func() { old.Close() })
		if keep[name] == nil {
			s.lm.Forget(name)
		}
	}
	closing.Wait()
	s.listeners = keep
}

func (s *server) serveListener(l *listener.Listener) {
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
func (s *server) endpointGone(_ *backend.Endpoint, tunnels []conn.Linked) { s.tunnelsGone(tunnels) }

// tunnelsGone drains tunnels, with the timeout of the configuration in effect.
func (s *server) tunnelsGone(tunnels []conn.Linked) {
	after := 2 * time.Minute
	if cfg := s.configInEffect(); cfg != nil {
		after = cfg.Drain.Timeout
	}
	s.retire(tunnels, after)
}

// retire gives tunnels without a route or endpoint time to end, and then cuts them.
func (s *server) retire(tunnels []conn.Linked, after time.Duration) {
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
func (s *server) close() {
	s.stop()
	if c := s.current(); c != nil {
		c.leave()
	}
	s.closePorts()
	s.acme.Close()
	if s.shared.storage != nil {
		s.shared.storage.close()
	}
	s.checks.Close()
	s.backends.Close()
	if a := s.lines.Load(); a != nil {
		a.file.close()
	}
}
