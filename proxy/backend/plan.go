package backend

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/overlay"
)

// Plan is the backends of a configuration that is not in effect yet. Making it reads files
// and changes nothing; a Plan that is not wanted any more is dropped. Commit puts it into
// effect. Plans are not safe for concurrent use.
type Plan struct {
	set      *Set
	old      *inEffect // when the plan was made
	next     *overlay.Map[*Backend]
	list     []*config.Backend
	changes  []*change
	gone     []*Backend
	node     NodeInfo
	answers  *Answers
	dial     dialling
	objects  bool  // only objects of a cluster have changed
	unusable error // of Renew
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

// plan adds the backends to a new Plan. After a change of objects it looks only at the backends whose
// settings are not in effect yet.
func (s *Set) plan(p *Plan, backends []*config.Backend, dial dialling) (*Plan, error) {
	p.set, p.old, p.list, p.dial = s, s.state.Load(), backends, dial
	d := config.Differences{Gone: indexes(p.old.list), Added: indexes(backends)}
	if p.objects {
		d = config.Differ(p.old.list, backends, nameOf)
	}
	var problems []error
	var renamed []overlay.Change[*Backend]
	added := make(map[string]bool, len(d.Added))
	for _, j := range d.Added {
		cfg := backends[j]
		b, known := p.old.byName.Get(cfg.Name)
		if !known {
			b = newBackend(cfg.Name, &s.opts)
			renamed = append(renamed, overlay.Change[*Backend]{Key: cfg.Name, Value: b})
		}
		added[cfg.Name] = true
		if err := p.change(b, cfg); err != nil {
			problems = append(problems, fmt.Errorf("backend %q: %w", cfg.Name, err))
		}
	}
	for _, i := range d.Gone {
		if name := p.old.list[i].Name; !added[name] {
			b, _ := p.old.byName.Get(name)
			p.gone = append(p.gone, b)
			renamed = append(renamed, overlay.Change[*Backend]{Key: name, Gone: true})
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	p.next = p.old.byName.With(renamed...)
	return p, nil
}

func nameOf(b *config.Backend) string { return b.Name }

func indexes[T any](list []T) []int {
	all := make([]int, len(list))
	for i := range all {
		all[i] = i
	}
	return all
}

// change adds a change of a backend.
func (p *Plan) change(b *Backend, cfg *config.Backend) error {
	c := &change{b: b, cfg: cfg, seen: b.dialSettings()}
	if err := c.prepare(p.dial, p.objects); err != nil {
		return err
	}
	p.changes = append(p.changes, c)
	return nil
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
func (p *Plan) Backends() *overlay.Map[*Backend] { return p.next }

// Renew gives the plan newer settings of its backends, because UpdateEndpoints has changed them
// since the plan was made. Only their endpoints may differ. The caller must not change the
// settings afterwards.
func (p *Plan) Renew(backends []*config.Backend) {
	p.list = backends
	newer := make(map[string]*config.Backend, len(backends))
	for _, cfg := range backends {
		newer[cfg.Name] = cfg
	}
	for _, c := range p.changes {
		cfg := newer[c.cfg.Name]
		if cfg == nil || cfg == c.cfg {
			continue
		}
		c.cfg = cfg
		if err := checkAddresses(c.cfg); err != nil {
			p.unusable = errors.Join(p.unusable, fmt.Errorf("backend %q: %w", c.cfg.Name, err))
		}
	}
}

// Commit puts the plan into effect. Backends with the same name, and endpoints with the same
// address, keep their state. Commit waits for nothing and opens nothing. If it returns an
// error, nothing has changed: another plan was committed since this one was made, the Set is
// closed, or Renew got an invalid endpoint.
func (p *Plan) Commit() error {
	s := p.set
	s.mu.Lock()
	defer s.mu.Unlock()
	where := locality{node: p.node, addrs: s.opts.InterfaceAddrs(), zone: cmp.Or(p.node.Zone, s.zone)}
	if err := p.prune(&where); err != nil {
		return fmt.Errorf("updating the backends: %w", err)
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
	s.state.Store(&inEffect{p.next, p.list, where})
	for _, b := range p.gone {
		b.remove()
	}
	return nil
}

// prune removes the changes that change nothing. If this node has other addresses or another zone
// than before, every backend changes.
func (p *Plan) prune(where *locality) error {
	if !p.objects {
		return nil
	}
	if !p.old.where.equal(where) {
		changes := make(map[*Backend]bool, len(p.changes))
		for _, c := range p.changes {
			changes[c.b] = true
		}
		for _, b := range p.next.All() {
			if changes[b] {
				continue
			}
			if err := p.change(b, b.Settings()); err != nil {
				return fmt.Errorf("backend %q: %w", b.name, err)
			}
		}
	}
	p.changes = slices.DeleteFunc(p.changes, func(c *change) bool { return c.b.has(c.cfg, where) })
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
	case p.set.state.Load() != p.old:
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
