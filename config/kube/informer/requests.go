package informer

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

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
