//go:build linux

package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// publishing returns a section kubernetes that makes weir publish addresses.
func publishing(what string) string {
	return "kubernetes: {kubeconfig: '@kubeconfig', class: '@stage', lease: weir/@stage, publish: " + what + "}\n"
}

// wantAddresses waits until the status of an Ingress has exactly these addresses.
func (s *stage) wantAddresses(name string, want ...string) {
	s.Helper()
	eventually(s, fmt.Sprintf("the status of %s has the addresses %q", name, want), func() error {
		for _, o := range s.objects("apis/networking.k8s.io/v1/ingresses") {
			var got []string
			for _, a := range o.Status.LoadBalancer.Ingress {
				got = append(got, a.IP+a.Hostname)
			}
			if o.Metadata.Name == name {
				if !slices.Equal(got, want) {
					return fmt.Errorf("it has %q", got)
				}
				return nil
			}
		}
		return errors.New("there is no such Ingress")
	})
}

// wantLeader waits until one of two replicas is the leader, and returns both.
func wantLeader(t testing.TB, a, b *weir) (leader, other *weir) {
	t.Helper()
	eventually(t, "one of two replicas writes", func() error {
		switch x, y := a.metric("weir_kubernetes_leader"), b.metric("weir_kubernetes_leader"); {
		case x == 1 && y == 0:
			leader, other = a, b
		case x == 0 && y == 1:
			leader, other = b, a
		default:
			return fmt.Errorf("%v and %v", x, y)
		}
		return nil
	})
	return leader, other
}

// TestLeaderDies: one of two replicas writes statuses and events. When it dies, the other one continues. No
// event is written twice, and an event reports that a fault was corrected.
func TestLeaderDies(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""), ingress("bad", "bad.example", "/", "missing", ""))
	config := publishing("{addresses: [192.0.2.7, lb.example.org]}")
	a := s.newWeir("node-a", config).launch().ready()
	b := s.newWeir("node-b", config).launch().ready()
	s.wantAddresses("web", "192.0.2.7", "lb.example.org")
	s.wantEvent("Ingress", "bad", "BackendNotFound")
	leader, other := wantLeader(t, a, b)
	if n := other.metric("weir_kubernetes_status_writes_total") + other.metric("weir_kubernetes_event_writes_total"); n != 0 {
		t.Errorf("the replica without the Lease wrote %v times", n)
	}
	leader.kill()
	s.apply(ingress("more", "more.example", "/", "a", ""))
	other.wantStatus("http://web.example/", 200) // it serves even while it is not the leader
	for deadline := time.Now().Add(time.Minute); other.metric("weir_kubernetes_leader") == 0 && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
	}
	s.wantAddresses("more", "192.0.2.7", "lb.example.org")
	other.wantMetric(1, "weir_kubernetes_status_writes_total", "result", "success") // only the status of this Ingress was missing
	seen := 0
	for _, e := range s.objects("events") {
		if e.InvolvedObject.Name == "bad" {
			seen++
		}
	}
	if seen != 1 {
		t.Errorf("there are %d events about one thing", seen)
	}
	s.apply(deployment("missing", 1)) // the Deployment comes with its Service
	s.wantEvent("Ingress", "bad", "Sync")
	if n := other.metric("weir_kubernetes_lease_failures_total"); n != 0 {
		t.Errorf("the Lease could not be had %v times", n)
	}
}

// TestPublishedService: the statuses of Ingresses follow the Service, and the last replica removes the
// addresses.
func TestPublishedService(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""), ingress("gone", "gone.example", "/", "a", ""),
		`{apiVersion: v1, kind: Service, metadata: {name: lb}, spec: {type: LoadBalancer, ports: [{port: 80}]}}`)
	status := func(ingress string) {
		t.Helper()
		path := "/api/v1/namespaces/" + s.name + "/services/lb/status"
		if err := s.request("PATCH", path, `{"status": {"loadBalancer": {"ingress": [`+ingress+`]}}}`, nil); err != nil {
			t.Fatal(err)
		}
	}
	status(`{"ip": "192.0.2.8"}`)
	config := publishing("{service: @stage/lb}")
	a := s.newWeir("node-a", config).launch().ready()
	b := s.newWeir("node-b", config).launch().ready()
	s.wantAddresses("web", "192.0.2.8")
	status(`{"ip": "192.0.2.9"}, {"hostname": "lb.example.org"}`)
	s.wantAddresses("web", "192.0.2.9", "lb.example.org")
	s.wantAddresses("gone", "192.0.2.9", "lb.example.org")

	// weir removes its addresses from an Ingress that changes to another class.
	if err := s.request("PATCH", "/apis/networking.k8s.io/v1/namespaces/"+s.name+"/ingresses/gone", `{"spec": {"ingressClassName": "other"}}`, nil); err != nil {
		t.Fatal(err)
	}
	s.wantAddresses("gone")

	eventually(t, "both replicas are known", func() error {
		leases, err := s.cluster.kubectl("", "get", "leases", "--namespace=weir", "--output=name")
		if n := strings.Count(leases, "weir-replica-"); err == nil && n < 2 {
			err = fmt.Errorf("%d are", n)
		}
		return err
	})
	leader, other := wantLeader(t, a, b)
	leader.terminate()
	s.wantAddresses("web", "192.0.2.9", "lb.example.org")
	eventually(t, "the other replica leads", func() error {
		if other.metric("weir_kubernetes_leader") != 1 {
			return errors.New("it does not")
		}
		return nil
	})
	other.terminate()
	s.wantAddresses("web")
}

