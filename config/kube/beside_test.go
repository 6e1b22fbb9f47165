package kube

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/pause"
)

// These tests are about endpoints that change beside routes and reloads.

// lookedIndex is the objects of an informer. It calls then after each search.
type lookedIndex struct {
	cache.Indexer
	then func()
}

func (l lookedIndex) ByIndex(index, key string) ([]any, error) {
	defer l.then()
	return l.Indexer.ByIndex(index, key)
}

// Endpoints that change during the first report are reported after it.
func TestEndpointsChangeDuringTheFirstReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.put(ingressAndService + "---\n" + slice("a-1", "a", "10.0.0.1"))
		var told []string // the endpoints
		source, err := NewSource(Options{File: mustParse(t, plainConfig), List: s.List, Changed: func(c Change) {
			told = append(told, addressesOf(c.Endpoints["default/a:80"])...)
		}})
		if err != nil {
			t.Fatal(err)
		}
		last := 1
		slices := source.informers[EndpointSlices][0]
		slices.Items = lookedIndex{slices.Items, func() {
			if len(told) == 0 { // at each look for the first report
				last++
				s.put(slice("a-1", "a", fmt.Sprintf("10.0.0.%d", last)))
				time.Sleep(time.Millisecond) // until the Source has seen it
			}
		}}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); source.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if last == 1 || len(told) != 2 || told[1] != fmt.Sprintf("10.0.0.%d:8080", last) {
			t.Errorf("it told of %v, and the last endpoint is 10.0.0.%d", told, last)
		}
		cancel()
		<-ended
		s.shutdown()
	})
}

// Endpoints do not wait for routes either if a conversion is the first to look at them.
func TestEndpointsDoNotWaitForTheRoutesOfTheirBackend(t *testing.T) {
	observe(t, plainConfig, ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1"), func(t *testing.T, w *watched) {
		w.next()
		release := make(chan struct{})
		w.beforeRoutes(func() { <-release })
		w.put(strings.Replace(ingressAndService, "kind: Service, metadata: {", "kind: Service, metadata: {annotations: {"+AnnotationPreferLocal+": 'true'}, ", 1))
		time.Sleep(debounce - quickDebounce/2)
		w.put(slice("a-1", "a", "10.0.0.2")) // the conversion begins before the debounce time of these endpoints is over
		if c := w.one(t); c.Routing != nil || !reflect.DeepEqual(addressesOf(c.Endpoints["default/a:80"]), []string{"10.0.0.2:8080"}) {
			t.Errorf("beside the routes it told %+v", c)
		}
		close(release)
		if c := w.one(t); c.Routing == nil || !c.Routing.Backends[0].PreferLocal || !reflect.DeepEqual(endpointsIn(&c, "default/a:80"), w.backends[0].Endpoints) {
			t.Errorf("then it told %+v", c)
		}
	})
}

// While new routes are not in effect, or cannot take effect, the backends of the former routes keep their newest endpoints.
func TestEndpointsOfFormerRoutes(t *testing.T) {
	b := strings.NewReplacer("name: a}", "name: b}", "service: {name: a,", "service: {name: b,").Replace(ingressAndService)
	observe(t, plainConfig, ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1"), func(t *testing.T, w *watched) {
		w.next()
		var fails error
		w.beforeRoutes(func() { w.WithNewest(func([]*config.Backend) error { return fails }) })
		endpoints := func(address string, want ...string) {
			t.Helper()
			w.put(slice("a-1", "a", address))
			var got []string
			for _, c := range w.next() {
				got = append(got, addressesOf(c.Endpoints["default/a:80"])...)
			}
			if !slices.Equal(got, want) {
				t.Errorf("it told of %v, not %v", got, want)
			}
		}
		if err := w.Try(w.opts.File, func(Change) error { return nil }); err != nil {
			t.Fatal(err)
		}
		endpoints("10.0.0.2", "10.0.0.2:8080")
		fails = errors.New("no")
		for _, routes := range []string{b, strings.ReplaceAll(b, "a.example", "c.example")} { // the second routes fail too
			w.put(routes)
			if c := w.one(t); len(c.Routing.Backends) != 1 || c.Routing.Backends[0].Name != "default/b:80" {
				t.Fatalf("it told of %+v", c.Routing)
			}
			endpoints("10.0.0.1", "10.0.0.1:8080") // as at first
			endpoints("10.0.0.2", "10.0.0.2:8080")
			endpoints("10.0.0.2")
		}
		w.Again(func(Change) { w.WithNewest(func([]*config.Backend) error { return nil }) })
		endpoints("10.0.0.3")
	})
}

// A conversion pauses only while endpoints may change.
func TestNoPauseDelaysEndpoints(t *testing.T) {
	observe(t, plainConfig, ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1"), func(t *testing.T, w *watched) {
		w.next()
		var pauses, late atomic.Int64
		defer pause.Count(func() {
			pauses.Add(1)
			if !w.work.TryLock() {
				late.Add(1)
				return
			}
			w.work.Unlock()
		})()
		w.put(strings.Replace(ingressAndService, "kind: Service, metadata: {", "kind: Service, metadata: {annotations: {"+AnnotationPreferLocal+": 'true'}, ", 1))
		w.one(t)
		if err := w.Try(w.opts.File, func(Change) error { return nil }); err != nil {
			t.Error(err)
		}
		if pauses.Load() == 0 || late.Load() > 0 {
			t.Errorf("%d of %d pauses delay endpoints", late.Load(), pauses.Load())
		}
	})
}

// Each report holds the locks that keep others from overtaking it.
func TestReportsHoldTheirLocks(t *testing.T) {
	observe(t, plainConfig, ingressAndService+"---\n"+slice("a-1", "a", "10.0.0.1"), func(t *testing.T, w *watched) {
		w.next()
		held := func(what string, routes, endpoints bool) {
			t.Helper()
			for _, l := range []struct {
				name  string
				mutex *sync.Mutex
				want  bool
			}{{"converting", &w.converting, routes}, {"work", &w.work, endpoints}} {
				free := l.mutex.TryLock()
				if free {
					l.mutex.Unlock()
				}
				if free == l.want {
					t.Errorf("%s: the lock %s is free: %t", what, l.name, free)
				}
			}
		}
		newest := func() {
			w.WithNewest(func([]*config.Backend) error { held("with the newest endpoints", true, true); return nil })
		}
		var told []string
		w.setOptions(func(o *Options) {
			o.Changed = func(c Change) {
				if c.Routing == nil {
					told = append(told, "endpoints")
					held("endpoints", false, true)
					return
				}
				told = append(told, "routes")
				held("routes", true, false)
				newest()
			}
		})
		w.put(slice("a-1", "a", "10.0.0.2"))
		w.next()
		w.put(strings.ReplaceAll(ingressAndService, "a.example", "b.example"))
		w.next()
		if !slices.Equal(told, []string{"endpoints", "routes"}) {
			t.Errorf("it told of %q", told)
		}
		for _, err := range []error{errors.New("no"), nil} {
			if got := w.Try(w.opts.File, func(Change) error { held("a reload", true, true); return err }); got != err {
				t.Errorf("it returned %v", got)
			}
		}
		w.Again(func(Change) {
			held("another try", true, false)
			newest()
		})
	})
}
