package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/e2e/freeport"
)

const fairnessConfig = `
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}}
  edge: {address: '@edge', protocol: http, proxy_protocol: edge}
proxy_protocol:
  edge: {rules: [{from: [127.0.0.0/8], header: require}]}
routes:
  - {listeners: [web, edge], backend: app}
backends:
  app: {endpoints: ['@app'], health_check: {tcp: {}, interval: 1s}}
`

// newReadingBackend is an endpoint that reads the whole body of a request, and then
// answers.
func newReadingBackend(t *testing.T) (address string) {
	t.Helper()
	address = freePort(t)
	l, err := freeport.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return address
}

// way is a way in which clients of several addresses reach weir.
type way struct {
	name string
	// dial connects as a client with this address.
	dial func(ctx context.Context, w *weir, client string) (net.Conn, error)
}

var ways = []way{
	{"without PROXY header", func(ctx context.Context, w *weir, client string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}
		return d.DialContext(ctx, "tcp", w.at("web"))
	}},
	{"behind PROXY headers", func(ctx context.Context, w *weir, client string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", w.at("edge"))
		if err == nil {
			_, err = fmt.Fprintf(c, "PROXY TCP4 %s 127.0.0.1 1000 80\r\n", client)
		}
		return c, err
	}},
}

// swarm is one client with many connections. When one ends, it opens another after a pause.
type swarm struct {
	end     context.CancelFunc
	running sync.WaitGroup
	refused atomic.Int64
	open    atomic.Int64
}

func newSwarm(w *weir, by way, client string, n int, pause time.Duration, attack func(context.Context, net.Conn) error) *swarm {
	ctx, end := context.WithCancel(context.Background())
	s := &swarm{end: end}
	for range n {
		s.running.Go(func() {
			for ctx.Err() == nil {
				c, err := by.dial(ctx, w, client)
				if err == nil {
					s.open.Add(1)
					err = attack(ctx, c)
					s.open.Add(-1)
				}
				if c != nil {
					c.Close()
				}
				if err != nil && ctx.Err() == nil {
					s.refused.Add(1)
				}
				pauseFor(ctx, pause)
			}
		})
	}
	return s
}

