package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// blind is the binary whose memory accounts know of nothing (the build tag faults).
var blind = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "weir-blind")
	if out, err := exec.Command("go", "build", "-tags", "faults", "-o", path, "github.com/weirproxy/weir/cmd/weir").CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build weir with faults: %w\n%s", err, out)
	}
	return path, nil
})

// busyLoops keep two cores busy until the test ends.
func busyLoops(t *testing.T) {
	t.Helper()
	for range 2 {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			loop.Process.Kill()
			loop.Wait()
		})
	}
}

// Strangers make weir hold memory that no account knows, in a container with little memory and beside busy
// processes. Before weir had a limit of its own for that, the kernel killed it. Clients of other networks are
// answered within two seconds all the time.
func TestMemoryUnknownToAccounts(t *testing.T) {
	needLinux(t)
	long(t)
	for _, a := range []struct {
		kind  string
		n     int
		limit int64 // of the cgroup, in MiB
	}{{"headers", 800, 512}, {"bodies", 250, 512}, {"headers", 1600, 1024}, {"bodies", 500, 1024}} {
		t.Run(fmt.Sprintf("%s of %d in %d MiB", a.kind, a.n, a.limit), func(t *testing.T) {
			binary, err := blind()
			if err != nil {
				t.Fatal(err)
			}
			g := newCgroup(t, a.limit<<20)
			w := newWeir(t)
			w.before, w.binary = g.run(), binary
			w.address["app"] = newWebBackend(t, "app").address
			for i, address := range newHolds(t, 8) {
				w.address["hold-"+string(rune('a'+i))] = address
			}
			w.start(attackConfig)
			busyLoops(t)
			attackers := attackWith(w.at("secure"), a.kind, a.n)
			defer attackers.end()
			slowest, answered := time.Duration(0), 0
			short := func() bool { return w.metric("weir_overload_steps_total", "resource", "memory", "step", "cut") > 0 }
			for began := time.Now(); time.Since(began) < attackTime || time.Since(began) < 4*attackTime && !short(); time.Sleep(100 * time.Millisecond) {
				asked := time.Now()
				if err := askWith(&net.Dialer{Timeout: attackPatience, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, 1)}}, w.at("secure"), attackPatience); err != nil {
					t.Errorf("a client of another network, %v after the attack began, and after %v: %v", asked.Sub(began).Round(time.Millisecond), time.Since(asked).Round(time.Millisecond), err)
					if g.killed() > 0 {
						break
					}
					continue
				}
				answered++
				slowest = max(slowest, time.Since(asked))
			}
			attackers.end()
			t.Logf("%d connections again, %d KiB sent; the cgroup held %d MiB at most; %d answered within %v", attackers.again.Load(),
				attackers.sent.Load()>>10, g.peak()>>20, answered, slowest.Round(time.Millisecond))
			if n := g.killed(); n > 0 {
				t.Fatalf("the kernel killed %d processes of the cgroup", n)
			}
			if ended := w.metric("weir_overload_connections_ended_total", "kind", "busy"); ended == 0 {
				t.Error("weir closed no connection")
			}
			w.wantLines(1, 100, `"level":"warn"`, "the memory accounts explain only a part", `"explained":0`)
		})
	}
}