// TestPublishedNodes: weir publishes the addresses of the nodes on which weirs run. When a weir ends, the
// address of its node is removed.
func TestPublishedNodes(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""))
	config := publishing("{nodes: internal}")
	s.newWeir("node-a", config).launch().ready()
	b := s.newWeir("node-b", config).launch().ready()
	s.wantAddresses("web", "10.10.0.1", "10.10.0.2")
	b.terminate()
	s.wantAddresses("web", "10.10.0.1")
}

// TestSecretsAreShared: two replicas that share only Secrets order at the same time. They get one
// certificate, and each replica resumes the TLS sessions of the other.
func TestSecretsAreShared(t *testing.T) {
	pebble, err := exec.LookPath("pebble")
	if err != nil {
		leaveOut(t, "pebble is not installed (go install github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1)")
	}
	s := newStage(t)
	directory := startPebble(s, pebble, "PEBBLE_VA_ALWAYS_VALID=1")
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""))
	config := fmt.Sprintf(`storage: secrets://weir?prefix=@stage
certificates: [{acme: {hosts: [acme.example], directory: 'https://127.0.0.1:14000/dir', ca: %s, challenges: [http-01]}}]
`, directory)
	a := s.newWeir("node-a", config).launch()
	b := s.newWeir("node-b", config).launch()
	a.ready()
	b.ready()
	session := tls.NewLRUClientSessionCache(1)
	dial := func(w *weir) (state tls.ConnectionState) {
		t.Helper()
		eventually(t, "a handshake with "+w.address, func() error {
			c, err := tls.Dial("tcp", w.address+":443", &tls.Config{ServerName: "acme.example", InsecureSkipVerify: true, ClientSessionCache: session})
			if err != nil {
				return err
			}
			defer c.Close()
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: acme.example\r\nConnection: close\r\n\r\n")
			buffer := make([]byte, 1)
			_, err = c.Read(buffer) // the session ticket arrives before the response
			state = c.ConnectionState()
			return err
		})
		return state
	}
	one, other := dial(a), dial(b)
	if one.PeerCertificates[0].SerialNumber.Cmp(other.PeerCertificates[0].SerialNumber) != 0 {
		t.Error("two replicas have two certificates")
	}
	if !other.DidResume {
		t.Error("a session of one replica is not resumed by the other")
	}
	if n := a.metric("weir_acme_issuances_total", "result", "obtained") + b.metric("weir_acme_issuances_total", "result", "obtained"); n != 1 {
		t.Errorf("%v certificates were got for one name", n)
	}
	secrets, _ := s.cluster.kubectl("", "get", "secrets", "--namespace=weir", "--selector=weirproxy.github.io/storage="+s.name, "--output=name")
	if !strings.Contains(secrets, s.name+"-acme-example-key-") {
		t.Errorf("the Secrets are\n%s", secrets)
	}
}

// TestManyAddressesAreWithdrawn: the last replica removes the addresses of many Ingresses before it ends,
// although its drain has no connections to wait for.
func TestManyAddressesAreWithdrawn(t *testing.T) {
	const many = 300
	s := newStage(t)
	var items []string
	for i := range many {
		items = append(items, ingress(fmt.Sprintf("i%d", i), fmt.Sprintf("i%d.example", i), "/", "a", ""))
	}
	s.apply(deployment("a", 1), strings.Join(items, "\n---\n"))
	published := func() (n int) {
		for _, o := range s.objects("apis/networking.k8s.io/v1/ingresses") {
			n += len(o.Status.LoadBalancer.Ingress)
		}
		return n
	}
	w := s.newWeir("node-a", publishing("{addresses: [192.0.2.7]}")+"drain: {lame_duck: 0s, timeout: 60s}\n").launch().ready()
	began := time.Now()
	for published() < many && time.Since(began) < many*100*time.Millisecond+patience {
		time.Sleep(500 * time.Millisecond)
	}
	if n := published(); n != many {
		t.Fatalf("%d of %d Ingresses have an address", n, many)
	}
	began = time.Now()
	if status := w.terminate(); status != 0 {
		t.Errorf("weir ended with status %d", status)
	}
	t.Logf("the withdrawal took %v", time.Since(began))
	if n := published(); n != 0 {
		t.Errorf("%d of %d Ingresses still have an address", n, many)
	}
}

