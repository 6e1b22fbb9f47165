package proxy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// waitWire is the wire of a client that waits for a guard.
type waitWire struct {
	wire
	left atomic.Bool

	mu   sync.Mutex
	link conn.Cuttable // guarded by mu: weir cuts a connection on another goroutine
}

func (w *waitWire) Gone() bool { return w.left.Load() }

func (w *waitWire) CutAlso(other conn.Cuttable) {
	w.mu.Lock()
	w.link = other
	w.mu.Unlock()
}

func (w *waitWire) linked() conn.Cuttable {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.link
}

func TestGuardWait(t *testing.T) {
	f := func(name string, during func(w *waitWire, event chan struct{}), happened bool, gone error, after time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, event, began := new(waitWire), make(chan struct{}), time.Now()
				go func() {
					time.Sleep(1500 * time.Millisecond)
					during(w, event)
				}()
				got, err := (&exchange{wire: w}).Wait(event, 5*time.Second)
				if got != happened || !errors.Is(err, gone) || time.Since(began) != after || w.linked() != nil {
					t.Errorf("%t, %v after %v, linked to %v", got, err, time.Since(began), w.linked())
				}
			})
		})
	}
	f("the event", func(_ *waitWire, event chan struct{}) { close(event) }, true, nil, 1500*time.Millisecond)
	f("the client goes", func(w *waitWire, _ chan struct{}) { w.left.Store(true) }, false, errClientGone, 2*time.Second)
	f("weir cuts the connection", func(w *waitWire, _ chan struct{}) { c := w.linked(); c.Cut(); c.Cut() }, false, errClientGone, 1500*time.Millisecond)
	f("nothing", func(*waitWire, chan struct{}) {}, false, nil, 5*time.Second)
}

// A client that closes its connection while its password waits for a check gives up its place.
func TestPasswordOfAGoneClient(t *testing.T) {
	// Cost 12: a check takes some tenths of a second.
	users := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(users, []byte("ada:$2y$12$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newEndpoint(t)
	r := newRig(t, `
listeners: {web: {address: '@0', protocol: http}}
auth: {staff: {basic: {file: "@users"}}}
routes: [{listeners: [web], auth: staff, backend: app}]
backends: {app: {endpoints: ["@app"]}}
`, nil, "@app", e.address, "@users", users)
	open := make([]*peer, runtime.GOMAXPROCS(0)/2+10) // more than weir checks in a second
	for i := range open {
		open[i] = r.dial("web")
		credentials := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "ada:wrong%d", i))
		open[i].write("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic " + credentials + "\r\n\r\n")
	}
	for _, c := range open {
		c.Close()
	}
	gone := 0
	for range open {
		switch rec := r.record(); rec["reason"] {
		case "client_gone":
			gone++
			rec.want(t, "status", statusClientGone)
		case "auth_failed": // its check ran
		default:
			t.Errorf("%v", rec)
		}
	}
	if gone == 0 {
		t.Error("all passwords were checked")
	}
}
