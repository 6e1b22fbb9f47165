package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// requests sends HTTP/2 requests without a pause until end is closed, or until weir accepts no more
// connections. Every request must be answered.
type requests struct {
	t    *testing.T
	base string
	end  chan struct{}
	all  sync.WaitGroup
	done atomic.Int64
}

func (r *requests) client(kind int) {
	client := goHTTP2(r.t, strings.HasPrefix(r.base, "http:"))
	body := pattern(kind * 10_000)
	for {
		select {
		case <-r.end:
			return
		default:
		}
		var res *http.Response
		var err error
		if kind%2 == 0 {
			res, err = client.Get(fmt.Sprint(r.base, "/bytes/", len(body)))
		} else {
			res, err = client.Post(r.base+"/up", "", bytes.NewReader(body))
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if err != nil {
			r.t.Errorf("a request was lost: %v", err)
			return
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 || kind%2 == 0 && !bytes.Equal(got, body) || kind%2 == 1 && !bytes.Contains(got, []byte(sum256(body))) {
			r.t.Errorf("a request was lost: %d, %d bytes, %v", res.StatusCode, len(got), err)
			return
		}
		r.done.Add(1)
	}
}

// Reloads and a drain under load lose no request. Running streams complete, and clients send new requests on
// other connections.
func TestNoRequestOfHTTP2IsLost(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	config := http2Config + "drain: {lame_duck: 5s, timeout: 20s}\n"
	w.start(config)
	var all []*requests
	for _, base := range []string{"http://" + w.at("web"), "https://" + w.at("secure")} {
		r := &requests{t: t, base: base, end: make(chan struct{})}
		for kind := range 8 {
			r.all.Go(func() { r.client(kind) })
		}
		all = append(all, r)
	}
	progress := func() {
		t.Helper()
		for _, r := range all {
			n := r.done.Load() + 20
			eventually(t, "requests are answered", func() error {
				if r.done.Load() < n && !t.Failed() {
					return errNotYet
				}
				return nil
			})
		}
	}
	progress()
	for i := range 10 {
		w.reload(config + fmt.Sprintf("limits: {pending: %d}\n", 4000+i))
		progress()
	}
	w.signal(syscall.SIGTERM)
	w.wantVerdict(503)
	progress() // during the lame duck period
	if status := w.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	for _, r := range all {
		close(r.end)
		r.all.Wait()
	}
}

// In a drain, running streams complete, and then their connection ends.
func TestDrainWaitsForRunningStreams(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	w.start(http2Config + "drain: {lame_duck: 0s, timeout: 30s}\n")
	for _, listener := range []string{"web", "secure"} {
		h := dialH2(t, w, listener)
		h.head(1, true, ":method: GET", ":scheme: https", ":path: /hold", ":authority: a")
		app.arrived(t)
		defer func() {
			status, _, err := h.answer(1)
			if err != nil || status != "200" {
				t.Errorf("the running stream: %s, %v", status, err)
			}
			if how := h.toTheEnd(); how.err != io.EOF {
				t.Errorf("then the connection ends with %s", how)
			}
			if status := w.wait(); status != 0 {
				t.Errorf("exit status %d", status)
			}
		}()
	}
	w.signal(syscall.SIGTERM)
	eventually(t, "the listeners close", func() error { return refuses(w.at("web")) })
	w.stillRunning(300 * time.Millisecond)
	close(app.release)
}

// weir announces a drain on an idle HTTP/2 connection and ends it, so the drain does not wait for its
// timeout.
func TestDrainOfIdleConnectionsOfHTTP2(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	w.start(http2Config + "drain: {lame_duck: 0s, timeout: 120s}\n")
	h := dialH2(t, w, "secure")
	h.get(1)
	if status, _, err := h.answer(1); err != nil || status != "200" {
		t.Fatalf("%s, %v", status, err)
	}
	w.signal(syscall.SIGTERM)
	if _, _, err := h.answer(3); err != io.EOF { // answer acknowledges PINGs
		t.Errorf("it ends with %v", err)
	}
	if status := w.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}
