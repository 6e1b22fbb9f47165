//go:build linux

package kube

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

// balancer is a load balancer that knows only the health ports of several weirs, like an NLB or a load
// balancer in front of host ports. It checks each port every 100 ms, changes its opinion after two equal
// results in a row, and sends new connections to the healthy weirs.
type balancer struct {
	address string

	mu   sync.Mutex
	all  map[string]*target // the key is the address of a weir
	next int
}

// target is the state of one weir in a balancer.
type target struct {
	well    bool // the balancer treats the weir as healthy
	against int  // consecutive checks with the opposite result
}

// heard records the result of a check. The second result in a row that differs from well changes well.
func (t *target) heard(well bool) {
	if t.against++; well == t.well {
		t.against = 0
	}
	if t.against == 2 {
		t.well, t.against = well, 0
	}
}

func (s *stage) balancer(address string, ports ...int) *balancer {
	s.Helper()
	b := &balancer{address: address, all: map[string]*target{}}
	done := make(chan struct{})
	s.Cleanup(func() { close(done) })
	for _, port := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { l.Close() })
		go b.accept(l, port)
	}
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
				b.check()
			}
		}
	}()
	return b
}

func (b *balancer) check() {
	b.mu.Lock()
	all := make([]string, 0, len(b.all))
	for address := range b.all {
		all = append(all, address)
	}
	b.mu.Unlock()
	for _, address := range all {
		err := answers(control, "http://"+address+":8086/")
		b.mu.Lock()
		if t := b.all[address]; t != nil {
			t.heard(err == nil)
		}
		b.mu.Unlock()
	}
}

// add adds a weir, as a controller does when a node or a Pod appears. remove removes it.
func (b *balancer) add(w *weir) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all[w.address] = &target{}
}

func (b *balancer) remove(w *weir) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, w.address)
}

// believes waits until the balancer treats w as healthy, or, if well is false, as unhealthy.
func (b *balancer) believes(w *weir, well bool) {
	w.Helper()
	eventually(w, fmt.Sprintf("the balancer takes %s for well: %v", w.address, well), func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.all[w.address].well != well {
			return errors.New("not yet")
		}
		return nil
	})
}

// pick returns the address of the next healthy weir.
func (b *balancer) pick() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	var well []string
	for address, t := range b.all {
		if t.well {
			well = append(well, address)
		}
	}
	if len(well) == 0 {
		return ""
	}
	return well[b.next%len(well)]
}

func (b *balancer) accept(l net.Listener, port int) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			to, err := net.Dial("tcp", net.JoinHostPort(b.pick(), strconv.Itoa(port)))
			if err != nil {
				return
			}
			defer to.Close()
			go func() {
				io.Copy(to, c)
				to.(*net.TCPConn).CloseWrite()
			}()
			io.Copy(c, to)
		}()
	}
}

// TestWeirsAreReplaced replaces the weirs of all nodes one after the other, as an upgrade of a cluster does:
// cordon the node, wait, end the weir, start another one. The load balancer knows only the health ports. No
// request is lost.
func TestWeirsAreReplaced(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 2), s.secret("web", "web", "web.example"), ingress("web", "web.example", "/", "a", "web"))
	s.rolledOut("a")
	b := s.balancer("10.10.2.1", 443)
	running := map[string]*weir{}
	begin := func(node string) {
		w := s.newWeir(node, "drain: {lame_duck: 5s, timeout: 20s}\n").launch().ready()
		w.wantApp("https://web.example/", "a")
		running[node] = w
		b.add(w)
		b.believes(w, true)
	}
	begin("node-a")
	begin("node-b")
	clients := *running["node-a"]
	clients.address = b.address
	l := clients.underLoad("https://web.example/")
	for _, node := range []string{"node-a", "node-b"} {
		t.Cleanup(func() { s.cluster.kubectl("", "uncordon", node) })
		old := running[node]
		s.kubectl("cordon", node)
		b.believes(old, false)
		l.more(50)
		if status := old.terminate(); status != 0 {
			t.Errorf("the weir of %s ended with status %d", node, status)
		}
		b.remove(old)
		s.kubectl("uncordon", node)
		begin(node)
		l.more(50)
	}
	l.stop()
}
