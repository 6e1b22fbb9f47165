package backend

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Objects of a cluster name addresses that weir connects to. Their authors must not be able
// to choose an address of this process: on its own ports, weir would answer these requests
// as it answers its operator.

// own knows on which addresses this process listens.
type own struct {
	// sockets are the addresses by port. An unspecified address stands for every address of
	// this host. The map is replaced, never changed.
	sockets atomic.Pointer[map[uint16][]netip.Addr]
	// onThisHost returns true if an address belongs to this host.
	onThisHost func(netip.Addr) (bool, error)
}

func newOwn(onThisHost func(netip.Addr) (bool, error)) *own {
	o := &own{onThisHost: onThisHost}
	o.sockets.Store(new(map[uint16][]netip.Addr))
	return o
}

// set replaces the sockets, and returns true if they have changed.
func (o *own) set(sockets []netip.AddrPort) (changed bool) {
	byPort := make(map[uint16][]netip.Addr)
	for _, s := range sockets {
		a := s.Addr().Unmap().WithZone("")
		if !slices.Contains(byPort[s.Port()], a) {
			byPort[s.Port()] = append(byPort[s.Port()], a)
		}
	}
	for _, addrs := range byPort {
		slices.SortFunc(addrs, netip.Addr.Compare)
	}
	if maps.EqualFunc(byPort, *o.sockets.Load(), slices.Equal) {
		return false
	}
	o.sockets.Store(&byPort)
	return true
}

// has returns true if a connection to ap would reach a socket of this process. Most ports
// are not in sockets; then has does not ask the kernel. It returns an error if the kernel
// gives no answer.
func (o *own) has(ap netip.AddrPort) (bool, error) {
	listening := (*o.sockets.Load())[ap.Port()]
	if len(listening) == 0 {
		return false, nil
	}
	forms := []netip.Addr{ap.Addr().Unmap().WithZone("")}
	if inner, ok := embedded(forms[0]); ok {
		forms = append(forms, inner)
	}
	for _, a := range forms {
		for _, l := range listening {
			if l == a {
				return true, nil
			}
			if !l.IsUnspecified() {
				continue
			}
			if here, err := o.onThisHost(a); here || err != nil {
				return here, err
			}
		}
	}
	return false, nil
}

// sourceIs returns true if packets to an address would have the same address as their
// source. That is so on the host that has the address. sourceIs sends no packets.
func sourceIs(a netip.Addr) (bool, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
	if err != nil {
		if ourOwn(err) {
			return false, err
		}
		return false, nil // there is no route to the address
	}
	defer c.Close()
	from, ok := c.LocalAddr().(*net.UDPAddr)
	return ok && from.AddrPort().Addr().Unmap().WithZone("") == a, nil
}

