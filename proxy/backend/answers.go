package backend

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/weirproxy/weir/config"
)

// How long Resolve should wait for name servers.
const (
	// FilePatience is for the backends of a file. It is long enough that a reload to a new
	// name causes no 503, and short enough that weir starts without a working name server.
	FilePatience = 2 * time.Second
	// ObjectPatience is for the backends of a cluster: a name that does not resolve must not
	// delay the objects of other tenants.
	ObjectPatience = 200 * time.Millisecond
)

// Answers are look-ups of host names, ended or running. A nil *Answers has no look-ups.
// Answers are not safe for concurrent use.
type Answers struct{ byHost map[string]*lookup }

// lookup is one look-up of a host name.
type lookup struct {
	done  chan struct{} // closed after addrs and err were set
	addrs []netip.Addr
	err   error
}

// beginLookup starts a look-up. It ends with ctx, or after lookupTimeout.
func beginLookup(ctx context.Context, resolve func(context.Context, string) ([]netip.Addr, error), host string) *lookup {
	l := &lookup{done: make(chan struct{})}
	go func() {
		defer close(l.done)
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		l.addrs, l.err = resolve(ctx, host)
	}()
	return l
}

// wait returns the result, which the caller may change.
func (l *lookup) wait(ctx context.Context) ([]netip.Addr, error) {
	select {
	case <-l.done:
		return slices.Clone(l.addrs), l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ended reports whether the look-up has ended; false for nil.
func (l *lookup) ended() bool {
	if l == nil {
		return false
	}
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (a *Answers) lookup(host string) *lookup {
	if a == nil {
		return nil
	}
	return a.byHost[host]
}

// Resolve looks up the host names of backends that the set does not resolve yet. It waits
// until all look-ups that it began have ended, but no longer than patience. It holds no lock
// while it waits. The result also has the look-ups of before for these hosts; before may be
// nil.
func (s *Set) Resolve(backends []*config.Backend, patience time.Duration, before *Answers) *Answers {
	a := &Answers{byHost: make(map[string]*lookup)}
	var begun []*lookup
	d := config.Differ(s.state.Load().list, backends, nameOf)
	for _, i := range d.Added { // the names of the others are resolved already
		b := s.Backend(backends[i].Name)
		for _, e := range backends[i].Endpoints {
			host, _ := splitHost(e.Address)
			if _, err := netip.ParseAddr(host); host == "" || err == nil || a.byHost[host] != nil || b.resolves(e) {
				continue
			}
			l := before.lookup(host)
			if l == nil {
				l = beginLookup(s.life, s.opts.Lookup, host)
				begun = append(begun, l)
			}
			a.byHost[host] = l
		}
	}
	if len(begun) == 0 {
		return a
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for _, l := range begun {
		select {
		case <-l.done:
		case <-timeout.C:
			return a
		}
	}
	return a
}

// resolves reports whether the backend already resolves the host of e; false for nil.
func (b *Backend) resolves(e config.Endpoint) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.names[e.Address]
	return n != nil && n.foreign == e.Foreign
}
