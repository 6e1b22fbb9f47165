// Package informer keeps the objects of an API server in memory. client-go's informers wait for up to a minute after
// an outage, each for itself. These wait together: one of them tries, and wakes the others.
package informer

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Options are what an Informer needs. All functions must return soon. None is called after Run has returned.
type Options struct {
	List     *cache.ListWatch
	Example  runtime.Object // of the kind
	Indexers cache.Indexers
	// Transform changes each object before it is stored; it must not mind its own result. nil: none.
	Transform cache.TransformFunc
	// Changed is called when an object was added (old is nil), replaced, or removed (now is nil), after the change of
	// Items, one call at a time.
	Changed func(old, now any)
	// Retry is shared by all Informers of an API server.
	Retry *Retry
	// Trouble is called with the error of each failed attempt to list or watch. It is not called at the same time as Works.
	Trouble func(error)
	// Works is called when a watch works, and all objects are known or about to be; and with false when it has ended.
	Works func(bool)
}

// Informer lists the objects of a kind, and follows their changes.
type Informer struct {
	Items     cache.Indexer // the objects, for reading
	opts      Options
	known     chan struct{}
	reflector *cache.Reflector
	begun     time.Time // the last watch
	brief     int       // how many watches before it ended early

	mu    sync.Mutex // of calls to Trouble and Works
	ended bool
}

// answerWithin limits the wait for the beginning of an answer. The API server limits lists to a minute itself.
const answerWithin = 90 * time.Second

// mostRefusals is the number of refused attempts to watch, in about 15 s, after which all objects are listed again: who
// has no right to watch sees changes late.
const mostRefusals = 6

// New makes an Informer that does not run.
func New(o Options) *Informer {
	i := &Informer{opts: o, known: make(chan struct{}), Items: cache.NewIndexer(cache.MetaNamespaceKeyFunc, o.Indexers)}
	store := &store{items: i.Items, opts: &i.opts, known: sync.OnceFunc(func() { close(i.known) })}
	delays := &wait.Backoff{Duration: firstDelay, Factor: 2, Jitter: 1, Cap: lastDelay / 2, Steps: 10}
	lw := &cache.ListWatch{ListWithContextFunc: i.list, WatchFuncWithContext: i.watch}
	i.reflector = cache.NewReflectorWithOptions(lw, o.Example, store, cache.ReflectorOptions{Backoff: delays})
	return i
}

// Run follows the objects until ctx ends. The delays follow answers of the API server, such as "too old resource version":
// list and watch repeat failed requests themselves.
func (i *Informer) Run(ctx context.Context) {
	for ends := 0; ctx.Err() == nil; ends++ {
		begun := time.Now()
		i.reflector.ListAndWatchWithContext(ctx) // the error was reported
		if time.Since(begun) > time.Minute {
			ends = 0
		}
		sleep(ctx, delay(ends), nil)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true // a request may last longer
}

func (i *Informer) trouble(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended {
		i.opts.Trouble(err)
	}
}

func (i *Informer) works(now bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended {
		i.opts.Works(now)
	}
}

// Known returns a channel that is closed when Changed has been called for all objects.
func (i *Informer) Known() <-chan struct{} { return i.known }

// IsKnown reports whether Changed has been called for all objects.
func (i *Informer) IsKnown() bool {
	select {
	case <-i.known:
		return true
	default:
		return false
	}
}

func (i *Informer) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return attempts(ctx, i, math.MaxInt, func() (runtime.Object, error) {
		limited, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		return i.opts.List.ListWithContextFunc(limited, o)
	})
}

func (i *Informer) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	lists, most := o.SendInitialEvents != nil, mostRefusals
	if lists {
		most = 1 // client-go sends a request to list instead
	}
	if time.Since(i.begun) >= settled {
		i.brief = 0
	} else {
		sleep(ctx, delay(i.brief), nil) // client-go would begin again at once after an event
		i.brief++
	}
	return attempts(ctx, i, most, func() (watch.Interface, error) {
		limited, cancel := context.WithCancel(ctx)
		timer := time.AfterFunc(answerWithin, cancel)
		w, err := i.opts.List.WatchFuncWithContext(limited, o)
		if !timer.Stop() && ctx.Err() == nil {
			err = errSilent
		}
		if err != nil {
			cancel()
			if w != nil {
				w.Stop()
			}
			return nil, err
		}
		i.begun = time.Now()
		lasts := longestWatch
		if o.TimeoutSeconds != nil {
			lasts = time.Duration(*o.TimeoutSeconds)*time.Second + overtime
		}
		return relayed(w, lasts, lists, i, cancel), nil
	})
}

var errSilent = errors.New("the API server does not answer the request to watch in time, or closes its connection")

// Requests are the requests to list and watch the objects of a resource. fields is a field selector.
func Requests(to rest.Interface, resource, namespace, fields string) *cache.ListWatch {
	l := cache.NewFilteredListWatchFromClient(once{to}, resource, namespace, func(o *metav1.ListOptions) { o.FieldSelector = fields })
	begin := l.WatchFuncWithContext
	l.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := begin(ctx, o)
		if _, answered := w.(*watch.StreamWatcher); err == nil && !answered {
			return nil, errSilent // client-go returns an empty watch after a timeout
		}
		return w, err
	}
	return l
}

// once makes requests that client-go does not repeat: it would do so ten times, and report nothing meanwhile.
type once struct{ of rest.Interface }

// Get implements cache.Getter.
func (o once) Get() *rest.Request { return o.of.Get().MaxRetries(0) }

// store applies the changes that client-go reads to the items.
type store struct {
	items cache.Indexer
	opts  *Options
	known func()
}

// Transformer implements cache.TransformingStore.
func (s *store) Transformer() cache.TransformFunc { return s.opts.Transform }

// Add implements cache.ReflectorStore.
func (s *store) Add(o any) error {
	o, err := s.transformed(o)
	if err != nil {
		return err
	}
	old, _, err := s.items.Get(o)
	if err != nil {
		return err
	}
	if err := s.items.Add(o); err != nil {
		return err
	}
	s.opts.Changed(old, o)
	return nil
}

// Update implements cache.ReflectorStore.
func (s *store) Update(o any) error { return s.Add(o) }

// Delete implements cache.ReflectorStore.
func (s *store) Delete(o any) error {
	old, there, err := s.items.Get(o)
	if err != nil || !there {
		return err
	}
	if err := s.items.Delete(old); err != nil {
		return err
	}
	s.opts.Changed(old, nil)
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *store) Replace(list []any, version string) error {
	old := map[string]any{}
	for _, key := range s.items.ListKeys() {
		old[key], _, _ = s.items.GetByKey(key)
	}
	for n, o := range list {
		var err error
		if list[n], err = s.transformed(o); err != nil {
			return err
		}
	}
	if err := s.items.Replace(list, version); err != nil {
		return err
	}
	for _, o := range list {
		key, err := cache.MetaNamespaceKeyFunc(o)
		if err != nil {
			return err
		}
		s.opts.Changed(old[key], o)
		delete(old, key)
	}
	for _, o := range old {
		s.opts.Changed(o, nil)
	}
	s.known()
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *store) Resync() error { return nil }

func (s *store) transformed(o any) (any, error) {
	if s.opts.Transform == nil {
		return o, nil
	}
	return s.opts.Transform(o)
}
