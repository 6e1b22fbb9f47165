package backend

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// A name may have addresses of both families, of which one leads nowhere, such as the AAAA record of a
// host without IPv6. Each address is an endpoint, so weir races endpoints: if a connection takes long,
// it tries the endpoints of the other family, and leaves the attempt to them if one of them connects
// (RFC 8305, section 5).

const (
	// headStart is how long a connection may take before the other family is tried: the Connection
	// Attempt Delay of RFC 8305, section 8.
	headStart = 250 * time.Millisecond
	// rivalTime limits each connection of the other family.
	rivalTime = time.Second
	// longestAvoided limits the ejection of an endpoint that loses each race. The time doubles with
	// each race in a row.
	longestAvoided = 10 * time.Minute

	// slowLookup is the time after which a look-up asks for each family on its own, and
	// resolutionDelay how long it then waits for the second answer (RFC 8305, section 3).
	slowLookup, resolutionDelay = 2 * time.Second, 500 * time.Millisecond
)

// SystemLookup resolves a host name with the system's resolver. Some name servers never answer a
// question for AAAA records. Then it returns the addresses of the other family.
func SystemLookup(ctx context.Context, host string) ([]netip.Addr, error) {
	return lookupFamilies(ctx, host, net.DefaultResolver.LookupNetIP)
}

// addresses is the result of a look-up.
type addresses struct {
	list []netip.Addr
	err  error
}

func lookupFamilies(ctx context.Context, host string, lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)) ([]netip.Addr, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ask := func(network string) <-chan addresses {
		answer := make(chan addresses, 1)
		go func() {
			list, err := lookup(ctx, network, host)
			answer <- addresses{list, err}
		}()
		return answer
	}
	both := ask("ip")
	select {
	case a := <-both:
		return a.list, a.err
	case <-time.After(slowLookup):
	}
	four, six := ask("ip4"), ask("ip6")
	var enough <-chan time.Time
	for known := []netip.Addr(nil); ; {
		var one addresses
		select {
		case a := <-both: // it knows all that the others know
			if a.err == nil || len(known) == 0 {
				return a.list, a.err
			}
			return known, nil
		case <-enough:
			return known, nil
		case one = <-four:
		case one = <-six:
		}
		if known = append(known, one.list...); len(known) > 0 && enough == nil {
			enough = time.After(resolutionDelay)
		}
	}
}

// ErrOtherFamily means that a connection was given up, because its name has an address of the other
// family that connected meanwhile. The request or tunnel certainly had no effect.
var ErrOtherFamily = errors.New("the connection took long, and an address of the other family of its name connected first")

// hasBoth reports whether addresses of both families are in the list.
func hasBoth(addrs []netip.Addr) bool {
	six := false
	for _, a := range addrs {
		six = six || a.Is6()
	}
	return six && len(addrs) > 1 && addrs[0].Is4() // sorted
}

// connect makes a TCP connection to the endpoint, or returns ErrOtherFamily.
func (e *Endpoint) connect(ctx context.Context) (net.Conn, error) {
	if !e.bothFamilies.Load() {
		return dialSocket(ctx, e.addr, e.path())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	race := time.AfterFunc(headStart, func() {
		if e.rivalConnects(ctx) {
			cancel(ErrOtherFamily)
		}
	})
	defer race.Stop()
	nc, err := dialSocket(ctx, e.addr, "")
	if err != nil && context.Cause(ctx) == ErrOtherFamily {
		err = ErrOtherFamily
	}
	return nc, err
}

// rivalConnects reports whether an endpoint of the other family accepts a connection. The next attempt
// makes a connection of its own.
func (e *Endpoint) rivalConnects(ctx context.Context) bool {
	for _, o := range e.rivals() {
		ctx, cancel := context.WithTimeout(ctx, rivalTime)
		err := o.permit(o.addr)
		if err == nil {
			var nc net.Conn
			if nc, err = dialSocket(ctx, o.addr, ""); err == nil {
				nc.Close()
			}
		}
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// rivals returns the usable endpoints with the same name and port, and an address of the other family.
func (e *Endpoint) rivals() (list []*Endpoint) {
	e.backend.mu.Lock()
	defer e.backend.mu.Unlock()
	for _, o := range e.backend.endpoints {
		if o.bothFamilies.Load() && o.host == e.host && o.addr.Port() == e.addr.Port() && o.addr.Addr().Is4() != e.addr.Addr().Is4() && o.usable() {
			list = append(list, o)
		}
	}
	return list
}

// lose ejects the endpoint after a lost race, if another one can replace it. Races that began before
// its ejection do not count again.
func (e *Endpoint) lose() {
	b := e.backend
	b.mu.Lock()
	defer b.unlock()
	if e.removed.Load() || !e.usable() || b.othersUsable(e) == 0 {
		return
	}
	inRow := min(e.failures.Add(1), 12)
	e.eject(otherFamily, min(b.cfg.Ejection.For<<(inRow-1), max(longestAvoided, b.cfg.Ejection.For)), "because another address family of its name connected first")
}
