package sockets

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// patience is the timeout of each wait in a test.
const patience = 10 * time.Second

// world is a Set with its owners. They never accept by themselves.
type world struct {
	t       *testing.T
	network string
	set     Set
	owners  map[string]*Socket // the owners in effect
	names   map[string]string  // the addresses
}

func newWorld(t *testing.T, network string) *world {
	checkLeaks(t)
	w := &world{t: t, network: network, owners: map[string]*Socket{}, names: map[string]string{}}
	t.Cleanup(func() {
		w.commit(w.plan(""))
		if all := w.set.Addresses(); len(all) > 0 || len(w.set.open) > 0 {
			t.Errorf("left: %v, %v", all, w.set.open)
		}
	})
	return w
}

// plan makes a plan of a list such as "web:a api:b": owners and names of addresses.
func (w *world) plan(list string) *Plan {
	w.t.Helper()
	var wants []Want
	for _, one := range strings.Fields(list) {
		owner, name, _ := strings.Cut(one, ":")
		wants = append(wants, Want{owner, w.network, w.address(name)})
	}
	return w.set.Plan(wants)
}

func (w *world) address(name string) string {
	w.t.Helper()
	if w.names[name] == "" && w.network == "unix" {
		w.names[name] = filepath.Join(w.t.TempDir(), name)
	} else if w.names[name] == "" {
		var err error
		if w.names[name], err = freeport.Sockets.Take("127.0.0.1"); err != nil {
			w.t.Fatal(err)
		}
	}
	return w.names[name]
}

// commit puts a plan into effect. The previous owners close their sockets.
func (w *world) commit(p *Plan) {
	w.t.Helper()
	p.Commit()
	for owner, old := range w.owners {
		if p.all[owner] == old {
			continue
		}
		if err := old.Close(); err != nil {
			w.t.Error(err)
		}
	}
	w.owners = maps.Clone(p.all)
}

// dial connects to an address.
func (w *world) dial(name string) net.Conn {
	w.t.Helper()
	c, err := net.DialTimeout(w.network, w.address(name), patience)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// wantClosed checks that no socket listens at an address, and that its socket file is gone.
func (w *world) wantClosed(name string) {
	w.t.Helper()
	if c, err := net.Dial(w.network, w.address(name)); err == nil {
		c.Close()
		w.t.Errorf("%s is open", name)
	}
	if _, err := os.Lstat(w.address(name)); w.network == "unix" && err == nil {
		w.t.Errorf("the file of %s is left", name)
	}
}

// wantAccepted checks that a socket accepts the connection of this client. It skips
// connections that were closed: weir looks in this way whether a Unix socket is in use.
func wantAccepted(t *testing.T, s *Socket, client net.Conn) {
	t.Helper()
	s.SetDeadline(time.Now().Add(patience))
	io.WriteString(client, "hello")
	for {
		c, err := s.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(io.LimitReader(c, 5))
		c.Close()
		if len(got) > 0 {
			return
		}
	}
}

// onEach runs a test with TCP and with Unix sockets.
func onEach(t *testing.T, f func(*world)) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) { f(newWorld(t, network)) })
	}
}

// Each owner of a configuration keeps its socket, gets one that another owner gives up, gets
// a new one, or gets an error.
func TestPlan(t *testing.T) {
	f := func(before, after, want string) {
		t.Run(before+" to "+after, func(t *testing.T) {
			onEach(t, func(w *world) {
				w.commit(w.plan(before))
				queued := map[string]net.Conn{} // by address: a connection that is not accepted yet
				for _, one := range strings.Fields(before) {
					_, name, _ := strings.Cut(one, ":")
					queued[name] = w.dial(name)
				}
				p := w.plan(after)
				var got []string
				for _, one := range strings.Fields(after) {
					owner, _, _ := strings.Cut(one, ":")
					got = append(got, w.fate(p, owner))
				}
				if text := strings.Join(got, " "); text != want {
					t.Errorf("%s, want %s", text, want)
				}
				w.commit(p)
				for _, one := range strings.Fields(after) {
					owner, name, _ := strings.Cut(one, ":")
					switch {
					case p.all[owner] == nil:
					case queued[name] != nil: // the new owner of the socket also gets its queue
						wantAccepted(t, p.all[owner], queued[name])
					default:
						wantAccepted(t, p.all[owner], w.dial(name))
					}
				}
				for name := range queued {
					if !strings.Contains(after, ":"+name) {
						w.wantClosed(name)
					}
				}
			})
		})
	}
	f("", "web:a health:b", "new new")
	f("web:a", "web:a", "kept")
	f("web:a", "web:a api:b", "kept new")
	f("web:a api:b", "api:b", "kept")
	f("web:a", "web:b", "new")
	f("web:a", "api:a", "moved")
	f("web:a health:b", "web:b health:a", "moved moved")
	f("web:a api:b", "web:b other:a", "moved moved")
	f("web:a api:b health:c", "web:b api:c health:a", "moved moved moved")
	f("web:a", "api:a web:a", "taken kept") // the order of owners has no effect
	f("web:a", "web:a api:a", "kept taken")
	f("web:a", "api:a other:a", "moved taken")
	f("", "web:a api:a", "new taken")
	f("web:a", "", "")
}

