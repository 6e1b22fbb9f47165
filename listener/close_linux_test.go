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

// The listener serves a client whose handshake has begun when it closes. With
// TCP_DEFER_ACCEPT the kernel treats a handshake as incomplete until data arrives, so the
// test can delay its end.
func TestCloseWaitsForHandshakes(t *testing.T) {
	checkLeaks(t)
	usual := queueTime
	defer func() { queueTime = usual }()
	queueTime = time.Minute // the machine may be slow
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		ln := openSocket(t, "tcp", address)
		raw, err := ln.SyscallConn()
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
		case <-time.After(300 * time.Millisecond):
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

// The same without capabilities: weir has dropped them already, or never had them.
func TestCloseWithoutCapabilities(t *testing.T) {
	c := exec.Command("/proc/self/exe", "-test.v", "-test.run", "^TestCloseWaitsForHandshakes$")
	c.Dir = "/"
	if os.Getuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := c.CombinedOutput()
	if err != nil || bytes.Count(out, []byte("\n--- PASS")) != 1 {
		t.Errorf("%v:\n%s", err, out)
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
			ln := openSocket(t, "tcp", "127.0.0.1:0")
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
	ln := openSocket(t, "tcp", "127.0.0.1:0")
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
