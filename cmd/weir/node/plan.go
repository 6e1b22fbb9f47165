package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener"
	"github.com/weirproxy/weir/listener/sockets"
	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/tls/acme"
	"github.com/weirproxy/weir/tls/certs"
	"github.com/weirproxy/weir/tls/policy"
)

// This file makes plans. Nothing in it holds the lock change while it reads files, asks
// others or opens sockets: updates of a cluster's endpoints need that lock. commit takes
// it, and puts a plan into effect.

// plan is a configuration that is ready to take effect: all steps that can fail are done.
type plan struct {
	file, cfg *config.Config // cfg is file with the objects of the cluster
	objects   *objects       // of the cluster; nil: none
	adopted   *objects       // in effect when the plan was begun; nil: none, or the plan is not for the same file
	again     bool           // file is already in effect, and weir does not process it again
	owned     policies       // of objects
	answers   *backend.Answers
	files     *certs.Files // of file; nil if again
	lines     *accessLog   // of file; nil if again
	ofFile

	// Made by prepare.
	changes      uint64      // server.changes when the plan was begun
	managed      *acme.Plan  // certificates from authorities; nil: those in effect stay
	certificates *certs.Plan // nil: those in effect stay
	headers      map[string]*listener.Policy
	sockets      *sockets.Plan
	backends     *backend.Plan
	filters      *filter.SharedPlan
	table        *proxy.Table
}

// ofFile is the part of a plan that depends on the file alone.
type ofFile struct {
	ech      []tls.EncryptedClientHelloKey
	policies map[string]*policy.Policy
	crls     *policy.CRLPlan
	access   *access // rules of the admin port
}

// ahead is the part of a plan that is made before the other parts. It needs only the file,
// and it waits for the file system, for name servers and for the storage of ticket keys. It
// is made once, even if the plan is overtaken.
type ahead struct {
	ofFile
	files   *certs.Files
	lines   *accessLog
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
	defer func() { s.closeLines(a.lines, s.lines.Load()) }()
	shared := s.shareAhead(file)
	a.answers = s.backends.Resolve(file.AllBackends(), backend.FilePatience, nil)
	if err := s.applyAhead(file, a); err != nil {
		return err
	}
	s.awaitClosing()
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
		before.close()
	}
	return nil
}

