package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each attack in this file makes weir hold memory for a few bytes. A weir that limited each
// header list and each body, but not their sum, used several GB within seconds, or the
// kernel killed it.

const (
	attackLimit    = 512 << 20 // of the runtime or the cgroup, in bytes
	attackResident = 640 << 20 // what weir may use with GOMEMLIMIT=512MiB
	attackPatience = 2 * time.Second
)

const attackConfig = `
listeners:
  secure: {address: '@secure', protocol: tls}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [secure], backend: hold}
  - {listeners: [secure], paths: [/hostile], backend: hostile}
  - {listeners: [secure], paths: [/questions], backend: app, auth: decider}
  - {listeners: [secure], paths: [/ok], backend: app}
auth: {decider: {forward: {url: 'http://@hold-a/'}}}
backends:
  app: {endpoints: ['@app']}
  hold: {endpoints: ['@hold-a', '@hold-b', '@hold-c', '@hold-d', '@hold-e', '@hold-f', '@hold-g', '@hold-h']}
  hostile: {protocol: h2c, endpoints: ['@hostile']}
access_log: {path: /dev/null}
log: {level: info}
`

// frame returns an HTTP/2 frame.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// literal returns an HPACK field with the name at index (0: the name follows). If first is
// 0x40, HPACK adds the field to the dynamic table.
func literal(first byte, bits uint, index byte, name, value string) []byte {
	b := []byte{first | index}
	text := func(s string) {
		if n := len(s); n < 127 {
			b = append(b, byte(n))
		} else {
			b = append(b, 127)
			for n -= 127; n >= 128; n >>= 7 {
				b = append(b, 0x80|byte(n))
			}
			b = append(b, byte(n))
		}
		b = append(b, s...)
	}
	if index == 0 {
		text(name)
	}
	text(value)
	return b
}

// bigHead returns the fields of a head: one field of 4 KB, which goes into HPACK's table
// the first time, and 15 that refer to it.
func bigHead(first bool) []byte {
	var b []byte
	n := 15
	if first {
		b = literal(0x40, 6, 0, "x", strings.Repeat("v", 4060))
		n--
	}
	return append(b, bytes.Repeat([]byte{0x80 | 62}, n)...)
}

func requestHead(method byte, path string) []byte {
	b := []byte{method, 0x87} // :scheme https
	b = append(b, literal(0, 4, 4, "", path)...)
	return append(b, literal(0, 4, 1, "", "app.example.org")...)
}

const (
	byGet, byPost = 0x82, 0x83
	endStream     = 0x1
	endHead       = 0x4
)

// attackBytes returns the bytes that a connection of an attack sends.
func attackBytes(kind string) []byte {
	b := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	b = append(b, frame(4, 0, 0, nil)...)
	const streams = 100
	switch kind {
	case "headers", "questions": // the server that decides gets a copy of the head, with 15 fields of 4 KB
		for i := range uint32(streams) {
			b = append(b, frame(1, endStream|endHead, 2*i+1, append(requestHead(byGet, "/"+kind), bigHead(i == 0)...))...)
		}
	case "responses":
		for i := range uint32(streams) {
			b = append(b, frame(1, endStream|endHead, 2*i+1, requestHead(byGet, "/hostile"))...)
		}
	case "bodies":
		piece := make([]byte, 16<<10)
		for i := range uint32(streams) {
			b = append(b, frame(1, endHead, 2*i+1, requestHead(byPost, "/hold"))...)
		}
		for range 4 {
			for i := range uint32(streams) {
				b = append(b, frame(0, 0, 2*i+1, piece[:(64<<10-1)/4])...)
			}
		}
	}
	return b
}

// attackers are connections that send an attack and stay open without reading. If weir
// closes one, it connects again.
type attackers struct {
	address string
	message []byte
	stop    chan struct{}
	ending  sync.Once
	running sync.WaitGroup
	sent    atomic.Int64
	again   atomic.Int64
}

