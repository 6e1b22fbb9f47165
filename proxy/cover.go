package proxy

// This file charges what weir derives from a message and keeps until the exchange ends: heads that it has copied,
// unpacked or changed, and texts of templates. Such a head may be many times as large as the one that arrived.

// freeHead is the part of each head that memory.Exchange contains, in bytes.
const freeHead = 4 << 10

// cover charges the account for the heads of the exchange as they are now, for the texts that filters keep, and for
// more bytes. The codec has charged the request's head as it arrived. cover returns false if the account refuses. Call
// it before each wait; a second call with the same sizes charges nothing.
func (x *exchange) cover(more int) bool {
	need := more + max(0, x.req.Size()-x.arrived) + max(0, x.res.Size()-freeHead) + x.filtered.Size() + x.identity.Size()
	if need <= x.covered {
		return true
	}
	if !x.account.Charge(need - x.covered) {
		return false
	}
	x.covered = need
	return true
}

// uncover gives back what cover has charged, and the memory of the heads.
func (x *exchange) uncover() {
	if x.covered > 0 {
		x.req.Head.Reset()
		x.res.Head.Reset()
		x.account.Release(x.covered)
		x.covered = 0
	}
}

// cover charges the account for the heads of the inquiry and for its texts. It returns false if the account refuses.
func (q *inquiry) cover() bool {
	need := q.texts + q.req.Size() + max(0, q.res.Size()-freeHead)
	if need <= q.covered {
		return true
	}
	if !q.account.Charge(need - q.covered) {
		return false
	}
	q.covered = need
	return true
}
