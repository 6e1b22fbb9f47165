package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// slowConfig has limits that are short enough for a test. The default limits are longer.
const slowConfig = `
listeners:
  web: {address: '@web', protocol: http, timeouts: {request_head: 2s, body_idle: 2s, keep_alive: 5s}}
  secure: {address: '@secure', protocol: tls, timeouts: {request_head: 2s, body_idle: 2s, keep_alive: 5s}}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes: [{name: app, listeners: [web, secure], backend: app}]
backends: {app: {endpoints: ['@app']}}
`

// slowClients is the number of connections of slowhttptest. It holds each for 40 s unless weir ends it
// earlier.
const slowClients = 100

// slowModes are the modes of slowhttptest, with a pace at which bytes never stop for long, and the reason for
// which weir ends the connections.
var slowModes = []struct {
	name, path string
	args       []string
	reason     string // the reason of each connection; empty if weir serves them
	notices    bool   // slowhttptest sees the end of its connections; it cannot if it does not read
}{
	{"slow heads", "/", []string{"-H", "-i", "1"}, "slow_head", true},
	{"slow bodies", "/", []string{"-B", "-i", "1", "-x", "10", "-s", "100000"}, "slow_body", true},
	{"ranges", "/bytes/1000", []string{"-R", "-a", "5", "-b", "2000"}, "", true},
	{"slow reads", "/bytes/4000000", []string{"-X", "-n", "1", "-z", "32", "-w", "64", "-y", "256"}, "slow_read", false},
}

// In each mode of slowhttptest, over plain HTTP and over TLS, weir ends the slow connections within its
// limits and reports the reason. Other clients are served meanwhile. At the end no connection is open.
func TestSlowHTTP(t *testing.T) {
	needLinux(t)
	long(t)
	path := need(t, "slowhttptest")
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(slowConfig)

	alone := newBystander(w)
	time.Sleep(2 * time.Second) // the time of the measurement, no synchronisation
	t.Logf("%-21s %s", "nobody else", alone.leave(t))
	for _, m := range slowModes {
		for _, listener := range []string{"web", "secure"} {
			t.Run(strings.ReplaceAll(m.name, " ", "-")+"/"+listener, func(t *testing.T) {
				url := map[string]string{"web": "http://", "secure": "https://"}[listener] + w.at(listener) + m.path
				b := newBystander(w)
				before, late, unshaken := w.slow(listener, m.reason), w.slow(listener, "slow_head"), w.failedHandshakes(listener)
				begun := time.Now()
				p := runPeer(t, path, slices.Concat(m.args, []string{"-c", strconv.Itoa(slowClients), "-r", strconv.Itoa(slowClients), "-l", "40", "-p", "10", "-u", url})...)
				if m.reason != "" {
					within(t, 35*time.Second, "weir ends all of them", func() error { // 35 s, because slowhttptest itself ends them after 40 s
						n, all := w.slow(listener, m.reason)-before, w.slow(listener, m.reason)-before
						if m.reason != "slow_head" { // on a busy machine some heads are late
							all += w.slow(listener, "slow_head") - late
						}
						all += w.failedHandshakes(listener) - unshaken // and some handshakes
						if all < slowClients || n < slowClients/2 {
							return fmt.Errorf("%v have ended, %v for this reason", all, n)
						}
						return nil
					})
				}
				took := time.Since(begun)
				if m.notices {
					wantNoticed(t, p)
				}
				if m.reason != "" {
					w.logged(m.reason, func(e entry) bool { return e.text("listener") == listener && e.text("reason") == m.reason })
				}
				t.Logf("%-21s %s; all were ended after %.1f s", m.name+", "+listener, b.leave(t), took.Seconds())
			})
		}
	}
	w.wantMetric(0, "weir_connections_open")
}

// slow counts the exchanges that weir ended for a reason.
func (w *weir) slow(listener, reason string) float64 {
	return w.metric("weir_http_slow_clients_total", "listener", listener, "reason", reason)
}

// failedHandshakes counts the TLS handshakes on a listener that did not succeed.
func (w *weir) failedHandshakes(listener string) float64 {
	return w.metric("weir_tls_handshakes_total", "listener", listener) - w.metric("weir_tls_handshakes_total", "listener", listener, "result", "ok")
}

// wantNoticed waits until slowhttptest reports that all its connections are closed. It fails the test if
// slowhttptest reports that the service was not available meanwhile.
func wantNoticed(t *testing.T, p *peerProcess) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
	}
	text := noColours.ReplaceAllString(p.log.String(), "")
	if !strings.Contains(text, "No open connections left") {
		t.Errorf("its connections were not ended:\n%s", text[max(0, len(text)-800):])
	}
	if regexp.MustCompile(`service available:\s+NO`).MatchString(text) {
		t.Error("slowhttptest itself was not served beside its slow connections")
	}
}

var noColours = regexp.MustCompile(`\x1b\[[0-9;]*[a-zA-Z]`)

// bystander sends requests during an attack, on open and on new connections, over plain HTTP and TLS.
type bystander struct {
	w       *weir
	stop    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	took   []time.Duration
	errors []error
}

func newBystander(w *weir) *bystander {
	n := &bystander{w: w, stop: make(chan struct{})}
	for i := range 8 {
		n.running.Go(func() { n.ask(i%2 == 1, i%4 > 1) })
	}
	return n
}

// ask makes requests until leave is called.
func (n *bystander) ask(secure, anew bool) {
	var c net.Conn
	var r *bufio.Reader
	for i := 0; ; i++ {
		select {
		case <-n.stop:
			if c != nil {
				c.Close()
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
		begun := time.Now()
		var err error
		if c == nil {
			if c, err = n.open(secure); err == nil {
				r = bufio.NewReader(c)
			}
		}
		if err == nil {
			var resp *http.Response
			if resp, _, err = ask(c, r, "GET", "app.example.org", fmt.Sprint("/neighbour/", i)); err == nil && resp.StatusCode != 200 {
				err = fmt.Errorf("a neighbour gets %s", resp.Status)
			}
		}
		n.mu.Lock()
		if n.took = append(n.took, time.Since(begun)); err != nil {
			n.errors = append(n.errors, err)
		}
		n.mu.Unlock()
		if c != nil && (err != nil || anew) {
			c.Close()
			c = nil
		}
	}
}

func (n *bystander) open(secure bool) (net.Conn, error) {
	if !secure {
		return net.DialTimeout("tcp", n.w.at("web"), patience)
	}
	c, err := net.DialTimeout("tcp", n.w.at("secure"), patience)
	if err != nil {
		return nil, err
	}
	return tls.Client(c, anyCertificate("app.example.org")), nil
}

// leave stops the bystander when it has made enough requests, and fails the test for every request that
// failed. It returns a summary for the log.
func (n *bystander) leave(t *testing.T) string {
	t.Helper()
	end := sync.OnceFunc(func() {
		close(n.stop)
		n.running.Wait()
	})
	defer end()
	eventually(t, "neighbours make 50 requests", func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.took) < 50 {
			return fmt.Errorf("they made %d", len(n.took))
		}
		return nil
	})
	end()
	for i, err := range n.errors {
		if i < 5 {
			t.Errorf("a neighbour: %v", err)
		}
	}
	slices.Sort(n.took)
	of := func(share float64) time.Duration { return n.took[int(share*float64(len(n.took)-1))] }
	return fmt.Sprintf("%5d requests of neighbours, %d failed: p50 %.1f ms, p99 %.1f ms", len(n.took), len(n.errors), of(0.5).Seconds()*1e3, of(0.99).Seconds()*1e3)
}
