package control

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/api/fake"
	"github.com/weirproxy/weir/config/kube/informer"
)

// patience is the timeout of waits that normally take no time.
// A write that timed out on a busy machine may still have an effect, which the leader mends within 50 s.
const patience = time.Minute

// replica is a Control under test.
type replica struct {
	*Control
	t      *testing.T
	leaves sync.Once

	mu      sync.Mutex
	leading bool
	trouble []string
}

func newReplica(t *testing.T, cluster *fake.API, holder string) *replica {
	t.Helper()
	return newReplicaBy(t, cluster, holder, lease)
}

var lease = config.ObjectName{Namespace: "weir", Name: "weir"}

func newReplicaBy(t *testing.T, cluster *fake.API, holder string, lease config.ObjectName, formerly ...config.ObjectName) *replica {
	t.Helper()
	client, err := api.Connect(cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{t: t}
	r.Control = New(Options{Client: client, Retry: informer.NewRetry(), Lease: lease, Formerly: formerly, Holder: holder,
		Ingresses: func() []*networkingv1.Ingress { return ingressesOf(t, cluster) },
		Leading:   func(on bool) { r.mu.Lock(); defer r.mu.Unlock(); r.leading = on },
		Trouble: func(what string, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.trouble = append(r.trouble, fmt.Sprintf("%s: %v", what, err))
		},
		Metrics: NewMetrics(prometheus.NewRegistry())})
	t.Cleanup(r.leave)
	return r
}

func (r *replica) leave() {
	r.leaves.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r.Leave(ctx, func() {})
	})
}

// die ends a replica in the same way as the end of its process.
func (r *replica) die() {
	r.leaves.Do(func() {
		r.electing.stop()
		r.present.cancel() // this gives its Lease back; a test that needs the Lease restores it
		<-r.present.done
	})
}

func (r *replica) leads() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leading
}

func (r *replica) troubles() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.trouble)
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v there is still not: %s", patience, what)
		}
	}
}

// ingressesOf returns the Ingresses that an informer would have.
func ingressesOf(t *testing.T, cluster *fake.API) (all []*networkingv1.Ingress) {
	for _, o := range cluster.Objects("ingresses") {
		text, err := json.Marshal(o)
		i := new(networkingv1.Ingress)
		if err == nil {
			err = json.Unmarshal(text, i)
		}
		if err != nil {
			t.Error(err)
		}
		all = append(all, i)
	}
	return all
}

