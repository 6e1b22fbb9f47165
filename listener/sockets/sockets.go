// Package sockets opens the listening sockets of this process. No other package opens
// one. A Set knows which sockets are open, and which part of the process owns each.
//
// A configuration takes effect in two steps. Set.Plan opens the sockets that are missing,
// and disturbs nothing that is in effect. Then the caller calls Plan.Commit, or
// Plan.Abandon. An owner that stays at its address keeps its socket. If the file of a Unix socket
// is gone, its owner gets a new socket. If an owner gives up an
// address and another owner wants it, the socket moves with its accept queue. All other
// sockets are new. On Linux a new one may be for all addresses of the machine while owners
// leave single addresses of its port.
//
// Every owner closes its own socket, because it has to serve the connections in the accept
// queue first.
package sockets

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
)

// Want is a socket that a configuration needs.
type Want struct {
	// Owner is the part that accepts connections on the socket: its key in the
	// configuration, such as listeners.web or health. An owner has one socket.
	Owner string
	// Network is "tcp" or "unix". Address is host:port (without host for IPv4 and IPv6),
	// or a path.
	Network, Address string
}

func (w Want) address() address { return address{w.Network, w.Address} }

// address is an address to listen on, as the configuration names it.
type address struct{ network, text string }

// Set is the listening sockets of this process. The zero value is ready to use. Many
// goroutines may use a Set. Several plans may be under way; after the Commit of one of them
// the others can only be abandoned.
type Set struct {
	// Listen opens a socket; nil: the kernel does. Set it before the first Plan.
	Listen func(network, address string) (net.Listener, error)

	mu       sync.Mutex
	open     map[*Socket]bool   // all that are not closed: in effect, planned, or about to be closed by their owners
	inEffect map[string]*Socket // by owner
	// inherited has the sockets of a former weir that no owner has taken yet, until Discard.
	// activated has the sockets of a service manager until the first Commit.
	inherited, activated []*Socket
}

// Plan is the sockets of a configuration that is not in effect yet.
type Plan struct {
	set    *Set
	all    map[string]*Socket  // by owner
	opened map[string]*Socket  // by owner: those that are not in effect yet
	moved  map[*Socket]*Socket // an opened socket, and the socket in effect that it duplicates
	errs   map[string]error    // by owner

	activated map[string]*Socket // by owner: the sockets of a service manager
	unowned   []error            // see Unowned
}

// Plan opens the sockets that are wanted and not in effect. Plan.Err has the errors.
func (s *Set) Plan(wants []Want) *Plan {
	p := &Plan{set: s, all: map[string]*Socket{}, opened: map[string]*Socket{}, moved: map[*Socket]*Socket{}, errs: map[string]error{}}
	free := p.keep(wants)
	for _, w := range wants {
		if p.all[w.Owner] != nil {
			continue
		}
		socket, err := p.openFor(w, free)
		if err != nil {
			p.errs[w.Owner] = err
			continue
		}
		p.all[w.Owner], p.opened[w.Owner] = socket, socket
	}
	return p
}

// keep finds the owners that stay at their address. It returns the other sockets in
// effect. Unix sockets without their files are in neither: plans open new ones.
func (p *Plan) keep(wants []Want) (free map[address]*Socket) {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	for _, w := range wants {
		if socket := p.set.inEffect[w.Owner]; socket != nil && socket.at == w.address() && !socket.lostFile() {
			p.all[w.Owner] = socket
		}
	}
	free = make(map[address]*Socket)
	for _, socket := range p.set.inherited {
		if !socket.lostFile() {
			free[socket.at] = socket
		}
	}
	for owner, socket := range p.set.inEffect {
		if p.all[owner] == nil {
			if !socket.lostFile() {
				free[socket.at] = socket
			}
		} else if other := free[socket.at]; other != nil && slices.Contains(p.set.inherited, other) {
			delete(free, socket.at) // an owner has it already
		}
	}
	p.findOwners(wants)
	return free
}

// openFor duplicates the socket that another owner gives up, or else opens a new one. Until
// Commit, a duplicate is shared: if it is closed, nothing has happened.
func (p *Plan) openFor(w Want, free map[address]*Socket) (*Socket, error) {
	if old := free[w.address()]; old != nil {
		delete(free, w.address()) // a socket moves to one owner
		if socket, err := p.move(old, w.address()); err == nil {
			return socket, nil
		}
	}
	if given, err := p.activatedFor(w); err != nil {
		return nil, err
	} else if given != nil {
		return p.move(given, w.address())
	}
	open := p.set.Listen
	if open == nil {
		open = bind
	}
	ln, err := open(w.Network, w.Address)
	if errors.Is(err, syscall.EADDRINUSE) {
		if own := p.set.onPort(w); len(own) > 0 {
			ln, err = widen(w, own, free)
		}
	}
	if err != nil {
		return nil, err
	}
	return p.set.add(ln, w.address()), nil
}