// embedded returns the IPv4 address within an IPv6 address. A translator or tunnel would
// send the packets to it.
func embedded(a netip.Addr) (inner netip.Addr, ok bool) {
	if !a.Is6() {
		return a, false
	}
	b := a.As16()
	switch [12]byte(b[:12]) {
	case [12]byte{}, // ::127.0.0.1, IPv4-compatible
		[12]byte{0, 0x64, 0xff, 0x9b}, // 64:ff9b::7f00:1, NAT64 (RFC 6052)
		[12]byte{8: 0xff, 9: 0xff}:    // ::ffff:0:127.0.0.1, IPv4-translated (RFC 7915)
		return netip.AddrFrom4([4]byte(b[12:])), true
	}
	if b[0] == 0x20 && b[1] == 0x02 { // 2002:7f00:1::, 6to4 (RFC 3056)
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return a, false
}

// Refusal is an address that the author of an object chose. weir does not connect to it.
type Refusal struct {
	Backend string
	Address string // ip:port
	Host    string // the name that resolves to Address; empty: the object contains the address
	// Own reports whether weir itself listens on the address. Otherwise the address is
	// special (see Why).
	Own bool
}

// Why names the address and says why weir refuses it.
func (r Refusal) Why() string {
	where := r.Address
	if r.Host != "" {
		where += " (from " + r.Host + ")"
	}
	if r.Own {
		return where + " is weir itself, which listens there"
	}
	return where + " is a loopback, link-local, multicast, unspecified or cloud metadata address"
}

func compareRefusals(a, b Refusal) int {
	return cmp.Or(strings.Compare(a.Backend, b.Backend), strings.Compare(a.Address, b.Address), strings.Compare(a.Host, b.Host))
}

// SetOwn sets the addresses on which this process listens; an unspecified address stands
// for all addresses of the host. Foreign endpoints that lead there are removed.
func (s *Set) SetOwn(sockets []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opts.own.set(sockets) {
		return
	}
	for b := range s.all() {
		b.lookAgain()
	}
}

// lookAgain computes again which addresses are refused, if any could be.
func (b *Backend) lookAgain() {
	b.mu.Lock()
	defer b.unlock()
	for _, e := range b.cfg.Endpoints {
		if e.Foreign && !b.removed {
			b.reconcile()
			return
		}
	}
}

// Refusals returns the addresses that are refused now, in a fixed order.
func (s *Set) Refusals() (all []Refusal) {
	all = s.opts.refusing.all()
	slices.SortFunc(all, compareRefusals)
	return all
}

// refusing has the refused addresses by backend.
type refusing struct {
	mu sync.Mutex
	of map[*Backend][]Refusal
}

func (r *refusing) set(b *Backend, refused []Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(refused) == 0 {
		delete(r.of, b)
		return
	}
	if r.of == nil {
		r.of = map[*Backend][]Refusal{}
	}
	r.of[b] = refused
}

func (r *refusing) all() (all []Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, refused := range r.of {
		all = append(all, refused...)
	}
	return all
}

// refuses returns true if the author of an object must not use ap as an endpoint, and notes
// the reason. host is the name that resolves to ap; empty: none. The caller holds b.mu.
func (b *Backend) refuses(ap netip.AddrPort, host string, noted *[]Refusal) bool {
	r := Refusal{Backend: b.name, Address: ap.String(), Host: host}
	if isForeign(ap.Addr()) {
		r.Own, _ = b.opts.own.has(ap) // if the kernel gives no answer now, permit asks again before weir connects
		if !r.Own {
			return false
		}
	}
	*noted = append(*noted, r)
	return true
}

// noteRefusals replaces the refused addresses after all were checked. The caller holds b.mu.
func (b *Backend) noteRefusals(now []Refusal) {
	slices.SortFunc(now, compareRefusals)
	now = slices.Compact(now)
	before := b.refusals
	if slices.Equal(now, before) {
		return
	}
	b.refusals = now
	b.opts.refusing.set(b, now)
	for _, r := range now {
		if slices.Contains(before, r) || r.Host != "" && !r.Own { // admit has reported this refusal
			continue
		}
		b.refused.Add(1)
		b.notify(Event{Kind: AddressRefused, Endpoint: r.Address, Host: r.Host,
			Err: fmt.Errorf("weir refuses an address of backend %q: %s", b.name, r.Why())})
	}
	if b.opts.RefusalsChanged != nil {
		b.later(b.opts.RefusalsChanged)
	}
}

// errOwn means that weir was about to connect to one of its own addresses.
var errOwn = errors.New("it is weir itself, which listens there")

// permit returns an error if weir may not connect to the endpoint now. The host's addresses
// can change without notice, so weir checks this each time.
func (e *Endpoint) permit(addr netip.AddrPort) error {
	if !e.foreign.Load() {
		return nil
	}
	b := e.backend
	switch is, err := b.opts.own.has(addr); {
	case err != nil:
		return err
	case !is:
		return nil
	}
	if !e.removed.Load() {
		// In a goroutine: the caller may be an active check, which lookAgain may end.
		go b.lookAgain()
	}
	return errOwn
}
