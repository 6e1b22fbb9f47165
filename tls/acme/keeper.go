package acme

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
)

// keeper manages the certificate of one name: it loads the certificate from the storage,
// requests one if the storage has none, and renews it when it is due.
type keeper struct {
	a       *authority
	name    string
	current atomic.Pointer[held]
	revoked atomic.Pointer[x509.Certificate] // to be replaced although it is not due
	wake    chan struct{}                    // holds one element after a call of replace
	cancel  context.CancelFunc
	demand  *wanted // nil: the name is listed

	// Only the keeper's goroutine uses the following fields.
	storageErrors int       // consecutive errors of the storage
	checked       bool      // the storage was read since the start
	told          time.Time // end of the last wait that an event reported
	nextInfo      time.Time // earliest time to ask for renewal information
	lastErr       error     // of the last attempt; nil: it succeeded
}

// held is a certificate that weir serves. It does not change.
type held struct {
	certmagic.Certificate // includes the renewal information from the storage
	info                  acme.RenewalInfo
}

const (
	// leastPause and mostPause limit the time between two checks of a good certificate.
	leastPause = time.Second
	mostPause  = 10 * time.Minute
	// storageTimeout limits the time of one read from the storage.
	storageTimeout = 30 * time.Second
)

func newKeeper(a *authority, name string) *keeper {
	return &keeper{a: a, name: name, wake: make(chan struct{}, 1)}
}

// start runs the keeper until ctx ends or stop is called.
func (k *keeper) start(ctx context.Context) {
	ctx, k.cancel = context.WithCancel(ctx)
	k.a.work.Go(func() { k.run(ctx) })
}

func (k *keeper) stop() { k.cancel() }

// serve makes h the served certificate. It ignores a nil h.
func (k *keeper) serve(h *held) {
	if h == nil {
		return
	}
	k.current.Store(h)
	if k.demand != nil {
		k.demand.first.Do(func() { close(k.demand.served) })
	}
}

func (k *keeper) certificate() *tls.Certificate {
	if h := k.current.Load(); h != nil {
		return &h.Certificate.Certificate
	}
	return nil
}

func (k *keeper) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-k.wake:
		}
		timer.Reset(k.check(ctx))
	}
}

