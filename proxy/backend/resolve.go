package backend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
)

// lookupTimeout bounds one look-up.
const lookupTimeout = 5 * time.Second

// name is a configured address whose host has to be looked up, again and again.
type name struct {
	address  string
	host     string
	foreign  bool // see config.Endpoint
	interval atomic.Int64
	first    chan struct{} // closed once the first look-up is through, well or not
	stop     context.CancelFunc

	// Guarded by the backend's mutex.
	addrs   []netip.Addr // the last addresses that were found
	tried   bool         // the first look-up has ended
	refused []netip.Addr // the last that were found and must not be used

	failing error // the error of the last look-up; nil: it succeeded
}

// SystemLookup resolves a host name as the system does.
func SystemLookup(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// splitHost is the host and port of a configured address; both empty for a Unix socket.
func splitHost(address string) (host, port string) {
	if strings.HasPrefix(address, "unix:") {
		return "", ""
	}
	host, port, _ = net.SplitHostPort(address)
	return host, port
}

func checkAddresses(cfg *config.Backend) error {
	for _, e := range cfg.Endpoints {
		if path, ok := strings.CutPrefix(e.Address, "unix:"); ok {
			if path == "" {
				return fmt.Errorf("endpoint %q names no socket; write unix:/path", e.Address)
			}
			continue
		}
		host, port := splitHost(e.Address)
		if n, err := strconv.ParseUint(port, 10, 16); host == "" || err != nil || n == 0 {
			return fmt.Errorf("endpoint %q is not host:port with a port from 1 to 65535, nor unix:/path", e.Address)
		}
	}
	return nil
}

// member is one address that the configuration asks for.
type member struct {
	address string // the identity
	addr    netip.AddrPort
	path    string
	host    string
	cfg     config.Endpoint
}

// members are the addresses of all configured endpoints, each once; the first
// entry that leads to an address decides its weight and node. b.mu is held.
func (b *Backend) members() []member {
	var list []member
	seen := make(map[string]bool)
	add := func(m member) {
		if !seen[m.address] {
			seen[m.address] = true
			list = append(list, m)
		}
	}
	var refused []Refusal
	defer func() { b.noteRefusals(refused) }()
	for _, cfg := range b.cfg.Endpoints {
		if path, ok := strings.CutPrefix(cfg.Address, "unix:"); ok {
			if cfg.Foreign {
				continue // a socket is always this machine's
			}
			add(member{address: cfg.Address, path: path, cfg: cfg})
			continue
		}
		host, port := splitHost(cfg.Address)
		p, _ := strconv.ParseUint(port, 10, 16) // checkAddresses saw it
		addrs, name := []netip.Addr{}, ""
		if n := b.names[cfg.Address]; n != nil {
			addrs, name = n.addrs, host
			for _, a := range n.refused {
				refused = append(refused, Refusal{b.name, netip.AddrPortFrom(a, uint16(p)).String(), host, false})
			}
		} else if a, err := netip.ParseAddr(host); err == nil {
			addrs = append(addrs, a.Unmap())
		}
		for _, a := range addrs {
			ap := netip.AddrPortFrom(a, uint16(p))
			if cfg.Foreign && b.refuses(ap, name, &refused) {
				continue
			}
			add(member{address: ap.String(), addr: ap, host: host, cfg: cfg})
		}
	}
	return list
}

// planNames keeps the names that stay, and starts look-ups of names that are new, with the
// answers that exist.
func (b *Backend) planNames(p *plan, answers *Answers) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.names = make(map[string]*name)
	for _, e := range p.cfg.Endpoints {
		host, _ := splitHost(e.Address)
		if _, err := netip.ParseAddr(host); host == "" || err == nil || p.names[e.Address] != nil {
			continue
		}
		n := b.names[e.Address]
		if n == nil || n.foreign != e.Foreign {
			ctx, stop := context.WithCancel(context.Background())
			n = &name{address: e.Address, host: host, foreign: e.Foreign, first: make(chan struct{}), stop: stop}
			n.interval.Store(int64(p.cfg.ResolveInterval))
			l := answers.lookup(host)
			if l.ended() {
				p.fresh = append(p.fresh, n)
			}
			go b.resolve(ctx, n, l)
		}
		p.names[e.Address] = n
	}
}

