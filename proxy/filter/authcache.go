package filter

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

// mostDecisionBytes limits the memory of all decisions that weir remembers, in bytes.
const mostDecisionBytes = 8 << 20

// mostDecision limits one decision. weir does not remember larger ones.
const mostDecision = 16 << 10

// decisions remembers the decisions of servers (auth-cache-key of ingress-nginx). All entries of
// auth share its memory.
type decisions struct {
	most int

	mu    sync.Mutex
	known map[decisionKey]keptDecision
	bytes int
}

// decisionKey is a hash of what a decision depends on.
type decisionKey [sha256.Size]byte

type keptDecision struct {
	*decision
	until time.Time
}

func newDecisions(most int) *decisions {
	return &decisions{most: most, known: map[decisionKey]keptDecision{}}
}

// decisionKeyOf returns the key for texts. Their lengths are part of it, so that no text can stand
// for the end of another one.
func decisionKeyOf(texts ...string) decisionKey {
	var b []byte
	for _, text := range texts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(text)))
		b = append(b, text...)
	}
	return sha256.Sum256(b)
}

// get returns a decision; nil: none is known.
func (d *decisions) get(key decisionKey) *decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept, known := d.known[key]
	switch {
	case !known:
		return nil
	case !time.Now().Before(kept.until):
		d.remove(key, kept)
		return nil
	}
	return kept.decision
}

// add remembers a decision for a time; 0: it does not.
func (d *decisions) add(key decisionKey, of *decision, keep time.Duration) {
	size := of.size()
	if keep <= 0 || size > mostDecision {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if kept, known := d.known[key]; known {
		d.remove(key, kept)
	}
	for other, kept := range d.known { // in any order: the map has no other
		if d.bytes+size <= d.most {
			break
		}
		d.remove(other, kept)
	}
	d.known[key] = keptDecision{of, time.Now().Add(keep)}
	d.bytes += size
}

func (d *decisions) remove(key decisionKey, kept keptDecision) {
	delete(d.known, key)
	d.bytes -= kept.size()
}

// size returns about how much memory the decision takes, in bytes.
func (d *decision) size() int {
	n := 300
	for _, f := range slices.Concat(d.id.Fields, d.id.Kept) {
		n += len(f.Name) + len(f.Value) + 32
	}
	for _, list := range [][]string{d.id.Cookies, d.challenges} {
		for _, value := range list {
			n += len(value) + 16
		}
	}
	return n
}
