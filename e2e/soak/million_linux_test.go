package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var idle = flag.Int("idle", 0, "how many idle TLS connections TestMillion holds, on as many weirs as their descriptors require; needs root, and -timeout 0, too")

// perProcess is the share of its descriptors that a weir of TestMillion may use for clients. It closes idle
// connections at 0.95.
const perProcess = 0.88

// handshakes is how many connections all clients together open in a second. The two ends of a handshake take
// more than a millisecond of a core.
const handshakes = 300

// crowd is the parts of TestMillion.
type crowd struct {
	t      *testing.T
	port   string
	app    *app
	weirs  []*node
	places []string // the network namespaces of the clients, as the file of a process
}

// TestMillion holds idle TLS connections on several weirs that share a port, while 1,000 others stay active.
// Meanwhile all weirs reload ten times, one is upgraded, and one is drained and started again. Clients are in
// network namespaces of their own, because one address has too few ports. Nothing may be wrong on any
// connection.
func TestMillion(t *testing.T) {
	connections, active := *idle, 1000
	inCI := os.Getenv("CI") == "true"
	switch {
	case !inCI && connections == 0:
		t.Skip("takes long: runs with -idle (go test ./e2e/soak -run TestMillion -idle 20000 -timeout 0), and where CI=true, as in .ci/run")
	case connections == 0: // so that this test does not rot
		connections, active = 100, 10
		t.Parallel()
	}
	if os.Geteuid() != 0 {
		t.Fatal("needs root, for network namespaces")
	}
	if os.Getenv(apart) == "" {
		args := slices.DeleteFunc(slices.Clone(os.Args), func(arg string) bool { return strings.HasPrefix(arg, "-test.testlogfile") })
		cmd := exec.Command("unshare", slices.Concat([]string{"--net"}, args, []string{"-test.run=^TestMillion$", "-test.v"})...)
		weir, err := binary()
		if err != nil {
			t.Fatal(err)
		}
		clients, err := tool()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(os.Environ(), apart+"="+clients, "WEIR_E2E_BINARY="+weir)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		return
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	most := int(min(float64(limit.Max)*perProcess, 1<<20))
	c := newCrowd(t, weirsFor(connections+active, most), max(1, (connections+14_999)/15_000))
	begun := time.Now()
	told := func(format string, args ...any) {
		t.Logf("%5.0f s: %s", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
	}
	told("%d weirs, %d descriptors each; clients in %d network namespaces", len(c.weirs), limit.Max, len(c.places))
	empty := c.resident()

	// A request of each idle connection in this time, which also moves those of a process that ends.
	every := max(3*time.Second, min(time.Duration(connections)*time.Second/300, 10*time.Minute)).Round(time.Second)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	each := (connections + len(c.places) - 1) / len(c.places)
	for i, place := range c.places {
		all.Go(func() {
			c.load(ctx, place, fmt.Sprintf("10.99.%d.1", i), each, max(50, handshakes/len(c.places)), every)
		})
	}
	all.Go(func() { c.load(ctx, c.places[0], "10.99.0.1", active, 100, time.Second) })

	want := each*len(c.places) + active
	c.await("all clients connect", want, time.Duration(connections)*20*time.Millisecond)
	told("%d connections are open: %s", want, c.shares())
	time.Sleep(min(2*every, time.Minute)) // until they have parked, and the memory of the handshakes is returned
	open, parked := c.sum("weir_connections_open"), c.sum(parkedMetric)
	slope := float64(c.resident()-empty) / open
	told("%.0f are open, %.0f of them parked; %.1f KiB of resident memory for each (%d MiB more than without)", open, parked, slope, (c.resident()-empty)>>10)
	if connections >= 10_000 && slope > 10 {
		t.Errorf("%.1f KiB for each connection: docs/capacity.md states 4.9, and twice as much for a while", slope)
	}

	for range 10 {
		for _, n := range c.weirs {
			c.must(n.reload(c.config(n), "success"))
		}
	}
	told("every weir has reloaded 10 times")

	n := c.weirs[0]
	old := n.pid()
	c.must(n.signal(syscall.SIGUSR2))
	c.must(eventually("a new process takes over", func() error {
		if n.pid() == old {
			return errNotYet
		}
		return nil
	}))
	told("the first weir is upgraded, and its old process has connections")
	c.must(eventuallyWithin(3*every+patience, "the old process has ended", func() error {
		if time.Sleep(200 * time.Millisecond); len(n.processes()) != 1 {
			return errNotYet
		}
		return nil
	}))
	told("the old process has ended")
	c.await("the clients of the old process connect again", want, 3*every)
	told("all connections are open: %s", c.shares())

	last := c.weirs[len(c.weirs)-1]
	c.must(last.signal(syscall.SIGTERM))
	c.must(eventuallyWithin(3*every+patience, "the last weir has ended", func() error {
		if time.Sleep(200 * time.Millisecond); len(last.processes()) > 0 {
			return errNotYet
		}
		return nil
	}))
	told("the last weir has drained and ended")
	rest := c.weirs[:len(c.weirs)-1]
	c.weirs = rest
	c.await("its clients connect to the others", want, 3*every)
	told("all connections are open, on the other weirs: %s", c.shares())
	c.weirs = append(rest, last)
	c.start(last)
	time.Sleep(2 * time.Second)
	told("%.0f are open, %.0f of them parked; %d MiB resident", c.sum("weir_connections_open"), c.sum(parkedMetric), c.resident()>>10)
	stop()
	all.Wait()
	told("the end")
	for _, n := range c.weirs {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}
}

// weirsFor returns how many weirs hold the connections, at most so many each, until the end of the test. The clients of
// the weir that is upgraded come to all weirs, and later those of the weir that is drained come to the others: a weir
// then has (n+1)/(n-1) times what it had at first.
func weirsFor(connections, most int) int {
	n := 2
	for connections*(n+1) > most*n*(n-1) {
		n++
	}
	return n
}

func (c *crowd) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *crowd) run(name string, args ...string) {
	c.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		c.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// newCrowd makes the namespaces, and starts the weirs and their endpoint.
func newCrowd(t *testing.T, weirs, places int) *crowd {
	t.Helper()
	c := &crowd{t: t, port: "8443"}
	c.run("ip", "link", "set", "lo", "up")
	// Clients in the accept queue of a weir that ends go to the others.
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_migrate_req", []byte("1"), 0o644); err != nil {
		t.Logf("connections in the accept queue of a weir that ends are lost: %v", err)
	}
	for i := range places {
		cmd := exec.Command("unshare", "--net", "sleep", "infinity")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		place := fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
		own, _ := os.Readlink("/proc/self/ns/net")
		c.must(eventually("there is a network namespace", func() error {
			if other, err := os.Readlink(place); err != nil || other == own {
				return errors.Join(errNotYet, err)
			}
			return nil
		}))
		link := fmt.Sprint("soak", i)
		c.run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(cmd.Process.Pid))
		c.run("ip", "address", "add", fmt.Sprintf("10.99.%d.1/24", i), "dev", link)
		c.run("ip", "link", "set", link, "up")
		inside := func(args ...string) { c.run("nsenter", append([]string{"--net=" + place, "ip"}, args...)...) }
		inside("address", "add", fmt.Sprintf("10.99.%d.2/24", i), "dev", "eth0")
		inside("link", "set", "eth0", "up")
		// Clients that have few free ports reuse those of the weir that has ended, and the kernel then gives them
		// all to the next weir.
		c.run("nsenter", "--net="+place, "sh", "-c", "echo 1024 65535 >/proc/sys/net/ipv4/ip_local_port_range")
		c.places = append(c.places, place)
	}
	c.app = newApp(t)
	for i := range weirs {
		n := newNode(t, fmt.Sprint("weir ", i), "127.0.0.1")
		n.address["secure"], n.address["app"] = "0.0.0.0:"+c.port, c.app.address
		t.Cleanup(n.kill)
		c.weirs = append(c.weirs, n)
		c.start(n)
	}
	return c
}

