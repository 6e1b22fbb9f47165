package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/backend"
)

// pod is an endpoint that starts, serves and stops.
type pod struct {
	address string
	seen    *podsSeen
	ln      net.Listener
	running sync.WaitGroup

	leaving atomic.Bool // sends one more response on each connection and closes it
	rude    atomic.Bool // reads a request and closes the connection

	mu   sync.Mutex
	open map[net.Conn]bool // the value is true for an idle connection
}

// podsSeen is the data that all pods of a test have recorded.
type podsSeen struct {
	mu     sync.Mutex
	served map[string]int // requests by their names
	hungUp atomic.Int64   // connections that ended during a request, or may have
}

func newPod(t *testing.T, c *podsSeen) *pod {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{address: ln.Addr().String(), seen: c, ln: ln, open: map[net.Conn]bool{}}
	p.running.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.open[nc] = true
			p.mu.Unlock()
			p.running.Go(func() { p.serve(nc) })
		}
	})
	t.Cleanup(p.end)
	return p
}

func (p *pod) serve(nc net.Conn) {
	defer func() {
		nc.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.open, nc)
	}()
	r := bufio.NewReader(nc)
	for {
		if _, err := r.Peek(1); err != nil {
			return
		}
		p.mu.Lock()
		p.open[nc] = false
		p.mu.Unlock()
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		if p.rude.Load() {
			p.seen.hungUp.Add(1)
			return
		}
		name := req.URL.Path + string(body)
		p.seen.mu.Lock()
		p.seen.served[name]++
		p.seen.mu.Unlock()
		last := ""
		if p.leaving.Load() {
			last = "Connection: close\r\n"
		}
		if _, err := fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s", last, len(name), name); err != nil || last != "" {
			return
		}
		p.mu.Lock()
		p.open[nc] = true
		p.mu.Unlock()
	}
}

// closeIdle closes the idle connections, as a server does when it stops. weir may be about to use one of
// them.
func (p *pod) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for nc, idle := range p.open {
		if idle {
			p.seen.hungUp.Add(1)
			nc.Close()
		}
	}
}

// end closes all connections, also those that the kernel has accepted and the pod has not.
func (p *pod) end() {
	p.ln.Close()
	p.mu.Lock()
	p.seen.hungUp.Add(int64(len(p.open)) + clients)
	for nc := range p.open {
		nc.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// clients is the number of clients.
const clients = 8

// load is a set of clients that send requests one after the other.
type load struct {
	t       *testing.T
	done    atomic.Int64 // requests
	lost    atomic.Int64 // requests that may not be repeated and were lost
	stop    chan struct{}
	clients sync.WaitGroup
}

// newLoad starts clients. Half of them send requests that weir may repeat. If mayLose is true, requests of
// the others may be lost.
func newLoad(r *rig, t *testing.T, mayLose bool) *load {
	l := &load{t: t, stop: make(chan struct{})}
	for i := range clients {
		method := []string{"GET", "POST"}[i%2]
		l.clients.Go(func() { l.run(r, i, method, mayLose && method == "POST") })
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) run(r *rig, client int, method string, mayLose bool) {
	var c *peer
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		default:
		}
		if c == nil {
			nc, err := net.Dial("tcp", r.addrs["web"])
			if err != nil {
				l.t.Error(err)
				return
			}
			defer nc.Close()
			c = &peer{Conn: nc, t: l.t, r: bufio.NewReader(nc)}
		}
		c.SetDeadline(time.Now().Add(2 * patience))
		path, body := fmt.Sprintf("/%d/%s/%d", client, method, n), strings.Repeat("x", n%2*n%100)
		if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body); err != nil {
			l.t.Errorf("%s: %v", path, err)
			return
		}
		resp, got, err := c.tryResponse(method)
		switch {
		case err != nil:
			l.t.Errorf("%s: %v", path, err)
			return
		case resp.StatusCode == 200 && got == path+body:
		case mayLose && resp.StatusCode == 502:
			l.lost.Add(1)
		default:
			l.t.Errorf("%s: %d %q", path, resp.StatusCode, got)
			return
		}
		if l.done.Add(1); resp.Close {
			c = nil
		}
	}
}