// fate returns how an owner gets its socket.
func (w *world) fate(p *Plan, owner string) string {
	socket, err := p.Opened(owner), p.Err(owner)
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && socket == nil:
		return "taken"
	case err != nil:
		return err.Error()
	case socket == nil:
		return "kept"
	case p.moved[socket] != nil:
		return "moved"
	}
	return "new"
}

// If an address overlaps with an address of weir itself, the error does not blame another process. No plan
// replaces a socket for all addresses by one for a single address, because the new socket would take
// connections before Commit. No plan allows the sockets of two owners to overlap, because weir could not
// start with such a configuration.
func TestOverlap(t *testing.T) {
	f := func(name, before string, after ...Want) {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			loopback, err := freeport.Sockets.Take("127.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			port := strings.TrimPrefix(loopback, "127.0.0.1")
			var set Set
			first := set.Plan([]Want{{"admin", "tcp", before + port}})
			if err := first.Err("admin"); err != nil {
				t.Fatal(err)
			}
			first.Commit()
			defer first.Opened("admin").Close()
			for i := range after {
				after[i].Address += port
			}
			second := set.Plan(after)
			defer second.Abandon()
			last := after[len(after)-1]
			want := "cannot bind " + last.Address + ": address already in use; weir itself listens on " + before + port +
				", and a reload can only go from single addresses to all of them; restart weir, or use another port"
			if err := second.Err(last.Owner); err == nil || err.Error() != want {
				t.Errorf("the error is %v, want %s", err, want)
			}
		})
	}
	f("to one address", "", Want{"admin", "tcp", "127.0.0.1"})
	f("beside one that stays", "127.0.0.1", Want{"admin", "tcp", "127.0.0.1"}, Want{"web", "tcp", ""})
	f("beside one that moves", "127.0.0.1", Want{"web", "tcp", "127.0.0.1"}, Want{"admin", "tcp", ""})
	f("beside one that would move", "127.0.0.1", Want{"admin", "tcp", ""}, Want{"web", "tcp", "127.0.0.1"})
}

// An abandoned plan closes the sockets that it opened. The sockets in effect continue to work, and the next
// plan finds them.
func TestAbandon(t *testing.T) {
	onEach(t, func(w *world) {
		w.commit(w.plan("web:a api:b"))
		client := w.dial("a")
		before := w.set.Addresses()
		for range 3 {
			p := w.plan("other:a api:c web:d more:d")
			if w.network == "tcp" && len(w.set.Addresses()) != 4 {
				t.Errorf("with the plan's: %v", w.set.Addresses())
			}
			if p.Err("more") == nil {
				t.Error("two owners have one socket")
			}
			p.Abandon()
			if now := w.set.Addresses(); !slices.Equal(now, before) {
				t.Errorf("afterwards: %v, before %v", now, before)
			}
			w.wantClosed("c")
			w.wantClosed("d")
		}
		wantAccepted(t, w.owners["web"], client)
		if p := w.plan("web:a api:b"); p.Opened("web") != nil || p.Opened("api") != nil {
			t.Error("a socket is not kept")
		}
	})
}

// After Commit, the previous owner of a moved socket leaves the queue and the file to the new owner. Before
// Commit, and if the plan is abandoned, the new owner leaves them to the previous one.
func TestShared(t *testing.T) {
	onEach(t, func(w *world) {
		w.commit(w.plan("web:a"))
		old := w.owners["web"]
		p := w.plan("api:a")
		moved := p.Opened("api")
		if old.Shared() || !moved.Shared() {
			t.Errorf("planned: old %t, new %t", old.Shared(), moved.Shared())
		}
		w.commit(p)
		if !old.Shared() || moved.Shared() {
			t.Errorf("in effect: old %t, new %t", old.Shared(), moved.Shared())
		}
		wantAccepted(t, moved, w.dial("a"))
	})
}

