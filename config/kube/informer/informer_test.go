package informer

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// server is an API server with one Service.
type server struct {
	mu      sync.Mutex
	down    error
	asked   []time.Time // each request
	lists   int
	watches []*watch.FakeWatcher
}

func (s *server) ask() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Now())
	return s.down
}

// set makes requests fail; nil: it serves them.
func (s *server) set(down error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.asked = down, nil
	if down != nil {
		s.end()
	}
}

// drop ends all watches.
func (s *server) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
}

func (s *server) end() {
	for _, w := range s.watches {
		w.Stop()
	}
	s.watches = nil
}

// forget forgets the requests.
func (s *server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = nil
}

// rush is the number of requests, and how many of them there were within 100 ms at most.
func (s *server) rush() (all, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := 0
	for n, at := range s.asked {
		for at.Sub(s.asked[first]) > 100*time.Millisecond {
			first++
		}
		most = max(most, n-first+1)
	}
	return len(s.asked), most
}

// now is the number of watches, of requests, and of lists.
func (s *server) now() (watches, asked, lists int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches), len(s.asked), s.lists
}

func (s *server) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			if err := s.ask(); err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lists++
			return &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}}}}, nil
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				return nil, apierrors.NewBadRequest("sendInitialEvents is not supported")
			}
			if err := s.ask(); err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			w := watch.NewFake()
			s.watches = append(s.watches, w)
			return w, nil
		},
	}
}

const kinds = 16

// After an outage of any length all watches work within 6 s, and go on without lists. During the outage, one request at
// a time tries.
func TestWatchesWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, retry := &server{}, NewRetry()
		var mu sync.Mutex
		working := map[int]bool{}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for n := range kinds {
			i := New(Options{List: s.listWatch(), Example: &corev1.Service{}, Retry: retry, Changed: func(_, _ any) {}, Trouble: func(error) {},
				Works: func(works bool) {
					mu.Lock()
					defer mu.Unlock()
					working[n] = works
				}})
			running.Go(func() { i.Run(ctx) })
		}
		all := func(want bool) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			for n := range kinds {
				if working[n] != want {
					t.Errorf("watch %d works: %v", n, working[n])
				}
			}
		}
		time.Sleep(10 * time.Second)
		all(true)
		for _, outage := range []time.Duration{time.Second, 10 * time.Second, 10 * time.Minute} {
			s.set(syscall.ECONNREFUSED)
			time.Sleep(outage)
			all(false)
			if _, asked, _ := s.now(); asked > 3*kinds+int(outage/(lastDelay/2)) {
				t.Errorf("%d requests in an outage of %v", asked, outage)
			}
			s.set(nil)
			time.Sleep(lastDelay + spread)
			if watches, _, lists := s.now(); watches != kinds || lists != kinds {
				t.Errorf("after an outage of %v there are %d watches and %d lists", outage, watches, lists)
			}
			time.Sleep(settled)
			all(true)
			time.Sleep(time.Minute)
		}
		// One of several API servers is gone: the watches begin at once at another.
		s.drop()
		synctest.Wait()
		if watches, _, lists := s.now(); watches != kinds || lists != kinds {
			t.Errorf("after the connections were lost there are %d watches and %d lists", watches, lists)
		}
		// A request of another part of weir wakes the watches too.
		s.set(syscall.ECONNREFUSED)
		time.Sleep(10 * time.Minute)
		s.set(nil)
		retry.Answered()
		time.Sleep(spread)
		if watches, _, _ := s.now(); watches != kinds {
			t.Errorf("a second after an answer there are %d watches", watches)
		}
		cancel()
		running.Wait()
	})
}

// The delay between attempts for a right that is missing ends at 5 s too.
func TestRefusedRequestsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: apierrors.NewForbidden(corev1.Resource("services"), "", nil)}
		troubles := 0
		i := New(Options{List: s.listWatch(), Example: &corev1.Service{}, Retry: NewRetry(), Changed: func(_, _ any) {}, Trouble: func(error) { troubles++ }, Works: func(bool) {}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); i.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if least, most := 600/5, 700/2; troubles < least || troubles > most {
			t.Errorf("%d attempts in ten minutes", troubles)
		}
		s.set(nil)
		time.Sleep(lastDelay)
		synctest.Wait()
		if !i.IsKnown() || len(i.Items.List()) != 1 {
			t.Error("the objects are not known")
		}
		cancel()
		<-ended
	})
}

