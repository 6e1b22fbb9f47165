package listener

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/sockets"
)

// A closing listener serves the connections that the kernel has already accepted.
func TestCloseEmptiesTheQueue(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			checkLeaks(t)
			address := "127.0.0.1:0"
			if network == "unix" {
				address = t.TempDir() + "/socket"
			}
			ln := openSocket(t, network, address)
			// The accept loop itself calls Refused. Meanwhile every connection stays in
			// the queue.
			refusing, goOn := make(chan struct{}), make(chan struct{})
			w := newWorld(t)
			w.l = New(ln, Options{Name: "test", Limits: w.limits, Tracker: w.tracker, Metrics: w.metrics,
				Settings: Settings{Handle: echo, MaxConnections: 1},
				Refused:  func(Refusal) { refusing <- struct{}{}; <-goOn }})
			w.start()
			clients := []net.Conn{dial(t, ln), dial(t, ln)}
			<-refusing
			w.l.Update(Settings{Handle: echo})
			clients[1].Close()
			clients = clients[:1]
			for range 100 {
				clients = append(clients, dial(t, ln))
			}
			for _, c := range clients {
				io.WriteString(c, request)
			}
			closed := make(chan error)
			go func() { closed <- w.l.Close() }()
			eventually(t, "the listener is closing", w.l.isClosing)
			close(goOn)
			if err := <-closed; err != nil {
				t.Fatal(err)
			}
			for _, c := range clients {
				wantEcho(t, c, request)
			}
			if c, err := net.Dial(ln.Addr().Network(), ln.Addr().String()); err == nil {
				c.Close()
				t.Error("somebody still listens")
			}
			if _, err := os.Lstat(address); network == "unix" && err == nil {
				t.Error("the socket's file is still there")
			}
			eventually(t, "all are closed", func() bool { return w.tracker.Open() == 0 })
			w.close()
		})
	}
}

// Clients that connect while the listener closes are served or refused, at once or later.
// They are never reset after the kernel accepted them.
func TestNobodyIsResetByClose(t *testing.T) {
	checkLeaks(t)
	for range 2 {
		ln := openSocket(t, "tcp", "127.0.0.1:0")
		w := serve(t, ln, config.Limits{}, Settings{Handle: echo})
		served := make(chan int)
		for range 4 {
			go func() {
				n := 0
				defer func() { served <- n }()
				for {
					c, err := net.DialTimeout("tcp", ln.Addr().String(), 10*time.Second)
					if err != nil {
						return
					}
					c.SetDeadline(time.Now().Add(10 * time.Second))
					io.WriteString(c, request)
					got := make([]byte, len(request))
					if _, err := io.ReadFull(c, got); err != nil {
						t.Errorf("connected, and then %v", err)
					}
					c.Close()
					n++
				}
			}()
		}
		eventually(t, "clients are served", func() bool { return w.tracker.next.Load() > 50 })
		if err := w.l.Close(); err != nil {
			t.Error(err)
		}
		total := 0
		for range 4 {
			total += <-served
		}
		if total == 0 {
			t.Error("nobody was served")
		}
		eventually(t, "all are closed", func() bool { return w.tracker.Open() == 0 })
		w.close()
	}
}

// A closing listener leaves the accept queue of a socket that has moved to the next one.
func TestCloseLeavesAMovedQueue(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			checkLeaks(t)
			address, set := "127.0.0.1:0", new(sockets.Set)
			if network == "unix" {
				address = t.TempDir() + "/socket"
			}
			ln := openFor(t, set, "listeners.old", network, address)
			w := newWorld(t)
			w.l = New(ln, Options{Name: "old", Limits: w.limits, Tracker: w.tracker, Metrics: w.metrics, Settings: Settings{Handle: func(c *conn.Conn) {
				t.Error("the old listener serves a client")
				c.Close()
			}}})
			client := dial(t, ln)
			moved := openFor(t, set, "listeners.next", network, address)
			if err := w.l.Close(); err != nil {
				t.Error(err)
			}
			next := serve(t, moved, config.Limits{}, Settings{Handle: echo})
			for _, c := range []net.Conn{client, dial(t, moved)} {
				io.WriteString(c, request)
				wantEcho(t, c, request)
			}
			eventually(t, "all are closed", func() bool { return next.tracker.Open() == 0 })
			next.close()
			if all := set.Addresses(); len(all) > 0 {
				t.Errorf("the set still has %v", all)
			}
		})
	}
}
