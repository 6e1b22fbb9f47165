package storage

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weirproxy/weir/config/kube/api/fake"
)

func TestSecretsConform(t *testing.T) {
	conform(t, func(t *testing.T) kind { return secretsKind("secrets://weir?kubeconfig=" + fake.New(t).Kubeconfig) })
}

func secretsKind(url string) kind {
	return kind{
		open: func(t *testing.T) Storage { return opened(t, url) },
		kill: func(t *testing.T, s Storage) {
			forget(&s.(*secretStorage).remote)
			shorten(t, s.(*secretStorage), "x")
		},
	}
}

// shorten makes the lock of a dead process expire within a second.
func shorten(t *testing.T, s *secretStorage, lock string) {
	t.Helper()
	held := new(coordinationv1.Lease)
	leases := s.client.Coordination
	name := s.objectName("lock/" + lock)
	must(t, leases.Get().Namespace(s.namespace).Resource("leases").Name(name).Do(t.Context()).Into(held))
	if d := *held.Spec.LeaseDurationSeconds; d != int32(leaseTime/time.Second) {
		t.Errorf("a lock lasts for %d seconds, want %s", d, leaseTime)
	}
	second := int32(1)
	held.Spec.LeaseDurationSeconds = &second
	must(t, leases.Put().Namespace(s.namespace).Resource("leases").Name(name).Body(held).Do(t.Context()).Error())
}

// A user who can read the Secrets of a namespace sees the prefix and the key of each.
func TestSecretObjects(t *testing.T) {
	cluster := fake.New(t)
	s := opened(t, "secrets://weir?prefix=shop&kubeconfig="+cluster.Kubeconfig)
	key := "certificates/acme.example-directory/wildcard_.a.example/wildcard_.a.example.key"
	must(t, s.Store(within(t), key, []byte("secret")))
	names := slices.Collect(maps.Keys(cluster.Objects("secrets")))
	if len(names) != 1 || !strings.HasPrefix(names[0], "weir/shop-wildcard--a-example-key-") {
		t.Fatalf("the Secrets are %q", names)
	}
	o := cluster.Objects("secrets")[names[0]]
	meta := o["metadata"].(fake.Object)
	if o["type"] != "weirproxy.github.io/storage" || meta["annotations"].(fake.Object)[keyAnnotation] != key ||
		meta["labels"].(fake.Object)[storageLabel] != "shop" || len(meta["labels"].(fake.Object)) != 4 {
		t.Errorf("the Secret is %v", o)
	}
	if opened(t, "secrets://weir?kubeconfig="+cluster.Kubeconfig).Exists(t.Context(), key) {
		t.Error("one prefix sees what another has")
	}
	if before := cluster.Asked("list", "secrets"); before == 0 {
		t.Error("Exists of a directory asked for no list")
	}
	isSentence(t, s.Store(within(t), "big", make([]byte, maxValue+1)), "cannot store big", "1048577 bytes")
}

// Errors name the missing permission, or the API server that does not answer.
func TestSecretFailures(t *testing.T) {
	cluster := fake.New(t)
	s := opened(t, "secrets://weir?kubeconfig="+cluster.Kubeconfig)
	cluster.Refuse(func(r fake.Request) int { return map[string]int{"secrets": 403, "leases": 403}[r.Resource] })
	isSentence(t, s.Store(within(t), "a", nil), "storage secrets://weir", "cannot store a", `the verb "update" on "secrets"`, "namespace weir")
	_, err := s.List(within(t), "", true)
	isSentence(t, err, `the verb "list" on "secrets"`)
	isSentence(t, s.Lock(within(t), "x"), "cannot lock x", `the verb "get" on "leases"`)
	cluster.Refuse(nil)

	_, err = open("secrets://", zap.NewNop())
	isSentence(t, err, "names no namespace")
	_, err = open("secrets://weir?kubeconfig=/nowhere", zap.NewNop())
	isSentence(t, err, "cannot use kubernetes.kubeconfig", "/nowhere")
	for _, name := range []string{"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} {
		t.Setenv(name, "")
	}
	_, err = open("secrets://weir", zap.NewNop())
	isSentence(t, err, "cannot connect to an API server with the service account of a Pod")
}

// weir extends a held lock, so no other process takes it.
func TestSecretLocksAreExtended(t *testing.T) {
	cluster := fake.New(t)
	s := opened(t, "secrets://weir?kubeconfig="+cluster.Kubeconfig).(*secretStorage)
	s.extend = 20 * time.Millisecond
	must(t, s.Lock(within(t), "x"))
	for deadline := time.Now().Add(patience); cluster.Asked("update", "leases") < 3; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody extends the lease")
		}
	}
	must(t, s.Unlock(within(t), "x"))
	if left := cluster.Objects("leases"); len(left) != 0 {
		t.Errorf("%v is left of a lock that was given back", left)
	}
}

// For every key, the object has a name and labels that an API server accepts, and no
// other key has the same name.
func FuzzSecretNames(f *testing.F) {
	f.Add("certificates/ca/a.example/a.example.crt", "certificates/ca/a.example/a.example.key")
	f.Add("a b/ü", "A b/ü")
	f.Add("x/"+strings.Repeat("long", 100), "-/-")
	s := &secretStorage{prefix: strings.Repeat("p", 40)}
	f.Fuzz(func(t *testing.T, key, other string) {
		key, err := clean(key)
		if err != nil || key == "." {
			return
		}
		o := s.secret(key, nil)
		for _, problem := range validation.IsDNS1123Subdomain(o.Name) {
			t.Errorf("%q is called %s: %s", key, o.Name, problem)
		}
		for name, value := range o.Labels {
			if problems := append(validation.IsQualifiedName(name), validation.IsValidLabelValue(value)...); len(problems) > 0 {
				t.Errorf("%q has the label %s=%s: %s", key, name, value, problems)
			}
		}
		if other, err := clean(other); err == nil && other != key && s.objectName(other) == o.Name {
			t.Errorf("%q and %q have one name", key, other)
		}
	})
}
