package proxy

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/tunnel"
)

// A route may lead back to weir, perhaps through other proxies. Then one request, or one
// connection, would pass weir again and again until no descriptor is left. So weir counts the
// visits: those of requests in the HTTP header CDN-Loop, those of tunnels by the addresses of their
// connections and in the unique id of the PROXY header.

// defaultVisits is how often a request or a connection may pass this process if limits.loop
// is not set.
const defaultVisits = 3

// processID identifies this process among all weirs; another weir may lead back here on
// purpose. It is random, so only a peer that has received it can send it, and such a peer
// can only get its own requests refused.
var processID = func() []byte {
	id := filter.RequestID()
	return id[:16]
}()

// visitor is the element that this process adds to CDN-Loop: a pseudonym (RFC
// 8586, section 2).
var visitor = append([]byte("weir-"), processID...)

var refuseLoop = &message.Refusal{Status: http.StatusLoopDetected, Reason: "loop",
	Detail: "routing loop: the request has come back here too often",
	Hint:   "as often as limits.loop allows, because an endpoint of its route sends it back"}

// errLoop is the error of a connection that does not become a tunnel because of a loop.
var errLoop = errors.New("routing loop: the connection has reached this process as often as limits.loop allows, because an endpoint of its route sends it back here; check the endpoints of the route's backend")

// SetLoop sets how often a request, or a connection that becomes a tunnel, may pass this
// process. At least 1.
func (p *Proxy) SetLoop(visits int) { p.most.Store(int32(visits)) }

func (p *Proxy) mostVisits() int {
	if n := p.most.Load(); n > 0 {
		return int(n)
	}
	return defaultVisits
}

var loopIDs = message.SetOf(message.CDNLoop)

// visits returns how often the request was here before, without this visit. It does not parse the values, so
// that nothing around an element can hide it, for example a quotation mark without its end.
func (x *exchange) visits() (n int) {
	if !x.req.HasAny(loopIDs) {
		return 0
	}
	for i := range x.req.Fields {
		if x.req.Fields[i].ID == message.CDNLoop {
			n += bytes.Count(x.req.Value(i), visitor)
		}
	}
	if x.visited {
		n--
	}
	return n
}

// addVisit adds this visit to the request's CDN-Loop, after the elements of others.
func addVisit(req *message.Request) {
	if req.HasAny(loopIDs) {
		for i, f := range slices.Backward(req.Fields) {
			if f.ID == message.CDNLoop && !f.Dropped {
				req.Extend(i, visitor)
				return
			}
		}
	}
	req.Add(message.CDNLoop, visitor)
}

// endLoop answers a request that came back too often.
func (x *exchange) endLoop() {
	x.reply(refuseLoop)
	x.proxy.Metrics.refused(x.edge.name, refuseLoop.Reason)
	if x.proxy.Looped != nil {
		x.proxy.Looped(x.newRecord(time.Now()))
	}
}

// A unique id that weir makes consists of the process's id, random bits, and the number of
// visits, in hexadecimal.
const (
	idVisits = 2 // digits
	idLength = 16 + 16 + idVisits
)

// uniqueID returns the id for the PROXY header to an endpoint: the id from the client's
// PROXY header, with one more visit if this process made it, or else a new one.
func uniqueID(came []byte) []byte {
	visits := idVisitsOf(came)
	if visits == 0 && len(came) > 0 {
		return came
	}
	id := make([]byte, 0, idLength)
	if visits > 0 {
		id = append(id, came[:idLength-idVisits]...)
	} else {
		random := rand.Uint64()
		id = append(id, processID...)
		id = hex.AppendEncode(id, []byte{byte(random >> 56), byte(random >> 48), byte(random >> 40), byte(random >> 32),
			byte(random >> 24), byte(random >> 16), byte(random >> 8), byte(random)})
	}
	return hex.AppendEncode(id, []byte{byte(min(visits+1, 255))})
}

// idVisitsOf returns the number of visits in a unique id; 0 if another process made it.
func idVisitsOf(id []byte) int {
	var visits [idVisits / 2]byte
	if len(id) != idLength || !bytes.HasPrefix(id, processID) {
		return 0
	}
	if _, err := hex.Decode(visits[:], id[idLength-idVisits:]); err != nil {
		return 0
	}
	return int(visits[0])
}

// visitsOf returns how often the bytes of this connection have passed through this process
// before.
func (p *Proxy) visitsOf(c *conn.Conn) int {
	return max(p.localConns.visits(c), idVisitsOf(c.Header.TLVs.UniqueID))
}

