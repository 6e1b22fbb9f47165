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

// KeyStorage is the place where replicas share session ticket keys (tls/storage
// implements it). Its methods must return soon after their context ends. If a method
// hangs, replicas exchange no keys; nothing else stops.
type KeyStorage interface {
	// Load fails with fs.ErrNotExist if there is no value.
	Load(ctx context.Context, key string) ([]byte, error)
	Store(ctx context.Context, key string, value []byte) error
	Delete(ctx context.Context, key string) error
	// List returns the keys one level below a path.
	List(ctx context.Context, path string, recursive bool) ([]string, error)
	Lock(ctx context.Context, name string) error
	Unlock(ctx context.Context, name string) error
}

const (
	// ticketFolder is the folder of the scopes' objects in a storage.
	ticketFolder = "tickets"
	// ticketRound is the time limit of one exchange of all scopes in the background.
	ticketRound = 30 * time.Second
	// ticketSweep is the interval between searches for unused objects. An object is
	// unused if its newest key is older than ticketObjectLife.
	ticketSweep      = 12 * time.Hour
	ticketObjectLife = 7 * 24 * time.Hour
)

// sharing is the state of the exchange with a storage.
type sharing struct {
	storage KeyStorage    // nil: the keys stay in the process
	epoch   int           // counts the storages; results of an earlier one are ignored
	turn    chan struct{} // holds one element while a goroutine uses the storage
	notify  func(error)
	failing bool // the state that notify last reported
}

// Share makes weir share the keys through storage from now on; nil keeps the keys in the
// process. The keys in use stay in use, so that no session is lost. Share does not wait
// for the storage; Sync and Run do. The caller may close the previous storage at once.
//
// While Run is running, it calls notify once when the storage begins to fail, with an
// error that contains no key, and with nil when the storage works again. notify may be
// nil.
func (t *Tickets) Share(storage KeyStorage, notify func(error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sharing = sharing{storage: storage, epoch: t.epoch + 1, turn: make(chan struct{}, 1), notify: notify}
}

// Sync exchanges the keys of all scopes with other replicas. It returns when ctx ends at
// the latest; the exchange then continues in the background. The caller attaches the
// scopes, calls Sync, and then serves with them. So clients can at once resume sessions
// of other replicas, and sessions from before a restart of this replica. An error means
// that clients may not be able to resume sessions at other replicas until the storage
// works. weir should serve nevertheless. Run does not report the same error to notify
// again.
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

// round is one round of Run, about once a minute.
func (t *Tickets) round(ctx context.Context, sweep bool) {
	limited, cancel := context.WithTimeout(ctx, ticketRound)
	defer cancel()
	if err := t.ask(limited, sweep); ctx.Err() == nil {
		t.report(err)
	}
}

// report calls notify if the state of the storage changed.
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

// ask calls exchange, but does not wait longer than ctx: a storage may hang in a system
// call that ignores contexts.
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

// exchange merges the keys of all scopes with those in the storage. Only one call runs at
// a time, so that a storage that hangs blocks only one goroutine in a call.
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
	var first error // the other errors are mostly the same
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

// ticketObject returns the storage key of a scope. It hashes the name, which is long and
// may contain any character.
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

// mine returns the keys of a scope that other replicas may need. Keys of an unused scope
// are not needed if the storage has keys.
func (t *Tickets) mine(name string, stored []ticketKey) []ticketKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.scopes[name]
	if s == nil || s.unused && len(stored) > 0 {
		return nil
	}
	return slices.Clone(s.keys)
}

// updateTickets adds mine to the keys in the storage, and a new key if one is due. It
// returns the keys that the storage then has, as far as weir knows them.
func updateTickets(ctx context.Context, storage KeyStorage, object string, stored, mine []ticketKey) (_ []ticketKey, err error) {
	lock := strings.ReplaceAll(object, "/", "_")
	if err := storage.Lock(ctx, lock); err != nil {
		return stored, err
	}
	defer func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), ticketRound)
		defer cancel()
		// A lost lock does no harm: if another replica overwrote keys, the next round of
		// their owner adds them again.
		storage.Unlock(limited, lock)
	}()
	// Another replica may have changed the object before the lock.
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

// loadTickets returns the keys in an object, or none if there is no object.
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

// adopt makes the scope use the shared keys. The scope keeps its own keys, too, as long
// as clients may resume sessions that were made with them.
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

// sweepTickets deletes objects that no replica has renewed for a long time: their scopes
// are in no configuration any more. If a replica uses such a scope again at this moment,
// its next round stores the object again.
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
			continue // not an object of weir, or already deleted
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