func (s *swarm) leave() {
	s.end()
	s.running.Wait()
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// slowUpload sends 300 bytes of a large body each second. weir would end a client that sends more slowly.
func slowUpload(ctx context.Context, c net.Conn) error {
	_, err := io.WriteString(c, "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
	for err == nil && ctx.Err() == nil {
		ended := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
		for err == nil && ctx.Err() == nil {
			if _, err = c.Write(make([]byte, 300)); err == nil {
				select {
				case <-ended:
					err = io.EOF
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
		}
	}
	return err
}

// wantUsedUp waits until weir has no room for new connections.
func (w *weir) wantUsedUp(resource string) {
	w.t.Helper()
	within(w.t, 2*patience, resource+" is used up", func() error {
		if step := w.metric("weir_overload_step", "resource", resource); step < 2 {
			return fmt.Errorf("it is at step %v", step)
		}
		return nil
	})
}

// askAs makes one request on a new connection, and returns how long that took.
func askAs(w *weir, by way, client string, patience time.Duration) (time.Duration, error) {
	begun := time.Now()
	ctx, end := context.WithTimeout(context.Background(), patience)
	defer end()
	c, err := by.dial(ctx, w, client)
	if err != nil {
		return time.Since(begun), err
	}
	defer c.Close()
	c.SetDeadline(begun.Add(patience))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		return time.Since(begun), err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil && resp.StatusCode != 200 {
		err = errors.New(resp.Status)
	}
	return time.Since(begun), err
}

// wantServed makes requests for clients of several networks for d, each on a new connection. All must be answered
// within bound.
func wantServed(t *testing.T, w *weir, by way, d, bound time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var longest time.Duration
	served := 0
	until := time.Now().Add(d)
	var running sync.WaitGroup
	for i := range 5 {
		running.Go(func() {
			for time.Now().Before(until) {
				took, err := askAs(w, by, fmt.Sprintf("127.0.1.%d", i+1), bound)
				if err != nil {
					t.Errorf("client 127.0.1.%d after %v: %v", i+1, took, err)
				}
				mu.Lock()
				served++
				longest = max(longest, took)
				mu.Unlock()
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	running.Wait()
	t.Logf("others were served %d times, and waited %v at most", served, longest)
}

// One client holds all descriptors with slow uploads, 96 KiB/s in total. All other clients
// are served within two seconds.
func TestAttackSlowUploadsOfOneClient(t *testing.T) {
	needLinux(t)
	long(t)
	const d = 12 * time.Second
	for _, by := range ways {
		t.Run(by.name, func(t *testing.T) {
			w := newWeir(t)
			w.before = []string{"sh", "-c", `ulimit -n 400 && exec "$@"`, "sh"}
			w.address["app"] = newReadingBackend(t)
			w.start(fairnessConfig)
			s := newSwarm(w, by, "127.0.0.2", 330, 100*time.Millisecond, slowUpload)
			defer s.leave()
			w.wantUsedUp("descriptors")
			wantServed(t, w, by, d, 2*time.Second)
			if n := w.metric("weir_connections_rejected_total", "reason", "fair_share"); n == 0 {
				t.Error("no connection of the client was refused")
			}
			if n := w.crowdedOut("busy"); n == 0 {
				t.Error("no connection of the client was ended")
			}
			w.wantLines(1, 5, "descriptors are shared out", "largest_network")
			if n := strings.Count(w.log.String(), `"reason":"fair_share"`); n > 100*int(d.Seconds()) {
				t.Errorf("%d lines of log for refusals", n)
			}
			t.Logf("the client was refused or ended %d times, and has %d connections", s.refused.Load(), s.open.Load())
			s.leave()
			w.wantStep("descriptors", 0)
		})
	}
}

// slowStreams does the same as slowUpload with ninety streams of one HTTP/2 connection, for three seconds.
func slowStreams(ctx context.Context, c net.Conn) error {
	const streams = 90
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return err
	}
	h := http2.NewFramer(c, c)
	h.WriteSettings()
	var block bytes.Buffer
	for i := range streams {
		block.Reset()
		enc := hpack.NewEncoder(&block)
		for _, f := range postFields() {
			at := strings.Index(f[1:], ":") + 1
			enc.WriteField(hpack.HeaderField{Name: f[:at], Value: strings.TrimSpace(f[at+1:])})
		}
		if err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(1 + 2*i), BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
			return err
		}
	}
	go io.Copy(io.Discard, c)
	for range 3 {
		for i := range streams {
			if err := h.WriteData(uint32(1+2*i), false, make([]byte, 300)); err != nil {
				return err
			}
		}
		pauseFor(ctx, time.Second)
	}
	return nil
}

// One client holds all descriptors with HTTP/2 streams: six connections with ninety slow uploads each.
func TestAttackSlowStreamsOfOneClient(t *testing.T) {
	needLinux(t)
	long(t)
	w := newWeir(t)
	w.before = []string{"sh", "-c", `ulimit -n 400 && exec "$@"`, "sh"}
	w.address["app"] = newReadingBackend(t)
	w.start(fairnessConfig)
	s := newSwarm(w, ways[0], "127.0.0.2", 6, 100*time.Millisecond, slowStreams)
	defer s.leave()
	w.wantUsedUp("descriptors")
	// weir does not accept streams one by one, so they use descriptors at once. Until some of them have ended,
	// weir tries to connect to an endpoint for timeouts.connect, which is five seconds.
	wantServed(t, w, ways[0], 10*time.Second, 8*time.Second)
	if n := w.crowdedOut("busy"); n == 0 {
		t.Error("no connection of the client was ended")
	}
	t.Logf("the client's connections were ended %d times", s.refused.Load())
}

// One client holds all memory with slow uploads. All other clients are served.
func TestAttackMemoryOfOneClient(t *testing.T) {
	needLinux(t)
	long(t)
	w := newWeir(t)
	w.env = append(w.env, "GOMEMLIMIT=48MiB")
	w.address["app"] = newReadingBackend(t)
	w.start(fairnessConfig + "limits: {memory: 1GiB}\n") // the default limit of the memory account would prevent the shortage
	s := newSwarm(w, ways[0], "127.0.0.2", 1500, time.Second, slowUpload)
	defer s.leave()
	w.wantUsedUp("memory")
	wantServed(t, w, ways[0], 20*time.Second, 2*time.Second)
	if n := w.crowdedOut("busy"); n == 0 {
		t.Error("no connection of the client was ended")
	}
	w.wantLines(1, 5, "memory is shared out", "127.0.0.2/32")
	t.Logf("the client was refused or ended %d times, and has %d connections", s.refused.Load(), s.open.Load())
}
