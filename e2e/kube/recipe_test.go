//go:build linux

package kube

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// inPod starts weir as in a Pod: with the token of the service account in its usual place, and with the API
// server's address in the environment. All nodes are one machine in this network, so only one such weir can
// run at a time.
func (s *stage) inPod(args ...string) *weir {
	s.Helper()
	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	ca, err := os.ReadFile(filepath.Join(s.cluster.dir, "ca.crt"))
	if err == nil {
		err = os.MkdirAll(account, 0o700)
	}
	for name, text := range map[string][]byte{"ca.crt": ca, "token": []byte(s.token), "namespace": []byte("weir")} {
		if err == nil {
			err = os.WriteFile(filepath.Join(account, name), text, 0o600)
		}
	}
	if err != nil {
		s.Fatal(err)
	}
	// The weirs of earlier tests were killed, and would count as replicas for a while.
	s.kubectl("delete", "leases", "--all", "--namespace=weir")
	w := &weir{stage: s, dir: s.TempDir(), address: "10.10.0.1", node: "node-a"}
	cmd := exec.Command(weirFile, append([]string{"run"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST="+apiAddress, "KUBERNETES_SERVICE_PORT=6443", "NODE_NAME=node-a", "POD_NAMESPACE=weir", "POD_NAME=weir-0")
	return w.exec(cmd).ready()
}

// installed creates an application with an Ingress of the class that deploy uses.
func (s *stage) installed() {
	s.Helper()
	s.apply(deployment("a", 1), s.secret("web", "web", "web.example"))
	text := ingress("web", "web.example", "/", "a", "web")
	name := s.name
	s.name = "weir" // the name is also the class
	text = s.fill(text)
	s.name = name
	s.apply(text)
	s.Cleanup(func() { s.delete("ingress", "web") }) // otherwise the next test would see it
	s.rolledOut("a")
}

// TestWithoutFile: a weir in a Pod needs no configuration file.
func TestWithoutFile(t *testing.T) {
	s := newStage(t)
	s.installed()
	w := s.inPod()
	if a := w.wantApp("https://web.example/", "a"); a.Certificate != "web" {
		t.Errorf("there is %s", a)
	}
	w.wantStatus("http://web.example/", 308)
	w.wantVerdict(200, "")
}

// TestRecipeDeployment runs weir with the configuration of deploy/kustomize/deployment. The status of the
// Ingress gets the address of the load balancer.
func TestRecipeDeployment(t *testing.T) {
	s := newStage(t)
	s.installed()
	s.service("deployment")
	w := s.inPod("-c", "../../deploy/kustomize/base/weir.yaml")
	w.wantPorts8()
	s.wantAddresses("web", "203.0.113.80")
	w.terminateFast()
}

// TestRecipeDaemonSet runs weir with the configuration of deploy/kustomize/daemonset. Clients reach the
// Ingress at the node's address, and the health port reports the state of the node to load balancers.
func TestRecipeDaemonSet(t *testing.T) {
	s := newStage(t)
	s.installed()
	w := s.inPod("-c", "../../deploy/kustomize/daemonset/weir.yaml")
	w.wantPorts8()
	s.wantAddresses("web", "203.0.113.1")
	w.wantVerdict(200, "")
	s.kubectl("cordon", "node-a")
	t.Cleanup(func() { s.cluster.kubectl("", "uncordon", "node-a") })
	w.wantVerdict(503, "cordoned")
}

// TestRecipeAWS runs weir with the configuration of the component aws-nlb, and acts as an NLB: it sends a
// PROXY v2 header only together with the client's first bytes, and health checks with and without a header.
func TestRecipeAWS(t *testing.T) {
	s := newStage(t)
	s.installed()
	w := s.inPod("-c", "../../deploy/kustomize/components/aws-nlb/weir.yaml")
	header := proxyHeader(t, "198.51.100.9:4711", "192.0.2.1:443")
	eventually(t, "the Pod is told of the client", func() error {
		c, err := net.Dial("tcp", w.at(8443))
		if err != nil {
			return err
		}
		defer c.Close()
		secure := tls.Client(&after{Conn: c, first: header}, &tls.Config{InsecureSkipVerify: true, ServerName: "web.example"})
		c.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprint(secure, "GET / HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(secure), nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var a answer
		if err := a.take(resp); err != nil {
			return err
		}
		if got := a.Headers.Get("X-Forwarded-For"); got != "198.51.100.9" {
			return fmt.Errorf("it is told of %q: %s", got, a)
		}
		return nil
	})
	// A client without a PROXY header gets no bytes.
	c, err := net.Dial("tcp", w.at(8080))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: web.example\r\n\r\n")
	if n, err := c.Read(make([]byte, 1)); n != 0 {
		t.Errorf("a connection without a header gets %d bytes, %v", n, err)
	}
	w.wantVerdict(200, "") // a check without a header
	local := slices.Clone(header[:16])
	local[12], local[13], local[14], local[15] = 0x20, 0, 0, 0 // the LOCAL command
	c, err = net.Dial("tcp", w.at(8086))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "%sGET / HTTP/1.1\r\nHost: check\r\nConnection: close\r\n\r\n", local)
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("a check with a header that carries no address is answered with %v, %v", resp, err)
	}
}

// TestRecipeLocal: with externalTrafficPolicy Local, weir sees the addresses of clients (GKE, MetalLB, plain
// nodes). A weir that ends still serves, because kube-proxy may still send it connections.
func TestRecipeLocal(t *testing.T) {
	s := newStage(t)
	s.installed()
	w := s.inPod("-c", "../../deploy/kustomize/base/weir.yaml")
	w.wantPorts8()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 10, 9, 9)}}
	c, err := from.Dial("tcp", w.at(8443))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: "web.example"})
	fmt.Fprint(secure, "GET / HTTP/1.1\r\nHost: web.example\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(secure), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a answer
	if err := a.take(resp); err != nil || a.Headers.Get("X-Forwarded-For") != "10.10.9.9" {
		t.Errorf("the Pod is told of %v, %v", a.Headers, err)
	}
	w.terminateFast()
}