// An owner whose socket was closed gets a new one.
func TestClosedSocketIsOpenedAgain(t *testing.T) {
	onEach(t, func(w *world) {
		w.commit(w.plan("web:a api:b"))
		w.owners["web"].Close()
		delete(w.owners, "web")
		w.wantClosed("a")
		p := w.plan("web:a api:b")
		if fate := w.fate(p, "web") + " " + w.fate(p, "api"); fate != "new kept" {
			t.Error(fate)
		}
		w.owners["api"].Close() // between Plan and Commit
		delete(w.owners, "api")
		w.commit(p)
		delete(w.owners, "api")
		wantAccepted(t, w.owners["web"], w.dial("a"))
		if p = w.plan("web:a api:b"); w.fate(p, "api") != "new" {
			t.Errorf("after a close during a plan: %s", w.fate(p, "api"))
		}
		w.commit(p)
	})
}

// Closing removes the socket file only once, because afterwards the path may belong to another process.
func TestCloseLeavesTheFileOfTheNext(t *testing.T) {
	w := newWorld(t, "unix")
	w.commit(w.plan("web:a"))
	old := w.owners["web"]
	if old.RefuseNew() != 0 {
		t.Error("a Unix socket has no handshakes to wait for")
	}
	w.wantClosed("a")
	next, err := net.Listen("unix", w.address("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	for range 2 {
		old.Close()
	}
	delete(w.owners, "web")
	w.dial("a")
}

// Programs that clean up folders remove socket files. Without its file no client reaches the
// socket, so the next plan opens a new one. The old one leaves the file of the new one alone.
func TestRemovedSocketFile(t *testing.T) {
	for _, next := range []string{"web:a", "api:a"} { // the same owner, and another one
		t.Run(next, func(t *testing.T) {
			w := newWorld(t, "unix")
			w.commit(w.plan("web:a"))
			owner, _, _ := strings.Cut(next, ":")
			if err := os.Remove(w.address("a")); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				p := w.plan(next)
				if got := w.fate(p, owner); got != "new" {
					t.Fatal(got)
				}
				w.dial("a")
				p.Abandon()
				w.wantClosed("a")
			}
			w.commit(w.plan(next))
			wantAccepted(t, w.owners[owner], w.dial("a"))
			if all := w.set.Unreachable(); len(all) > 0 {
				t.Error(all)
			}
			if p := w.plan(next); w.fate(p, owner) != "kept" {
				t.Error("with its file: " + w.fate(p, owner))
			}
			if w.owners[owner].Waits(0) {
				t.Error("the plan has connected to the socket, as a client")
			}
		})
	}
}

// A file of another process at the path of a removed socket file stays. The owner keeps its socket, because
// no new one could be bound there. A plan replaces the file of a process that has ended.
func TestReplacedSocketFile(t *testing.T) {
	for name, test := range map[string]struct {
		put  func(t *testing.T, path string)
		fate string
	}{
		"a socket of another process": {func(t *testing.T, path string) {
			ln, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			ln.(*net.UnixListener).SetUnlinkOnClose(false)
			t.Cleanup(func() { ln.Close() })
		}, "kept"},
		"a file": {func(t *testing.T, path string) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "kept"},
		"a folder": {func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "kept"},
		"a symbolic link to the socket": {func(t *testing.T, path string) {
			if err := os.Symlink(path+".moved", path); err != nil {
				t.Fatal(err)
			}
		}, "kept"},
		"the file of an ended process": {leaveFile, "new"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "unix")
			t.Cleanup(func() { os.RemoveAll(w.address("a")) }) // before the world ends
			path := w.address("a")
			for _, closed := range []string{"web:a", "web:a again", "web:a moved", "web:a passed"} {
				w.commit(w.plan("web:a"))
				if err := os.Rename(path, path+".moved"); err != nil {
					t.Fatal(err)
				}
				test.put(t, path)
				before, err := os.Lstat(path)
				if err != nil {
					t.Fatal(err)
				}
				p := w.plan("web:a")
				if got := w.fate(p, "web"); got != test.fate {
					t.Errorf("%s: %s, want %s", closed, got, test.fate)
				}
				if test.fate == "new" {
					w.commit(p)
					wantAccepted(t, w.owners["web"], w.dial("a"))
					w.commit(w.plan(""))
					w.wantClosed("a")
					os.Remove(path + ".moved")
					continue
				}
				p.Abandon()
				switch all := w.set.Unreachable(); {
				case name == "a symbolic link to the socket" && len(all) == 0:
				case name == "a symbolic link to the socket" || len(all) != 1 || !strings.HasPrefix(all[0].Error(), "web: ") || !strings.Contains(all[0].Error(), path):
					t.Errorf("unreachable: %v", all)
				}
				switch closed {
				case "web:a again":
					w.owners["web"].RefuseNew()
				case "web:a moved":
					w.commit(w.plan("api:a"))
				case "web:a passed":
					next := w.pass()
					next.commit(next.plan("web:a"))
					next.set.Discard()
					w.set.Leave(next.set.Taken())
					next.set.Own()
					next.commit(next.plan(""))
				}
				w.commit(w.plan(""))
				if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
					t.Errorf("%s: what was there is gone: %v", closed, err)
				}
				os.RemoveAll(path)
				os.Remove(path + ".moved")
			}
		})
	}
}

