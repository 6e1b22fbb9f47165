package filter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/jwt"
	"github.com/weirproxy/weir/proxy/message"
)

// The schedule of requests for keys from a URL.
const (
	keysEvery      = 5 * time.Minute  // after a success, with a jitter of 10 %
	keysRetryFirst = time.Second      // after the first failure; each further one doubles it
	keysRetryMost  = time.Minute      // the longest wait after a failure
	keysEarly      = 10 * time.Second // between the end of a request and an early one
)

// RemoteKeys is how Shared gets keys from URLs.
type RemoteKeys struct {
	// Get requests a target from a server and returns the body of a 200 response. It limits the
	// body and the time, and ends when ctx ends.
	Get func(ctx context.Context, server Decider, target string) ([]byte, error)
	// Tell is called when the keys of an entry change (err is nil), when they can no longer be
	// requested, and when they can be again (err is nil).
	Tell func(entry, url string, err error)
}

// keySource requests the keys of an entry in the background, from its start to its stop. The last
// good keys stay in use while requests fail.
type keySource struct {
	entry, url, target string
	server             Decider
	remote             *RemoteKeys

	keys      atomic.Pointer[jwt.Keys] // nil: there was no success yet
	failure   atomic.Pointer[error]    // of the last request; nil: it succeeded, or there was none
	refreshed atomic.Int64             // end of the last success, in seconds since 1970
	asked     atomic.Int64             // end of the last request, in nanoseconds since 1970
	early     chan struct{}            // a request for an early refresh
	stop      context.CancelFunc       // set by start
}

var errNotAsked = errors.New("the keys have not been requested yet")

func newKeySource(c *config.Auth, server Decider, remote *RemoteKeys) (*keySource, error) {
	_, target, err := config.BackendOfURL("", c.JWT.Keys)
	if err != nil {
		return nil, fmt.Errorf("auth.%s: jwt.keys %w", c.Name, err)
	}
	k := &keySource{entry: c.Name, url: c.JWT.Keys, target: target, server: server, remote: remote, early: make(chan struct{}, 1)}
	k.failure.Store(&errNotAsked)
	return k, nil
}

// run requests the keys at once, and then again and again until ctx ends.
func (k *keySource) run(ctx context.Context) {
	retry := keysRetryFirst
	for {
		err := k.refresh(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := time.Duration(float64(keysEvery) * (0.9 + 0.2*rand.Float64()))
		if err == nil {
			retry = keysRetryFirst
		} else {
			wait, retry = retry, min(2*retry, keysRetryMost)
		}
		if !k.await(ctx, wait) {
			return
		}
	}
}

// await waits for the next request. It returns false if ctx ends before.
func (k *keySource) await(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-k.early:
			if k.mayAskEarly() { // it may be from before the last request
				return true
			}
		}
	}
}

// refresh requests the keys once.
func (k *keySource) refresh(ctx context.Context) error {
	keys, err := k.request(ctx)
	if ctx.Err() != nil {
		return err
	}
	now := time.Now()
	k.asked.Store(now.UnixNano())
	before, failure := k.keys.Load(), k.failure.Load()
	if err != nil {
		k.failure.Store(&err)
		if failure == nil || failure == &errNotAsked {
			k.remote.Tell(k.entry, k.url, err)
		}
		return err
	}
	k.refreshed.Store(now.Unix())
	changed := before == nil || !before.Equal(keys)
	if changed {
		k.keys.Store(keys)
	}
	if k.failure.Store(nil); changed || failure != nil {
		k.remote.Tell(k.entry, k.url, nil)
	}
	return nil
}

func (k *keySource) request(ctx context.Context) (*jwt.Keys, error) {
	data, err := k.remote.Get(ctx, k.server, k.target)
	if err != nil {
		return nil, err
	}
	keys, err := jwt.ParseKeys(data)
	if err != nil {
		return nil, fmt.Errorf("the document %w", err)
	}
	return keys, nil
}

func (k *keySource) mayAskEarly() bool {
	return time.Now().UnixNano()-k.asked.Load() >= int64(keysEarly)
}