// check does the work that is due now. It returns the pause before the next check.
func (k *keeper) check(ctx context.Context) time.Duration {
	e, err := k.a.open()
	if err != nil {
		return k.storageFailed(ctx, err)
	}
	h := k.current.Load()
	if h == nil || !k.checked || k.isRevoked(h) || h.NeedsRenewal(e.config) || k.wantsInfo(h) {
		var news bool
		if h, news, err = k.load(ctx, e); news {
			k.tell(Event{Kind: Found})
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return k.attempt(ctx, e, nil, false)
	case errors.Is(err, errUnusable):
		return k.attempt(ctx, e, h, true)
	case err != nil:
		return k.storageFailed(ctx, err)
	case k.isRevoked(h):
		return k.attempt(ctx, e, h, true)
	case h.NeedsRenewal(e.config):
		return k.attempt(ctx, e, h, false)
	case k.wantsInfo(h):
		if newer, err := k.refreshInfo(ctx, e, h); err == nil { // on an error, weir serves h until the next check
			h = newer
		}
		if h.NeedsRenewal(e.config) {
			return k.attempt(ctx, e, h, false)
		}
	}
	return k.pause(h)
}

func (k *keeper) isRevoked(h *held) bool {
	r := k.revoked.Load()
	return r != nil && r.Equal(h.Leaf)
}

// replace makes the keeper replace its certificate at once, if leaf is that certificate.
func (k *keeper) replace(leaf *x509.Certificate) {
	if c := k.certificate(); c == nil || !c.Leaf.Equal(leaf) {
		return
	}
	k.revoked.Store(leaf)
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// pause returns the time until the next check of a good certificate. It is shorter for a
// short-lived one.
func (k *keeper) pause(h *held) time.Duration {
	return min(max(h.Lifetime()/50, leastPause), mostPause)
}

// errUnusable is the error of load if the certificate cannot be used with the key beside
// it, for example after a crash between two writes.
var errUnusable = errors.New("the certificate in the storage cannot be used")

// load reads the certificate from the storage and serves it. news reports whether weir
// served another certificate before, or none.
func (k *keeper) load(ctx context.Context, e *engine) (h *held, news bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	c, err := e.config.CacheManagedCertificate(ctx, k.name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && k.readable(ctx, e) {
			return k.current.Load(), false, fmt.Errorf("%w: %w", errUnusable, err)
		}
		return nil, false, err
	}
	e.cache.Remove([]string{c.Hash()})
	h = &held{Certificate: c}
	if m, err := k.loadMeta(ctx, e); err == nil && m.RenewalInfo != nil {
		h.info = *m.RenewalInfo
	}
	before := k.current.Load()
	if news = before == nil || before.Hash() != h.Hash(); !news {
		h.Certificate.Certificate = before.Certificate.Certificate // same leaf pointer: OCSP staples are found by it
	}
	k.serve(h)
	k.checked, k.storageErrors = true, 0
	k.a.storageDown.Store(false)
	return h, news, nil
}

// readable reports whether the parts of the certificate can be read.
func (k *keeper) readable(ctx context.Context, e *engine) bool {
	for _, key := range []string{certmagic.StorageKeys.SiteCert(e.issuer.IssuerKey(), k.name),
		certmagic.StorageKeys.SitePrivateKey(e.issuer.IssuerKey(), k.name)} {
		if _, err := e.config.Storage.Load(ctx, key); err != nil {
			return false
		}
	}
	return true
}

// storageFailed reports a storage that does not work, once for all names until the storage
// works again. It returns the pause before the next check.
func (k *keeper) storageFailed(ctx context.Context, err error) time.Duration {
	k.lastErr = err
	if ctx.Err() != nil || errors.Is(err, errRetired) {
		return mostPause
	}
	wait := jitter(min(time.Second<<min(k.storageErrors, 10), time.Minute))
	k.storageErrors++
	if k.a.storageDown.CompareAndSwap(false, true) {
		k.tell(Event{Kind: StorageError, Err: err, Next: time.Now().Add(wait)})
	}
	return wait
}

// jitter lengthens d by up to an eighth, so that many names or replicas do not try at the
// same instant.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration(rand.Int64N(int64(d)/8+1))
}

// tell completes e and passes it to Notify.
func (k *keeper) tell(e Event) {
	e.Name, e.Directory, e.OnDemand = k.name, k.a.settings.Directory, k.demand != nil
	if h := k.current.Load(); h != nil {
		e.NotAfter = h.Leaf.NotAfter
	}
	k.a.m.Notify(e)
}

// attempt tries once to obtain the certificate, or to renew old if that is not nil. It
// returns the pause before the next check. With force, it also renews a certificate that
// is not due.
func (k *keeper) attempt(ctx context.Context, e *engine, old *held, force bool) time.Duration {
	if later := k.a.tooEarly(ctx, e, k.name); later != nil {
		return k.wait(later)
	}
	release, err := k.enter(ctx, old != nil)
	switch {
	case ctx.Err() != nil:
		return mostPause
	case err != nil:
		k.lastErr = err
		return time.Minute
	}
	defer release()
	if !k.a.m.reserve(ctx, k.name) {
		return mostPause
	}
	defer k.a.m.release(k.name)
	t := &try{keeper: k, engine: e, old: old, force: force}
	err = t.make(ctx)
	t.heard(ctx)
	k.lastErr = err
	var later *laterError
	switch {
	case ctx.Err() != nil:
		return mostPause
	case errors.As(err, &later):
		return k.wait(later)
	case errors.Is(err, errReplaced): // weir loads the new certificate below
	case errors.Is(err, errUnanswered): // the other attempt reports its error
		return jitter(time.Minute)
	case err != nil && t.asked:
		k.a.m.Metrics.failed.Inc()
		k.tell(Event{Kind: Failed, Err: t.cause(err), Next: t.record.Next})
		k.told = t.record.Next
		return k.wait(&laterError{t.record.Next, t.record.Error})
	case err != nil:
		return k.storageFailed(ctx, err)
	}
	h, news, err := k.load(ctx, e)
	switch {
	case t.got && old == nil:
		k.a.m.Metrics.obtained.Inc()
		k.tell(Event{Kind: Obtained})
	case t.got:
		k.a.m.Metrics.renewed.Inc()
		k.tell(Event{Kind: Renewed})
	case news:
		k.tell(Event{Kind: Found})
	}
	if err != nil {
		return k.storageFailed(ctx, err)
	}
	return k.pause(h)
}

// enter waits for a free slot to ask the authority. The caller must call release
// afterwards. Names on demand have their own limits, so that listed names do not wait for
// them.
func (k *keeper) enter(ctx context.Context, renewal bool) (release func(), err error) {
	if k.demand != nil {
		return k.a.demand.enter(ctx, k, renewal)
	}
	select {
	case k.a.slots <- struct{}{}:
		return func() { <-k.a.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// wait reports that the next attempt is later, because an earlier attempt of this process
// or of another process failed. It returns the pause before the next check of the storage.
// The pause is shorter than the wait, because another process may obtain the certificate
// meanwhile. After the first failures the pause is only seconds, so that replicas that
// start together serve together.
func (k *keeper) wait(later *laterError) time.Duration {
	k.lastErr = later
	if !later.until.Equal(k.told) {
		k.told = later.until
		e := Event{Kind: Waiting, Next: later.until}
		if later.why != "" {
			e.Err = errors.New(later.why)
		}
		k.tell(e)
	}
	return jitter(min(max(time.Until(later.until)/12, leastPause), time.Minute))
}
