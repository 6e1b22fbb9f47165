package informer

import (
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
// the last resource version; after an error it would list all objects. The relay of a watch that ends at once ends later,
// so that client-go does not begin watches in a tight loop.
type relay struct {
	from  watch.Interface
	works func(bool)
	to    chan watch.Event
	done  chan struct{}
	stop  func() // closes done
}

func relayed(from watch.Interface, lasts time.Duration, works func(bool)) *relay {
	r := &relay{from: from, works: works, to: make(chan watch.Event), done: make(chan struct{})}
	r.stop = sync.OnceFunc(func() { close(r.done) })
	go r.run(lasts)
	return r
}

// ResultChan implements watch.Interface.
func (r *relay) ResultChan() <-chan watch.Event { return r.to }

// Stop implements watch.Interface.
func (r *relay) Stop() { r.stop() }

func (r *relay) run(lasts time.Duration) {
	defer close(r.to)
	defer r.from.Stop()
	begun, working := time.Now(), false
	shortest, longest := time.NewTimer(settled), time.NewTimer(lasts)
	defer shortest.Stop()
	defer longest.Stop()
	note := func(now bool) {
		if now != working {
			working = now
			r.works(now)
		}
	}
	for {
		select {
		case <-r.done:
			return
		case <-longest.C:
			note(false)
			return
		case <-shortest.C:
			note(true)
		case e, ok := <-r.from.ResultChan():
			if !ok || isLost(e) {
				r.works(false)
				r.linger(begun)
				return
			}
			note(e.Type != watch.Error)
			select {
			case r.to <- e:
			case <-r.done:
				return
			}
		}
	}
}

// linger waits until the watch has lasted for a while.
func (r *relay) linger(begun time.Time) {
	select {
	case <-r.done:
	case <-time.After(time.Until(begun.Add(settled + rand.N(spread)))):
	}
}

// isLost reports whether an event is the error that the HTTP/2 connection answers no pings.
func isLost(e watch.Event) bool {
	return e.Type == watch.Error && utilnet.IsHTTP2ConnectionLost(apierrors.FromObject(e.Object))
}
