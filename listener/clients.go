package listener

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/ratelimit"
)

// clients limits the connections of each client network over all listeners: those that are
// open at once, and the rate of new ones. Its zero value has no limits.
//
// It holds a number for each client network with a counted connection, so strangers cannot make
// it hold more than they have open connections. The rates have a bounded number of keys. If
// there are more, the rate forgets a client network that is near rest. So a client cannot use up
// places in order to have its own connections forgotten: other keys would have to exceed the
// rate by more than its own.
type clients struct {
	settings atomic.Pointer[clientSettings] // nil: no limits
	seed     maphash.Seed                   // keeps secret which networks share a shard or a bucket
	shards   [clientShards]clientShard
}

// clientShards divide the client networks, so that cores rarely wait for each other.
const clientShards = 32

type clientShard struct {
	mu   sync.Mutex
	open map[conn.Network]int32 // numbers of counted connections; no value is 0
	_    [48]byte               // keeps the locks of two shards out of one cache line
}

// clientSettings never change.
type clientSettings struct {
	most   int32 // open connections of a client network; 0: no limit
	except []netip.Prefix
	limit  ratelimit.Limit
	rate   *ratelimit.Table // nil: no limit
}

// maxRateKeys is the number of client networks whose rates are known at once. They take 4.5 MB.
const maxRateKeys = 1 << 17

// set changes the limits for later connections. Open connections stay counted, and a rate that
// does not change keeps its counts.
func (l *clients) set(c config.ClientLimits) {
	was := l.settings.Load()
	if c.Connections == 0 && c.Rate.Number == 0 {
		l.settings.Store(nil)
		return
	}
	if l.seed == (maphash.Seed{}) { // no connection uses it before the first settings
		l.seed = maphash.MakeSeed()
	}
	s := &clientSettings{most: int32(c.Connections), except: c.Except}
	if c.Rate.Number > 0 {
		s.limit = ratelimit.Limit{Every: c.Rate.Every(), Burst: c.Burst}
		if c.Burst == 0 {
			s.limit.Burst = c.Rate.Number
		}
		if was != nil && was.rate != nil && was.limit == s.limit {
			s.rate = was.rate
		} else {
			s.rate = ratelimit.NewTable(s.limit, maxRateKeys)
		}
	}
	l.settings.Store(s)
}

// admit counts a new connection of a client. If counted is true, the caller drops the connection
// when it ends. A refused connection has the reason. A connection that is refused for the
// number of open ones does not count for the rate.
func (l *clients) admit(client netip.Addr, n conn.Network) (counted bool, reason Reason, ok bool) {
	s := l.settings.Load()
	if s == nil || !n.IsValid() || s.excepts(client) {
		return false, 0, true
	}
	hash := maphash.Comparable(l.seed, n)
	if s.most > 0 {
		if !l.shard(hash).add(n, s.most) {
			return false, ReasonClientConnections, false
		}
		counted = true
	}
	if s.rate != nil && !s.rate.Admit(hash, time.Now()).Admitted {
		return counted, ReasonClientRate, false
	}
	return counted, 0, true
}

// drop ends the count of a connection that admit has counted.
func (l *clients) drop(n conn.Network) {
	s := l.shard(maphash.Comparable(l.seed, n))
	s.mu.Lock()
	defer s.mu.Unlock()
	if open := s.open[n]; open > 1 {
		s.open[n] = open - 1
	} else {
		delete(s.open, n)
	}
}

func (l *clients) shard(hash uint64) *clientShard { return &l.shards[hash%clientShards] }

// add counts a connection of n, unless n has as many as most.
func (s *clientShard) add(n conn.Network, most int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := s.open[n]
	if open >= most {
		return false
	}
	if s.open == nil {
		s.open = make(map[conn.Network]int32)
	}
	s.open[n] = open + 1
	return true
}

func (s *clientSettings) excepts(client netip.Addr) bool {
	client = client.Unmap().WithZone("") // no prefix contains an address with a zone
	for _, p := range s.except {
		if p.Contains(client) {
			return true
		}
	}
	return false
}
