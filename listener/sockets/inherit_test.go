package sockets

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// other opens a socket as another process does, and returns a descriptor to inherit.
func other(t *testing.T, network, address string) (ln net.Listener, fd int) {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	t.Cleanup(func() { ln.Close() })
	s := &Socket{fd: ln.(descriptor)}
	if fd, err = s.dup(); err != nil {
		t.Fatal(err)
	}
	return ln, fd
}

// onNetwork returns the owner of a socket on an address, and what a plan for it needs.
func (w *world) onNetwork(owner, name string) Want { return Want{owner, w.network, w.address(name)} }

// The sockets of a service manager go to the owners with their names. The service manager keeps them: after a
// drain the accept queue and the socket file are still there.
func TestActivatedSockets(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		ln, web := other(w.t, w.network, w.address("a"))
		_, health := other(w.t, w.network, w.address("b"))
		if err := w.set.Inherit([]Inherited{{Name: "web", FD: web}, {Name: "health", FD: health}}); err != nil {
			t.Fatal(err)
		}
		wants := []Want{w.onNetwork("listeners.web", "a"), w.onNetwork("health", "b"), w.onNetwork("listeners.api", "c")}
		queued := w.dial("a")
		first := w.set.Plan(wants)
		if err := first.Err("listeners.web"); err != nil {
			t.Fatal(err)
		}
		first.Abandon() // the next plan still finds the sockets
		p := w.set.Plan(wants)
		if errs := p.Unowned(); len(errs) > 0 || !p.Complete() {
			t.Fatal(errs, p.errs)
		}
		w.commit(p)
		socket := w.owners["listeners.web"]
		if !socket.Shared() || w.owners["listeners.api"].Shared() {
			t.Error("only the socket of the service manager is shared")
		}
		wantAccepted(t, socket, queued)
		p = w.set.Plan([]Want{w.onNetwork("listeners.api", "c"), w.onNetwork("listeners.new", "a"), w.onNetwork("health", "b")})
		if p.Opened("health") != nil || p.Err("listeners.new") != nil {
			t.Errorf("a reload opens health again, or does not move web: %v", p.Err("listeners.new"))
		}
		w.commit(p)
		if socket = w.owners["listeners.new"]; !socket.Shared() {
			t.Error("the socket that moved is not the service manager's any more")
		}
		socket.Close()
		delete(w.owners, "listeners.new")
		late := w.dial("a") // the service manager would start weir again for this client
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte("hello"))
		wantEcho(t, late, "hello")
		c.Close()
	})
}

// An inherited socket must have the address of the configuration, and a listener.
func TestActivatedAddresses(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	f := func(network, opened string, want Want, message string) {
		t.Helper()
		ln, fd := other(t, network, opened)
		defer ln.Close()
		at := ln.Addr().String()
		port := at[strings.LastIndexByte(at, ':')+1:]
		want.Address = strings.ReplaceAll(want.Address, "PORT", port)
		var set Set
		if err := set.Inherit([]Inherited{{Name: "web", FD: fd}}); err != nil {
			t.Fatal(err)
		}
		p := set.Plan([]Want{want})
		text := fmt.Sprint(p.Err(want.Owner), p.Unowned())
		if message = strings.ReplaceAll(message, "AT", at); message != "" && !strings.Contains(text, strings.ReplaceAll(message, "PORT", port)) {
			t.Errorf("%s for %+v: %s, want %q", at, want, text, message)
		}
		if message == "" && text != "<nil> []" {
			t.Errorf("%s for %+v: %s", at, want, text)
		}
		p.Commit()
		if s := p.Opened(want.Owner); s != nil {
			s.Close()
		}
	}
	f("tcp", "127.0.0.1:0", Want{"listeners.web", "tcp", "127.0.0.1:PORT"}, "")
	f("tcp", "127.0.0.1:0", Want{"web", "tcp", "127.0.0.1:PORT"}, "")
	f("tcp", ":0", Want{"listeners.web", "tcp", ":PORT"}, "")
	f("tcp4", ":0", Want{"listeners.web", "tcp", ":PORT"}, "")
	f("tcp", ":0", Want{"listeners.web", "tcp", "0.0.0.0:PORT"}, "")
	f("unix", dir+"/a", Want{"listeners.web", "unix", dir + "/a"}, "")
	f("tcp", "127.0.0.1:0", Want{"listeners.web", "tcp", ":PORT"}, `the inherited socket "web" listens on AT, and the configuration says :PORT`)
	f("tcp", ":0", Want{"listeners.web", "tcp", "127.0.0.1:PORT"}, "and the configuration says 127.0.0.1:PORT")
	f("tcp", "127.0.0.1:0", Want{"listeners.web", "tcp", "127.0.0.1:1"}, "and the configuration says 127.0.0.1:1")
	f("tcp", "127.0.0.1:0", Want{"listeners.web", "unix", "/run/a"}, "and the configuration says /run/a")
	f("unix", dir+"/b", Want{"listeners.web", "unix", dir + "/c"}, dir+"/c")
	f("tcp", "127.0.0.1:0", Want{"listeners.other", "unix", dir + "/d"}, `the inherited socket "web" (AT) belongs to no listener`)
}

