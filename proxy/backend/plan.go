package backend

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/weirproxy/weir/config"
)

// Plan is the backends of a configuration that is not in effect yet. Making it reads files
// and changes nothing; a Plan that is not wanted any more is dropped. Commit puts it into
// effect. Plans are not safe for concurrent use.
type Plan struct {
	set      *Set
	old      *map[string]*Backend // the backends in effect when the plan was made
	next     map[string]*Backend
	changes  []*change
	node     NodeInfo
	answers  *Answers
	objects  bool  // only objects of a cluster have changed
	unusable error // of SetEndpoints
}

// change is what a Plan or UpdateEndpoints changes about one backend.
type change struct {
	b     *Backend
	cfg   *config.Backend
	seen  *dialSettings // in effect when the plan was made
	dial  *dialSettings
	names map[string]*name
	fresh []*name // new names whose first look-up has ended
}

// Plan prepares the backends of a new configuration: it reads the files that they name. It
// takes no lock and waits for no name server; answers is the result of Resolve. A name
// without an answer gets its addresses later. The error names every invalid backend. The
// caller must not change the configuration afterwards.
func (s *Set) Plan(backends []*config.Backend, node NodeInfo, answers *Answers) (*Plan, error) {
	return s.plan(&Plan{node: node, answers: answers}, backends, newDialSettings)
}

// PlanObjects is Plan after changes in a cluster: it does not touch backends that are
// unchanged, and does not read the files of backends again if their TLS settings are
// unchanged.
func (s *Set) PlanObjects(backends []*config.Backend, node NodeInfo, answers *Answers) (*Plan, error) {
	return s.plan(&Plan{node: node, answers: answers, objects: true}, backends, func(cfg *config.Backend, before *dialSettings) (*dialSettings, error) {
		t := cfg.TLS
		if b := s.Backend(cfg.Name); before != nil && b != nil && reflect.DeepEqual(b.Settings().TLS, t) && t.CAFile+t.CertFile+t.KeyFile != "" && before.tls != nil {
			return before.withHosts(cfg)
		}
		return newDialSettings(cfg, before)
	})
}

// dialling makes the dial settings of a backend.
type dialling func(cfg *config.Backend, before *dialSettings) (*dialSettings, error)

// plan adds the backends to a new Plan.
func (s *Set) plan(p *Plan, backends []*config.Backend, dial dialling) (*Plan, error) {
	p.set, p.old = s, s.backends.Load()
	p.next, p.changes = make(map[string]*Backend, len(backends)), make([]*change, 0, len(backends))
	var problems []error
	for _, cfg := range backends {
		c := &change{b: (*p.old)[cfg.Name], cfg: cfg}
		if c.b != nil {
			c.seen = c.b.dialSettings()
		} else {
			c.b = newBackend(cfg.Name, &s.opts)
		}
		if err := c.prepare(dial, p.objects); err != nil {
			problems = append(problems, fmt.Errorf("backend %q: %w", cfg.Name, err))
		}
		p.next[cfg.Name] = c.b
		p.changes = append(p.changes, c)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return p, nil
}

// prepare makes the dial settings. After a change of objects, a backend with equal settings
// keeps those that it has.
func (c *change) prepare(dial dialling, objects bool) (err error) {
	if objects && c.seen != nil && c.b.Settings().Equal(c.cfg) {
		c.dial = c.seen
		return nil
	}
	if err := checkAddresses(c.cfg); err != nil {
		return err
	}
	c.dial, err = dial(c.cfg, c.seen)
	return err
}

// Backends returns the backends of the plan by name. New ones have no endpoints before
// Commit.
func (p *Plan) Backends() map[string]*Backend { return p.next }

// SetEndpoints gives backends of the plan the endpoints that they have got since the plan
// was made, by name. It ignores other names. The caller must not change the endpoints
// afterwards.
func (p *Plan) SetEndpoints(newer map[string][]config.Endpoint) {
	for _, c := range p.changes {
		endpoints, known := newer[c.cfg.Name]
		if !known {
			continue
		}
		cfg := *c.cfg // a copy: the configuration shares the original
		cfg.Endpoints = endpoints
		c.cfg = &cfg
		if err := checkAddresses(c.cfg); err != nil {
			p.unusable = errors.Join(p.unusable, fmt.Errorf("backend %q: %w", c.cfg.Name, err))
		}
	}
}

// Commit puts the plan into effect. Backends with the same name, and endpoints with the same
// address, keep their state. Commit waits for nothing and opens nothing. If it returns an
// error, nothing has changed: another plan was committed since this one was made, the Set is
// closed, or SetEndpoints got an invalid endpoint.
func (p *Plan) Commit() error {
	s := p.set
	s.mu.Lock()
	defer s.mu.Unlock()
	where := locality{node: p.node, addrs: s.opts.InterfaceAddrs(), zone: cmp.Or(p.node.Zone, s.zone)}
	if p.objects {
		p.changes = slices.DeleteFunc(p.changes, func(c *change) bool { return c.b.has(c.cfg, &where) })
	}
	if err := p.complete(); err != nil {
		return fmt.Errorf("updating the backends: %w", err)
	}
	for _, c := range p.changes {
		c.b.planNames(c, p.answers)
	}
	awaitAnswered(p.changes)
	for _, c := range p.changes {
		c.b.install(c, where)
	}
	s.backends.Store(&p.next)
	for name, b := range *p.old {
		if p.next[name] == nil {
			b.remove()
		}
	}
	return nil
}

// complete adds to the plan what UpdateEndpoints has changed since the plan was made. It is
// the last step that can fail. The caller holds Set.mu.
func (p *Plan) complete() error {
	switch {
	case p.set.closed:
		return errors.New("the set is closed")
	case p.unusable != nil:
		return p.unusable
	case p.set.backends.Load() != p.old:
		return errors.New("other backends took effect since the plan was made")
	}
	for _, c := range p.changes {
		if now := c.b.dialSettings(); now != c.seen && c.dial == c.seen {
			c.dial = now // only the hosts of endpoints differ
		}
		var err error
		if c.dial, err = c.dial.withHosts(c.cfg); err != nil {
			return fmt.Errorf("backend %q: %w", c.cfg.Name, err)
		}
	}
	return nil
}

// awaitAnswered waits until the existing answers have reached their backends. It does not
// wait for name servers.
func awaitAnswered(changes []*change) {
	for _, c := range changes {
		for _, n := range c.fresh {
			<-n.first
		}
	}
}