func attackWith(address, kind string, n int) *attackers {
	a := &attackers{address: address, message: attackBytes(kind), stop: make(chan struct{})}
	starts := make(chan struct{}, 16) // limits the handshakes at the same time
	for range n {
		a.running.Go(func() {
			for {
				select {
				case <-a.stop:
					return
				case starts <- struct{}{}:
				}
				c, err := a.begin()
				<-starts
				if err == nil {
					a.hold(c)
				}
				a.again.Add(1)
				select {
				case <-a.stop:
					return
				case <-time.After(time.Second):
				}
			}
		})
	}
	return a
}

func (a *attackers) begin() (net.Conn, error) {
	c, err := net.DialTimeout("tcp", a.address, patience)
	if err != nil {
		return nil, err
	}
	t := tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: "app.example.org", NextProtos: []string{"h2"}})
	t.SetDeadline(time.Now().Add(patience))
	if err := t.Handshake(); err != nil {
		c.Close()
		return nil, err
	}
	t.SetDeadline(time.Time{})
	return t, nil
}

// hold sends the attack and waits until the connection or the attack ends.
func (a *attackers) hold(c net.Conn) {
	defer c.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n, _ := c.Write(a.message)
		a.sent.Add(int64(n))
		c.(*tls.Conn).NetConn().(*net.TCPConn).SetReadBuffer(4 << 10)
		untilHungUp(c.(*tls.Conn).NetConn())
	}()
	select {
	case <-ended:
	case <-a.stop:
		c.Close()
		<-ended
	}
}

// untilHungUp waits until the peer ends the connection, without reading.
func untilHungUp(c net.Conn) {
	if raw, err := c.(*net.TCPConn).SyscallConn(); err == nil {
		raw.Read(hungUp)
	}
}

// hungUp returns true if the peer has closed or reset the connection, even if bytes of it
// are unread.
func hungUp(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, _ := unix.Poll(p, 0)
	return n > 0
}

func (a *attackers) end() {
	a.ending.Do(func() { close(a.stop) })
	a.running.Wait()
}

// holding is the environment variable with the addresses that a process of newHolds serves.
const holding = "WEIR_E2E_HOLD"

func init() { // before TestMain: in that process no test runs
	if addresses := os.Getenv(holding); addresses != "" {
		serveHolds(strings.Split(addresses, ","))
	}
}

// serveHolds serves endpoints that accept requests and never answer. They read little of each
// body. It does not return.
func serveHolds(addresses []string) {
	for _, address := range addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil { // no descriptor is left: weir's next connections wait
					time.Sleep(10 * time.Millisecond)
					continue
				}
				go func() {
					defer c.Close()
					c.(*net.TCPConn).SetReadBuffer(4 << 10)
					io.CopyN(io.Discard, c, 1<<10)
					untilHungUp(c)
				}()
			}
		}()
	}
	select {}
}

// newHolds starts n endpoints of serveHolds, two in each process: weir may open a connection for
// each request of an attack, and the descriptors of this process are for the clients.
func newHolds(t *testing.T, n int) (addresses []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for len(addresses) < n {
		two := []string{freePort(t), freePort(t)}
		runPeerWith(t, []string{holding + "=" + strings.Join(two, ",")}, self).listening(two...)
		addresses = append(addresses, two...)
	}
	return addresses
}

// newHostile is an HTTP/2 endpoint that answers each request with a large head.
func newHostile(t *testing.T) string {
	return serve(t, func(c net.Conn) {
		defer c.Close()
		r := bufio.NewReader(c)
		if _, err := io.CopyN(io.Discard, r, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
			return
		}
		c.Write(frame(4, 0, 0, nil))
		first := true
		for {
			var h [9]byte
			if _, err := io.ReadFull(r, h[:]); err != nil {
				return
			}
			n := int(h[0])<<16 | int(h[1])<<8 | int(h[2])
			if _, err := r.Discard(n); err != nil {
				return
			}
			switch {
			case h[3] == 4 && h[4]&1 == 0:
				c.Write(frame(4, 1, 0, nil))
			case h[3] == 1:
				id := binary.BigEndian.Uint32(h[5:]) & (1<<31 - 1)
				c.Write(frame(1, endHead, id, append([]byte{0x88}, bigHead(first)...)))
				first = false
			}
		}
	})
}

