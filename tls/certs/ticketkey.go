package certs

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"time"
)

// A ticket key encrypts for ticketRotation. It then decrypts during the rotations of the
// next two keys. So a ticket is valid for 16 to 24 hours. (A resumed TLS 1.2 session
// keeps its secret and gets a new ticket; crypto/tls ends it after 7 days.)
const (
	ticketRotation = 8 * time.Hour
	ticketLife     = 3 * ticketRotation
)

// If replicas share keys, a replica publishes a new key ticketLead before the key
// encrypts. By then all replicas can decrypt with it: the time allows many reads of the
// storage, and clocks that differ by minutes. If a clock is wrong by more than
// ticketSkew, other replicas ignore the keys of its replica.
const (
	ticketLead = 30 * time.Minute
	ticketSkew = time.Hour
)

// maxTicketKeys and maxTicketObject limit the data that weir accepts from a storage.
// Three or four keys are usual. Replicas that had no storage for a while add their own
// keys.
const (
	maxTicketKeys   = 64
	maxTicketObject = 64 << 10
)

// ticketKey is a session ticket key and its times. It must not appear in a log.
type ticketKey struct {
	Key     [32]byte
	Created time.Time
	// From is the time when the key begins to encrypt; zero: it only decrypts.
	From time.Time
}

// newTicketKey makes a key that encrypts from the time from.
func newTicketKey(now, from time.Time) ticketKey {
	k := ticketKey{Created: now.UTC().Truncate(time.Millisecond), From: from.UTC().Truncate(time.Millisecond)}
	rand.Read(k.Key[:]) // never fails: crypto/rand ends the process instead
	return k
}

// String keeps the key itself out of printed text.
func (k ticketKey) String() string { return "session ticket key of " + k.Created.Format(time.RFC3339) }

// GoString returns String, for the same reason.
func (k ticketKey) GoString() string { return k.String() }

// since returns the time from which the age of a key counts.
func (k ticketKey) since() time.Time {
	if k.From.After(k.Created) {
		return k.From
	}
	return k.Created
}

func (k ticketKey) expired(now time.Time) bool { return !now.Before(k.since().Add(ticketLife)) }

// premature reports whether the time of a key is so far in the future that the clock of
// its replica must be wrong.
func (k ticketKey) premature(now time.Time) bool {
	return k.since().After(now.Add(ticketLead + ticketSkew))
}

// newest returns the key with the latest From, or the zero key.
func newest(keys []ticketKey) (last ticketKey) {
	for _, k := range keys {
		if k.From.After(last.From) {
			last = k
		}
	}
	return last
}

// compareTicketKeys sorts keys by the time when they encrypt, the last one first. The
// order is the same on every replica with the same keys.
func compareTicketKeys(a, b ticketKey) int {
	if c := b.From.Compare(a.From); c != 0 {
		return c
	}
	if c := b.Created.Compare(a.Created); c != 0 {
		return c
	}
	return bytes.Compare(a.Key[:], b.Key[:])
}

// inOrder returns keys in the order for crypto/tls: the key that encrypts at the time
// now, then all others. If by this clock no key has begun to encrypt, the key with the
// earliest From encrypts.
func inOrder(keys []ticketKey, now time.Time) [][32]byte {
	sorted := slices.SortedFunc(slices.Values(keys), compareTicketKeys)
	first := slices.IndexFunc(sorted, func(k ticketKey) bool { return !k.From.After(now) })
	if begun := first >= 0 && !sorted[first].From.IsZero(); !begun {
		first = max(0, len(sorted)-1)
		for first > 0 && sorted[first].From.IsZero() {
			first--
		}
	}
	list := make([][32]byte, 0, len(sorted))
	for _, k := range append(sorted[first:len(sorted):len(sorted)], sorted[:first]...) {
		list = append(list, k.Key)
	}
	return list
}

// merge returns the keys that replicas should share, if the storage has the keys stored
// and one replica also has mine. Keys that the replica made while it was alone decrypt
// everywhere. They no longer encrypt, because other replicas do not have them yet, unless
// no key in the storage encrypts.
func merge(stored, mine []ticketKey, now time.Time) []ticketKey {
	all := make([]ticketKey, 0, len(stored)+len(mine))
	usable := false
	for _, k := range stored {
		// Replicas whose clock is slow may need the key a little longer.
		if k.premature(now) || k.expired(now.Add(-ticketSkew)) || index(all, k) >= 0 {
			continue
		}
		all = append(all, k)
		usable = usable || !k.From.IsZero() && !k.expired(now)
	}
	for _, k := range mine {
		if k.premature(now) || k.expired(now) || index(all, k) >= 0 {
			continue
		}
		if usable {
			k.From = time.Time{}
		}
		all = append(all, k)
	}
	last := newest(all)
	next := last.From.Add(ticketRotation)
	switch {
	case last.From.IsZero() || last.expired(now): // no key that encrypts is left
		all = append(all, newTicketKey(now, now))
	case !next.After(now.Add(ticketLead)):
		all = append(all, newTicketKey(now, later(next, now.Add(ticketLead))))
	}
	slices.SortFunc(all, compareTicketKeys)
	return all[:min(len(all), maxTicketKeys)]
}

func index(keys []ticketKey, k ticketKey) int {
	return slices.IndexFunc(keys, func(other ticketKey) bool { return other.Key == k.Key })
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// The JSON form of keys in a storage.
type storedTickets struct {
	Keys []storedTicketKey `json:"keys"`
}

type storedTicketKey struct {
	Key     []byte    `json:"key"`
	Created time.Time `json:"created"`
	From    time.Time `json:"from,omitzero"`
}

// errTicketObject does not quote the object, which may contain keys.
var errTicketObject = errors.New("the object in the storage has no session ticket keys")

func encodeTickets(keys []ticketKey) ([]byte, error) {
	var object storedTickets
	for _, k := range keys {
		object.Keys = append(object.Keys, storedTicketKey{k.Key[:], k.Created, k.From})
	}
	return json.Marshal(object)
}

func decodeTickets(data []byte) ([]ticketKey, error) {
	var object storedTickets
	if len(data) > maxTicketObject || json.Unmarshal(data, &object) != nil || len(object.Keys) == 0 || len(object.Keys) > maxTicketKeys {
		return nil, errTicketObject
	}
	keys := make([]ticketKey, len(object.Keys))
	for i, k := range object.Keys {
		if len(k.Key) != len(keys[i].Key) || bytes.Count(k.Key, []byte{0}) == len(k.Key) || k.Created.IsZero() {
			return nil, errTicketObject
		}
		keys[i] = ticketKey{[32]byte(k.Key), k.Created.UTC(), k.From.UTC()}
	}
	return keys, nil
}

// sameTickets reports whether two sets of keys are the same in all respects.
func sameTickets(a, b []ticketKey) bool {
	equal := func(x, y ticketKey) bool {
		return x.Key == y.Key && x.Created.Equal(y.Created) && x.From.Equal(y.From)
	}
	return slices.EqualFunc(slices.SortedFunc(slices.Values(a), compareTicketKeys),
		slices.SortedFunc(slices.Values(b), compareTicketKeys), equal)
}