// resolve looks n up at once, or takes the result of the look-up l, and repeats that at the
// interval of n. Each interval varies a little, so that the look-ups of many names spread.
func (b *Backend) resolve(ctx context.Context, n *name, l *lookup) {
	for ; ; l = nil {
		if l == nil {
			l = beginLookup(ctx, b.opts.Lookup, n.host)
		}
		addrs, err := l.wait(ctx)
		if ctx.Err() != nil {
			b.answer(n, nil, nil)
			return
		}
		if err == nil && len(addrs) == 0 {
			err = errors.New("the DNS answer has no address")
		}
		b.answer(n, addrs, err)
		t := time.NewTimer(jitter(max(time.Second, time.Duration(n.interval.Load()))))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// answer takes what a look-up found. A failed one changes nothing: endpoints
// that worked a moment ago are better than none, and "no such name" is what
// broken name servers say, too.
func (b *Backend) answer(n *name, addrs []netip.Addr, err error) {
	b.mu.Lock()
	defer b.unlock()
	first := !n.tried
	n.tried = true
	if err != nil {
		err = fmt.Errorf("looking up %s: %w", n.host, err)
	}
	if first {
		defer close(n.first)
	}
	switch {
	case err != nil && n.failing == nil:
		b.notify(Event{Kind: LookupFailed, Host: n.host, Err: fmt.Errorf(
			"backend %q: %w; %s", b.name, err, n.meanwhile())})
	case err == nil && n.failing != nil && len(addrs) > 0:
		b.notify(Event{Kind: LookupRecovered, Host: n.host})
	}
	if err != nil || len(addrs) > 0 {
		n.failing = err
	}
	changed := false
	if err == nil && len(addrs) > 0 {
		refused := n.refused
		addrs = b.admit(n, normalize(addrs))
		changed = !slices.Equal(addrs, n.addrs) || !slices.Equal(refused, n.refused)
		n.addrs = addrs
	}
	if (changed || first) && b.names[n.address] == n && !b.removed {
		b.reconcile()
	}
}

// LookupError returns the reason why a name of the backend has no address now; nil if all
// names have one.
func (b *Backend) LookupError() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lookupError()
}

// lookupError is LookupError for callers that hold the lock.
func (b *Backend) lookupError() error {
	for _, n := range b.names {
		if len(n.addrs) == 0 && n.failing != nil {
			return n.failing
		}
	}
	return nil
}

// meanwhile returns what a failed look-up means for the backend.
func (n *name) meanwhile() string {
	every := time.Duration(n.interval.Load())
	if len(n.addrs) == 0 {
		return fmt.Sprintf("no address is known, so this name adds no endpoint; weir tries again every %v", every)
	}
	return fmt.Sprintf("its previous %d addresses stay in use; weir tries again every %v", len(n.addrs), every)
}

// admit takes out the addresses that n must not lead to, and tells of them. b.mu is held.
func (b *Backend) admit(n *name, addrs []netip.Addr) []netip.Addr {
	if !n.foreign {
		return addrs
	}
	var refused []netip.Addr
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		if isForeign(a) {
			return false
		}
		refused = append(refused, a)
		return true
	})
	b.refused.Add(uint64(len(refused)))
	if len(refused) > 0 && !slices.Equal(refused, n.refused) {
		b.notify(Event{Kind: AddressRefused, Host: n.host, Err: fmt.Errorf(
			"weir refuses addresses of %s, a name of backend %q, because they are loopback, link-local, multicast, unspecified or cloud metadata addresses: %v; weir uses the other %d addresses",
			n.host, b.name, refused, len(addrs))})
	}
	n.refused = refused
	return addrs
}

// metadata are the services of clouds that tell a machine its own secrets, where
// those are not link-local: Amazon's, Google's, Alibaba's, Azure's and Oracle's.
var metadata = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd00:ec2::23"), netip.MustParseAddr("fd20:ce::254"),
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192")}

// localTranslation is for IPv4/IPv6 translators of a local network (RFC 8215). Only that
// network knows where the IPv4 address is within it.
var localTranslation = netip.MustParsePrefix("64:ff9b:1::/48")

// isForeign reports whether an address can be another machine's: whoever names it
// reaches nothing by it that only this machine, or its owner, should reach.
func isForeign(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if slices.Contains(metadata, a) || localTranslation.Contains(a) {
		return false
	}
	if inner, ok := embedded(a); ok {
		return isForeign(inner)
	}
	if a.Is4() && a.As4()[0] == 0 {
		return false
	}
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

func normalize(addrs []netip.Addr) []netip.Addr {
	list := make([]netip.Addr, len(addrs))
	for i, a := range addrs {
		list[i] = a.Unmap()
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.2*float64(d))
}

// locality knows which addresses are on this node.
type locality struct {
	node  NodeInfo
	addrs []netip.Addr
	zone  string // that the node is in; empty: not known
}

// isLocal reports whether e is on this node. A node that the endpoint names
// decides alone; an endpoint that names none is local by its address, unless
// the configuration names this node and so says that names are what counts.
func (l *locality) isLocal(e *Endpoint) bool {
	switch {
	case e.cfg.Node != "":
		return e.cfg.Node == l.node.Name
	case l.node.Explicit:
		return false
	case e.path != "":
		return true
	}
	a := e.addr.Addr()
	return a.IsLoopback() || slices.Contains(l.addrs, a.WithZone(""))
}

func interfaceAddrs() []netip.Addr {
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return nil // loopback is still known
	}
	var list []netip.Addr
	for _, n := range nets {
		if p, ok := n.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(p.IP); ok {
				list = append(list, a.Unmap())
			}
		}
	}
	return list
}
