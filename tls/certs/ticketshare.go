package certs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
)

// KeyStorage is where replicas share session ticket keys (tls/storage fits). A
// method returns soon after its context ended, or it keeps the keys from being
// shared, and nothing else.
type KeyStorage interface {
	// Load fails with fs.ErrNotExist where nothing was stored.
	Load(ctx context.Context, key string) ([]byte, error)
	Store(ctx context.Context, key string, value []byte) error
	Delete(ctx context.Context, key string) error
	// List returns the keys one level below a path.
	List(ctx context.Context, path string, recursive bool) ([]string, error)
	Lock(ctx context.Context, name string) error
	Unlock(ctx context.Context, name string) error
}

const (
	// ticketFolder is where the objects of scopes are in a storage.
	ticketFolder = "tickets"
	// ticketRound is the time for one look at all scopes in the background.
	ticketRound = 30 * time.Second
	// ticketSweep is how often objects are looked for that nobody uses, those
	// whose newest key is older than ticketObjectLife.
	ticketSweep      = 12 * time.Hour
	ticketObjectLife = 7 * 24 * time.Hour
)

// sharing is what Tickets knows of its storage.
type sharing struct {
	storage KeyStorage    // nil: the keys stay in the process
	epoch   int           // counts the storages: what an earlier one says comes too late
	turn    chan struct{} // holds one while somebody asks the storage
	notify  func(error)
	failing bool // what notify was told last
}

// Share makes storage the place where keys are shared from now on; nil keeps
// them in the process. The keys in use are taken along, so that no session is
// lost. It does not wait for the storage: Sync and Run ask it. The storage
// before may be closed at once.
//
// While Run is running, notify is called once when the storage begins to fail,
// with a sentence that tells no key, and with nil when it answers again. It may be nil.
func (t *Tickets) Share(storage KeyStorage, notify func(error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sharing = sharing{storage: storage, epoch: t.epoch + 1, turn: make(chan struct{}, 1), notify: notify}
}

// Sync exchanges the keys of all scopes with other replicas, and returns at the
// latest when ctx ends, while the rest goes on in the background. It is called
// after scopes were attached and before they serve, so that the sessions of
// other replicas, and those of this one before it was started anew, resume at once.
// An error means that sessions may not resume elsewhere until the storage
// answers. That is no reason to refuse service, and notify is not told it again.
func (t *Tickets) Sync(ctx context.Context) error {
	err := t.ask(ctx, false)
	t.mu.Lock()
	for _, s := range t.scopes {
		s.unused = false
	}
	if err != nil {
		t.failing = true
	}
	t.mu.Unlock()
	if err == nil {
		t.report(nil)
	}
	return err
}

// look is what Run does each minute.
func (t *Tickets) look(ctx context.Context, sweep bool) {
	limited, cancel := context.WithTimeout(ctx, ticketRound)
	defer cancel()
	if err := t.ask(limited, sweep); ctx.Err() == nil {
		t.report(err)
	}
}

// report tells notify what has changed.
func (t *Tickets) report(err error) {
	t.mu.Lock()
	changed := t.failing != (err != nil)
	t.failing = err != nil
	notify := t.notify
	t.mu.Unlock()
	if changed && notify != nil {
		notify(err)
	}
}

// ask is exchange for callers who have no time: a storage may hang in a system
// call that knows no contexts.
func (t *Tickets) ask(ctx context.Context, sweep bool) error {
	done := make(chan error, 1)
	begun := time.Now()
	go func() { done <- t.exchange(ctx, sweep) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the storage did not answer within %v", time.Since(begun).Round(100*time.Millisecond))
	}
}

// exchange brings the keys of all scopes and those in the storage together. One
// at a time does, so that a storage that hangs has one goroutine hanging.
func (t *Tickets) exchange(ctx context.Context, sweep bool) error {
	t.mu.Lock()
	storage, epoch, turn := t.storage, t.epoch, t.turn
	t.mu.Unlock()
	if storage == nil {
		return nil
	}
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t.mu.Lock()
	names := slices.Collect(maps.Keys(t.scopes))
	t.mu.Unlock()
	var first error // the others mostly say the same
	used := make(map[string]bool)
	for _, name := range names {
		used[ticketObject(name)] = true
		if err := t.exchangeScope(ctx, storage, epoch, name); err != nil && first == nil {
			first = err
		}
	}
	if sweep && first == nil {
		first = sweepTickets(ctx, storage, used)
	}
	if t.isLate(epoch) {
		return nil
	}
	return first
}

func (t *Tickets) isLate(epoch int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.epoch != epoch
}

// ticketObject is where the keys of a scope are: its name is long and may hold anything.
func ticketObject(name string) string {
	return fmt.Sprintf("%s/%x", ticketFolder, sha256.Sum256([]byte(name)))
}

func (t *Tickets) exchangeScope(ctx context.Context, storage KeyStorage, epoch int, name string) error {
	object := ticketObject(name)
	stored, err := loadTickets(ctx, storage, object)
	nonsense := errors.Is(err, errTicketObject)
	if err != nil && !nonsense {
		return err
	}
	mine := t.mine(name, stored)
	if !sameTickets(merge(stored, mine, time.Now()), stored) {
		var failure error
		if stored, failure = updateTickets(ctx, storage, object, stored, mine); failure != nil {
			err = failure
		}
	}
	t.adopt(epoch, name, stored)
	return err
}

// mine returns the keys of a scope that others may need. Those with which no
// session was made are of no use where there are others.
func (t *Tickets) mine(name string, stored []ticketKey) []ticketKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.scopes[name]
	if s == nil || s.unused && len(stored) > 0 {
		return nil
	}
	return slices.Clone(s.keys)
}