// A listener has one address. Two sockets for the same listener are an error, whatever their order.
func TestTwoActivatedSocketsForOneOwner(t *testing.T) {
	for _, names := range [][2]string{{"web", "listeners.web"}, {"listeners.web", "web"}} {
		checkLeaks(t)
		first, fd := other(t, "tcp", "127.0.0.1:0")
		second, more := other(t, "tcp", "127.0.0.1:0")
		var set Set
		if err := set.Inherit([]Inherited{{Name: names[0], FD: fd}, {Name: names[1], FD: more}}); err != nil {
			t.Fatal(err)
		}
		p := set.Plan([]Want{{"listeners.web", "tcp", first.Addr().String()}})
		want := fmt.Sprintf("the inherited sockets %q (%s) and %q (%s) belong to the same listener", names[0], first.Addr(), names[1], second.Addr())
		if text := fmt.Sprint(p.Unowned()); !strings.Contains(text, want) {
			t.Errorf("%s, want %q", text, want)
		}
		p.Commit()
		p.Opened("listeners.web").Close()
	}
}

// Descriptors that are not listening stream sockets, and names that occur twice, are errors.
func TestInheritErrors(t *testing.T) {
	checkLeaks(t)
	f := func(message string, all ...Inherited) {
		t.Helper()
		var set Set
		if err := set.Inherit(all); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%+v: %v, want %q", all, err, message)
		}
		if len(set.open) > 0 {
			t.Error("a socket is left")
		}
	}
	file, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f(`cannot use the inherited socket "web": descriptor`, Inherited{Name: "web", FD: file})
	f("it has the descriptor -1", Inherited{Name: "web", FD: -1})
	packets, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.CloseOnExec(packets)
	f("it does not accept connections", Inherited{Name: "web", FD: packets})
	_, a := other(t, "tcp", "127.0.0.1:0")
	_, b := other(t, "tcp", "127.0.0.1:0")
	f(`two inherited sockets have the name "web"`, Inherited{Name: "web", FD: a}, Inherited{Name: "web", FD: b})
}