// leaveFile makes a socket file of a process that has ended.
func leaveFile(t *testing.T, path string) {
	t.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close()
}

// If nothing can be bound at the path, because its folder is gone too, the plan says so. The owner still
// has its socket: the next plan can succeed.
func TestRemovedSocketFolder(t *testing.T) {
	w := newWorld(t, "unix")
	folder := filepath.Join(t.TempDir(), "run")
	w.names["a"] = filepath.Join(folder, "socket")
	mkdir := func() {
		t.Helper()
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mkdir()
	w.commit(w.plan("web:a"))
	queued := w.dial("a")
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	p := w.plan("web:a")
	if err := p.Err("web"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	p.Abandon()
	wantAccepted(t, w.owners["web"], queued)
	mkdir()
	w.commit(w.plan("web:a"))
	wantAccepted(t, w.owners["web"], w.dial("a"))
}

// An owner may accept by the file. The socket can then be moved like any other.
func TestTakeFile(t *testing.T) {
	w := newWorld(t, "tcp")
	w.commit(w.plan("web:a"))
	socket := w.owners["web"]
	f, err := socket.TakeFile()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := socket.TakeFile(); err == nil {
		t.Error("the file was taken twice")
	}
	if socket.Waits(0) {
		t.Error("nobody has connected")
	}
	connected := make(chan net.Conn)
	go func() {
		c, err := net.DialTimeout("tcp", socket.Addr().String(), patience)
		if err != nil {
			t.Error(err)
		}
		connected <- c
	}()
	if !socket.Waits(patience) {
		t.Error("the client does not wait")
	}
	client := <-connected
	if client == nil {
		t.FailNow()
	}
	defer client.Close()
	client.SetDeadline(time.Now().Add(patience))
	p := w.plan("api:a")
	if fate := w.fate(p, "api"); fate != "moved" {
		t.Fatal(fate)
	}
	if socket.Addr().String() != p.Opened("api").Addr().String() {
		t.Error("it has another address")
	}
	w.commit(p)
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file is open: %v", err)
	}
	wantAccepted(t, p.Opened("api"), client)

	unix := newWorld(t, "unix")
	unix.commit(unix.plan("web:a"))
	if _, err := unix.owners["web"].TakeFile(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a Unix socket: %v", err)
	}
}

// Addresses has each TCP address once, however many descriptors its socket has.
func TestAddresses(t *testing.T) {
	w := newWorld(t, "tcp")
	w.commit(w.plan("web:a api:b"))
	p := w.plan("web:b api:a health:c")
	var want []netip.AddrPort
	for _, name := range []string{"a", "b", "c"} {
		want = append(want, netip.MustParseAddrPort(w.address(name)))
	}
	slices.SortFunc(want, netip.AddrPort.Compare)
	if got := w.set.Addresses(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	p.Abandon()
	if got := fmt.Sprint(w.set.Addresses()); strings.Contains(got, w.address("c")) {
		t.Errorf("it lists a closed socket: %s", got)
	}
}

// Available opens nothing, and sees the sockets of this process.
func TestAvailable(t *testing.T) {
	onEach(t, func(w *world) {
		for range 2 {
			if !Available(w.network, w.address("a")) {
				t.Error("a free address is not available")
			}
			w.wantClosed("a")
		}
		w.commit(w.plan("web:a"))
		if Available(w.network, w.address("a")) {
			t.Error("the address of an open socket is available")
		}
	})
}

// Loopback is for clients of this machine.
func TestLoopback(t *testing.T) {
	checkLeaks(t)
	ln, err := Loopback()
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if at := ln.Addr().(*net.TCPAddr); !at.IP.IsLoopback() || at.Port == 0 {
		t.Errorf("it listens on %v", at)
	}
}

// checkLeaks checks that the end of the test has as many descriptors as now. Meanwhile no
// garbage collection closes forgotten files.
func checkLeaks(t *testing.T) {
	if c, err := net.Dial("udp", "127.0.0.1:9"); err == nil { // opens the runtime's poller
		c.Close()
	}
	before, percent := descriptors(), debug.SetGCPercent(-1)
	t.Cleanup(func() {
		defer debug.SetGCPercent(percent)
		for deadline := time.Now().Add(patience); descriptors() > before; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("%d descriptors, %d before", descriptors(), before)
			}
		}
	})
}

// descriptors returns the number of open descriptors, on systems that report it.
func descriptors() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}

func wantEcho(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Errorf("read %q, %v", got, err)
	}
}