// updateTickets brings mine into the storage, and a new key if one is due. It
// returns what the storage then has, as far as it is known.
func updateTickets(ctx context.Context, storage KeyStorage, object string, stored, mine []ticketKey) (_ []ticketKey, err error) {
	lock := strings.ReplaceAll(object, "/", "_")
	if err := storage.Lock(ctx, lock); err != nil {
		return stored, err
	}
	defer func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), ticketRound)
		defer cancel()
		// A lock that was lost does no harm: each replica puts back of its keys what another overwrote.
		storage.Unlock(limited, lock)
	}()
	// Somebody else may have been here in the meantime.
	again, err := loadTickets(ctx, storage, object)
	if err != nil && !errors.Is(err, errTicketObject) {
		return stored, err
	}
	merged := merge(again, mine, time.Now())
	if sameTickets(merged, again) {
		return again, nil
	}
	data, err := encodeTickets(merged)
	if err == nil {
		err = storage.Store(ctx, object, data)
	}
	if err != nil {
		return again, err
	}
	return merged, nil
}

// loadTickets returns the keys in an object, none where there is no object.
func loadTickets(ctx context.Context, storage KeyStorage, object string) ([]ticketKey, error) {
	data, err := storage.Load(ctx, object)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	keys, err := decodeTickets(data)
	if err != nil {
		return nil, fmt.Errorf("weir replaces %s: %w", object, err)
	}
	return keys, nil
}

// adopt takes over the keys that are shared. What a scope had itself it keeps
// for as long as sessions of it may come.
func (t *Tickets) adopt(epoch int, name string, shared []ticketKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, now := t.scopes[name], time.Now()
	if s == nil || t.epoch != epoch {
		return
	}
	keys := slices.DeleteFunc(slices.Clone(shared), func(k ticketKey) bool { return k.premature(now) })
	if !s.unused || len(keys) == 0 {
		for _, k := range s.keys {
			if index(keys, k) < 0 {
				keys = append(keys, k)
			}
		}
	}
	s.keys = keys
	s.tend(now)
}

// sweepTickets deletes what nobody has renewed for long: the objects of scopes
// that are in no configuration any more. One that somebody uses again in this
// moment is stored again by the next look.
func sweepTickets(ctx context.Context, storage KeyStorage, used map[string]bool) error {
	objects, err := storage.List(ctx, ticketFolder, false)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	limit := time.Now().Add(-ticketObjectLife)
	for _, object := range objects {
		if used[object] {
			continue
		}
		keys, err := loadTickets(ctx, storage, object)
		switch {
		case errors.Is(err, errTicketObject) || err == nil && len(keys) == 0:
			continue // not ours, or gone
		case err != nil:
			return err
		case slices.ContainsFunc(keys, func(k ticketKey) bool { return k.since().After(limit) }):
			continue
		}
		if err := storage.Delete(ctx, object); err != nil {
			return err
		}
	}
	return nil
}
