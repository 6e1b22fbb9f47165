package kube

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	fake "k8s.io/client-go/tools/cache/testing"

	"github.com/weirproxy/weir/config"
)

// server is a fake API server. It keeps objects by kind and selector.
type server struct {
	t    testing.TB
	mu   sync.Mutex
	held map[Kind]*fake.FakeControllerSource
	// down fails every request. It is read at each request.
	down  error
	lists int
	asked map[Kind][]Selection
	// refused fails requests for these kinds. It is read at each request.
	refused map[Kind]error
}

func newServer(t testing.TB) *server {
	return &server{t: t, held: map[Kind]*fake.FakeControllerSource{}, asked: map[Kind][]Selection{}, refused: map[Kind]error{}}
}

func (s *server) of(kind Kind) *fake.FakeControllerSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[kind] == nil {
		s.held[kind] = fake.NewFakeControllerSource()
	}
	return s.held[kind]
}

// List is Options.List.
func (s *server) List(kind Kind, selection Selection) *cache.ListWatch {
	source := s.of(kind)
	s.mu.Lock()
	s.asked[kind] = append(s.asked[kind], selection)
	s.mu.Unlock()
	return &cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			s.mu.Lock()
			s.lists++
			down := cmp.Or(s.down, s.refused[kind])
			s.mu.Unlock()
			if down != nil {
				return nil, down
			}
			return source.List(o)
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			s.mu.Lock()
			down := cmp.Or(s.down, s.refused[kind])
			s.mu.Unlock()
			if down != nil {
				return nil, down
			}
			if o.SendInitialEvents != nil { // the fake streams no lists
				return nil, apierrors.NewBadRequest("sendInitialEvents is not supported")
			}
			events, err := source.Watch(o)
			if err != nil {
				return nil, err
			}
			// The fake sends the object that it stores, and an informer may change an
			// object that it receives.
			return watch.Filter(events, func(e watch.Event) (watch.Event, bool) {
				e.Object = e.Object.DeepCopyObject()
				return e, true
			}), nil
		},
	}
}

func (s *server) set(down error) {
	s.mu.Lock()
	s.down = down
	s.mu.Unlock()
	for kind := range example {
		if down != nil {
			s.of(kind).ResetWatch()
		}
	}
}

// put adds or replaces the objects in manifests.
func (s *server) put(manifests string) {
	s.each(manifests, func(f *fake.FakeControllerSource, o runtime.Object) {
		if list, err := f.List(metav1.ListOptions{}); err == nil && holds(list, o) {
			f.Modify(o)
		} else {
			f.Add(o)
		}
	})
}

func holds(list, o runtime.Object) bool {
	wanted := o.(metav1.Object)
	for _, raw := range list.(*corev1.List).Items {
		if held := raw.Object.(metav1.Object); held.GetName() == wanted.GetName() && held.GetNamespace() == wanted.GetNamespace() {
			return true
		}
	}
	return false
}

func (s *server) remove(manifests string) {
	s.each(manifests, func(f *fake.FakeControllerSource, o runtime.Object) { f.Delete(o) })
}

func (s *server) each(manifests string, do func(*fake.FakeControllerSource, runtime.Object)) {
	s.t.Helper()
	m := mustRead(s.t, manifests)
	forEach(m.Classes, IngressClasses, s, do)
	forEach(m.Ingresses, Ingresses, s, do)
	forEach(m.Services, Services, s, do)
	forEach(m.Secrets, Secrets, s, do)
	forEach(m.Namespaces, Namespaces, s, do)
	forEach(m.ConfigMaps, ConfigMaps, s, do)
	forEach(m.ConfigMaps, namedMaps, s, do)
	forEach(m.Slices, EndpointSlices, s, do)
	forEach(m.Nodes, Nodes, s, do)
}

func forEach[T runtime.Object](all []T, kind Kind, s *server, do func(*fake.FakeControllerSource, runtime.Object)) {
	for _, o := range all {
		do(s.of(kind), o.DeepCopyObject()) // two kinds may have the same object
	}
}

// watched is a Source that watches a server, and the changes that it reported.
type watched struct {
	*Source
	*server
	mu       sync.Mutex
	changes  []Change
	troubles []error
	answers  int // the calls of Options.Answered
}

func (w *watched) answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers++
}

// observe runs test with a Source that watches a server with manifests, in a bubble with
// synthetic time.
func observe(t *testing.T, text, manifests string, test func(t *testing.T, w *watched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &watched{server: newServer(t)}
		w.put(manifests)
		source, err := NewSource(Options{File: mustParse(t, text), List: w.List,
			Changed: func(c Change) {
				w.mu.Lock()
				w.changes = append(w.changes, c)
				w.mu.Unlock()
			},
			Trouble: func(_ Kind, err error) {
				w.mu.Lock()
				w.troubles = append(w.troubles, err)
				w.mu.Unlock()
			},
			Answered: w.answered})
		if err != nil {
			t.Fatal(err)
		}
		w.Source = source
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			source.Run(ctx)
		}()
		defer func() {
			cancel()
			<-ended
			w.shutdown()
		}()
		test(t, w)
	})
}

// setOptions changes the options of the Source. Its readers hold one of the two locks.
func (w *watched) setOptions(change func(*Options)) {
	w.converting.Lock()
	defer w.converting.Unlock()
	w.work.Lock()
	defer w.work.Unlock()
	change(&w.opts)
}

// beforeRoutes calls f when the Source reports routes, before w notes the report.
func (w *watched) beforeRoutes(f func()) {
	w.setOptions(func(o *Options) {
		tell := o.Changed
		o.Changed = func(c Change) {
			if c.Routing != nil {
				f()
			}
			tell(c)
		}
	})
}

func (s *server) shutdown() {
	for kind := range example {
		s.of(kind).Shutdown()
	}
}

// next waits until the Source reports nothing more, and returns its reports since the last call.
func (w *watched) next() []Change {
	time.Sleep(time.Second)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	told := w.changes
	w.changes = nil
	return told
}

// one is like next, and fails the test unless there is exactly one report.
func (w *watched) one(t *testing.T) Change {
	t.Helper()
	told := w.next()
	if len(told) != 1 {
		t.Fatalf("was told %d times, want once: %+v", len(told), told)
	}
	return told[0]
}

func slice(name, service string, addresses ...string) string {
	var endpoints []string
	for _, a := range addresses {
		endpoints = append(endpoints, "{addresses: ["+a+"]}")
	}
	return fmt.Sprintf("{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, labels: {kubernetes.io/service-name: %s}}, addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [%s]}",
		name, service, strings.Join(endpoints, ", "))
}

func addressesOf(endpoints []config.Endpoint) (all []string) {
	for _, e := range endpoints {
		all = append(all, e.Address)
	}
	return all
}