func TestActivated(t *testing.T) {
	f := func(env string, want string) {
		t.Helper()
		lookup := func(name string) (string, bool) {
			for _, one := range strings.Fields(env) {
				if k, v, _ := strings.Cut(one, "="); k == name {
					return v, true
				}
			}
			return "", false
		}
		all, err := Activated(lookup, 7)
		got := fmt.Sprint(err)
		if err == nil {
			got = ""
			for _, i := range all {
				got += fmt.Sprintf("%s:%d ", i.Name, i.FD)
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", env, got, want)
		}
	}
	f("", "")
	f("LISTEN_PID=8 LISTEN_FDS=1", "") // for another process
	f("LISTEN_PID=7 LISTEN_FDS=0", "")
	f("LISTEN_PID=7 LISTEN_FDS=many", `LISTEN_FDS is "many", and must be the number of inherited sockets`)
	f("LISTEN_PID=7 LISTEN_FDS=-1", `LISTEN_FDS is "-1", and must be the number of inherited sockets`)
	f("LISTEN_PID=7 LISTEN_FDS=2 LISTEN_FDNAMES=web", "LISTEN_FDNAMES has 1 names (web), but LISTEN_FDS says 2 sockets; write one name for each socket")
	for _, name := range activation {
		t.Setenv(name, "1")
	}
	ForgetActivated()
	for _, name := range activation {
		if _, set := os.LookupEnv(name); set {
			t.Errorf("%s is still set", name)
		}
	}
}

// pass gives the sockets of w to another Set, as an upgrade does.
func (w *world) pass() *world {
	w.t.Helper()
	all, err := w.set.Pass()
	if err != nil {
		w.t.Fatal(err)
	}
	next := newWorld(w.t, w.network)
	next.names = w.names
	if err := next.set.Inherit(all); err != nil {
		w.t.Fatal(err)
	}
	return next
}

// A process that takes over gets the sockets with their accept queues. Before it owns them, and if it ends, the
// sockets of the first process are untouched. Afterwards, the first process leaves the queues and files to it.
func TestPass(t *testing.T) {
	onEach(t, func(w *world) {
		w.commit(w.plan("web:a api:b old:c"))
		for _, takesOver := range []bool{false, true} {
			next := w.pass()
			next.commit(next.plan("web:a moved:b new:d")) // an owner may have another name
			for _, owner := range []string{"web", "moved"} {
				if !next.owners[owner].Shared() {
					t.Errorf("%s is shared until the process owns it", owner)
				}
			}
			if next.owners["new"].Shared() {
				t.Error("a new socket is shared")
			}
			next.set.Discard()
			if !takesOver {
				for _, socket := range next.owners {
					socket.Close()
				}
				clear(next.owners)
				wantAccepted(t, w.owners["web"], w.dial("a"))
				continue
			}
			var owners []string
			for _, i := range next.set.Taken() {
				owners = append(owners, i.Name)
			}
			if !slices.Equal(owners, []string{"moved", "web"}) {
				t.Errorf("taken: %v", owners)
			}
			queued := w.dial("a")
			w.set.Leave(next.set.Taken())
			if !w.owners["web"].Shared() || !w.owners["api"].Shared() || w.owners["old"].Shared() {
				t.Error("the first process leaves the wrong sockets")
			}
			w.commit(w.plan("")) // closes all
			w.wantClosed("c")
			next.set.Own()
			wantAccepted(t, next.owners["web"], queued)
			wantAccepted(t, next.owners["moved"], w.dial("b"))
			if next.owners["web"].Shared() {
				t.Error("it does not own the socket")
			}
			next.commit(next.plan(""))
			next.wantClosed("a")
		}
	})
}

// If the socket file was removed, the process that takes over makes it again, and the first process leaves
// it alone.
func TestPassWithoutFile(t *testing.T) {
	w := newWorld(t, "unix")
	w.commit(w.plan("web:a api:b"))
	if err := os.Remove(w.address("a")); err != nil {
		t.Fatal(err)
	}
	next := w.pass()
	p := next.plan("web:a api:b")
	if fate := next.fate(p, "web") + " " + next.fate(p, "api"); fate != "new moved" {
		t.Error(fate)
	}
	next.commit(p)
	next.set.Discard()
	w.set.Leave(next.set.Taken())
	w.commit(w.plan("")) // closes all
	next.set.Own()
	wantAccepted(t, next.owners["web"], next.dial("a"))
	wantAccepted(t, next.owners["api"], next.dial("b"))
}

// The process that was to take over may be killed after it has bound the file again. The first process
// then makes the file again itself.
func TestPassWithoutFileFails(t *testing.T) {
	w := newWorld(t, "unix")
	w.commit(w.plan("web:a"))
	if err := os.Remove(w.address("a")); err != nil {
		t.Fatal(err)
	}
	next := w.pass()
	p := next.plan("web:a")
	p.Abandon()
	next.set.Discard()
	leaveFile(t, w.address("a")) // as if next had been killed
	w.commit(w.plan("web:a"))
	wantAccepted(t, w.owners["web"], w.dial("a"))
}

// A weir of an older version does not say which file its socket has. The file at the path is taken for it.
func TestPassFromOlderVersion(t *testing.T) {
	for _, removed := range []bool{false, true} {
		w := newWorld(t, "unix")
		w.commit(w.plan("web:a"))
		if removed {
			if err := os.Remove(w.address("a")); err != nil {
				t.Fatal(err)
			}
		}
		all, err := w.set.Pass()
		if err != nil {
			t.Fatal(err)
		}
		all[0].File = FileID{}
		next := newWorld(t, "unix")
		next.names = w.names
		if err := next.set.Inherit(all); err != nil {
			t.Fatal(err)
		}
		next.commit(next.plan("web:a"))
		next.set.Discard()
		w.set.Leave(next.set.Taken())
		w.commit(w.plan(""))
		next.set.Own()
		wantAccepted(t, next.owners["web"], next.dial("a"))
		next.commit(next.plan(""))
		next.wantClosed("a")
	}
}

// A service manager makes the file of its own socket again. weir keeps the socket until then.
func TestActivatedWithoutFile(t *testing.T) {
	w := newWorld(t, "unix")
	_, web := other(w.t, w.network, w.address("a"))
	if err := w.set.Inherit([]Inherited{{Name: "web", FD: web}}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(w.address("a")); err != nil {
		t.Fatal(err)
	}
	wants := []Want{w.onNetwork("web", "a")}
	w.commit(w.set.Plan(wants))
	if got := w.fate(w.set.Plan(wants), "web"); got != "kept" {
		t.Error(got)
	}
}

// The sockets of a service manager stay its own through an upgrade.
func TestPassActivated(t *testing.T) {
	w := newWorld(t, "unix")
	_, fd := other(t, "unix", w.address("a"))
	if err := w.set.Inherit([]Inherited{{Name: "web", FD: fd}}); err != nil {
		t.Fatal(err)
	}
	w.commit(w.set.Plan([]Want{w.onNetwork("listeners.web", "a")}))
	next := w.pass()
	next.commit(next.set.Plan([]Want{w.onNetwork("listeners.web", "a")}))
	next.set.Discard()
	w.set.Leave(next.set.Taken())
	w.commit(w.plan(""))
	next.set.Own()
	if !next.owners["listeners.web"].Shared() {
		t.Error("the service manager's socket is the process's own now")
	}
	next.commit(next.plan(""))
	if _, err := os.Lstat(filepath.Clean(w.address("a"))); err != nil {
		t.Errorf("the socket file of the service manager is gone: %v", err)
	}
}
