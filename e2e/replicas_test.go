package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirproxy/weir/config/kube/api/fake"
)

// storages are the kinds of storage that replicas can share. Each test gets a storage of its own.
var storages = []struct {
	name string
	open func(t *testing.T) string
}{
	{"directory", func(t *testing.T) string { return filepath.Join(t.TempDir(), "shared") }},
	{"redis", startRedis},
	{"secrets", secretsOfCluster},
}

// secretsOfCluster returns a storage in Secrets. They are in the memory of a fake API server, or in a real
// cluster if WEIR_TEST_KUBECONFIG names its kubeconfig.
func secretsOfCluster(t *testing.T) string {
	kubeconfig := os.Getenv("WEIR_TEST_KUBECONFIG")
	if kubeconfig == "" {
		kubeconfig = fake.New(t).Kubeconfig
	}
	return fmt.Sprintf("secrets://default?prefix=t%d&kubeconfig=%s", time.Now().UnixNano(), kubeconfig)
}

// Two replicas need the same certificate at the same moment. The load balancer does not know which of them
// ordered it.
func TestReplicasGetOneCertificate(t *testing.T) {
	for _, storage := range storages {
		t.Run(storage.name, func(t *testing.T) {
			t.Parallel()
			ca := newPebble(t, pebbleOptions{})
			g := newGate(t, ca, true)
			ca.run()
			config := acmeConfig(entries(
				ca.entry("http.example.org", "challenges: [http-01]"), ca.entry("alpn.example.org", "challenges: [tls-alpn-01]")),
				routesTo("http.example.org", "alpn.example.org")) + "storage: '${STORAGE}'\n"
			env := []string{"STORAGE=" + storage.open(t)}
			app := newWebBackend(t, "app").address
			a, b := newWeir(t), newWeir(t)
			for _, w := range []*weir{a, b} {
				w.env, w.address["app"] = env, app
			}
			ca.forwardTo(b)
			// A orders and gets no answer until B runs. Every challenge goes to B.
			a.start(config)
			eventually(t, "the first replica asks for both", func() error {
				if g.asked.Load() < 2 {
					return errNotYet
				}
				return nil
			})
			b.start(config)
			g.openOrders()
			roots := ca.roots()
			direct := shim(t, a.at("secure"), v2Header("203.0.113.9:4000", "192.0.2.1:443"))
			for _, host := range []string{"http.example.org", "alpn.example.org"} {
				began := time.Now()
				one := served(t, direct, host, roots)
				other := served(t, ca.front.secure, host, roots)
				if serial(one) != serial(other) {
					t.Errorf("%s has certificate %s here and %s there", host, serial(one), serial(other))
				}
				t.Logf("%s is served by both after %s", host, time.Since(began).Round(100*time.Millisecond))
			}
			if n := len(ca.issued()); n != 2 || ca.orders() != 2 {
				t.Errorf("%d certificates were issued in %d orders for 2 names", n, ca.orders())
			}
			for _, challenge := range []string{"http-01", "tls-alpn-01"} {
				if n := b.metric("weir_acme_challenges_total", "type", challenge, "result", "answered"); n == 0 {
					t.Errorf("no challenge of type %s was answered by the replica that did not ask", challenge)
				}
			}
			if n := b.metric("weir_acme_issuances_total", "result", "obtained"); n != 0 {
				t.Errorf("%v certificates were got by the replica that did not ask", n)
			}
			// A replica that starts later finds the certificates in the storage, even if the authority is
			// gone.
			ca.process.kill()
			late := newWeir(t)
			late.env, late.address["app"] = env, app
			late.start(config)
			served(t, shim(t, late.at("secure"), v2Header("203.0.113.9:4000", "192.0.2.1:443")), "http.example.org", roots)
		})
	}
}
