package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Inherited is a listening socket that another process has opened.
type Inherited struct {
	// Name is an owner, such as listeners.web or health, or the name of a listener, such as
	// web.
	Name string
	// Network and Address are copied from the owner's Want, if the other process is a weir.
	// Both are empty if a service manager has opened the socket. The service manager then
	// keeps the socket, and the owner must want the address of the socket.
	Network, Address string
	// Kept means that a service manager keeps the socket.
	Kept bool
	// File is the socket file of a Unix socket, if the other process is a weir that passes it.
	File FileID `json:",omitzero"`
	// FD is the descriptor. Inherit owns it, and closes it.
	FD int `json:"-"`
}

// Inherit adds sockets of another process. Owners of the next plans get them. Call Inherit
// before the first Plan. After an error the Set is unchanged.
func (s *Set) Inherit(all []Inherited) error {
	var sockets []*Socket
	var errs []error
	for _, i := range all {
		ln, err := i.listener()
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot use the inherited socket %q: %w", i.Name, err))
			continue
		}
		at := address{i.Network, i.Address}
		if i.fromManager() {
			at = address{ln.Addr().Network(), ln.Addr().String()}
		}
		socket := newSocket(ln, at, s)
		socket.name, socket.kept = i.Name, i.Kept || i.fromManager()
		if i.File != (FileID{}) {
			socket.id = i.File
		}
		socket.outside.Store(true)
		sockets = append(sockets, socket)
	}
	for n, socket := range sockets {
		if slices.ContainsFunc(sockets[:n], func(other *Socket) bool { return other.name == socket.name }) {
			errs = append(errs, fmt.Errorf("two inherited sockets have the name %q, and a listener has one address; give each of them its own name in LISTEN_FDNAMES", socket.name))
		}
	}
	if len(errs) > 0 {
		for _, socket := range sockets {
			socket.fd.Close()
		}
		return errors.Join(errs...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, socket := range sockets {
		s.note(socket)
		if all[n].fromManager() {
			s.activated = append(s.activated, socket)
		} else {
			s.inherited = append(s.inherited, socket)
		}
	}
	return nil
}

func (i *Inherited) fromManager() bool { return i.Network == "" }

// listener makes a listener of the descriptor, and closes the descriptor.
func (i *Inherited) listener() (net.Listener, error) {
	f := os.NewFile(uintptr(i.FD), i.Name)
	if f == nil {
		return nil, fmt.Errorf("it has the descriptor %d", i.FD)
	}
	defer f.Close() // FileListener duplicates
	kind, err := unix.GetsockoptInt(i.FD, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d is not a socket: %w", i.FD, err)
	}
	if listens, err := unix.GetsockoptInt(i.FD, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); kind != unix.SOCK_STREAM || err != nil || listens == 0 {
		return nil, errors.New("it does not accept connections; a socket unit needs ListenStream= and Accept=no")
	}
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	switch ln.(type) {
	case *net.TCPListener, *net.UnixListener:
	default:
		ln.Close()
		return nil, fmt.Errorf("weir does not listen on network %s", ln.Addr().Network())
	}
	if err := prepareInherited(ln); err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// activatedFor returns the socket that a service manager has opened for an owner; nil: none.
func (p *Plan) activatedFor(w Want) (*Socket, error) {
	socket := p.activated[w.Owner]
	if socket != nil && !sameAddress(w, socket.Addr()) {
		return nil, fmt.Errorf("the inherited socket %q listens on %s, and the configuration says %s; write the same address in both (ListenStream= of a socket unit)",
			socket.name, socket.Addr(), w.Address)
	}
	return socket, nil
}

// findOwners finds the owner of each socket of a service manager. The caller holds set.mu.
func (p *Plan) findOwners(wants []Want) {
	p.activated = make(map[string]*Socket)
	for _, socket := range p.set.activated {
		owner := ownerOf(socket.name, wants)
		switch other := p.activated[owner]; {
		case owner == "":
			p.unowned = append(p.unowned, fmt.Errorf("the inherited socket %q (%s) belongs to no listener; its name in LISTEN_FDNAMES (FileDescriptorName= of a socket unit) must be the name of a listener, health, metrics or admin",
				socket.name, socket.Addr()))
		case other != nil:
			p.unowned = append(p.unowned, fmt.Errorf("the inherited sockets %q (%s) and %q (%s) belong to the same listener, which has one address; give each of them the name of another listener in LISTEN_FDNAMES (FileDescriptorName= of a socket unit)",
				other.name, other.Addr(), socket.name, socket.Addr()))
		default:
			p.activated[owner] = socket
		}
	}
}

// ownerOf returns the owner of a socket of a service manager; empty: none. The name of the socket is
// the owner or, without its prefix, the name of a listener. An owner with the exact name comes
// first: a listener may have the name health.
func ownerOf(name string, wants []Want) (owner string) {
	for _, w := range wants {
		if w.Owner == name {
			return name
		}
		if _, short, isListener := strings.Cut(w.Owner, "."); isListener && short == name && owner == "" {
			owner = w.Owner
		}
	}
	return owner
}

// Unowned returns an error for each socket of a service manager that no owner of the plan gets.
// Clients would connect to such a socket and never get an answer.
func (p *Plan) Unowned() []error { return p.unowned }

// sameAddress returns true if w wants a socket at this address. The configuration may write all
// addresses of the machine in several ways.
func sameAddress(w Want, at net.Addr) bool {
	switch at := at.(type) {
	case *net.UnixAddr:
		return w.Network == "unix" && filepath.Clean(at.Name) == filepath.Clean(w.Address)
	case *net.TCPAddr:
		host, port, err := net.SplitHostPort(w.Address)
		if w.Network != "tcp" || err != nil || port != fmt.Sprint(at.Port) {
			return false
		}
		wanted, _ := netip.ParseAddr(host)
		if host == "" || wanted.IsUnspecified() {
			return at.IP.IsUnspecified()
		}
		return at.AddrPort().Addr().Unmap() == wanted.Unmap()
	}
	return false
}

// Pass returns the sockets in effect for a process that takes over, in a fixed order. The
// descriptors are duplicates, and the caller closes them. Until Leave, this process decides
// about the accept queues and the socket files. A Unix socket whose file was removed is among them:
// the plan of the other process opens a new one.
func (s *Set) Pass() (all []Inherited, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for owner, socket := range s.inEffect {
		fd, err := socket.dup()
		if err != nil {
			CloseAll(all)
			return nil, fmt.Errorf("cannot pass the socket of %s: %w", owner, err)
		}
		all = append(all, socket.inherited(owner, fd))
	}
	sortByName(all)
	return all, nil
}

// CloseAll closes the descriptors of Pass.
func CloseAll(all []Inherited) {
	for _, i := range all {
		unix.Close(i.FD)
	}
}

// Taken returns the inherited sockets that owners of this process have, without descriptors.
// The process that passed them calls Leave with them.
func (s *Set) Taken() (all []Inherited) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for owner, socket := range s.inEffect {
		if socket.outside.Load() {
			all = append(all, socket.inherited(owner, -1))
		}
	}
	sortByName(all)
	return all
}

// inherited describes a socket to another process. fd is its descriptor there; -1: none.
func (s *Socket) inherited(owner string, fd int) Inherited {
	return Inherited{Name: owner, Network: s.at.network, Address: s.at.text, Kept: s.kept, File: s.id, FD: fd}
}

func sortByName(all []Inherited) {
	slices.SortFunc(all, func(a, b Inherited) int { return strings.Compare(a.Name, b.Name) })
}

// Leave gives sockets to the process that has taken them: from now on that process decides about
// their accept queues and socket files. The owners in this process have to close their sockets.
func (s *Set) Leave(taken []Inherited) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for socket := range s.open {
		if slices.ContainsFunc(taken, func(i Inherited) bool { return socket.at == address{i.Network, i.Address} }) {
			socket.outside.Store(true)
		}
	}
}

// Discard closes the inherited sockets of another weir that no owner has taken.
func (s *Set) Discard() {
	s.mu.Lock()
	left := s.inherited
	s.inherited = nil
	s.mu.Unlock()
	for _, socket := range left {
		socket.Close()
	}
}

// Own makes this process decide about the sockets that it inherited from another weir, because
// the other process has left the sockets or has ended. A service manager still decides about its
// own sockets.
func (s *Set) Own() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for socket := range s.open {
		if !socket.kept {
			socket.outside.Store(false)
		}
	}
}