// statuses returns the addresses of all Ingresses, by name.
func statuses(t *testing.T, cluster *fake.API) string {
	all := []string{}
	for _, i := range ingressesOf(t, cluster) {
		all = append(all, i.Name+"="+strings.Join(shown(i), ","))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func ingress(addresses ...string) *networkingv1.Ingress {
	i := &networkingv1.Ingress{}
	for _, a := range addresses {
		i.Status.LoadBalancer.Ingress = append(i.Status.LoadBalancer.Ingress, networkingv1.IngressLoadBalancerIngress{IP: a})
	}
	return i
}

func names(all ...string) (of []config.ObjectName) {
	for _, n := range all {
		of = append(of, config.ObjectName{Namespace: "shop", Name: n})
	}
	return of
}

var static = config.Publish{Addresses: []string{"lb.example.org", "192.0.2.7"}}

const both = "192.0.2.7,lb.example.org"

func TestStatuses(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Change("shop", "ingresses", "a", ingress())
	cluster.Change("shop", "ingresses", "b", ingress("198.51.100.1"))
	cluster.Change("shop", "ingresses", "other", ingress("198.51.100.2"))
	r := newReplica(t, cluster, "r1")
	expect := func(want string) {
		t.Helper()
		until(t, want, func() bool { return statuses(t, cluster) == want })
	}
	r.Want(Wanted{Publish: static, Ingresses: names("a", "b", "gone")})
	expect("a=" + both + " b=" + both + " other=198.51.100.2")
	if n := cluster.Asked("patch", "ingresses/status"); n != 2 {
		t.Errorf("two statuses took %d writes", n)
	}

	// An Ingress that is no longer ours loses the addresses that weir wrote, and nothing
	// else.
	r.Want(Wanted{Publish: static, Ingresses: names("a")})
	expect("a=" + both + " b= other=198.51.100.2")
	r.Want(Wanted{Publish: config.Publish{Addresses: []string{"192.0.2.8"}}, Ingresses: names("a")})
	expect("a=192.0.2.8 b= other=198.51.100.2")
	r.Want(Wanted{Publish: config.Publish{Addresses: []string{"192.0.2.8"}}, Ingresses: names("a"), Node: "n"})
	r.leave()
	expect("a= b= other=198.51.100.2")
	if n := cluster.Asked("patch", "ingresses/status"); n != 5 {
		t.Errorf("there were %d writes in all, want 5", n)
	}
	if left := cluster.Objects("leases"); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// A replica that has lost the Lease writes nothing, even if Want asks for it.
func TestLeaseIsLost(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Change("shop", "ingresses", "a", ingress())
	r := newReplica(t, cluster, "r1")
	r.Want(Wanted{Publish: static, Ingresses: names("a")})
	until(t, "there are addresses", func() bool { return statuses(t, cluster) == "a="+both })
	cluster.Change("weir", "leases", "weir", fake.Object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"spec": fake.Object{"holderIdentity": "r2", "leaseDurationSeconds": 3600}})
	until(t, "it writes no more", func() bool { return !r.leads() })
	writes, looks := cluster.Asked("patch", "ingresses/status"), cluster.Asked("get", "leases")
	r.Want(Wanted{Publish: config.Publish{Addresses: []string{"192.0.2.8"}}, Ingresses: names("a"), Events: []Event{event("a", "wrong")}})
	until(t, "it has looked at the Lease again", func() bool { return cluster.Asked("get", "leases") > looks+1 })
	if n := cluster.Asked("patch", "ingresses/status"); n != writes || statuses(t, cluster) != "a="+both || len(cluster.Objects("events")) > 0 {
		t.Errorf("it wrote %d statuses, so there is %s, and the events %v", n-writes, statuses(t, cluster), cluster.Objects("events"))
	}
	cluster.Change("weir", "leases", "weir", nil)
}

// Another controller may already have written the status of an Ingress that it took over,
// before this replica sees the change. weir does not change that status.
func TestAnotherHasTheIngress(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	for _, name := range []string{"moved", "left"} {
		cluster.Change("shop", "ingresses", name, ingress())
	}
	r := newReplica(t, cluster, "r1")
	var seen atomic.Pointer[[]*networkingv1.Ingress] // the Ingresses that the informer has
	now := r.opts.Ingresses
	r.opts.Ingresses = func() []*networkingv1.Ingress {
		if s := seen.Load(); s != nil {
			return *s
		}
		return now()
	}
	r.Want(Wanted{Publish: static, Ingresses: names("moved", "left")})
	until(t, "both have addresses", func() bool { return statuses(t, cluster) == "left="+both+" moved="+both })
	before := now()
	seen.Store(&before)
	cluster.Change("shop", "ingresses", "moved", ingress("198.51.100.1"))
	r.Want(Wanted{Publish: static})
	const want = "left= moved=198.51.100.1"
	until(t, want, func() bool { return statuses(t, cluster) == want && cluster.Asked("patch", "ingresses/status") == 4 })
	if all := r.troubles(); len(all) > 0 {
		t.Errorf("there is the trouble %q", all)
	}
	seen.Store(nil)
	r.leave()
	if got := statuses(t, cluster); got != want {
		t.Errorf("in the end there is %s", got)
	}
}

// With Keep, weir keeps the addresses.
func TestAddressesAreKept(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Change("shop", "ingresses", "a", ingress())
	r := newReplica(t, cluster, "r1")
	r.Want(Wanted{Publish: config.Publish{Addresses: []string{"192.0.2.7"}, Keep: true}, Ingresses: names("a")})
	until(t, "a status", func() bool { return statuses(t, cluster) == "a=192.0.2.7" })
	r.leave()
	if got := statuses(t, cluster); got != "a=192.0.2.7" || len(cluster.Objects("leases")) != 0 {
		t.Errorf("what is left is %s and %v", got, cluster.Objects("leases"))
	}
}

// Only the last replica withdraws the addresses.
func TestLastReplicaWithdraws(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Change("shop", "ingresses", "a", ingress())
	w := Wanted{Publish: static, Ingresses: names("a")}
	first := newReplica(t, cluster, "r1")
	first.Want(w)
	until(t, "a status", func() bool { return statuses(t, cluster) == "a="+both })
	second := newReplica(t, cluster, "r2")
	second.Want(w)
	until(t, "two replicas", func() bool { return len(cluster.Objects("leases")) == 3 })
	first.leave()
	if got := statuses(t, cluster); got != "a="+both {
		t.Errorf("the first to leave left %s", got)
	}
	until(t, "another leader", second.leads)
	second.leave()
	if got := statuses(t, cluster); got != "a=" {
		t.Errorf("the last to leave left %s", got)
	}
}

// A replica that changes to another Lease keeps the addresses that must stay, and removes
// them at its end.
func TestLeaseChanges(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Change("shop", "ingresses", "a", ingress())
	cluster.Change("shop", "ingresses", "b", ingress())
	cluster.Change("shop", "ingresses", "theirs", ingress())
	before := newReplica(t, cluster, "r1")
	before.Want(Wanted{Publish: static, Ingresses: names("a", "b", "theirs")})
	until(t, "statuses", func() bool { return statuses(t, cluster) == "a="+both+" b="+both+" theirs="+both })
	after := newReplicaBy(t, cluster, "r1", config.ObjectName{Namespace: "weir", Name: "other"}, lease)
	after.Want(Wanted{Publish: static, Ingresses: names("a")})
	until(t, "another leader", after.leads)
	before.leaves.Do(func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		before.HandOver(ctx, names("a", "theirs"))
	})
	if got := statuses(t, cluster); got != "a="+both+" b= theirs="+both {
		t.Errorf("after the Lease has changed there is %s", got)
	}
	if n := cluster.Asked("patch", "ingresses/status"); n != 4 {
		t.Errorf("there were %d writes, want 4", n)
	}
	after.leave() // the former Lease may belong to another installation by now
	if got := statuses(t, cluster); got != "a= b= theirs="+both {
		t.Errorf("in the end there is %s", got)
	}
}

// Two replicas that leave at the same time leave no address behind.
func TestReplicasLeaveAtOnce(t *testing.T) {
	t.Parallel()
	for range 5 {
		cluster := fake.New(t)
		cluster.Change("shop", "ingresses", "a", ingress())
		w := Wanted{Publish: static, Ingresses: names("a")}
		all := []*replica{newReplica(t, cluster, "r1"), newReplica(t, cluster, "r2"), newReplica(t, cluster, "r3")}
		for _, r := range all {
			r.Want(w)
		}
		until(t, "three replicas and a status", func() bool { return len(cluster.Objects("leases")) == 4 && statuses(t, cluster) == "a="+both })
		var leaving sync.WaitGroup
		for _, r := range all {
			leaving.Go(r.leave)
		}
		leaving.Wait()
		if got := statuses(t, cluster); got != "a=" {
			t.Errorf("all have left and left %s", got)
		}
	}
}

// Only one replica writes. If it dies, another one continues its work.
func TestLeaderDies(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	first := newReplica(t, cluster, "r1")
	first.Want(Wanted{})
	until(t, "a leader", first.leads)
	second := newReplica(t, cluster, "r2")
	second.Want(Wanted{})
	until(t, "a look at the Lease", func() bool { return cluster.Asked("get", "leases") > 4 })
	if second.leads() {
		t.Error("there are two leaders")
	}
	first.die()
	if len(cluster.Objects("leases")) != 1 {
		t.Error("a dead leader gave its Lease back")
	}
	held := cluster.Objects("leases")["weir/weir"]
	spec := held["spec"].(fake.Object)
	if spec["holderIdentity"] != "r1" || spec["leaseDurationSeconds"] != float64(15) {
		t.Errorf("the Lease says %v", spec)
	}
	spec["leaseDurationSeconds"] = 1 // otherwise the test would take the full duration
	cluster.Change("weir", "leases", "weir", held)
	until(t, "another leader", second.leads)
	spec = cluster.Objects("leases")["weir/weir"]["spec"].(fake.Object)
	if spec["holderIdentity"] != "r2" || spec["leaseTransitions"] != float64(1) {
		t.Errorf("the Lease says %v", spec)
	}
}

// A replica without answers of the API server stops writing before another one may begin.
// It reports that once, and continues when the API server answers again.
func TestAPIServerGoesAway(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	r := newReplica(t, cluster, "r1")
	r.Want(Wanted{})
	until(t, "a leader", r.leads)
	cluster.Refuse(func(fake.Request) int { return 500 })
	until(t, "nobody who leads", func() bool { return !r.leads() })
	got := slices.DeleteFunc(r.troubles(), func(s string) bool { return !strings.HasPrefix(s, "acquire the leader-election Lease: ") })
	if len(got) != 1 || !strings.Contains(got[0], "the API server failed to get leases weir in namespace weir") {
		t.Errorf("what was told is %q", got)
	}
	cluster.Refuse(nil)
	until(t, "a leader again", r.leads)
	if got := r.troubles(); got[len(got)-1] != "acquire the leader-election Lease: <nil>" {
		t.Errorf("what was told is %q", got)
	}
}

// A missing right is reported once for each namespace, is not tried again all the time,
// and delays nothing else.
func TestRightsAreMissing(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Change("shop", "ingresses", "a", ingress())
	cluster.Change("shop", "ingresses", "b", ingress())
	other := ingress()
	cluster.Change("blog", "ingresses", "c", other)
	cluster.Refuse(func(r fake.Request) int {
		if r.Namespace == "shop" {
			return 403
		}
		return 0
	})
	r := newReplica(t, cluster, "r1")
	there := event("c", "wrong")
	there.Object.Namespace = "blog"
	w := Wanted{Publish: static, Ingresses: append(names("a", "b"), config.ObjectName{Namespace: "blog", Name: "c"}),
		Events: []Event{event("a", "one"), event("a", "two"), there}}
	r.Want(w)
	until(t, "what is allowed", func() bool {
		return statuses(t, cluster) == "a= b= c="+both && len(cluster.Objects("events")) == 1
	})
	w.Events = append(w.Events, event("a", "three"))
	w.Node = "n"
	r.Want(w)
	cluster.Change("blog", "ingresses", "d", ingress())
	w.Ingresses = append(w.Ingresses, config.ObjectName{Namespace: "blog", Name: "d"})
	r.Want(w)
	until(t, "a status more, and a try at the others", func() bool {
		return strings.HasSuffix(statuses(t, cluster), "d="+both) && len(r.troubles()) == 2
	})
	if n, m := cluster.Asked("patch", "ingresses/status"), cluster.Asked("create", "events"); n != 3 || m != 2 {
		t.Errorf("%d statuses and %d events were tried, want 3 and 2", n, m)
	}
	got := r.troubles()
	slices.Sort(got)
	if len(got) != 2 || !strings.Contains(got[1], `write statuses: weir has no right to patch ingresses/status`) ||
		!strings.Contains(got[0], `write events: weir has no right to create events in namespace shop: give its service account the verb "create" on "events"`) {
		t.Errorf("what was told is\n%s", strings.Join(got, "\n"))
	}
}

func TestManagers(t *testing.T) {
	t.Parallel()
	if got := managerOf(config.ObjectName{Namespace: "a", Name: "b"}); got != "weir/a/b" {
		t.Errorf("the manager is %q", got)
	}
	if got := managerOf(config.ObjectName{Namespace: "a", Name: strings.Repeat("b", 253)}); len(got) > 128 {
		t.Errorf("the manager %q is too long", got)
	}
}