// TestWritingGoesOn: after an outage of the API server, weir writes statuses and events again, also events
// about an object without a namespace.
func TestWritingGoesOn(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""))
	w := s.weir(publishing("{addresses: [192.0.2.7]}"))
	s.wantAddresses("web", "192.0.2.7")
	t.Cleanup(func() {
		if !s.parts["kube-apiserver"].running() {
			s.startAPI()
		}
	})
	s.refused = true // a new API server refuses all requests until it has loaded its RBAC rules
	s.parts["kube-apiserver"].kill()
	w.wantMetric(0, "weir_kubernetes_leader") // another replica may assume that this one has died
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
	w.wantMetric(1, "weir_kubernetes_leader")
	s.apply(ingress("more", "more.example", "/", "a", ""))
	s.wantAddresses("more", "192.0.2.7")
	t.Cleanup(func() { s.cluster.kubectl("", "delete", "ingressclass", s.name) })
	s.apply("{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: @stage}, spec: {controller: example.org/other}}")
	eventually(t, "an event on the class", func() error {
		out, err := s.cluster.kubectl("", "get", "events", "--namespace=default", "--field-selector=involvedObject.name="+s.name, "--output=jsonpath={.items[*].reason}")
		if err == nil && out != "UnclearClass" {
			err = fmt.Errorf("the reasons are %q", out)
		}
		return err
	})
}

// startPebble starts an ACME server, which sends challenges to the ports 80 and 443. With PEBBLE_VA_ALWAYS_VALID=1
// in env it issues every certificate. It returns the file with the CA of its directory.
func startPebble(s *stage, program, env string, args ...string) (ca string) {
	s.Helper()
	dir := s.TempDir()
	own, err := newPair(nil, pebbleTemplate())
	if err != nil {
		s.Fatal(err)
	}
	config := `{"pebble": {"listenAddress": "127.0.0.1:14000", "managementListenAddress": "127.0.0.1:15000", "certificate": "ca.pem", "privateKey": "ca.key",
"httpPort": 80, "tlsPort": 443, "retryAfter": {"authz": 1, "order": 1}, "profiles": {"default": {"description": "one", "validityPeriod": 7776000}}}}`
	for name, text := range map[string]string{"ca.pem": string(own.cert), "ca.key": string(own.key), "pebble.json": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			s.Fatal(err)
		}
	}
	cmd := exec.Command(program, append([]string{"-config", "pebble.json"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env, "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0")
	p, err := start("pebble", filepath.Join(dir, "log"), cmd)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(p.kill)
	eventually(s, "pebble answers", func() error { return answers(anyone, "https://127.0.0.1:14000/dir") })
	return filepath.Join(dir, "ca.pem")
}

// TestRightsAreMissing: if the service account may only read, weir still serves. It reports each missing
// right once.
func TestRightsAreMissing(t *testing.T) {
	s := newStage(t)
	s.refused = true
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""))
	s.kubectl("create", "serviceaccount", "reader", "--namespace="+s.name)
	role := "reader-" + s.name
	s.kubectl("create", "clusterrole", role, "--verb=list,watch", "--resource=ingresses.networking.k8s.io,ingressclasses.networking.k8s.io,services,secrets,endpointslices.discovery.k8s.io,nodes")
	s.kubectl("create", "clusterrolebinding", role, "--clusterrole="+role, "--serviceaccount="+s.name+":reader")
	t.Cleanup(func() { s.cluster.kubectl("", "delete", "clusterrole,clusterrolebinding", role) })
	w := s.weir(strings.Replace(publishing("{addresses: [192.0.2.7]}"), "@kubeconfig", s.account("reader"), 1) + "storage: secrets://weir?prefix=@stage\n")
	w.wantApp("http://web.example/", "a")
	for _, line := range []string{`give its service account the verb \"get\" on \"leases\"`, `the verb \"get\" on \"secrets\"`} {
		eventually(t, "weir says "+line, func() error {
			if !strings.Contains(w.said(1<<20), line) {
				return errors.New("it does not")
			}
			return nil
		})
	}
	eventually(t, "weir tries again", func() error {
		if n := w.metric("weir_kubernetes_lease_failures_total"); n < 2 {
			return fmt.Errorf("%v failures", n)
		}
		return nil
	})
	if n := strings.Count(w.said(1<<20), `on \"leases\"`); n > 2 { // for the Lease of the leader, and for that of the replica
		t.Errorf("weir said %d times that it has no Lease:\n%s", n, w.said(1<<20))
	}
}

