// Package memory is the account of the memory that peers make weir hold: header lists,
// bodies that weir has not passed on yet, output that the peer has not read yet, and the
// structures of each exchange. weir charges a connection before it allocates the memory.
// There are limits for one connection, for the connections of one client network, and for
// the process.
//
// Charges are exact for each connection. Networks and the process count whole grains: a
// connection takes grains from the process under a lock, and uses them without a lock.
package memory

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

const (
	// Exchange is what an exchange uses in addition to its header lists and bodies, in
	// bytes: the goroutine's stack, its structures, and a buffer.
	Exchange = 24 << 10
	// Upload is what an exchange uses in addition if its body is passed on while it
	// arrives, in bytes: a second goroutine and a buffer in each direction.
	Upload = 40 << 10

	// grain is the number of bytes that a connection takes from the process at a time.
	grain = 8 << 10
	// slack is how many bytes a connection keeps beyond what it uses, so that a busy
	// connection does not need the lock for each exchange.
	slack = 128 << 10
	// least is the number of bytes that a connection may hold while the process is short of
	// memory, even if its network holds more than its share: see forSmall.
	least = 2 * Exchange
)

// Share is the limit that refused a charge; a label value in metrics.
type Share uint8

// The shares.
const (
	OfConnection Share = iota // the connection holds the maximum of one connection
	OfNetwork                 // memory is short, and the client network, or the connection within it, holds its fair share
	OfProcess                 // the memory is used up
	numShares
)

// String is the label in metrics.
func (s Share) String() string { return [...]string{"connection", "network", "process"}[s] }

// Holder is a connection that the account can close because of its memory:
// (*conn.Conn).Cut.
type Holder interface{ Cut() }

// Event is the beginning or the end of a shortage.
type Event struct {
	Begins bool
	// Used and Limit are in bytes.
	Used, Limit int64
	// Network is the client network that held most when the shortage began, and Holds is
	// how much it held, in bytes.
	Network netip.Prefix
	Holds   int64
	// Refused and Ended belong to the end of a shortage: the numbers of refused charges and
	// of closed connections.
	Refused, Ended int64
	Lasted         time.Duration
}

// Process is the account of the process. Use NewProcess to make one.
type Process struct {
	// Notify, if set, is called when a shortage begins or ends, on a goroutine of the
	// account.
	Notify func(Event)

	limit   atomic.Int64
	short   atomic.Bool
	began   time.Time
	allowed atomic.Int64 // see Allow, in nanoseconds since began; 0: no ration
	refused [numShares]atomic.Int64
	ended   atomic.Int64

	mu       sync.Mutex
	granted  int64 // all grains that connections have, in bytes
	doomed   int64 // the part of granted that belongs to connections that were cut
	networks map[conn.Network]*network
	wider    map[conn.Network]*group // the networks around these
	whole    group                   // all networks
	tidied   time.Time               // when unused grains were last taken back
	before   int64                   // the limit before it was lowered, in bytes
	lowered  time.Time               // when that was
	watching bool                    // a goroutine handles a shortage
	closed   <-chan struct{}
}

// network is the account of a client network. It exists as long as its connections have
// grains.
type network struct {
	group
	doomed   int64 // the part of granted that belongs to connections that were cut
	accounts int
	first    *Account
}

// NewProcess makes an account without a limit. When ctx ends, the account closes no more
// connections in a shortage; it still refuses charges.
func NewProcess(ctx context.Context) *Process {
	return &Process{began: time.Now(), networks: make(map[conn.Network]*network), wider: make(map[conn.Network]*group), closed: ctx.Done()}
}

// SetLimit changes the limit, in bytes; 0: no limit.
func (p *Process) SetLimit(limit int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.limit.Load(); limit < old {
		p.before, p.lowered = p.ceiling(old), time.Now()
	}
	p.limit.Store(limit)
}

// ceiling returns the limit from which allows computes what may be exceeded in a shortage.
// After the limit was lowered, the account holds more than the new limit until the
// largest holders have been closed. Meanwhile small holders must still get memory.
func (p *Process) ceiling(limit int64) int64 {
	if p.before > limit && time.Since(p.lowered) < loweredFor {
		return p.before
	}
	return limit
}

// Limit returns how much all connections together may hold, in bytes; 0: no limit.
func (p *Process) Limit() int64 { return p.limit.Load() }

