package acme

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/weirproxy/weir/config"
)

// demand obtains certificates for names that clients request. Any client can request any
// name. So weir limits the work that handshakes cause: in number, in time and, if no ask
// URL decides which names are allowed, per hour.
type demand struct {
	a               *authority
	settings        config.OnDemand
	exact, wildcard map[string]bool // of settings.Hosts; both nil: any name
	asker           *asker          // nil: the patterns alone decide
	slots           chan struct{}   // holds one element for each certificate in progress
	budget          budget

	mu    sync.Mutex
	told  time.Time // time of the last event about a refusal
	names map[string]*wanted
	busy  int // number of names in their first check
}

const (
	maxWanted = 10000 // names in memory for each authority; weir finds others in the storage again
	maxBusy   = 256   // limit of names in their first check at the same time
	// unused is the time after the last handshake for a name after which weir stops
	// renewing its certificate.
	unused = 3 * 24 * time.Hour
	// refusedFor is the minimum time before weir tries again after a failure for a name.
	refusedFor = 10 * time.Second
)

// wanted is a name that a client requested.
type wanted struct {
	*keeper
	used   atomic.Int64  // last request of a client, in Unix seconds
	served chan struct{} // closed when there is a certificate
	first  sync.Once     // closes served

	// Guarded by demand.mu. Each first check of the name replaces them.
	done  chan struct{} // closed when the first check ends
	until time.Time     // without a certificate: no attempt before
	err   error         // error of the first check
}

func newDemand(a *authority, c *config.OnDemand) *demand {
	d := &demand{a: a, settings: *c, slots: make(chan struct{}, max(1, c.Concurrent)), names: make(map[string]*wanted)}
	if len(c.Hosts) > 0 {
		d.exact, d.wildcard = make(map[string]bool), make(map[string]bool)
	}
	for _, h := range c.Hosts {
		if parent, ok := strings.CutPrefix(nameOf(h), "*."); ok {
			d.wildcard[parent] = true
		} else {
			d.exact[nameOf(h)] = true
		}
	}
	if c.Ask != "" {
		d.asker = newAsker(c.Ask)
	}
	return d
}

// matches reports whether a client may request a certificate for a name. It decides
// without a query to the ask endpoint.
func (d *demand) matches(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil || strings.HasPrefix(name, "*") || !certmagic.SubjectQualifiesForCert(name) {
		return false
	}
	_, parent, _ := strings.Cut(name, ".")
	return d.exact == nil || d.exact[name] || parent != "" && d.wildcard[parent]
}

var (
	errNotAllowed = errors.New("on_demand allows no certificate for the name")
	errTooMany    = errors.New("too many certificates are being requested at the same time (on_demand.concurrent)")
	errSpent      = errors.New("too many certificates for new names were requested in the last hour")
	errLate       = errors.New("issuance continues in the background")
)

// Demand returns the certificate for a name that clients may request, and waits for it as
// long as the entry allows. Without a certificate it returns the reason, or nil and nil
// if the entry allows no certificate for the name.
func (e *Entry) Demand(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	d, name := e.a.demand, nameOf(h.ServerName)
	if d == nil || !d.matches(name) {
		return nil, nil
	}
	w, done, err := d.want(name)
	if err != nil {
		return nil, hide(err)
	}
	if c := w.certificate(); c != nil && time.Now().Before(c.Leaf.NotAfter) {
		return c, nil
	}
	timer := time.NewTimer(d.settings.Timeout)
	defer timer.Stop()
	served := w.served
	for {
		select {
		case <-served:
			served = nil
		case <-done:
			return w.outcome()
		case <-timer.C:
			return nil, fmt.Errorf("the certificate was not issued within %v (on_demand.timeout): %w", d.settings.Timeout, errLate)
		case <-h.Context().Done():
			return nil, h.Context().Err()
		case <-d.a.ctx.Done():
			return nil, errRetired
		}
		if c := w.certificate(); c != nil && time.Now().Before(c.Leaf.NotAfter) {
			return c, nil
		}
	}
}

// hide returns nil for errNotAllowed: a refusal by the ask URL is not reported as an
// error.
func hide(err error) error {
	if errors.Is(err, errNotAllowed) {
		return nil
	}
	return err
}

// outcome returns the result of the first check of a name. It returns even an expired
// certificate, because the client decides whether to accept it.
func (w *wanted) outcome() (*tls.Certificate, error) {
	if c := w.certificate(); c != nil {
		return c, nil
	}
	d := w.a.demand
	d.mu.Lock()
	defer d.mu.Unlock()
	return nil, hide(w.err)
}

// want returns the entry of a name. It starts a first check if there is none, or if an
// earlier one failed long enough ago. done is closed when the first check ends.
func (d *demand) want(name string) (w *wanted, done <-chan struct{}, err error) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	w = d.names[name]
	switch {
	case d.a.ctx.Err() != nil:
		return nil, nil, errRetired
	case w != nil && w.certificate() == nil && w.isDone() && now.Before(w.until):
		return nil, nil, w.err
	case w != nil && (w.certificate() != nil || !w.isDone()):
		w.used.Store(now.Unix())
		return w, w.done, nil
	case d.busy >= maxBusy:
		return nil, nil, errTooMany
	case w == nil:
		d.makeRoom()
		w = &wanted{keeper: newKeeper(d.a, name), served: make(chan struct{})}
		w.demand = w
		d.names[name] = w
	}
	w.used.Store(now.Unix())
	w.done, w.err = make(chan struct{}), nil
	d.busy++
	d.a.work.Go(func() { w.run(d) })
	return w, w.done, nil
}