// more waits until the clients have received that many more responses.
func (l *load) more(n int64) {
	l.t.Helper()
	want := l.done.Load() + n
	eventually(l.t, fmt.Sprintf("%d more requests are answered", n), func() error {
		if n := l.done.Load(); n < want && !l.t.Failed() {
			return fmt.Errorf("%d are missing", want-n)
		}
		return nil
	})
}

func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.clients.Wait()
}

// rollout is a backend whose pods are replaced while clients use it.
type rollout struct {
	*testing.T
	set  *backend.Set
	load *load
	all  []config.Endpoint
}

func (o *rollout) tell() {
	o.Helper()
	if err := o.set.UpdateEndpoints("app", slices.Clone(o.all)); err != nil {
		o.Fatal(err)
	}
}

func (o *rollout) add(address string) {
	o.all = append(o.all, config.Endpoint{Address: address, Weight: 1})
	o.tell()
}

func (o *rollout) terminate(address string) {
	for i := range o.all {
		o.all[i].Terminating = o.all[i].Terminating || o.all[i].Address == address
	}
	o.tell()
}

func (o *rollout) remove(address string) {
	o.all = slices.DeleteFunc(o.all, func(e config.Endpoint) bool { return e.Address == address })
	o.tell()
}

const rolling = `
listeners: {web: {address: '@0', protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: [%s], balance: %s, protocol: %s, ramp_up: 10s}}
`

// newRollout serves pods under load.
func newRollout(t *testing.T, balance, protocol string, mayLose bool, addresses ...string) *rollout {
	r := newRig(t, fmt.Sprintf(rolling, `"`+strings.Join(addresses, `", "`)+`"`, balance, protocol), nil)
	r.proxy.SetLog(nil)
	o := &rollout{T: t, set: r.set, load: newLoad(r, t, mayLose)}
	for _, a := range addresses {
		o.all = append(o.all, config.Endpoint{Address: a, Weight: 1})
	}
	o.load.more(50)
	return o
}

// Replacing pods loses no request, of any method, as long as each pod answers the requests that it has
// accepted. It does not matter that some pods that are reported as ready have already stopped.
func TestRolloutLosesNothing(t *testing.T) {
	for _, balance := range []string{"least_requests", "round_robin", "hash"} {
		t.Run(balance, func(t *testing.T) {
			c := &podsSeen{served: map[string]int{}}
			pods := []*pod{newPod(t, c), newPod(t, c), newPod(t, c)}
			o := newRollout(t, balance, "http", false, pods[0].address, pods[1].address, pods[2].address)
			for range 6 {
				old, fresh, gone := pods[0], newPod(t, c), refusedAddress(t)
				o.add(gone)
				o.add(fresh.address)
				pods = append(pods[1:], fresh)
				o.load.more(20)
				old.leaving.Store(true)
				o.load.more(20)
				o.terminate(old.address)
				o.load.more(20)
				o.remove(old.address)
				o.remove(gone)
			}
			for _, p := range pods { // finally one pod replaces all the others at once
				p.leaving.Store(true)
				o.terminate(p.address)
			}
			o.load.more(20) // no other pods exist now
			last := newPod(t, c)
			o.add(last.address)
			o.load.more(50)
			for _, p := range pods {
				o.remove(p.address)
			}
			o.load.more(50)
			o.load.end()
			for name, n := range c.served {
				if n != 1 {
					t.Errorf("%s was served %d times", name, n)
				}
			}
		})
	}
}

// Most endpoints have stopped, and weir does not know that yet. weir sends unsent requests to other
// endpoints, however many endpoints refuse.
func TestPodsThatRefuse(t *testing.T) {
	c := &podsSeen{served: map[string]int{}}
	addresses := []string{newPod(t, c).address}
	for range 7 {
		addresses = append(addresses, refusedAddress(t))
	}
	o := newRollout(t, "round_robin", "http", false, addresses...)
	o.load.more(200)
}