// askEarly asks for a refresh before its time, because a token names a key that the set does not have.
// Strangers choose these names, so most calls do nothing.
func (k *keySource) askEarly() {
	if !k.mayAskEarly() {
		return
	}
	select {
	case k.early <- struct{}{}:
	default:
	}
}

// remoteBearer authenticates requests by signed tokens whose keys come from a URL.
type remoteBearer struct {
	realm    string
	settings config.JWTAuth
	source   *keySource
	checks   *checks
	current  atomic.Pointer[bearer] // for the newest keys that a request needed
}

var refuseWithoutKeys = &message.Refusal{Status: http.StatusServiceUnavailable, Reason: "auth_no_keys",
	Detail: "tokens cannot be checked yet; try again", Hint: "the keys that verify them are not there yet"}

// hidesCredentials returns false, as for keys from a file.
func (b *remoteBearer) hidesCredentials() bool { return false }

// authenticate finds the claims of the request's token. It never waits for keys.
func (b *remoteBearer) authenticate(x Exchange) *Identity {
	keys := b.source.keys.Load()
	if keys == nil {
		err := errNotAsked
		if failure := b.source.failure.Load(); failure != nil {
			err = *failure
		}
		x.GuardFailed(authGuard, refuseWithoutKeys, fmt.Errorf("%s: %w", b.source.url, err))
		return nil
	}
	return b.bearerFor(keys).authenticate(x)
}

// bearerFor returns the authenticator for these keys. Other keys make it forget all tokens.
func (b *remoteBearer) bearerFor(keys *jwt.Keys) *bearer {
	current := b.current.Load()
	if current != nil && current.keys == keys {
		return current
	}
	next := makeBearer(b.realm, b.settings, [32]byte{}, keys, b.checks)
	next.missing = b.source.askEarly
	if b.current.CompareAndSwap(current, next) {
		return next
	}
	if other := b.current.Load(); other.keys == keys { // another request was first
		return other
	}
	return next
}

// newRemoteBearer makes the authenticator of an entry whose keys come from a URL. It keeps the keys
// of the one before, if the URL is the same.
func (s *Shared) newRemoteBearer(c *config.Auth, before authenticator, server Decider) (authenticator, error) {
	if b, is := before.(*remoteBearer); is && b.source.url == c.JWT.Keys && b.source.server == server {
		if reflect.DeepEqual(b.settings, *c.JWT) {
			return b, nil
		}
		return &remoteBearer{realm: c.Name, settings: *c.JWT, source: b.source, checks: s.tokens}, nil
	}
	source, err := newKeySource(c, server, &s.RemoteKeys)
	if err != nil {
		return nil, err
	}
	return &remoteBearer{realm: c.Name, settings: *c.JWT, source: source, checks: s.tokens}, nil
}

// RequestKeys begins to request the keys of the entries in effect whose keys have a URL, and ends the
// requests for all others. It does not wait for them. It is called after each Commit, when weir can
// send requests: Commit comes before the first table.
func (s *Shared) RequestKeys() {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.sources
	s.sources = make(map[*keySource]struct{})
	for _, e := range s.auth {
		b, is := e.authenticator().(*remoteBearer)
		if !is || s.closed {
			continue
		}
		k := b.source
		if s.sources[k] = struct{}{}; k.stop == nil {
			ctx, stop := context.WithCancel(context.Background())
			k.stop = stop
			s.running.Go(func() { k.run(ctx) })
		}
	}
	for k := range before {
		if _, stays := s.sources[k]; !stays {
			k.stop()
		}
	}
}

// Close stops all requests for keys, and waits for their end. No plan takes effect afterwards.
func (s *Shared) Close() {
	s.mu.Lock()
	s.closed = true
	for k := range s.sources {
		k.stop()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// HasKeys returns whether the keys of an entry of auth have come, for each entry in effect whose keys have
// a URL.
func (s *Shared) HasKeys() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]bool)
	for k := range s.sources {
		all[k.entry] = k.keys.Load() != nil
	}
	return all
}