// end cancels the authority's context under the lock. So each first check either has begun
// before, or never begins: a caller that waits for a.work afterwards waits for all of
// them.
func (d *demand) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.a.stop()
}

func (w *wanted) isDone() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// makeRoom removes one name if there are too many: one without a certificate, if it finds
// one quickly, else any name whose first check has ended. The certificate stays in the
// storage.
func (d *demand) makeRoom() {
	if len(d.names) < maxWanted {
		return
	}
	var victim *wanted
	seen := 0
	for _, w := range d.names {
		if !w.isDone() {
			continue
		}
		victim = w
		if seen++; w.certificate() == nil || seen > 50 {
			break
		}
	}
	if victim != nil {
		delete(d.names, victim.name)
		if victim.cancel != nil {
			victim.cancel()
		}
	}
}

// run makes the first check of a name. If the name then has a certificate, run renews it
// for as long as clients request it.
func (w *wanted) run(d *demand) {
	ctx, cancel := context.WithCancel(d.a.ctx)
	defer cancel()
	d.mu.Lock()
	w.cancel = cancel
	d.mu.Unlock()
	pause, err := w.firstCheck(ctx, d)
	d.mu.Lock()
	d.busy--
	w.err, w.until = err, time.Now().Add(max(pause, refusedFor))
	close(w.done)
	d.mu.Unlock()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for w.certificate() != nil {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.wake:
		}
		if time.Since(time.Unix(w.used.Load(), 0)) > unused {
			d.forget(w)
			return
		}
		timer.Reset(w.check(ctx))
	}
}

func (d *demand) forget(w *wanted) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[w.name] == w {
		delete(d.names, w.name)
	}
}

func (w *wanted) firstCheck(ctx context.Context, d *demand) (time.Duration, error) {
	if err := d.allowed(ctx, w.keeper); err != nil {
		return 0, err
	}
	w.lastErr = nil
	pause := w.check(ctx)
	if w.certificate() == nil && w.lastErr == nil {
		return pause, errors.New("no certificate was issued")
	}
	return pause, w.lastErr
}

// allowed returns nil if weir may obtain a certificate for the name, else the reason.
func (d *demand) allowed(ctx context.Context, k *keeper) error {
	if d.asker == nil {
		return nil
	}
	ok, news, err := d.asker.ask(ctx, k.name)
	switch {
	case err != nil && news && ctx.Err() == nil:
		k.tell(Event{Kind: AskError, Err: err})
		fallthrough
	case err != nil:
		return err
	case !ok:
		return errNotAllowed
	}
	return nil
}

// enter takes a slot before weir asks the authority. The caller must call release
// afterwards. A renewal asks again whether the name is allowed, and waits for a slot. A
// new name fails at once if no slot is free, or if the budget is spent.
func (d *demand) enter(ctx context.Context, k *keeper, renewal bool) (release func(), err error) {
	if renewal {
		if err := d.allowed(ctx, k); err != nil {
			return nil, err
		}
		select {
		case d.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return func() { <-d.slots }, nil
	}
	select {
	case d.slots <- struct{}{}:
	default:
		d.refuse(k, errTooMany)
		return nil, errTooMany
	}
	if d.asker == nil && !d.budget.take(time.Now()) {
		<-d.slots
		d.refuse(k, errSpent)
		return nil, errSpent
	}
	return func() { <-d.slots }, nil
}

// refuse reports that a limit was reached, at most once a minute.
func (d *demand) refuse(k *keeper, err error) {
	d.mu.Lock()
	news := time.Since(d.told) > time.Minute
	if news {
		d.told = time.Now()
	}
	d.mu.Unlock()
	if news {
		k.tell(Event{Kind: Refused, Err: err})
	}
}

// demanded returns the certificates in memory that clients requested.
func (a *authority) demanded() (all []*tls.Certificate) {
	if a.demand == nil {
		return nil
	}
	a.demand.mu.Lock()
	defer a.demand.mu.Unlock()
	for _, w := range a.demand.names {
		if c := w.certificate(); c != nil {
			all = append(all, c)
		}
	}
	return all
}

func (a *authority) replaceDemanded(leaf *x509.Certificate) {
	if a.demand == nil {
		return
	}
	a.demand.mu.Lock()
	defer a.demand.mu.Unlock()
	for _, w := range a.demand.names {
		w.replace(leaf)
	}
}

// budget limits the new names per hour if patterns alone decide which names are allowed,
// because strangers can invent any number of names. The limit is far below the limit of
// authorities for an account, so that renewals are never refused for it.
type budget struct {
	mu   sync.Mutex
	left float64
	at   time.Time // zero: never used, and full
}

const perHour = 60

func (b *budget) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at.IsZero() {
		b.left = perHour
	} else {
		b.left = min(perHour, b.left+now.Sub(b.at).Hours()*perHour)
	}
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