// A watch whose connection is lost goes on from its resource version. Without events it lasts until its timeout.
func TestLostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		works := []bool{}
		i := New(Options{Example: &corev1.Service{}, Trouble: func(error) {}, Works: func(w bool) { works = append(works, w) }})
		ended := 0
		from := watch.NewFake()
		r := relayed(from, time.Minute, false, i, func() { ended++ })
		from.Modify(&corev1.Service{})
		if e := <-r.ResultChan(); e.Type != watch.Modified {
			t.Errorf("it passed %v on", e)
		}
		from.Error(&metav1.Status{Status: metav1.StatusFailure, Message: "unable to decode an event from the watch stream: http2: client connection lost"})
		if e, ok := <-r.ResultChan(); ok {
			t.Errorf("it passed %v on", e)
		}
		if len(works) != 2 || !works[0] || works[1] || ended != 1 {
			t.Errorf("it worked: %v, and ended %d times", works, ended)
		}
		begun := time.Now()
		r = relayed(watch.NewFake(), time.Minute, false, i, func() {})
		<-r.ResultChan()
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("it ended after %v", took)
		}
	})
}

// A watch that begins with all objects works when it has sent all of them. One that fails does not work, and the error
// is reported, unless the API server has only forgotten the resource version.
func TestWatchThatListsWorks(t *testing.T) {
	listed := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
	broken, expired := apierrors.NewInternalError(errors.New("broken")).Status(), apierrors.NewResourceExpired("too old").Status()
	for _, c := range []struct {
		end             watch.Event
		works, troubles int
	}{
		{watch.Event{Type: watch.Bookmark, Object: &corev1.Service{}}, 0, 0},
		{watch.Event{Type: watch.Bookmark, Object: listed}, 1, 0},
		{watch.Event{Type: watch.Error, Object: &broken}, 0, 1},
		{watch.Event{Type: watch.Error, Object: &expired}, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			works, troubles := 0, 0
			i := New(Options{Example: &corev1.Service{}, Trouble: func(error) { troubles++ }, Works: func(bool) { works++ }})
			from := watch.NewFake()
			r := relayed(from, time.Hour, true, i, func() {})
			from.Add(&corev1.Service{})
			<-r.ResultChan()
			time.Sleep(time.Minute) // the list is long
			from.Action(c.end.Type, c.end.Object)
			<-r.ResultChan()
			synctest.Wait()
			if works != c.works || troubles != c.troubles {
				t.Errorf("%v: it worked %d times, with %d troubles", c.end, works, troubles)
			}
			r.Stop()
		})
	}
}

// Hundreds of replicas do not come at the same time: neither during an outage, in which each of them tries at most every
// 2.5 s, nor after it.
func TestReplicasAreNoHerd(t *testing.T) {
	const replicas, each = 300, 8
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for range replicas {
			retry := NewRetry()
			for range each {
				i := New(Options{List: s.listWatch(), Example: &corev1.Service{}, Retry: retry, Changed: func(_, _ any) {}, Trouble: func(error) {}, Works: func(bool) {}})
				running.Go(func() { i.Run(ctx) })
			}
		}
		time.Sleep(10 * time.Second)
		s.set(syscall.ECONNREFUSED) // all at the same time
		time.Sleep(time.Minute)
		const during = 10 * time.Second
		s.forget()
		time.Sleep(during)
		if n, most := s.rush(); n > replicas*int(during/(lastDelay/2)) || most > replicas*100/1000 {
			t.Errorf("in %v of the outage there were %d requests, at most %d within 100 ms", during, n, most)
		}
		s.set(nil)
		time.Sleep(lastDelay + spread)
		if n, most := s.rush(); n != replicas*each || most > n/20 {
			t.Errorf("after the outage there were %d requests, at most %d within 100 ms", n, most)
		}
		cancel()
		running.Wait()
	})
}

// Without the right to watch, weir lists the objects again and again.
func TestNoRightToWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, troubles := &server{}, 0
		only := s.listWatch()
		only.WatchFuncWithContext = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return nil, apierrors.NewForbidden(corev1.Resource("services"), "", nil)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		i := New(Options{List: only, Example: &corev1.Service{}, Retry: NewRetry(), Changed: func(_, _ any) {}, Trouble: func(error) { troubles++ }, Works: func(bool) { t.Error("a watch works") }})
		i.Run(ctx)
		if _, _, lists := s.now(); lists < 600/30 || lists > 600/10 || troubles < lists {
			t.Errorf("in ten minutes there were %d lists, and %d troubles", lists, troubles)
		}
	})
}

