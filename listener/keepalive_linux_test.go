package listener

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/config"
)

// Accepted sockets must have the options that are set on the listening socket.
func TestKeepAliveIsInherited(t *testing.T) {
	ln, err := Bind("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	defer dial(t, ln).Close()
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	f := func(level, option, want int) {
		t.Helper()
		raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), level, option); got != want || err != nil {
				t.Errorf("option %d is %d, %v; want %d", option, got, err, want)
			}
		})
	}
	f(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	f(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveIdle.Seconds()))
	f(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval.Seconds()))
	f(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveCount)
	f(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
}

// New handshakes stop before the listener empties the queue, with a packet filter and
// without one.
func TestNewHandshakesAreRefused(t *testing.T) {
	f := func(name string, refuse func(net.Listener) bool) {
		t.Run(name, func(t *testing.T) {
			ln, err := Bind("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			before := dial(t, ln)
			defer before.Close()
			if !refuse(ln) {
				t.Fatal("the kernel does not let us")
			}
			if !somebodyWaits(ln, 0) {
				t.Error("who was there is not")
			}
			if c, err := net.DialTimeout("tcp", ln.Addr().String(), settleTime); err == nil {
				c.Close()
				t.Error("a new connection was begun")
			}
			nc, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			nc.Write([]byte("hello")) // accepted connections must still work
			wantEcho(t, before, "hello")
			nc.Close()
		})
	}
	f("as the kernel lets us", func(ln net.Listener) bool { return refuseNew(ln) > 0 })
	f("without a filter", func(ln net.Listener) bool {
		raw, err := ln.(syscall.Conn).SyscallConn()
		if err == nil {
			raw.Control(func(fd uintptr) { err = answerSYN(int(fd)) })
		}
		return err == nil
	})
}

// The same tests without capabilities: weir has dropped them by then, or never had them.
func TestCloseWithoutCapabilities(t *testing.T) {
	c := exec.Command("/proc/self/exe", "-test.v", "-test.run", "^(TestNewHandshakesAreRefused|TestCloseWaitsForHandshakes)$")
	c.Dir = "/"
	if os.Getuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := c.CombinedOutput()
	if err != nil || bytes.Count(out, []byte("\n--- PASS")) != 2 {
		t.Errorf("%v:\n%s", err, out)
	}
}

// The listener serves a client whose handshake has begun when it closes. With
// TCP_DEFER_ACCEPT the kernel treats a handshake as incomplete until data arrives, so the
// test can delay its end.
func TestCloseWaitsForHandshakes(t *testing.T) {
	checkLeaks(t)
	usual := queueTime
	defer func() { queueTime = usual }()
	queueTime = time.Minute // the machine may be slow
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		ln, err := Bind("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := ln.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 30) })
		if err != nil {
			t.Fatal(err)
		}
		w := serve(t, ln, config.Limits{}, Settings{Handle: echo})
		c := dial(t, ln)
		closed := make(chan error, 1)
		go func() { closed <- w.l.Close() }()
		select {
		case err := <-closed:
			t.Fatalf("%s: closed (%v) while a client is in its handshake", address, err)
		case <-time.After(3 * settleTime):
		}
		io.WriteString(c, request)
		wantEcho(t, c, request)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		c.Close()
		eventually(t, "all are closed", func() bool { return w.tracker.Open() == 0 })
		w.close()
	}
}

// A closing listener serves the connections in its accept queue, even if Serve has not
// begun, or if the machine is so busy that the time limit passes before the first accept.
func TestCloseServesTheQueueHoweverLate(t *testing.T) {
	checkLeaks(t)
	usual := queueTime
	defer func() { queueTime = usual }()
	queueTime = 0
	f := func(name string, begun bool) {
		t.Run(name, func(t *testing.T) {
			ln, err := Bind("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t)
			w.limits.Set(config.Limits{Clients: config.ClientLimits{PrefixIPv4: 32, PrefixIPv6: 64}})
			w.limits.Admit(0) // the listener waits, and all connections stay in the queue
			w.l = New(ln, Options{Name: "test", Limits: w.limits, Tracker: w.tracker, Metrics: w.metrics, Refused: w.refused, Trouble: w.trouble, Settings: Settings{Handle: echo}})
			if begun {
				w.start()
				eventually(t, "Serve has begun", func() bool { w.l.mu.Lock(); defer w.l.mu.Unlock(); return w.l.serving })
			}
			var clients []net.Conn
			for range 20 {
				clients = append(clients, dial(t, ln))
			}
			if err := w.l.Close(); err != nil {
				t.Error(err)
			}
			if !begun {
				w.start()
			}
			for _, c := range clients {
				io.WriteString(c, request)
				wantEcho(t, c, request)
				c.Close()
			}
			eventually(t, "all are closed", func() bool { return w.tracker.Open() == 0 })
			w.close()
		})
	}
	f("serving", true)
	f("Serve has not begun", false)
}

// A connection counts as open as soon as it is accepted, so a drain waits for it even if its goroutine has not begun.
func TestAcceptedIsOpen(t *testing.T) {
	checkLeaks(t)
	ln, err := Bind("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.l = New(ln, Options{Name: "test", Limits: w.limits, Tracker: w.tracker, Metrics: w.metrics, Settings: Settings{Handle: echo}})
	client := dial(t, ln)
	c, err := w.l.accept()
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // no other goroutine runs meanwhile
	w.l.accepted(c, false)
	if n := w.tracker.Open(); n != 1 {
		t.Errorf("a drain would wait for %d connections", n)
	}
	client.Close()
	eventually(t, "it is closed", func() bool { return w.tracker.Open() == 0 })
	w.start()
	w.close()
}
