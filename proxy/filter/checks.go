package filter

import (
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// checks limits the checks of passwords that run at the same time, because each uses a core for a
// while. Waiting checks take turns by client network, so that one network cannot keep others out.
// The checks of all entries of auth share the limit.
type checks struct {
	prefixes conn.Prefixes

	mu      sync.Mutex
	running int
	most    int
	waiting int
	turns   []*waitingNetwork // the first one is next
	byNet   map[conn.Network]*waitingNetwork
	same    map[credentialSum]*check // running or waiting
}

// Limits of waiting checks.
const (
	mostWaitingChecks    = 1024
	mostWaitingOfNetwork = 16
	checkPatience        = 5 * time.Second
)

// waitingNetwork has the waiting checks of one client network.
type waitingNetwork struct {
	network conn.Network
	queue   []chan struct{} // closed when its check may run
}

// check is a check that several requests with the same credentials share.
type check struct {
	done chan struct{} // closed when id and busy are known
	id   *Identity
	busy bool
}

func newChecks() *checks {
	return &checks{most: max(1, runtime.GOMAXPROCS(0)/2), byNet: make(map[conn.Network]*waitingNetwork), same: make(map[credentialSum]*check)}
}

// setPrefixes sets which addresses are one client network.
func (c *checks) setPrefixes(p conn.Prefixes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prefixes = p
}

// do runs verify when it is the client's turn, and returns its result. Concurrent calls with the
// same sum share one result. busy means that verify did not run, because too many wait or the
// turn did not come in time.
func (c *checks) do(sum credentialSum, client netip.Addr, verify func() *Identity) (id *Identity, busy bool) {
	c.mu.Lock()
	if first := c.same[sum]; first != nil {
		c.mu.Unlock()
		<-first.done
		return first.id, first.busy
	}
	one := &check{done: make(chan struct{}), busy: true}
	c.same[sum] = one
	turn, accepted := c.enter(conn.NetworkOf(client, c.prefixes))
	c.mu.Unlock()
	defer func() { // also after a panic
		c.mu.Lock()
		delete(c.same, sum)
		c.mu.Unlock()
		close(one.done)
	}()
	if !accepted || !c.await(turn) {
		return nil, true
	}
	defer c.leave()
	one.id = verify()
	one.busy = false
	return one.id, false
}

// enter takes a place: to run at once (turn is nil), or in the queue of the network. The caller
// holds mu.
func (c *checks) enter(network conn.Network) (turn chan struct{}, accepted bool) {
	if c.running < c.most {
		c.running++
		return nil, true
	}
	w := c.byNet[network]
	if c.waiting >= mostWaitingChecks || w != nil && len(w.queue) >= mostWaitingOfNetwork {
		return nil, false
	}
	if w == nil {
		w = &waitingNetwork{network: network}
		c.byNet[network] = w
		c.turns = append(c.turns, w)
	}
	turn = make(chan struct{})
	w.queue = append(w.queue, turn)
	c.waiting++
	return turn, true
}

// await waits for a turn. It returns false if the turn did not come in time.
func (c *checks) await(turn chan struct{}) bool {
	if turn == nil {
		return true
	}
	timer := time.NewTimer(checkPatience)
	defer timer.Stop()
	select {
	case <-turn:
		return true
	case <-timer.C:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.giveUp(turn)
}

// giveUp removes a waiting check. It returns false if its turn has just come. The caller holds
// mu.
func (c *checks) giveUp(turn chan struct{}) bool {
	for i, w := range c.turns {
		for j := range w.queue {
			if w.queue[j] != turn {
				continue
			}
			w.queue = append(w.queue[:j], w.queue[j+1:]...)
			c.waiting--
			if len(w.queue) == 0 {
				c.turns = append(c.turns[:i], c.turns[i+1:]...)
				delete(c.byNet, w.network)
			}
			return true
		}
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
	turn := w.queue[0]
	w.queue = w.queue[1:]
	c.waiting--
	if len(w.queue) > 0 {
		c.turns = append(c.turns, w)
	} else {
		delete(c.byNet, w.network)
	}
	close(turn)
}
