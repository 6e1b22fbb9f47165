//go:build linux

package kube

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// TestRawTCP: the ConfigMap of ingress-nginx adds SSH to the address that serves HTTPS.
func TestRawTCP(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), s.secret("web", "web", "web.example"), ingress("web", "web.example", "/", "a", "web"))
	s.rolledOut("a")
	ports := func(data string) {
		t.Helper()
		text := "{apiVersion: v1, kind: ConfigMap, metadata: {name: tcp-services, namespace: ingress-nginx}, data: " + s.fill(data) + "}"
		if _, err := s.cluster.kubectl(text, "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { s.cluster.kubectl("", "delete", "configmap", "tcp-services", "--namespace=ingress-nginx") })
	ports(`{"22": "@stage/a:22", "2222": "@stage/a:lines:PROXY:PROXY"}`)
	w := s.weir(`
kubernetes: {kubeconfig: '@kubeconfig', class: '@stage', lease: weir/@stage, tcp: {config_map: ingress-nginx/tcp-services, proxy_protocol: lb}}
proxy_protocol: {lb: {rules: [{from: [10.10.0.100/32], header: require}]}}
`)
	w.wantApp("https://web.example/", "a")
	w.wantLines(22, "", func(greeting, echo string) bool {
		return strings.HasPrefix(greeting, "SSH-2.0-standin a-") && strings.HasSuffix(echo, ": hello")
	})
	// weir reads a PROXY header from the client's side and sends one to the Pod. The Pod reads the header as
	// its first line.
	w.wantLines(2222, "PROXY TCP4 192.0.2.7 192.0.2.8 4711 22\r\n", func(_, echo string) bool {
		return strings.Contains(echo, "PROXY TCP4 192.0.2.7 192.0.2.8 4711 22")
	})
	// A bad entry has no effect on other entries. A new entry works, and a removed one does not.
	ports(`{"2022": "@stage/a:22", "2222": "nonsense"}`)
	w.wantLines(2022, "", func(greeting, _ string) bool { return strings.HasPrefix(greeting, "SSH-2.0-standin a-") })
	for _, port := range []int{22, 2222} {
		eventually(t, fmt.Sprintf("nobody listens on %d", port), func() error {
			c, err := net.Dial("tcp", w.at(port))
			if err == nil {
				c.Close()
				return fmt.Errorf("somebody does")
			}
			return nil
		})
	}
	w.wantApp("https://web.example/", "a")
}

// wantLines opens a connection, sends first and a line, and repeats that until greeting and echo are right.
func (w *weir) wantLines(port int, first string, right func(greeting, echo string) bool) {
	w.Helper()
	eventually(w, fmt.Sprintf("a Pod greets on %d", port), func() error {
		c, err := net.Dial("tcp", w.at(port))
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprintf(c, "%shello\r\n", first)
		in := bufio.NewReader(c)
		greeting, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		echo, err := in.ReadString('\n')
		greeting, echo = strings.TrimSpace(greeting), strings.TrimSpace(echo)
		if err == nil && !right(greeting, echo) {
			err = fmt.Errorf("it says %q, then %q", greeting, echo)
		}
		return err
	})
}