// Pods close connections at the worst moment. Requests that may be repeated are not lost, and other
// requests are not repeated.
func TestRolloutOfRudePods(t *testing.T) {
	c := &podsSeen{served: map[string]int{}}
	pods := []*pod{newPod(t, c), newPod(t, c), newPod(t, c), newPod(t, c)}
	o := newRollout(t, "least_requests", "http", true, pods[0].address, pods[1].address, pods[2].address, pods[3].address)
	for range 10 {
		old := pods[0]
		fresh := newPod(t, c)
		o.add(fresh.address)
		pods = append(pods[1:], fresh)
		old.closeIdle()
		o.load.more(20)
		old.rude.Store(true) // first requests on idle connections, then requests on new ones
		o.load.more(20)
		o.terminate(old.address)
		old.end()
		o.load.more(20)
		o.remove(old.address)
	}
	o.load.end()
	if lost, most := o.load.lost.Load(), c.hungUp.Load(); lost > most {
		t.Errorf("%d requests were lost, and only %d connections broken off", lost, most)
	}
	for name, n := range c.served {
		if n != 1 && strings.Contains(name, "/POST/") {
			t.Errorf("%s was served %d times", name, n)
		}
	}
}

// With HTTP/2, servers send GOAWAY: no request is lost, of any method.
func TestRolloutByHTTP2(t *testing.T) {
	start := func() (address string, shutdown func()) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s%s", r.URL.Path, body)
		})}
		s.Protocols.SetUnencryptedHTTP2(true)
		done := make(chan struct{})
		go func() { s.Serve(ln); close(done) }()
		end := sync.OnceFunc(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			defer cancel()
			if s.Shutdown(ctx) != nil {
				s.Close()
			}
			<-done
		})
		t.Cleanup(end)
		return ln.Addr().String(), end
	}
	first, endFirst := start()
	second, endSecond := start()
	o := newRollout(t, "least_requests", "h2c", false, first, second)
	ends := []func(){endFirst, endSecond}
	for range 4 {
		fresh, end := start()
		old := o.all[0].Address
		o.add(fresh)
		o.load.more(20)
		ending := make(chan struct{})
		go func() { ends[0](); close(ending) }() // before weir notices it
		o.load.more(20)
		o.terminate(old)
		<-ending
		o.load.more(20)
		o.remove(old)
		ends = append(ends[1:], end)
	}
	o.load.end() // before the last pods stop
}

// A request that was not sent may be sent again, whatever its method.
func TestNoteUnsent(t *testing.T) {
	f := func(was failure, wrote int, u *upload, want failure) {
		t.Helper()
		a := &attempt{all: &attempts{upload: u}}
		if o := a.noteUnsent(&outcome{failure: was}, wrote == 0); o.failure != want {
			t.Errorf("failure %d, %d bytes written, upload %t: %d, want %d", was, wrote, u != nil, o.failure, want)
		}
	}
	f(unanswered, 0, nil, stale)
	f(dropped, 0, nil, unsent)
	f(unanswered, 1, nil, unanswered)
	f(dropped, 1, nil, dropped)
	f(failed, 0, nil, failed)
	f(clientGone, 0, nil, clientGone)
	f(unanswered, 0, &upload{}, stale)
	f(unanswered, 0, &upload{bytes: 1}, unanswered) // weir has not kept the body
	f(unanswered, 0, &upload{err: io.EOF}, unanswered)
}

// If near endpoints have stopped, no request fails while any other endpoint is ready.
func TestNearEndpointsThatAreGone(t *testing.T) {
	far := newHandler(t, echo)
	const text = `
listeners: {web: {address: '@0', protocol: http}, raw: {address: '@1', protocol: tcp}}
routes: [{listeners: [web], backend: app}, {listeners: [raw], backend: stream}]
backends:
  app:
    prefer_local: true
    ejection: {failures: 0}
    endpoints: ['@near', '@here', {address: '@zone', node: b, zone: z1}, {address: '@next', node: c, zone: z1}, {address: '@far', node: d, zone: z2}]
  stream: {protocol: tcp, prefer_local: true, ejection: {failures: 0}, endpoints: ['@near', '@here', {address: '@zone', node: b, zone: z1}, {address: '@far', node: d, zone: z2}]}
`
	r := newRig(t, text, nil, "@near", refusedAddress(t), "@here", refusedAddress(t), "@zone", refusedAddress(t), "@next", refusedAddress(t), "@far", far)
	r.set.SetZone("z1")
	for _, listener := range []string{"web", "raw"} {
		for range 20 {
			c := r.dial(listener)
			c.write("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nConnection: close\r\n\r\n1")
			c.wantResponse(200, "/x 1")
			c.Close()
			r.record().want(t, "endpoint", far, "retries", 2, "reason", map[string]any{"web": nil, "raw": "eof"}[listener])
		}
	}
}