// A request that fails although others succeed is not repeated after each success.
func TestOneBrokenKind(t *testing.T) {
	for name, err := range map[string]error{"fails": apierrors.NewInternalError(errors.New("broken")), "is refused": apierrors.NewForbidden(corev1.Resource("services"), "", nil)} {
		synctest.Test(t, func(t *testing.T) {
			s, retry := &server{down: err}, NewRetry()
			ctx, cancel := context.WithCancel(t.Context())
			i := New(Options{List: s.listWatch(), Example: &corev1.Service{}, Retry: retry, Changed: func(_, _ any) {}, Trouble: func(error) {}, Works: func(bool) {}})
			var running sync.WaitGroup
			running.Go(func() { i.Run(ctx) })
			for range 6000 { // for ten minutes
				time.Sleep(100 * time.Millisecond)
				retry.Answered()
			}
			if _, asked, _ := s.now(); asked < 600/5 || asked > 600/1 {
				t.Errorf("a request that %s was sent %d times in ten minutes", name, asked)
			}
			cancel()
			running.Wait()
		})
	}
}

// While the API server suggests a delay, no request comes sooner, whatever other requests get.
func TestRetryAfter(t *testing.T) {
	for seconds, most := range map[int]int{10: 60, 3600: 10, 1: 240} {
		synctest.Test(t, func(t *testing.T) {
			s, retry := &server{down: apierrors.NewTooManyRequests("busy", seconds)}, NewRetry()
			ctx, cancel := context.WithCancel(t.Context())
			i := New(Options{List: s.listWatch(), Example: &corev1.Service{}, Retry: retry, Changed: func(_, _ any) {}, Trouble: func(error) {}, Works: func(bool) {}})
			var running sync.WaitGroup
			running.Go(func() { i.Run(ctx) })
			for range 6000 { // for ten minutes
				time.Sleep(100 * time.Millisecond)
				retry.Answered()
			}
			if _, asked, _ := s.now(); asked > most || asked < most/2 {
				t.Errorf("a request that shall come after %d s was sent %d times in ten minutes", seconds, asked)
			}
			cancel()
			running.Wait()
		})
	}
}

// An API server that refuses requests for some seconds after an outage, until it has its RBAC rules, gets no lists.
func TestRefusalsAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		ctx, cancel := context.WithCancel(t.Context())
		i := New(Options{List: s.listWatch(), Example: &corev1.Service{}, Retry: NewRetry(), Changed: func(_, _ any) {}, Trouble: func(error) {}, Works: func(bool) {}})
		var running sync.WaitGroup
		running.Go(func() { i.Run(ctx) })
		time.Sleep(5 * time.Second)
		s.set(syscall.ECONNREFUSED)
		time.Sleep(3 * time.Minute)
		s.set(apierrors.NewForbidden(corev1.Resource("services"), "", nil))
		time.Sleep(6 * time.Second)
		s.set(nil)
		time.Sleep(20 * time.Second)
		if watches, _, lists := s.now(); watches != 1 || lists != 1 {
			t.Errorf("there are %d watches, and there were %d lists", watches, lists)
		}
		cancel()
		running.Wait()
	})
}

// A watch that ends after its first event does not begin again at once.
func TestBriefWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		only := s.listWatch()
		only.WatchFuncWithContext = func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if s.ask(); o.SendInitialEvents != nil {
				return nil, apierrors.NewBadRequest("sendInitialEvents is not supported")
			}
			if _, asked, _ := s.now(); asked > 1000 {
				cancel() // without a delay, the time of the test does not pass
			}
			w := watch.NewFakeWithChanSize(1, false)
			w.Modify(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "2"}})
			w.Stop()
			return w, nil
		}
		i := New(Options{List: only, Example: &corev1.Service{}, Retry: NewRetry(), Changed: func(_, _ any) {}, Trouble: func(error) {}, Works: func(bool) {}})
		i.Run(ctx)
		if _, asked, _ := s.now(); asked > 600/2 {
			t.Errorf("in ten minutes there were %d watches", asked)
		}
	})
}

// A watch that begins after its time is stopped.
func TestLateWatchIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := watch.NewFake()
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		only := &cache.ListWatch{WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			if asked++; asked > 1 {
				cancel()
				return nil, ctx.Err()
			}
			time.Sleep(answerWithin + time.Second)
			return late, nil
		}}
		i := New(Options{List: only, Example: &corev1.Service{}, Retry: NewRetry(), Trouble: func(error) {}})
		if w, err := i.watch(ctx, metav1.ListOptions{}); err == nil || w != nil || !late.IsStopped() {
			t.Errorf("the watch is %v, with %v; it was stopped: %v", w, err, late.IsStopped())
		}
	})
}
