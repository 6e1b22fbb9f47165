package core

import (
	"sync"
	"unsafe"

	"github.com/weirproxy/weir/proxy/message"
)

// A header list of a few bytes on the wire may be large after decoding: one byte refers to
// an entry of HPACK's table, which may have 4 KB, and any number of fields may refer to the
// same entry. So a head stores the bytes of an entry once for all its fields, and the
// account is charged for these bytes before they are stored.

const (
	// leastPacked is the length from which strings are compared with earlier ones, in
	// bytes.
	leastPacked = 96
	// mostPacked is how many such strings are remembered. HPACK's table has no room for
	// more: an entry takes 32 bytes in addition to its strings.
	mostPacked = 4096 / (leastPacked + 32)
	// freeRoom is how many bytes of a head the charge of an exchange covers.
	freeRoom = 4 << 10
	// roomStep is the least amount by which a head grows, in bytes.
	roomStep = 4 << 10
)

// packed are the strings of a head that several fields may share. The decoder returns the
// string of a table entry itself, so the address identifies it.
type packed struct {
	n       int
	entries [mostPacked]struct {
		at   *byte // keeps the string alive, so that no other string gets its address
		span message.Span
	}
}

var packs = sync.Pool{New: func() any { return new(packed) }}

// store stores s in the head's arena, and each string only once.
func (d *head) store(s string) message.Span {
	if len(s) < leastPacked {
		d.makeRoom(len(s))
		if d.over() {
			return message.Span{}
		}
		return d.h.StoreString(s)
	}
	if d.packed == nil {
		d.packed = packs.Get().(*packed)
	}
	p, at := d.packed, unsafe.StringData(s)
	for i := range p.entries[:p.n] {
		if e := &p.entries[i]; e.at == at && e.span.Len() == len(s) {
			return e.span
		}
	}
	if d.makeRoom(len(s)); d.over() {
		return message.Span{}
	}
	span := d.h.StoreString(s)
	if p.n < mostPacked {
		p.entries[p.n].at, p.entries[p.n].span = at, span
		p.n++
	}
	return span
}

// makeRoom makes room for n bytes in the arena, or refuses the message.
func (d *head) makeRoom(n int) {
	spare := d.h.Spare()
	if n <= spare {
		return
	}
	more := (max(n-spare, d.h.Room()/2) + roomStep - 1) / roomStep * roomStep
	if !d.charge(more - max(0, freeRoom-d.h.Room())) {
		d.refuse(message.ErrMemory)
		return
	}
	d.h.Grow(more)
}

// chargeRoom charges for the initial arena of the head, or gives the arena up.
func (d *head) chargeRoom() {
	if !d.charge(d.h.Room() - freeRoom) {
		d.h.Free()
	}
}

// charge charges n bytes. It returns false if the account refuses.
func (d *head) charge(n int) bool {
	if n <= 0 {
		return true
	}
	if !d.account.Charge(n) {
		return false
	}
	d.charged += n
	return true
}

// end is called when the head is decoded.
func (d *head) end() {
	if p := d.packed; p != nil {
		clear(p.entries[:p.n])
		p.n, d.packed = 0, nil
		packs.Put(p)
	}
}
