package filter

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// checks limits the checks of passwords, or of tokens, that run at the same time, because each uses
// a core for a while. Waiting checks take turns by client network, so that one network cannot keep
// others out. The checks of all entries of auth of one kind share the limit.
type checks struct {
	prefixes conn.Prefixes

	mu      sync.Mutex
	running int
	most    int
	waiting int
	// Limits of waiting checks: in total, and of each client network.
	mostWaiting, mostOfNetwork int

	turns []*waitingNetwork // the first one is next
	byNet map[conn.Network]*waitingNetwork
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

// waitingNetwork has the waiting checks of one client network.
type waitingNetwork struct {
	network conn.Network
	queue   []turn
}

// turn is closed when its check may run.
type turn chan struct{}

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
		byNet: make(map[conn.Network]*waitingNetwork), same: make(map[credentialSum]*check)}
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
	turn, accepted := c.enter(conn.NetworkOf(x.Client().Addr(), c.prefixes))
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
		came, gone := x.Wait(turn, checkPatience)
		one.left = gone != nil
		if !came && c.giveUp(turn) {
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

// enter takes a place: to run at once (turn is nil), or in the queue of the network. The caller
// holds mu.
func (c *checks) enter(network conn.Network) (t turn, accepted bool) {
	if c.running < c.most {
		c.running++
		return nil, true
	}
	w := c.byNet[network]
	if c.waiting >= c.mostWaiting || w != nil && len(w.queue) >= c.mostOfNetwork {
		return nil, false
	}
	if w == nil {
		w = &waitingNetwork{network: network}
		c.byNet[network] = w
		c.turns = append(c.turns, w)
	}
	t = make(turn)
	w.queue = append(w.queue, t)
	c.waiting++
	return t, true
}

// giveUp removes a waiting check. It returns false if its turn has just come.
func (c *checks) giveUp(t turn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, w := range c.turns {
		j := slices.Index(w.queue, t)
		if j < 0 {
			continue
		}
		w.queue = slices.Delete(w.queue, j, j+1)
		c.waiting--
		if len(w.queue) == 0 {
			c.turns = slices.Delete(c.turns, i, i+1)
			delete(c.byNet, w.network)
		}
		return true
	}
	return false
}

// leave ends a check. The next network gets its turn, and goes to the end of the row.
func (c *checks) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.turns) == 0 {
		c.running--
		return
	}
	w := c.turns[0]
	c.turns = c.turns[1:]
	next := w.queue[0]
	w.queue = w.queue[1:]
	c.waiting--
	if len(w.queue) > 0 {
		c.turns = append(c.turns, w)
	} else {
		delete(c.byNet, w.network)
	}
	close(next)
}
