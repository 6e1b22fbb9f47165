package backend

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/health"
)

// The packages health and backend work together: a Checker sets the state of the endpoints of
// a Set, and the verdict of a Node follows.
func TestHealthDrivesTheSet(t *testing.T) {
	var broken atomic.Bool
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer app.Close()

	checker := health.NewChecker()
	defer checker.Close()
	events := make(chan Event, 10)
	set := NewSet(Options{
		StartCheck: func(c *Check) func() { return checker.Start(c, c.Settings, c.WasReady) },
		Notify: func(e Event) {
			if e.Kind != BackendDown && e.Kind != BackendRecovered { // outage_test.go tests these
				events <- e
			}
		},
	})
	defer set.Close()
	node := health.NewNode(set.LocalReady)
	node.SetLoaded(true)
	node.SetBound(true)
	node.SetRequireLocal([]string{"app"})

	want := func(kind EventKind, healthy bool) {
		t.Helper()
		select {
		case e := <-events:
			if e.Kind != kind {
				t.Fatalf("event %+v, want %s", e, kind)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no event, want %s", kind)
		}
		if v := node.Verdict(); v.Healthy != healthy {
			t.Errorf("verdict %+v, want healthy %t", v, healthy)
		}
	}
	cfg := settings("app", app.Listener.Addr().(*net.TCPAddr).String())
	cfg.HealthCheck = &config.HealthCheck{
		HTTP:     &config.HTTPCheck{Path: "/healthz", StatusMin: 200, StatusMax: 399},
		Interval: 5 * time.Millisecond, Timeout: 5 * time.Second, Rise: 2, Fall: 3, SendProxy: 0,
	}
	if _, err := set.Update(listOf(cfg), NodeInfo{}); err != nil {
		t.Fatal(err)
	}
	want(EndpointReady, true)
	broken.Store(true)
	want(EndpointNotReady, false)
	broken.Store(false)
	want(EndpointReady, true)
}