// wantPorts8 waits until weir serves the application on the ports of the manifests.
func (w *weir) wantPorts8() {
	w.Helper()
	w.wantApp("https://web.example:8443/", "a")
	w.wantStatus("http://web.example:8080/", 308)
}

// terminateFast sends SIGTERM like the kubelet, checks that weir still serves, and sends it again. Without
// the second signal, the drain of the manifests would take minutes.
func (w *weir) terminateFast() {
	w.Helper()
	w.cmd.Process.Signal(terminate)
	w.wantVerdict(503, "drain")
	w.wantPorts8()
	w.wantAddresses("web")
	if status := w.terminate(); status != 0 {
		w.Errorf("weir ended with status %d", status)
	}
}

// service creates the Service of a folder of deploy, and gives it an address as the controller of a load
// balancer does.
func (s *stage) service(folder string) {
	s.Helper()
	if _, err := s.cluster.kubectl(s.kubectl("kustomize", "../../deploy/kustomize/"+folder), "apply", "-f", "-"); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { s.cluster.kubectl("", "delete", "service,deployment,pdb", "--namespace=weir", "weir") })
	s.kubectl("patch", "service", "weir", "--namespace=weir", "--subresource=status", "--type=merge", "--patch", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.80"}]}}}`)
}

// after is a connection that sends first together with the first bytes that are written to it.
type after struct {
	net.Conn
	first []byte
}

func (c *after) Write(b []byte) (int, error) {
	n := len(c.first)
	sent, err := c.Conn.Write(append(c.first, b...))
	c.first = nil
	return max(0, sent-n), err
}

// proxyHeader returns a PROXY v2 header as an NLB sends it.
func proxyHeader(t *testing.T, from, to string) []byte {
	t.Helper()
	h := append([]byte("\r\n\r\n\x00\r\nQUIT\n"), 0x21, 0x11, 0, 12)
	a, err1 := net.ResolveTCPAddr("tcp4", from)
	b, err2 := net.ResolveTCPAddr("tcp4", to)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	h = append(append(h, a.IP.To4()...), b.IP.To4()...)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(h, uint16(a.Port)), uint16(b.Port))
}