// resident returns the process's memory, or its peak, in bytes.
func (w *weir) resident(line string) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), line+":")
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return n << 10
}

// withstand attacks weir for some time, and expects that new clients get answers.
func withstand(t *testing.T, w *weir, kind string, n int, most int64) {
	t.Helper()
	w.binary = shipped(t)
	w.address["app"] = newWebBackend(t, "app").address
	for i, address := range newHolds(t, 8) { // with one destination address the kernel needs long to find a port for each of thousands of connections
		w.address["hold-"+string(rune('a'+i))] = address
	}
	w.address["hostile"] = newHostile(t)
	w.start(attackConfig)
	before := w.resident("VmRSS")
	a := attackWith(w.at("secure"), kind, n)
	defer a.end()
	slowest := time.Duration(0)
	answered := 0
	for began := time.Now(); time.Since(began) < attackTime; time.Sleep(100 * time.Millisecond) {
		asked := time.Now()
		if err := askNewly(w.at("secure"), attackPatience); err != nil {
			t.Errorf("a new client, %v after the attack began: %v", asked.Sub(began).Round(time.Millisecond), err)
			continue
		}
		answered++
		slowest = max(slowest, time.Since(asked))
	}
	peak := w.resident("VmHWM")
	t.Logf("%s: %d connections (%d times again), %d KiB sent; resident %d MiB before and %d MiB at most; %d new clients answered within %v; account %.0f of %.0f MiB, refused %v %v %v, ended %v",
		kind, n, a.again.Load(), a.sent.Load()>>10, before>>20, peak>>20, answered, slowest.Round(time.Millisecond),
		w.metric("weir_memory_account_bytes")/(1<<20), w.metric("weir_memory_account_limit_bytes")/(1<<20),
		w.metric("weir_memory_refused_total", "share", "connection"), w.metric("weir_memory_refused_total", "share", "network"),
		w.metric("weir_memory_refused_total", "share", "process"), w.metric("weir_memory_connections_ended_total"))
	if peak > most {
		t.Errorf("weir took %d MiB at most, want %d at most", peak>>20, most>>20)
	}
	a.end()
	within(t, 3*patience, "nothing is left in the account", func() error {
		if left := w.metric("weir_memory_account_bytes"); left != 0 {
			return fmt.Errorf("%v bytes are", left)
		}
		return nil
	})
}

const attackTime = 8 * time.Second

// askNewly makes one request on a new connection.
func askNewly(address string, most time.Duration) error {
	return askWith(&net.Dialer{Timeout: most}, address, most)
}

func askWith(d *net.Dialer, address string, most time.Duration) error {
	c, err := d.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(most))
	t := tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: "app.example.org"})
	if _, err := io.WriteString(t, "GET /ok HTTP/1.1\r\nHost: app.example.org\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReader(t), nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(res.Body)
		return fmt.Errorf("it was answered %s: %s", res.Status, body)
	}
	return nil
}

func TestMemoryAttacks(t *testing.T) {
	needLinux(t)
	long(t)
	for _, a := range []struct {
		kind string
		n    int
	}{{"headers", 400}, {"headers", 4000}, {"questions", 400}, {"responses", 400}, {"bodies", 130}} {
		t.Run(fmt.Sprintf("%s of %d", a.kind, a.n), func(t *testing.T) {
			w := newWeir(t)
			w.env = append(w.env, "GOMEMLIMIT=512MiB")
			withstand(t, w, a.kind, a.n, attackResident)
		})
	}
	t.Run("headers of 4000 in a cgroup", func(t *testing.T) {
		g := newCgroup(t, attackLimit)
		w := newWeir(t)
		w.before = g.run()
		defer func() { // also if weir has not withstood
			t.Logf("the cgroup held %d MiB at most", g.peak()>>20)
			if n := g.killed(); n > 0 {
				t.Errorf("the kernel killed %d processes of the cgroup", n)
			}
		}()
		withstand(t, w, "headers", 4000, attackLimit)
		if status, _, err := w.get("health", "/livez"); err != nil || status != 200 {
			t.Errorf("/livez says %d, %v", status, err)
		}
	})
}
