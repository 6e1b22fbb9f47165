package listener

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

func TestAcceptQueueLine(t *testing.T) {
	const tail = " 00000000:00000000 00:00000000 00000000     0        0 "
	f := func(line, local, peer string) {
		t.Helper()
		c, ok := readTableLine(line)
		waits, gotLocal, gotPeer := ok && c.state == established && !c.accepted, c.local, c.peer
		if waits != (local != "") || waits && (gotLocal.String() != local || gotPeer.String() != peer) {
			t.Errorf("%q: %v, %v, %t", line, gotLocal, gotPeer, waits)
		}
	}
	f("   0: 0100007F:1F90 0200007F:D431 01"+tail+"0 1 0000", "127.0.0.1:8080", "127.0.0.2:54321")
	f("   0: 0100007F:1F90 0200007F:D431 01"+tail+"4711 1 0000", "", "") // accepted
	f("   0: 0100007F:1F90 00000000:0000 0A"+tail+"0 1 0000", "", "")    // listens
	f("   0: B80D0120000000000000000001000000:1F90 0000000000000000FFFF00000200007F:D431 01"+tail+"0 1", "[2001:db8::1]:8080", "127.0.0.2:54321")
	f("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode", "", "")
	f("   0: 01:1F90 0200007F:D431 01"+tail+"0 1 0000", "", "")
	f("   0: 0100007F 0200007F:D431 01"+tail+"0 1 0000", "", "")
	f("", "", "")
}

// The kernel reports the clients that wait to be accepted. If a peer sends PROXY headers, its connection may
// be from any client.
func TestWaiting(t *testing.T) {
	limits := NewLimits(config.Limits{Clients: config.ClientLimits{PrefixIPv4: 32, PrefixIPv6: 64}})
	listen := func(mode config.HeaderMode) net.Listener {
		ln := openSocket(t, "tcp", "127.0.0.1:0")
		tr := new(Tracker)
		l := New(ln, Options{Name: string(mode), Limits: limits, Tracker: tr, Metrics: NewMetrics(prometheus.NewRegistry(), tr),
			Settings: Settings{Policy: NewPolicy(config.HeaderPolicy{Rules: []config.HeaderRule{{From: prefixes("127.0.0.0/8"), Mode: mode}}})}})
		t.Cleanup(func() { ln.Close() })
		limits.listen(l) // without Serve, connections stay in its queue
		return l.ln
	}
	come := func(ln net.Listener, from string) {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	f := func(what, network string, want bool) {
		t.Helper()
		if got := limits.Waiting(func(n conn.Network) bool { return n.String() == network }); got != want {
			t.Errorf("%s: that one of %s waits is %t", what, network, got)
		}
	}
	direct := listen(config.HeaderNone)
	f("nobody has come", "127.0.0.2/32", false)
	come(direct, "127.0.0.3")
	f("somebody else has come", "127.0.0.2/32", false)
	come(direct, "127.0.0.2")
	f("it has come", "127.0.0.2/32", true)
	f("a third has not", "127.0.0.4/32", false)
	come(listen(config.HeaderDeny), "127.0.0.4")
	f("one that is denied", "127.0.0.4/32", false)
	come(listen(config.HeaderDiscard), "127.0.0.5")
	f("one whose header is discarded", "127.0.0.5/32", true)
	f("which is nobody else", "127.0.0.4/32", false)
	come(listen(config.HeaderRequire), "127.0.0.6")
	f("a load balancer has brought somebody", "127.0.0.4/32", true)
	limits.Set(config.Limits{})
	f("all are one network, which has its share", "127.0.0.4/32", false)
	f("all are one network, which is entitled", "0.0.0.0/0", true)
}

// Listeners that close at the same time share one read of the kernel's tables. The read begins
// after all of them have asked.
func TestTableReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := netip.MustParseAddrPort("127.0.0.1:443")
		var reads int
		may := make(chan struct{})
		l := newTableReads(func() (addresses, bool) {
			reads++
			now := addresses{}
			if reads > 1 {
				now[at] = struct{}{}
			}
			<-may
			return now, true
		})
		var asking sync.WaitGroup
		ask := func(want int) {
			asking.Go(func() {
				if all, known := l.get(); len(all) != want || !known {
					t.Errorf("%v, %t; want %d addresses", all, known, want)
				}
			})
			synctest.Wait()
		}
		ask(0)
		for range 99 {
			ask(1) // the first reading is under way
		}
		close(may)
		asking.Wait()
		if reads != 2 {
			t.Errorf("%d readings for 100 listeners", reads)
		}
		ask(1)
		asking.Wait()
	})
}

// weir can read the kernel's tables when no descriptor is left, which is when it needs
// them.
func TestAcceptQueuesWithoutDescriptor(t *testing.T) {
	readyQueues()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := before
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("/proc/self/net/tcp")
	known := accepting(func(netip.AddrPort, netip.AddrPort) bool { return true })
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err == nil {
		file.Close()
		t.Fatal("a file can be opened all the same")
	}
	if !known {
		t.Error("the tables cannot be read")
	}
}