// config returns another configuration each time.
func (c *crowd) config(n *node) string {
	n.changes++
	return fmt.Sprintf(`
listeners: {secure: {address: '@secure', protocol: tls, timeouts: {keep_alive: 1h}}}
certificates: [{self_signed: {hosts: [%s]}}]
routes: [{listeners: [secure], backend: app}]
backends: {app: {endpoints: ['@app'], timeouts: {keep_alive: 1s}}}
limits: {pending: %d}
health: {address: '@health'}
admin: {address: '@admin'}
drain: {lame_duck: 0s, timeout: 1h}
upgrade_timeout: 5m
pid_file: '@dir/weir.pid'
`, host, 4000+n.changes)
}

// start starts a weir with a listening socket of its own. The kernel shares new connections among the sockets
// that listen on the port.
func (c *crowd) start(n *node) {
	c.t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(failed, err)
	}}
	ln, err := lc.Listen(context.Background(), "tcp4", n.at("secure"))
	c.must(err)
	socket, err := ln.(*net.TCPListener).File()
	c.must(err)
	ln.Close()
	defer socket.Close()
	n.sockets = []*os.File{socket}
	c.must(n.write(c.config(n)))
	c.must(n.start())
}

// load holds connections from a namespace until ctx ends, with a request on each from time to time.
func (c *crowd) load(ctx context.Context, place, address string, connections, rate int, every time.Duration) {
	l := load{name: fmt.Sprintf("%d from %s", connections, address), listener: "secure", n: connections,
		args: []string{"--tls", "--every", every.String(), "--connect-rate", fmt.Sprintf("%d/s", rate)}}
	l.runFrom(ctx, c.t, []string{"nsenter", "--net=" + place}, net.JoinHostPort(address, c.port), 1)
}

// sum returns the sum of a metric of all weirs.
func (c *crowd) sum(name string) (total float64) {
	for _, n := range c.weirs {
		v, err := n.metric(name)
		if err != nil {
			c.t.Errorf("%s: %v", n.name, err)
		}
		total += v
	}
	return total
}

// shares lists how many connections each weir has.
func (c *crowd) shares() string {
	var all []string
	for _, n := range c.weirs {
		v, err := n.metric("weir_connections_open")
		if err != nil {
			c.t.Errorf("%s: %v", n.name, err)
		}
		all = append(all, fmt.Sprintf("%.0f", v))
	}
	return strings.Join(all, ", ")
}

// resident returns the resident memory of all weirs, in KiB.
func (c *crowd) resident() int { return int(c.sum("process_resident_memory_bytes")) >> 10 }

// await waits until so many connections are open. Some may just be moving.
func (c *crowd) await(what string, connections int, extra time.Duration) {
	c.t.Helper()
	c.must(eventuallyWithin(patience+extra, what, func() error {
		time.Sleep(200 * time.Millisecond)
		if open := c.sum("weir_connections_open"); open < 0.998*float64(connections) {
			return fmt.Errorf("%.0f of %d are open", open, connections)
		}
		return nil
	}))
}
