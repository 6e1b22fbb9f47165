//go:build linux

package kube

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
)

// load sends requests in several ways at the same time until it is stopped, and records every failure.
type load struct {
	t       testing.TB
	stopped chan struct{}
	running sync.WaitGroup

	mu       sync.Mutex
	asked    int
	wrong    []string
	versions map[string]int // versions of the Pods that answered, with the number of responses
}

// underLoad requests the URL until stop is called: on open connections, on new ones, over HTTP/2 if the URL
// is https, with slow responses, and with requests that weir must not repeat.
func (w *weir) underLoad(url string) *load {
	l := w.underLightLoad(url)
	slow := client(w.address, false)
	l.again(func() (answer, error) { return ask(slow, url+"?delay=100ms") })
	posting := client(w.address, false)
	l.again(func() (answer, error) {
		var a answer
		resp, err := posting.Post(url, "text/plain", strings.NewReader("once only"))
		if err == nil {
			defer resp.Body.Close()
			err = a.take(resp)
		}
		return a, err
	})
	return l
}

// underLightLoad is like underLoad, without slow responses and without requests that weir must not repeat.
func (w *weir) underLightLoad(url string) *load {
	l := &load{t: w, stopped: make(chan struct{}), versions: map[string]int{}}
	for i := range 2 {
		kept := client(w.address, i == 1 && strings.HasPrefix(url, "https:"))
		l.again(func() (answer, error) { return ask(kept, url) })
	}
	l.again(func() (answer, error) { return w.get(url) })
	return l
}

func (l *load) again(ask func() (answer, error)) {
	l.running.Go(func() {
		for {
			select {
			case <-l.stopped:
				return
			default:
				l.note(ask())
			}
		}
	})
}

func (l *load) note(a answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	switch {
	case err != nil:
		l.wrong = append(l.wrong, err.Error())
	case a.Status != 200:
		l.wrong = append(l.wrong, a.String())
	default:
		l.versions[a.Version]++
	}
}

// count returns how many requests were answered so far.
func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// more waits for n more responses.
func (l *load) more(n int) {
	l.t.Helper()
	want := l.count() + n
	eventually(l.t, fmt.Sprint(n, " more requests"), func() error {
		if got := l.count(); got < want {
			return fmt.Errorf("%d are missing", want-got)
		}
		return nil
	})
}

// stop ends the load, and fails the test if any request failed.
func (l *load) stop() map[string]int {
	l.t.Helper()
	close(l.stopped)
	l.running.Wait()
	if len(l.wrong) > 0 {
		l.t.Errorf("%d of %d requests failed, the first with\n%s", len(l.wrong), l.asked, strings.Join(l.wrong[:min(len(l.wrong), 8)], "\n"))
	}
	l.t.Logf("%d requests", l.asked)
	return maps.Clone(l.versions)
}
