package informer

import (
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// settled is the time after which a watch without events works. An API server that does not have the resource
	// version accepts the watch, and ends it at once.
	settled = time.Second
	// overtime is how much longer than its timeout a watch may last. The API server ends it in time, so a watch that
	// lasts longer has lost its connection.
	overtime = 30 * time.Second
	// longestWatch is for a watch without a timeout.
	longestWatch = time.Hour
)

// relay passes the events of a watch on. It makes of a lost connection a plain end, after which client-go goes on from
// the last resource version; after an error it would list all objects.
type relay struct {
	of      *Informer
	from    watch.Interface
	lists   bool // the watch begins with all objects
	working bool
	to      chan watch.Event
	done    chan struct{}
	stop    func() // closes done
}

// relayed begins a relay, which calls ended at its end.
func relayed(from watch.Interface, lasts time.Duration, lists bool, of *Informer, ended func()) *relay {
	r := &relay{of: of, from: from, lists: lists, to: make(chan watch.Event), done: make(chan struct{})}
	r.stop = sync.OnceFunc(func() { close(r.done) })
	go func() {
		defer close(r.to)
		defer ended()
		defer from.Stop()
		r.run(lasts)
	}()
	return r
}

// ResultChan implements watch.Interface.
func (r *relay) ResultChan() <-chan watch.Event { return r.to }

// Stop implements watch.Interface.
func (r *relay) Stop() { r.stop() }

func (r *relay) run(lasts time.Duration) {
	shortest, longest := time.NewTimer(settled), time.NewTimer(lasts)
	defer shortest.Stop()
	defer longest.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-longest.C:
			r.of.works(false)
			return
		case <-shortest.C:
			r.note(!r.lists || r.working)
		case e, ok := <-r.from.ResultChan():
			if !ok || isLost(e) {
				r.of.works(false)
				return
			}
			r.see(e)
			select {
			case r.to <- e:
			case <-r.done:
				return
			}
			if e.Type == watch.Error {
				return
			}
		}
	}
}

// see notes what an event shows.
func (r *relay) see(e watch.Event) {
	switch e.Type {
	case watch.Error:
		r.note(false)
		if err := apierrors.FromObject(e.Object); !relists(err) {
			r.of.trouble(err)
		}
	case watch.Bookmark:
		r.note(!r.lists || r.working || isListed(e.Object))
	default:
		r.note(!r.lists || r.working)
	}
}

func (r *relay) note(now bool) {
	if now != r.working {
		r.working = now
		r.of.works(now)
	}
}

// isListed reports whether a bookmark follows the last of all objects.
func isListed(bookmark runtime.Object) bool {
	o, err := meta.Accessor(bookmark)
	return err == nil && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}

// isLost reports whether an event is the error that the HTTP/2 connection answers no pings.
func isLost(e watch.Event) bool {
	return e.Type == watch.Error && utilnet.IsHTTP2ConnectionLost(apierrors.FromObject(e.Object))
}