// Used returns how much the connections hold, in bytes, rounded up to grains.
func (p *Process) Used() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.granted
}

// Refused returns how many charges a share has refused so far.
func (p *Process) Refused(s Share) int64 { return p.refused[s].Load() }

// Ended returns how many connections were closed so far because of the memory they held.
func (p *Process) Ended() int64 { return p.ended.Load() }

// The limits, derived from the limit of the account. A connection may hold an eighth of it,
// within reason.
func ofConnection(limit int64) int64 { return min(max(limit/8, 4<<20), 64<<20) }
func calm(limit int64) int64         { return limit / 8 * 7 }
func full(limit int64) int64         { return limit / 64 * 63 } // a refusing account is at least this full

// In a shortage the account exceeds its limit for as long as closed connections need to give
// their memory back. On a busy machine that takes a while, and meanwhile their network opens
// new connections. So those that hold their fair share leave room for those that hold hardly
// anything, and both leave room for other networks.
func forFair(limit int64) int64   { return limit / 8 * 10 }
func forSmall(limit int64) int64  { return limit / 8 * 11 }
func forOthers(limit int64) int64 { return limit / 8 * 12 }

// Account is the account of one connection. Any number of goroutines may call its methods
// at the same time, except Open and Close. A nil Account accepts every charge.
type Account struct {
	process *Process
	key     conn.Network
	holder  Holder

	used    atomic.Int64
	granted atomic.Int64 // written under the process's lock

	// These count what runs, whatever was charged for it.
	running  atomic.Int64
	received atomic.Int64

	// Guarded by the process's lock.
	network    *network // nil: the account has no grains
	next, prev *Account // other accounts of the network
	doomed     bool     // the holder was cut
}

// Open makes a the account of a connection of a client network, or of an endpoint (the zero
// Prefix). p may be nil; then nothing is counted. If the process is short of memory, holder
// may be cut. Close must follow.
func (a *Account) Open(p *Process, network netip.Prefix, holder Holder) {
	bits := uint8(max(0, network.Bits()))
	a.process, a.holder = p, holder
	a.key = conn.NetworkOf(network.Addr(), conn.Prefixes{IPv4: bits, IPv6: bits})
}

// Charge takes n bytes. It returns false if a limit is reached; then it takes nothing.
func (a *Account) Charge(n int) bool {
	if a == nil || a.process == nil {
		return true
	}
	n = counted(n)
	used := a.used.Add(int64(n))
	if used <= a.granted.Load() || a.process.extend(a, false) {
		return true
	}
	a.Release(n)
	return false
}

// Force takes n bytes whatever the limits are. It is for the small amounts that a
// connection needs to continue or to end.
func (a *Account) Force(n int) {
	if a == nil || a.process == nil {
		return
	}
	if a.used.Add(int64(counted(n))) > a.granted.Load() {
		a.process.extend(a, true)
	}
}

// Release gives back n bytes.
func (a *Account) Release(n int) {
	if a == nil || a.process == nil || n == 0 {
		return
	}
	used := a.used.Add(int64(-counted(n)))
	if spare := a.granted.Load() - used; spare >= slack+grain || spare >= grain && a.process.short.Load() {
		a.process.shrink(a)
	}
}

// Settle gives back the bytes that the connection keeps for later. It is for connections
// that have become idle.
func (a *Account) Settle() {
	if a == nil || a.process == nil {
		return
	}
	if a.granted.Load()-a.used.Load() >= grain {
		a.process.shrink(a)
	}
}

// Used returns how much the connection holds, in bytes.
func (a *Account) Used() int64 {
	if a == nil {
		return 0
	}
	return a.used.Load()
}

// Short returns true if the process is short of memory. Callers that can use less memory
// then should.
func (a *Account) Short() bool {
	return a != nil && a.process != nil && (a.process.short.Load() || a.process.rationed())
}

// Ended returns true if the connection was cut because of the memory it held.
func (a *Account) Ended() bool {
	if a == nil || a.process == nil {
		return false
	}
	a.process.mu.Lock()
	defer a.process.mu.Unlock()
	return a.doomed
}