func pebbleTemplate() *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: "pebble"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
}

// pid returns the process that pid_file names.
func (w *weir) pid() (pid int) {
	w.Helper()
	eventually(w, "there is a pid_file", func() error {
		text, err := os.ReadFile(filepath.Join(w.dir, "weir.pid"))
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	return pid
}

// TestUpgradeHandsLeaseOver: an upgrade moves the Lease to the new process at once, even while the old process
// still has requests. Exactly one process writes, no address leaves a status, and no request fails.
func TestUpgradeHandsLeaseOver(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""), ingress("bad", "bad.example", "/", "missing", ""))
	w := s.newWeir("node-a", publishing("{addresses: [192.0.2.7]}")+"pid_file: '@dir/weir.pid'\n").launch().ready()
	t.Cleanup(func() { syscall.Kill(w.pid(), syscall.SIGKILL) })
	s.wantAddresses("web", "192.0.2.7")
	s.wantEvent("Ingress", "bad", "BackendNotFound")
	w.wantMetric(1, "weir_kubernetes_leader")
	w.wantApp("http://web.example/", "a")
	l := w.underLightLoad("http://web.example/")
	l.more(20)

	// The holders of the Lease, as the API server tells them. Between two of them it is free.
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	var holders []string
	watching.Go(func() {
		for ctx.Err() == nil {
			var lease struct {
				Spec struct{ HolderIdentity string }
			}
			if s.request("GET", "/apis/coordination.k8s.io/v1/namespaces/weir/leases/"+s.name, "", &lease) == nil {
				if now := lease.Spec.HolderIdentity; len(holders) == 0 || holders[len(holders)-1] != now {
					holders = append(holders, now)
				}
			}
			for _, o := range s.objects("apis/networking.k8s.io/v1/ingresses") {
				if o.Metadata.Name == "web" && len(o.Status.LoadBalancer.Ingress) != 1 {
					t.Errorf("the status of web has the addresses %v", o.Status.LoadBalancer.Ingress)
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	long := make(chan error, 1) // a request that the old process has to answer
	go func() {
		c := client(w.address, false)
		c.Timeout = time.Minute
		a, err := ask(c, "http://web.example/?delay=10s")
		if err == nil && a.Status != 200 {
			err = errors.New(a.String())
		}
		long <- err
	}()
	old := w.pid()
	eventually(t, "the long request runs", func() error {
		if w.metric("weir_backend_requests_in_flight") < 1 {
			return errors.New("it does not")
		}
		return nil
	})
	syscall.Kill(old, syscall.SIGUSR2)
	eventually(t, "a new process takes over", func() error {
		if w.pid() == old {
			return errors.New("not yet")
		}
		return nil
	})
	w.wantMetric(1, "weir_upgrades_total", "result", "success") // of the new process
	w.wantMetric(1, "weir_kubernetes_leader")
	select {
	case err := <-long:
		t.Logf("the old process had ended its requests before the Lease had moved: %v", err)
		long <- err
	default: // the Lease has moved while the old process has a request
	}
	s.apply(ingress("more", "more.example", "/", "a", ""))
	s.wantAddresses("more", "192.0.2.7")
	w.wantMetric(1, "weir_kubernetes_status_writes_total", "result", "success") // the new process wrote only what was missing
	if err := <-long; err != nil {
		t.Errorf("a request of the old process: %v", err)
	}
	eventually(t, "the old process ends", func() error {
		if !strings.Contains(w.said(1<<20), "upgrade: the old process has ended") {
			return errors.New("it does not")
		}
		return nil
	})
	l.more(20)
	l.stop()
	cancel()
	watching.Wait()
	if holders = slices.DeleteFunc(holders, func(h string) bool { return h == "" }); len(holders) != 2 {
		t.Errorf("the Lease was held by %q, one after another", holders)
	}
	seen := 0
	for _, e := range s.objects("events") {
		if e.InvolvedObject.Name == "bad" {
			seen++
		}
	}
	if seen != 1 {
		t.Errorf("there are %d events about one thing", seen)
	}
	if n := w.metric("weir_kubernetes_lease_failures_total"); n != 0 {
		t.Errorf("the Lease could not be had %v times", n)
	}
}