// plan returns a plan without objects; the caller may add them.
func (a *ahead) plan(file *config.Config) *plan {
	return &plan{file: file, answers: a.answers, files: a.files, lines: a.lines, ofFile: a.ofFile}
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
	// The log is opened last, because no later error then has to close it.
	if a.lines, err = s.openAccessLog(file); err != nil {
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

// errEnded means that weir applies no configuration any more, or no objects of this
// cluster.
var errEnded = errors.New("weir is shutting down, or already serves other objects")

// errOvertaken means that another change took effect since the plan was begun. The plan was
// made for a state that is gone, so weir makes it again.
var errOvertaken = errors.New("another change took effect since the plan was begun")

// put prepares a plan and commits it. On an error nothing has changed.
func (s *server) put(p *plan) error {
	return s.putBy(p, func() error { return s.commit(p) })
}

// putBy is put with a function that commits the plan.
func (s *server) putBy(p *plan, commit func() error) error {
	for {
		err := s.prepare(p)
		if err == nil {
			err = commit()
		}
		if err != errOvertaken {
			return err
		}
	}
}

// prepare does the steps that can fail. After an error the plan is abandoned; otherwise the
// caller commits or abandons it. A plan that was abandoned may be prepared again.
func (s *server) prepare(p *plan) error {
	if err := s.beginPlan(p); err != nil {
		return err
	}
	if err := s.makeParts(p); err != nil {
		s.abandon(p)
		return err
	}
	return nil
}

// beginPlan notes the state for which the plan is made.
func (s *server) beginPlan(p *plan) error {
	s.change.Lock()
	defer s.change.Unlock()
	if s.ended {
		return errEnded
	}
	s.plans.Add(1)
	p.changes, p.owned = s.changes, s.owned
	p.managed, p.certificates, p.adopted = nil, nil, nil
	if p.again {
		p.ofFile = s.ofFile
		if s.cluster != nil {
			p.adopted = s.cluster.adopted
		}
	}
	return nil
}

func (s *server) makeParts(p *plan) (err error) {
	p.merge()
	if p.objects != nil {
		p.answers = s.backends.Resolve(p.cfg.AllBackends(), backend.ObjectPatience, p.answers)
	}
	if err := s.planCertificates(p); err != nil {
		return err
	}
	if err := s.planPolicies(p); err != nil {
		return err
	}
	p.headers = make(map[string]*listener.Policy)
	for _, c := range p.cfg.HeaderPolicies {
		p.headers[c.Name] = listener.NewPolicy(c)
	}
	planBackends := s.backends.Plan
	if p.again {
		planBackends = s.backends.PlanObjects
	}
	if p.backends, err = planBackends(p.cfg.AllBackends(), newNodeInfo(p.cfg), p.answers); err != nil {
		return err
	}
	if err := s.openSockets(p); err != nil { // after it cfg has no listener without a socket
		return err
	}
	servers := p.backends.Backends()
	if p.filters, err = s.filters.Plan(p.cfg, deciders(p.backends)); err != nil {
		return err
	}
	parts := proxy.Parts{Backends: servers, Shared: p.filters, Policies: p.allPolicies(), Metrics: s.proxy.Metrics, ECH: p.ech}
	if p.again { // the policies are the same
		parts.Before = s.proxy.Table()
	}
	p.table, err = proxy.NewTable(p.cfg, parts)
	return err
}

// deciders returns the backends of a plan by name, for the requests of guards.
func deciders(p *backend.Plan) func(name string) filter.Decider {
	return func(name string) filter.Decider {
		b, _ := p.Backends().Get(name)
		return b
	}
}

func newNodeInfo(cfg *config.Config) backend.NodeInfo {
	return backend.NodeInfo{Name: cfg.Node, Explicit: cfg.NodeExplicit, Zone: cfg.Zone}
}

// merge makes cfg of the file and the objects.
func (p *plan) merge() {
	p.cfg = p.file
	switch {
	case p.objects == nil:
		return
	case p.objects.known():
		p.cfg = p.objects.routing.MergeWith(p.file, p.objects.backends)
	default:
		p.cfg = p.objects.routing.Merge(p.file, nil)
	}
	p.objects.unbound = map[string]error{}
}

// openSockets opens the sockets that are not in effect yet. The error names all addresses
// that weir cannot listen on.
func (s *server) openSockets(p *plan) error {
	wants := s.wantedSockets(p)
	p.sockets = s.sockets.Plan(wants)
	if !p.sockets.Complete() { // a removed listener may still have the address
		p.sockets.Abandon()
		s.awaitClosing()
		p.sockets = s.sockets.Plan(wants)
	}
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
		if err := p.sockets.Err(w.name); err != nil && !w.optional(err) {
			errs = append(errs, fmt.Errorf("%s.address: %w", w.name, err))
		}
	}
	if errs = append(errs, p.sockets.Unowned()...); len(errs) > 0 {
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

// renew gives the plan the endpoints that the cluster has reported since it was prepared.
// Everything else of the objects must be unchanged.
func (p *plan) renew(backends []*config.Backend) {
	if !p.objects.known() || slices.Equal(backends, p.objects.backends) {
		return
	}
	unbound := p.objects.unbound
	p.objects.backends = backends
	p.merge()
	for name, err := range unbound {
		p.withoutListener(name, err)
	}
	p.backends.Renew(p.cfg.AllBackends())
}

// commit puts a prepared plan into effect. After an error the plan is abandoned, and nothing
// has changed.
func (s *server) commit(p *plan) error {
	if err := s.takeEffect(p); err != nil {
		s.abandon(p)
		return err
	}
	s.plans.Done()
	return nil
}

func (s *server) takeEffect(p *plan) error {
	s.change.Lock()
	defer s.change.Unlock()
	switch {
	case s.ended, p.again && p.objects.of != s.cluster:
		return errEnded
	case s.changes != p.changes:
		return errOvertaken
	}
	s.backends.SetOwn(s.sockets.Addresses()) // before backends get endpoints that may lead to these sockets
	if err := p.backends.Commit(); err != nil {
		return err
	}
	p.filters.Commit()
	if p.again {
		p.lines = s.lines.Load()
	} else {
		s.shareTickets(p.cfg)
		s.shareStickyKey(p.cfg)
	}
	s.adopt(p)
	s.filters.RequestKeys()
	return nil
}

// abandon closes the sockets that a plan opened.
func (s *server) abandon(p *plan) {
	if p.sockets != nil {
		p.sockets.Abandon()
		p.sockets = nil
		s.noteOwn()
	}
	s.plans.Done()
}

// noteOwn tells the backends on which addresses this process listens.
func (s *server) noteOwn() {
	s.change.Lock()
	defer s.change.Unlock()
	s.backends.SetOwn(s.sockets.Addresses())
}