// Close gives everything back. Call it at the end of the connection, or when the connection
// holds nothing that counts. The account may be opened again.
func (a *Account) Close() {
	if a == nil || a.process == nil {
		return
	}
	p := a.process
	a.used.Store(0)
	a.running.Store(0)
	a.received.Store(0)
	p.shrink(a)
	p.mu.Lock()
	a.doomed = false
	p.mu.Unlock()
	a.process, a.holder, a.key = nil, nil, conn.Network{}
}

// rounded returns n, rounded up to grains.
func rounded(n int64) int64 { return (n + grain - 1) / grain * grain }

// extend gets the grains for bytes that a has already spent, or returns false.
func (p *Process) extend(a *Account, force bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	granted := a.granted.Load()
	need := rounded(a.used.Load()) - granted
	if need <= 0 {
		return true
	}
	if share, ok := p.allows(a, granted, need); !ok && !force {
		p.refused[share].Add(1)
		return false
	}
	p.give(a, need)
	return true
}

// allows returns true if a, which has granted, may have need more; otherwise also the share
// that refuses it. In a shortage, connections below their fair share still get memory,
// while weir closes the largest holders.
func (p *Process) allows(a *Account, granted, need int64) (Share, bool) {
	limit := p.limit.Load()
	switch {
	case limit == 0:
		return 0, true
	case a.doomed:
		return OfProcess, false
	case granted+need > ofConnection(limit):
		return OfConnection, false
	case p.held()+need <= limit:
		return 0, true
	}
	if p.tidy(); p.held()+need <= limit {
		return 0, true
	}
	p.watch()
	share, within := p.within(a.key, need, limit)
	accounts := int64(1)
	if n := p.networks[a.key]; n != nil {
		if accounts = int64(n.accounts); a.network == nil {
			accounts++
		}
	}
	small, fair := granted+need <= least, granted+need <= share/accounts
	used, most := p.granted+need, p.ceiling(limit)
	switch {
	case fair && within && used <= forOthers(most):
		return 0, true
	case small && used <= forSmall(most):
		return 0, true
	case fair && used <= forFair(most):
		return 0, true
	case used > forSmall(most):
		return OfProcess, false
	}
	return OfNetwork, false
}

// clientNetworks counts the client networks that hold something. Connections to endpoints
// belong to none.
func (p *Process) clientNetworks() int64 {
	n := int64(len(p.networks))
	if p.networks[conn.Network{}] != nil {
		n--
	}
	return n
}

// held returns how much the connections hold. It leaves out connections that were cut,
// because they give their memory back soon, but at most an eighth of the limit.
func (p *Process) held() int64 { return p.granted - min(p.doomed, p.limit.Load()/8) }

// give gives a more grains. The caller holds the lock.
func (p *Process) give(a *Account, more int64) {
	n := a.network
	if n == nil {
		if n = p.networks[a.key]; n == nil {
			n = p.newNetwork(a.key)
		}
		a.network, a.next = n, n.first
		if a.next != nil {
			a.next.prev = a
		}
		n.first = a
		n.accounts++
	}
	a.granted.Store(a.granted.Load() + more)
	n.add(more)
	p.granted += more
	if a.doomed {
		n.doomed += more
		p.doomed += more
	}
}

// shrink takes back the grains that a does not need.
func (p *Process) shrink(a *Account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takeBack(a)
}

// takeBack is shrink for callers that hold the lock. A concurrent charge either sees that
// there are fewer grains, or is seen here.
func (p *Process) takeBack(a *Account) {
	granted := a.granted.Load()
	p.set(a, min(granted, rounded(max(0, a.used.Load()))))
	if used := rounded(a.used.Load()); used > a.granted.Load() {
		p.set(a, min(granted, used))
	}
}

// set sets the grains that a has. The caller holds the lock.
func (p *Process) set(a *Account, granted int64) {
	less := a.granted.Load() - granted
	if less == 0 {
		return
	}
	if a.network == nil { // its grains were taken back, and it gets new ones
		p.give(a, -less)
		return
	}
	a.granted.Store(granted)
	n := a.network
	n.add(-less)
	p.granted -= less
	if a.doomed {
		n.doomed -= less
		p.doomed -= less
	}
	if granted > 0 {
		return
	}
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		n.first = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	}
	a.network, a.next, a.prev = nil, nil, nil
	if n.accounts--; n.accounts == 0 {
		p.remove(n)
	}
}
