package api_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/api/fake"
)

func newLeases(t *testing.T, f *fake.API) *api.Leases {
	t.Helper()
	c, err := api.Connect(f.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if c.Namespace != "weir" {
		t.Errorf("the namespace of the kubeconfig is %q", c.Namespace)
	}
	return api.NewLeases(c, "weir")
}

func TestLeases(t *testing.T) {
	f := fake.New(t)
	a, b := newLeases(t, f), newLeases(t, f)
	mine := api.Bid{Name: "x", Holder: "a", Duration: time.Minute}
	theirs := api.Bid{Name: "x", Holder: "b", Duration: time.Minute}
	check := func(what string, want bool) func(bool, error) {
		return func(got bool, err error) {
			t.Helper()
			if got != want || err != nil {
				t.Errorf("%s: %v, %v, want %v", what, got, err, want)
			}
		}
	}
	check("extending nothing", false)(a.Extend(t.Context(), mine))
	check("giving nothing back", false)(a.Drop(t.Context(), mine))
	check("taking what is free", true)(a.Take(t.Context(), mine))
	check("taking it again", true)(a.Take(t.Context(), mine))
	check("taking what is held", false)(b.Take(t.Context(), theirs))
	if d := b.FreeIn("x"); d <= 0 || d > time.Minute {
		t.Errorf("what is held is free in %v, want a minute", d)
	}
	if d := a.FreeIn("x"); d != 0 {
		t.Errorf("what is held is free in %v to who holds it, want 0", d)
	}
	check("extending what another holds", false)(b.Extend(t.Context(), theirs))
	check("giving back what another holds", false)(b.Drop(t.Context(), theirs))
	check("extending", true)(a.Extend(t.Context(), mine))
	check("giving back", true)(a.Drop(t.Context(), mine))
	check("taking what was given back", true)(b.Take(t.Context(), theirs))
	if n := len(f.Objects("leases")); n != 1 {
		t.Errorf("there are %d objects", n)
	}
}

// If several processes find a Lease stale at the same time, only one takes it.
func TestStaleLeaseIsTakenOnce(t *testing.T) {
	f := fake.New(t)
	dead := api.Bid{Name: "x", Holder: "dead", Duration: time.Second}
	if ok, err := newLeases(t, f).Take(t.Context(), dead); !ok || err != nil {
		t.Fatal(ok, err)
	}
	var got atomic.Int32
	var all sync.WaitGroup
	for i := range 5 {
		l := newLeases(t, f)
		all.Go(func() {
			bid := api.Bid{Name: "x", Holder: fmt.Sprint(i), Duration: time.Hour}
			for deadline := time.Now().Add(20 * time.Second); got.Load() == 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				if ok, err := l.Take(t.Context(), bid); ok {
					got.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got.Load() != 1 {
		t.Errorf("%d got the Lease of a dead holder", got.Load())
	}
}

// A Lease that is extended is not stale, however long it has been held.
func TestExtendedLeaseIsNotTaken(t *testing.T) {
	f := fake.New(t)
	a, b := newLeases(t, f), newLeases(t, f)
	mine := api.Bid{Name: "x", Holder: "a", Duration: time.Second}
	for begun := time.Now(); time.Since(begun) < 3*time.Second; {
		asked := time.Now()
		if ok, err := a.Take(t.Context(), mine); !ok || err != nil {
			t.Fatal(ok, err)
		}
		got, err := b.Take(t.Context(), api.Bid{Name: "x", Holder: "b", Duration: time.Second})
		if err != nil || got && time.Since(asked) < time.Second {
			t.Fatalf("a Lease that is extended was taken: %v, %v", got, err)
		}
		if got {
			return // the machine was too busy for this test
		}
	}
}

// While the API server is away, no holder can extend a Lease, so no holder counts as
// dead.
func TestNobodyDiesOfAnOutage(t *testing.T) {
	for attempt := 1; !outage(t); attempt++ {
		if attempt == 10 {
			t.Fatal("the machine never answered within a second")
		}
	}
}

// outage returns false if the machine was too busy for a result.
func outage(t *testing.T) bool {
	t.Helper()
	f := fake.New(t)
	a, b := newLeases(t, f), newLeases(t, f)
	mine := api.Bid{Name: "x", Holder: "a", Duration: 2 * time.Second, Labels: map[string]string{"a": "b"}}
	theirs := api.Bid{Name: "x", Holder: "b", Duration: time.Second}
	if ok, err := a.Take(t.Context(), mine); !ok || err != nil {
		t.Fatal(ok, err)
	}
	alive := func() int {
		t.Helper()
		all, err := b.Alive(t.Context(), "a=b")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := alive(); n != 1 {
		t.Fatalf("%d are alive at first, want 1", n)
	}
	f.Refuse(func(fake.Request) int { return 500 })
	for begun := time.Now(); time.Since(begun) < 5*time.Second; time.Sleep(100 * time.Millisecond) {
		if _, err := b.Take(t.Context(), theirs); err == nil {
			t.Fatal("the API server is there")
		}
	}
	f.Refuse(nil)
	back := time.Now()
	n := alive()
	got, err := b.Take(t.Context(), theirs)
	if time.Since(back) > time.Second {
		return false
	}
	if n != 1 || got || err != nil || len(f.Objects("leases")) != 1 {
		t.Errorf("after an outage %d are alive of %d, want 1; another has the Lease: %v, %v", n, len(f.Objects("leases")), got, err)
	}
	for deadline := time.Now().Add(20 * time.Second); alive() > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("who does not extend its Lease after the outage lives for ever")
		}
	}
	return true
}

// A refusal is an answer of the API server, so it is no outage.
func TestRefusalIsNoOutage(t *testing.T) {
	f := fake.New(t)
	a, b := newLeases(t, f), newLeases(t, f)
	if ok, err := a.Take(t.Context(), api.Bid{Name: "x", Holder: "a", Duration: time.Hour}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for code, want := range map[int]bool{403: true, 500: false, 503: false} {
		theirs := api.Bid{Name: "x", Holder: "b", Duration: time.Hour}
		if got, err := b.Take(t.Context(), theirs); got || err != nil {
			t.Fatal(got, err)
		}
		f.Refuse(func(fake.Request) int { return code })
		b.Take(t.Context(), theirs)
		f.Refuse(nil)
		if is := b.FreeIn("x") > 0; is != want {
			t.Errorf("after %d it is known since when another has the Lease: %v, want %v", code, is, want)
		}
	}
}

func TestFailures(t *testing.T) {
	refused := api.Failure("list", "ingresses", "", errors.New("dial tcp 192.0.2.1:6443: connect: connection refused"))
	if want := "weir cannot reach the API server to list ingresses: dial tcp"; !strings.HasPrefix(refused.Error(), want) {
		t.Errorf("without an API server it says %v", refused)
	}
	f := fake.New(t)
	l := newLeases(t, f)
	for code, want := range map[int]string{
		403: `weir has no right to get leases x in namespace weir: give its service account the verb "get" on "leases"`,
		500: `the API server failed to get leases x in namespace weir: `,
	} {
		f.Refuse(func(fake.Request) int { return code })
		_, err := l.Take(t.Context(), api.Bid{Name: "x", Holder: "a", Duration: time.Second})
		if err == nil || !strings.HasPrefix(err.Error(), want) || api.IsDenied(err) != (code == 403) {
			t.Errorf("%d is %v", code, err)
		}
	}
}
