//go:build linux

package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// stuckClient is a client with cookies that sends one request after the other.
type stuckClient struct {
	*http.Client
	mu   sync.Mutex
	pods []string // that answered, without repetitions
	n    []int    // their answers
}

// next sends a request.
func (c *stuckClient) next(url string) (answer, error) {
	a, err := ask(c.Client, url)
	if err != nil || a.Status != 200 {
		return a, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pods) == 0 || c.pods[len(c.pods)-1] != a.Pod {
		c.pods, c.n = append(c.pods, a.Pod), append(c.n, 0)
	}
	c.n[len(c.n)-1]++
	return a, nil
}

// state returns the Pods that answered, and how often each did. The client has had an answer.
func (c *stuckClient) state() (pods string, n []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.pods, " "), slices.Clone(c.n)
}

// TestStickyDrain deletes a Pod. While it terminates, it gets the requests of its own clients and no
// others. When it has ended, its clients go to another Pod and stay there. No request fails.
func TestStickyDrain(t *testing.T) {
	const url = "http://web.example/"
	s := newStage(t)
	s.apply(strings.Replace(deployment("a", 3), "labels: {app: a}}, spec", `labels: {app: a}, annotations: {standin.test/linger: 25s}}, spec`, 1),
		withAnnotations(ingress("web", "web.example", "/", "a", ""), "web", "affinity: cookie", `session-cookie-change-on-failure: "true"`))
	s.rolledOut("a")
	w := s.weir("")
	w.wantApp(url, "a")
	l := &load{t: w, stopped: make(chan struct{}), versions: map[string]int{}}
	var clients []*stuckClient
	used := map[string]int{}
	for len(used) < 3 || len(clients) < 9 { // each Pod has clients
		c := w.newStuckClient(l, url)
		pod, _ := c.state()
		used[pod]++
		clients = append(clients, c)
	}
	gone, _ := clients[0].state()
	mine := func(c *stuckClient) bool { pods, _ := c.state(); return strings.HasPrefix(pods, gone) }
	s.kubectl("delete", "pod", "--wait=false", "--namespace="+s.name, gone)
	eventually(t, "new clients do not get the Pod that terminates", func() error {
		for range 20 {
			if a, err := w.get(url); err != nil || a.Pod == gone {
				return fmt.Errorf("%s, %w", a, err)
			}
		}
		return nil
	})
	var before []int // the answers of the first Pod of each client
	for _, c := range clients {
		_, n := c.state()
		before = append(before, n[0])
	}
	for i, c := range clients {
		eventually(t, "each client goes on with its Pod", func() error {
			if pods, n := c.state(); n[0] < before[i]+10 {
				return fmt.Errorf("%d requests, by %s; %d before", n, pods, before[i])
			}
			return nil
		})
	}
	for _, c := range clients {
		if !mine(c) {
			continue
		}
		eventually(t, "the clients of the Pod that ended get another one, and stay there", func() error {
			if pods, n := c.state(); len(n) != 2 || n[1] < 50 {
				return fmt.Errorf("%d requests, by %s", n, pods)
			}
			return nil
		})
	}
	l.stop()
	for _, c := range clients {
		if pods, _ := c.state(); !mine(c) && strings.Contains(pods, " ") {
			t.Errorf("a client of another Pod had the Pods %s", pods)
		}
	}
}
