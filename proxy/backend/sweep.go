package backend

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// checksPerTick limits the system calls that a sweep makes while it holds the pool's lock.
const checksPerTick = 16

// sweep closes idle connections. The caller calls it once a second. It closes connections
// that were idle for keepAlive seconds, and connections that the endpoint will close soon.
// It also checks the oldest connections, and closes them if the endpoint has closed them:
// requests take the newest connection, so the oldest ones would stay half closed.
func (e *Endpoint) sweep(keepAlive uint32) {
	e.mu.Lock()
	if len(e.idle)+len(e.held)+len(e.trunks.list) == 0 {
		e.unstock()
		e.mu.Unlock()
		return
	}
	e.ticks++
	var closing []*Link
	cut := max(0, len(e.idle)-e.mostIdle()) // a reload made max_idle smaller
	for cut < len(e.idle) && e.ticks-e.idle[cut].own.idleSince >= keepAlive {
		cut++
	}
	closing = append(closing, e.idle[:cut]...)
	e.idle = slices.Delete(e.idle, 0, cut)
	checked := 0
	var seen ends
	e.idle = slices.DeleteFunc(e.idle, func(s *Link) bool {
		if !s.endsSoon(e.ticks) {
			if checked++; checked > checksPerTick || !s.ended() {
				return false
			}
			seen.add(e.ticks - s.own.idleSince)
		}
		closing = append(closing, s)
		return true
	})
	closing = append(closing, e.sweepHeld(keepAlive)...)
	after, learned := e.closes.learn(seen)
	e.mu.Unlock()
	closeAll(closing)
	e.sweepTrunks(keepAlive)
	if learned {
		e.backend.tellCloses(e, after)
	}
}

// stock notes that the endpoint has connections that sweep must look at. A backend without such
// endpoints costs nothing each second: a cluster may have thousands. The caller holds e.mu.
func (e *Endpoint) stock() {
	if !e.stocked {
		e.stocked = true
		e.backend.stocked.Add(1)
		e.backend.wake()
	}
}

// unstock undoes stock. The caller holds e.mu.
func (e *Endpoint) unstock() {
	if e.stocked {
		e.stocked = false
		e.backend.stocked.Add(-1)
	}
}

// ended reports whether the endpoint has closed an idle connection, or has sent bytes on it
// without a request. Over TLS such bytes do not count: they may be session tickets.
func (s *Link) ended() bool {
	ended := false
	err := s.own.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EAGAIN || err == syscall.EINTR:
		case err != nil || n == 0:
			ended = true
		default:
			ended = s.own.tls == nil || peerEnded(fd) // a close_notify comes before the end
		}
	})
	return ended || err != nil && !errors.Is(err, errors.ErrUnsupported)
}

// endsSoon reports whether the endpoint will close an idle link within about a second,
// according to the Keep-Alive header of its last response. A request at that moment could
// fail. If the announced time is one second, weir may use the link within the same tick.
func (s *Link) endsSoon(ticks uint32) bool {
	announced := s.own.http1.AnnouncedIdle()
	return announced > 0 && ticks-s.own.idleSince >= max(1, announced-1) // up to a second longer idle than the ticks count
}

// ends are the idle times, in seconds, of the connections that one sweep found closed by
// the endpoint.
type ends struct{ n, least, most uint32 }

func (s *ends) add(seconds uint32) {
	if s.n++; s.n == 1 {
		s.least, s.most = seconds, seconds
		return
	}
	s.least, s.most = min(s.least, seconds), max(s.most, seconds)
}

// closes is the time after which an endpoint seems to close idle connections. An endpoint
// that restarts closes connections, too, so several sweeps must see about the same time.
type closes struct {
	after uint32 // seconds; 0: not known
	times uint8  // consecutive sweeps that saw it
}

// closesSeen is the number of sweeps that must see the same idle time.
const closesSeen = 3

// learn counts the result of a sweep. It returns true once for each idle time that closesSeen
// consecutive sweeps have seen. Sweeps that saw no closed connection are skipped.
func (c *closes) learn(seen ends) (after uint32, learned bool) {
	if seen.n == 0 {
		return 0, false
	}
	if c.times == 0 || seen.most-seen.least > 1 || seen.most > c.after+1 || seen.most+1 < c.after {
		*c = closes{after: seen.most, times: 1}
		return 0, false
	}
	if c.times >= closesSeen {
		return 0, false
	}
	c.times++
	return c.after, c.times == closesSeen
}

// tellCloses reports the endpoint that closes idle connections before weir does. A request
// that weir sends at the same moment is lost, unless it may be repeated.
func (b *Backend) tellCloses(e *Endpoint, after uint32) {
	b.mu.Lock()
	defer b.unlock()
	if b.removed || e.removed.Load() {
		return
	}
	// A sweep counts from the sweep before the connection became idle, and sees the end up to
	// a second late. So the endpoint may close up to two seconds earlier than it seems.
	const late = 2
	when := fmt.Sprintf("within %ds", max(1, after))
	if after > late {
		when = fmt.Sprintf("after %d to %ds", after-late, after)
	}
	advice := fmt.Sprintf("let the endpoint keep idle connections for longer than %v", b.cfg.Timeouts.KeepAlive)
	if b.cfg.Namespace == "" && after > late { // keep_alive is at least one second
		advice = fmt.Sprintf("set backends.%s.timeouts.keep_alive to %ds, or %s", b.cfg.Name, after-late, advice)
	}
	b.notify(Event{Kind: EndpointClosesIdle, Endpoint: e.address,
		Reason: fmt.Sprintf("%s; POST requests that weir sends at that moment are answered 502; %s", when, advice)})
}
