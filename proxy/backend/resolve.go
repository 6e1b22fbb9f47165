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

// lookupTimeout limits the time of one look-up.
const lookupTimeout = 5 * time.Second

// name is a configured address with a host name. weir looks it up regularly.
type name struct {
	address  string
	host     string
	foreign  bool // see config.Endpoint
	interval atomic.Int64
	first    chan struct{} // closed when the first look-up has ended, successful or not
	stop     context.CancelFunc

	// Guarded by the backend's mutex.
	addrs   []netip.Addr // the addresses of the last answer that weir may use
	tried   bool         // the first look-up has ended
	refused []netip.Addr // the addresses of the last answer that weir refuses

	failing error // the error of the last look-up; nil: it succeeded
}

// splitHost returns the host and port of a configured address; both are empty for a Unix
// socket.
func splitHost(address string) (host, port string) {
	if strings.HasPrefix(address, "unix:") {
		return "", ""
	}
	host, port, _ = net.SplitHostPort(address)
	return host, port
}

func checkAddresses(cfg *config.Backend) error {
	for _, e := range cfg.Endpoints {
		if path, ok := strings.CutPrefix(e.Address, unixPrefix); ok {
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

// member is one address of the configuration, with its names resolved.
type member struct {
	address string // ip:port, or unixPrefix and a path; identifies the endpoint
	addr    netip.AddrPort
	host    string
	cfg     *config.Endpoint

	bothFamilies bool // the host is a name with addresses of both families
}

// members returns the addresses of all configured endpoints, each once. If several entries
// lead to an address, the first one sets its weight and node. The caller holds b.mu.
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
	for i := range b.cfg.Endpoints {
		cfg := &b.cfg.Endpoints[i]
		if strings.HasPrefix(cfg.Address, unixPrefix) {
			if cfg.Foreign {
				continue // a Unix socket is always on this machine
			}
			add(member{address: cfg.Address, cfg: cfg})
			continue
		}
		host, port := splitHost(cfg.Address)
		p, _ := strconv.ParseUint(port, 10, 16) // checkAddresses has checked it
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
			address := ap.String()
			if address == cfg.Address {
				address = cfg.Address // one string instead of two
			}
			add(member{address: address, addr: ap, host: host, cfg: cfg, bothFamilies: hasBoth(addrs)})
		}
	}
	return list
}

// planNames keeps the names that stay. It starts the look-ups of new names, and passes them
// the answers that exist.
func (b *Backend) planNames(p *change, answers *Answers) {
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

// resolve looks n up at once, or takes the result of the look-up l if it is not nil. Then it
// looks n up again at the interval of n. Each interval varies a little, so that the look-ups
// of many names do not happen at the same time.
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

// answer takes the result of a look-up. A failed look-up does not change the addresses:
// endpoints that worked a moment ago are better than none, and a broken name server may
// answer "no such name", too.
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

// LookupError returns the reason why a name of the backend has no address now; nil if every
// name has an address.
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

// meanwhile describes the effect of a failed look-up on the backend.
func (n *name) meanwhile() string {
	every := time.Duration(n.interval.Load())
	if len(n.addrs) == 0 {
		return fmt.Sprintf("no address is known, so this name adds no endpoint; weir tries again every %v", every)
	}
	return fmt.Sprintf("its previous %d addresses stay in use; weir tries again every %v", len(n.addrs), every)
}

// admit removes the addresses that n must not lead to, and reports them. The caller holds
// b.mu.
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

// metadata are addresses of the metadata services of Amazon, Google, Alibaba, Azure and
// Oracle, except link-local ones. These services give a machine its secrets.
var metadata = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd00:ec2::23"), netip.MustParseAddr("fd20:ce::254"),
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192")}

// localTranslation is the prefix for IPv4/IPv6 translators of a local network (RFC 8215).
// Only that network knows where the IPv6 address contains the IPv4 address.
var localTranslation = netip.MustParsePrefix("64:ff9b:1::/48")

// isForeign reports whether an address can belong to another machine. The author of an
// object may use such an address: it leads to nothing that only this machine, or its owner,
// should reach.
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

// locality contains the name, zone and addresses of this node.
type locality struct {
	node  NodeInfo
	addrs []netip.Addr
	zone  string // the zone of the node; empty: not known
}

// isLocal reports whether e is on this node:
//   - If the endpoint names a node, only that name counts.
//   - If it does not, and the configuration names this node, the endpoint is not local.
//   - Else its address decides.
func (l *locality) isLocal(e *Endpoint) bool {
	switch {
	case e.cfg.Node != "":
		return e.cfg.Node == l.node.Name
	case l.node.Explicit:
		return false
	case !e.addr.IsValid():
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
