package filter

import (
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// checks limits the checks of passwords, or of tokens, that run at the same time, because each uses
// a core for a while. Waiting checks take turns by client, so that one client cannot keep
// others out. The checks of all entries of auth of one kind share the limit.
type checks struct {
	prefixes conn.Prefixes

	mu      sync.Mutex
	running int
	most    int
	// Limits of waiting checks: in total, and of each client network.
	mostWaiting, mostOfNetwork int

	turns turns
	same  map[credentialSum]*check // running or waiting
}

// checkPatience limits the wait for a turn.
const checkPatience = 5 * time.Second

// Limits of waiting checks. Checks of passwords take long, so few can have a turn in time. A token
// takes well below a millisecond, and one client may bring many, such as a gateway.
const (
	mostWaitingPasswords, mostPasswordsOfNetwork = 1024, 16
	mostWaitingTokens, mostTokensOfNetwork       = 8192, 1024
)

// check is a check that several requests with the same credentials share.
type check struct {
	done chan struct{} // closed when the rest is known
	id   *Identity
	why  error // why the credentials are not valid; nil if id is not nil, or busy is true
	busy bool
	left bool // the client that waited for the turn has gone; busy is true
}

// A waiter is a request that waits. Exchange documents its methods.
type waiter interface {
	Client() netip.AddrPort
	Wait(event <-chan struct{}, patience time.Duration) (happened bool, gone error)
}

func newChecks(mostWaiting, mostOfNetwork int) *checks {
	return &checks{most: max(1, runtime.GOMAXPROCS(0)/2), mostWaiting: mostWaiting, mostOfNetwork: mostOfNetwork,
		same: make(map[credentialSum]*check)}
}

// setPrefixes sets which addresses are one client network.
func (c *checks) setPrefixes(p conn.Prefixes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prefixes = p
}

// do runs verify when it is the client's turn, and returns its result: the identity, or why the
// credentials are not valid. Concurrent calls with the same sum share one result. busy means that verify
// did not run, because too many wait or the turn did not come in time; err is then nil, unless the client
// has gone meanwhile.
func (c *checks) do(x waiter, sum credentialSum, verify func() (*Identity, error)) (id *Identity, busy bool, err error) {
	for {
		c.mu.Lock()
		first := c.same[sum]
		if first == nil {
			return c.lead(x, sum, verify)
		}
		c.mu.Unlock()
		// The wait for the turn is bounded, and so is a check.
		if done, gone := x.Wait(first.done, 2*checkPatience); !done {
			return nil, true, gone
		}
		if !first.left {
			return first.id, first.busy, first.why
		}
	}
}

// lead runs verify for all requests with the same sum. The caller holds mu; lead releases it.
func (c *checks) lead(x waiter, sum credentialSum, verify func() (*Identity, error)) (id *Identity, busy bool, err error) {
	one := &check{done: make(chan struct{}), busy: true}
	c.same[sum] = one
	turn, accepted := c.enter(x.Client().Addr())
	c.mu.Unlock()
	defer func() { // also after a panic
		c.mu.Lock()
		delete(c.same, sum)
		c.mu.Unlock()
		close(one.done)
	}()
	if !accepted {
		return nil, true, nil
	}
	if turn != nil {
		came, gone := x.Wait(turn.come, checkPatience)
		one.left = gone != nil
		if !came && c.giveUp(turn) || turn.dropped {
			return nil, true, gone
		}
		if one.left { // the turn came at the same moment
			c.leave()
			return nil, true, gone
		}
	}
	defer c.leave()
	one.id, one.why = verify()
	one.busy = false
	return one.id, false, one.why
}

// enter takes a place: to run at once (t is nil), or in the queue. If the queue is full, the largest
// network loses the place of its newest check. The caller holds mu.
func (c *checks) enter(client netip.Addr) (t *turn, accepted bool) {
	if c.running < c.most {
		c.running++
		return nil, true
	}
	t = &turn{come: make(chan struct{})}
	if !c.turns.add(t, conn.NetworkOf(client, c.prefixes), c.mostOfNetwork) {
		return nil, false
	}
	if c.turns.waiting > c.mostWaiting {
		last := c.turns.newestOfLargest()
		c.turns.remove(last)
		last.dropped = true
		close(last.come)
	}
	return t, !t.dropped
}

// giveUp removes a waiting check. It returns false if its turn has just come, or it was dropped.
func (c *checks) giveUp(t *turn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.turns.remove(t)
}

// leave ends a check. The next one gets its turn.
func (c *checks) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turns.waiting == 0 {
		c.running--
		return
	}
	next := c.turns.next()
	c.turns.remove(next)
	close(next.come)
}