// move makes a duplicate of a socket that another owner gives up, or that another process has
// opened.
func (p *Plan) move(old *Socket, at address) (*Socket, error) {
	ln, err := old.duplicate()
	if err != nil {
		return nil, err
	}
	socket := newSocket(ln, at, p.set)
	socket.kept, socket.id = old.kept, old.id
	socket.shared.Store(true)
	socket.outside.Store(old.outside.Load())
	p.moved[socket] = old
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	p.set.note(socket)
	return socket, nil
}

// widen opens a socket for all addresses of the machine, beside own sockets for single ones
// that their owners give up. Until these are closed, the kernel gives them the connections to
// their addresses. So no client is refused, whether the plan is committed or abandoned. The
// other way round, the new socket would get the connections before Commit, and Abandon
// would reset them.
func widen(w Want, own []*Socket, free map[address]*Socket) (net.Listener, error) {
	host, _, _ := net.SplitHostPort(w.Address)
	at, err := netip.ParseAddr(host)
	all := host == "" || err == nil && at.IsUnspecified()
	for _, socket := range own {
		all = all && free[socket.at] == socket
	}
	err = errors.ErrUnsupported
	if all {
		var ln net.Listener
		if ln, err = bindBeside(w.Network, w.Address, own); err == nil {
			for _, socket := range own {
				socket.replaced.Store(true)
				delete(free, socket.at) // it moves to no owner
			}
			return ln, nil
		}
	}
	if !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EADDRINUSE) {
		return nil, err
	}
	return nil, fmt.Errorf("cannot bind %s: %w; weir itself listens on %s, and a reload can only go from single addresses to all of them; restart weir, or use another port",
		w.Address, syscall.EADDRINUSE, own[0].at.text)
}

// onPort returns the own TCP sockets on the port that w asks for. The kernel lets no socket
// listen on one address of the machine while another one listens on all of them, unless
// both allow it.
func (s *Set) onPort(w Want) (own []*Socket) {
	_, port, err := net.SplitHostPort(w.Address)
	if err != nil || w.Network == "unix" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for socket := range s.open {
		if _, at, err := net.SplitHostPort(socket.at.text); err == nil && at == port && socket.at.network == w.Network {
			own = append(own, socket)
		}
	}
	slices.SortFunc(own, func(a, b *Socket) int { return cmp.Compare(a.at.text, b.at.text) })
	return own
}

// Opened returns the socket that an owner gets. It is nil if the owner keeps the socket
// that it has, and if there is an error. From Commit on, the owner has to close the socket.
func (p *Plan) Opened(owner string) *Socket { return p.opened[owner] }

// Err returns the reason why an owner gets no socket. It names the address, and what to
// change.
func (p *Plan) Err(owner string) error { return p.errs[owner] }

// Complete returns true if every owner gets its socket.
func (p *Plan) Complete() bool { return len(p.errs) == 0 }

// Commit puts the plan into effect. The owners that no longer have their socket have to
// close it. A socket that moved is shared from now on: its previous owner gives the accept
// queue to the new one.
func (p *Plan) Commit() {
	for _, given := range p.takeEffect() {
		given.Close() // its owner has a duplicate
	}
}

// takeEffect is Commit. It returns the sockets of a service manager that are to be closed.
func (p *Plan) takeEffect() (given []*Socket) {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	for socket, old := range p.moved {
		old.shared.Store(true)
		socket.shared.Store(false)
	}
	maps.DeleteFunc(p.all, func(_ string, socket *Socket) bool { return !p.set.open[socket] }) // closed meanwhile
	p.set.inEffect = p.all
	given, p.set.activated = p.set.activated, nil
	return given
}

// Abandon closes the sockets that the plan opened. Nothing else has changed.
func (p *Plan) Abandon() {
	for _, socket := range p.opened {
		socket.Close()
	}
}

// Addresses returns the TCP addresses on which this process listens, each once and in a
// fixed order. Those of a plan are among them.
func (s *Set) Addresses() (all []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for socket := range s.open {
		if t, ok := socket.Addr().(*net.TCPAddr); ok {
			all = append(all, t.AddrPort())
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// Unreachable returns an error for each Unix socket in effect whose path has the file of another
// process, so that no client reaches it. The error names the owner, and what to change.
func (s *Set) Unreachable() (all []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, owner := range slices.Sorted(maps.Keys(s.inEffect)) {
		socket := s.inEffect[owner]
		if path := socket.file(); path != "" && !socket.kept && !socket.reachedBy(path) {
			all = append(all, fmt.Errorf("%s: no client reaches the Unix socket, because another process has put its own file at %s; stop that process and reload, or use another path", owner, path))
		}
	}
	return all
}

func (s *Set) add(ln net.Listener, at address) *Socket {
	socket := newSocket(ln, at, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(socket)
	return socket
}

// note makes a socket known. The caller holds mu.
func (s *Set) note(socket *Socket) {
	if s.open == nil {
		s.open = make(map[*Socket]bool)
	}
	s.open[socket] = true
}

// forget removes a closed socket.
func (s *Set) forget(socket *Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, socket)
	s.inherited = slices.DeleteFunc(s.inherited, func(one *Socket) bool { return one == socket })
	maps.DeleteFunc(s.inEffect, func(_ string, one *Socket) bool { return one == socket })
}
