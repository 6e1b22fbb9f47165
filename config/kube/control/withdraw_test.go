package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api/fake"
)

const isStatus = "ingresses/status"

// publishedIn returns a replica that is the leader, and has published an address in n Ingresses
// of the namespace shop.
func publishedIn(t *testing.T, cluster *fake.API, n int) *replica {
	t.Helper()
	r := newReplica(t, cluster, "r1")
	w := Wanted{Publish: config.Publish{Addresses: []string{"192.0.2.7"}}}
	for i := range n {
		w.Ingresses = append(w.Ingresses, config.ObjectName{Namespace: "shop", Name: fmt.Sprintf("i%04d", i)})
	}
	for _, name := range w.Ingresses {
		o := ingress("192.0.2.7")
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: r.manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status"}}
		cluster.Change(name.Namespace, "ingresses", name.Name, o)
	}
	r.Want(w)
	until(t, "a leader, whose presence is known", func() bool { return r.leads() && len(cluster.Objects("leases")) == 2 })
	return r
}

func withAddresses(t *testing.T, cluster *fake.API) (n int) {
	for _, i := range ingressesOf(t, cluster) {
		if len(shown(i)) > 0 {
			n++
		}
	}
	return n
}

// A slow API server gets many writes at the same time, but not more than atOnce.
func TestWithdrawalIsConcurrent(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	r := publishedIn(t, cluster, 3*atOnce)
	var now, most atomic.Int32
	full := make(chan struct{})
	fill := sync.OnceFunc(func() { close(full) })
	cluster.Before(func(q fake.Request) bool {
		if q.Resource != isStatus {
			return true
		}
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == atOnce {
			fill()
		}
		<-full
		return true
	})
	t.Cleanup(fill)
	r.leave()
	if n, m := withAddresses(t, cluster), most.Load(); n != 0 || m != atOnce {
		t.Errorf("%d Ingresses have addresses, and %d writes ran at once, want 0 and %d", n, m, atOnce)
	}
	if n := cluster.Asked("patch", isStatus); n != 3*atOnce {
		t.Errorf("%d writes, want %d", n, 3*atOnce)
	}
}

// Writes that fail are repeated: conflicts, and failures of the API server.
func TestWithdrawalTriesAgain(t *testing.T) {
	t.Parallel()
	for _, code := range []int{409, 500, 503} {
		cluster := fake.New(t)
		r := publishedIn(t, cluster, 10)
		var n atomic.Int32
		cluster.Refuse(func(q fake.Request) int {
			if q.Resource == isStatus && n.Add(1) <= 10 {
				return code
			}
			return 0
		})
		r.leave()
		if n := withAddresses(t, cluster); n != 0 || len(r.troubles()) != 0 {
			t.Errorf("after %d, %d Ingresses have addresses, and the troubles are %q", code, n, r.troubles())
		}
	}
}

// If the time is over, one error names the remaining Ingresses and the cause.
func TestWithdrawalEndsEarly(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	r := publishedIn(t, cluster, 10)
	ctx, cancel := context.WithCancelCause(t.Context())
	held := make(chan struct{})
	defer close(held)
	var n atomic.Int32
	cluster.Before(func(q fake.Request) bool {
		if q.Resource == isStatus && n.Add(1) > 3 {
			<-held
		}
		return true
	})
	left := make(chan struct{})
	var withdrawn atomic.Int32
	go r.leaves.Do(func() {
		defer close(left)
		r.Leave(ctx, func() { withdrawn.Add(1) })
	})
	until(t, "three answers, and seven writes without", func() bool { return withdrawn.Load() == 3 && n.Load() == 10 })
	cancel(errors.New("the test wants it"))
	select {
	case <-left:
	case <-time.After(patience):
		t.Fatal("Leave does not return")
	}
	got := r.troubles()
	if len(got) != 1 || !strings.HasPrefix(got[0], "remove published addresses: 7 of 10 Ingresses still have the published addresses in their status (shop/i0") ||
		!strings.Contains(got[0], " and 2 more), because the test wants it; ") {
		t.Errorf("the troubles are %q", got)
	}
}

// If a right is missing, the withdrawal ends soon, and names the right.
func TestWithdrawalWithoutRight(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	r := publishedIn(t, cluster, 2)
	cluster.Refuse(func(q fake.Request) int {
		if q.Resource == isStatus {
			return 403
		}
		return 0
	})
	r.leave()
	got := r.troubles()
	if len(got) != 1 || !strings.Contains(got[0], `2 of 2 Ingresses`) || !strings.Contains(got[0], "no right to patch ingresses/status in namespace shop") {
		t.Errorf("the troubles are %q", got)
	}
	if n := cluster.Asked("patch", isStatus); n > 2 {
		t.Errorf("%d writes, want 2 at most", n)
	}
}

// A replica that begins to serve during a withdrawal keeps its addresses, and the others
// get theirs back.
func TestWithdrawalEndsForAnotherReplica(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	r := publishedIn(t, cluster, atOnce+8)
	w, _ := r.want()
	second := newReplica(t, cluster, "r2")
	held := make(chan struct{})
	answer := sync.OnceFunc(func() { close(held) })
	defer answer()
	var n atomic.Int32
	cluster.Before(func(q fake.Request) bool {
		if q.Resource != isStatus || n.Add(1) <= atOnce {
			return true
		}
		<-held
		return false // a late effect would need half a minute to be seen and mended
	})
	left := make(chan struct{})
	go func() { defer close(left); r.leave() }()
	until(t, "writes of the withdrawal", func() bool { return n.Load() > atOnce })
	second.Want(w)
	until(t, "the second replica is known", func() bool { return len(cluster.Objects("leases")) == 2 })
	until(t, "an end of the withdrawal", func() bool {
		select {
		case <-left:
			return true
		default:
			return false
		}
	})
	cluster.Before(nil)
	answer()
	until(t, "addresses in all Ingresses", func() bool { return withAddresses(t, cluster) == atOnce+8 })
	if got := r.troubles(); len(got) != 0 {
		t.Errorf("the troubles are %q", got)
	}
}