// localConnections are the connections for tunnels that this process has made to addresses of its own
// machine. If an accepted connection has the same two addresses, it is the other end of
// one.
type localConnections struct {
	known atomic.Int64 // made and pending connections; if 0, no look-up is needed

	mu      sync.Mutex
	made    map[addressPair]int    // number of visits of the tunnel on this connection
	dialing map[netip.AddrPort]int // destinations of pending connections
	waiting chan struct{}          // closes when a pending connection was made, or failed; nil: no goroutine waits
}

// addressPair is a TCP connection as the kernel identifies it. The addresses have no zones.
type addressPair struct{ from, to netip.AddrPort }

func newAddressPair(from, to netip.AddrPort) addressPair { return addressPair{bare(from), bare(to)} }

func bare(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// stays returns true if both ends are on this machine, so that no other machine has these
// addresses.
func (w addressPair) stays() bool {
	from, to := w.from.Addr(), w.to.Addr()
	return from.IsValid() && (from == to || from.IsLoopback() && to.IsLoopback())
}

// dial makes a connection for a tunnel to an address. visits is the number of visits, this
// one included. connect passes the connection to its argument.
func (l *localConnections) dial(to netip.AddrPort, visits int, connect func(backend.Watch) (*tunnel.ConnEnd, error)) (*tunnel.ConnEnd, error) {
	if !to.IsValid() { // the ends of a Unix socket have no addresses
		return connect(nil)
	}
	d := &dialing{localConns: l, to: bare(to), visits: visits}
	d.begin()
	link, err := connect(d)
	if !d.done {
		d.end(nil)
	}
	return link, err
}

// dialing is a connection that dial makes. Its TLS handshake may have to wait until weir
// accepts the other end. So weir must find the dialing from the other end before the handshake.
type dialing struct {
	localConns *localConnections
	to         netip.AddrPort
	visits     int
	done       bool
}

func (d *dialing) begin() {
	l := d.localConns
	l.known.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dialing == nil {
		l.dialing, l.made = make(map[netip.AddrPort]int), make(map[addressPair]int)
	}
	l.dialing[d.to]++
}

// Made records the connection.
func (d *dialing) Made(c *conn.Conn) { d.end(c) }

// Lost removes the connection.
func (d *dialing) Lost(c *conn.Conn) { d.localConns.forget(c) }

// end records the connection that was made. c is nil if the dial failed.
func (d *dialing) end(c *conn.Conn) {
	l := d.localConns
	d.done = true
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dialing[d.to]--; l.dialing[d.to] == 0 {
		delete(l.dialing, d.to)
	}
	if w, stays := pairOf(c); stays {
		l.made[w] = d.visits
	} else {
		l.known.Add(-1)
	}
	if l.waiting != nil {
		close(l.waiting)
		l.waiting = nil
	}
}

// pairOf returns the addressPair of a connection, and whether both its ends are on this machine.
func pairOf(c *conn.Conn) (w addressPair, stays bool) {
	if c == nil {
		return addressPair{}, false
	}
	w = newAddressPair(c.Local, c.Peer)
	return w, w.stays()
}

// forget is called before a connection that dial made is closed: after that, another
// connection may get the same addresses.
func (l *localConnections) forget(c *conn.Conn) {
	w := newAddressPair(c.Local, c.Peer)
	if !w.stays() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.made[w]; known {
		delete(l.made, w)
		l.known.Add(-1)
	}
}

// visits returns how often the bytes of an accepted connection were here before. While dial
// makes a connection to the same address, the accepted connection may be its other end. If
// dial has not recorded it yet, visits waits for that, at most for timeout.
func (l *localConnections) visits(c *conn.Conn) int {
	if l.known.Load() == 0 || !c.Peer.IsValid() {
		return 0
	}
	w := newAddressPair(c.Peer, socketAddress(c))
	if !w.stays() {
		return 0
	}
	end := time.NewTimer(timeout)
	defer end.Stop()
	for {
		l.mu.Lock()
		n, made := l.made[w]
		if made || l.dialing[w.to] == 0 {
			l.mu.Unlock()
			return n
		}
		if l.waiting == nil {
			l.waiting = make(chan struct{})
		}
		changed := l.waiting
		l.mu.Unlock()
		select {
		case <-changed:
		case <-end.C:
			return 0
		}
	}
}

// socketAddress returns the local address of the accepted socket. Unlike c.Local, it does not
// come from the PROXY header.
func socketAddress(c *conn.Conn) (at netip.AddrPort) {
	if c.Header.Version == 0 {
		return c.Local
	}
	c.Control(func(fd uintptr) {
		sa, _ := syscall.Getsockname(int(fd))
		switch sa := sa.(type) {
		case *syscall.SockaddrInet4:
			at = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
		case *syscall.SockaddrInet6:
			at = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
		}
	})
	return at
}
