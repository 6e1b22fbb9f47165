//go:build linux

package kube

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// stage is the part of the cluster that belongs to a test: a namespace, and an Ingress class of the same
// name.
type stage struct {
	*testing.T
	*cluster
	name    string
	refused bool // the test expects that the API server refuses some requests of weir
}

var stages atomic.Int32

// leaveOut skips a test because this machine lacks something; in CI the test fails.
func leaveOut(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("CI leaves nothing out: " + why)
	}
	t.Skip(why)
}

// newStage creates a stage. If there is no cluster, it skips the test.
func newStage(t *testing.T) *stage {
	t.Helper()
	if whySkip != "" {
		leaveOut(t, whySkip)
	}
	theCluster.start(t)
	s := &stage{T: t, cluster: theCluster, name: fmt.Sprintf("stage-%d", stages.Add(1))}
	s.kubectl("create", "namespace", s.name)
	t.Cleanup(func() {
		if t.Failed() {
			objects, _ := s.cluster.kubectl("", "get", "--namespace="+s.name, "ingress,service,endpointslice,pod,secret", "--output=wide")
			events, _ := s.cluster.kubectl("", "get", "--namespace="+s.name, "events")
			t.Logf("the namespace has\n%s\n%s", objects, events)
		}
		s.cluster.kubectl("", "delete", "namespace", s.name, "--wait=false")
	})
	return s
}

// kubectl runs kubectl and returns its output. If kubectl fails, the test fails.
func (s *stage) kubectl(args ...string) string {
	s.Helper()
	out, err := s.cluster.kubectl("", args...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// fill replaces @stage by the namespace, which is also the class.
func (s *stage) fill(text string) string { return strings.ReplaceAll(text, "@stage", s.name) }

// apply applies manifests in the namespace.
func (s *stage) apply(manifests ...string) {
	s.Helper()
	text := s.fill(strings.Join(manifests, "\n---\n"))
	if _, err := s.cluster.kubectl(text, "apply", "--namespace="+s.name, "-f", "-"); err != nil {
		s.Fatalf("%v\n%s", err, text)
	}
}

// delete deletes objects of the namespace, for example "ingress", "web".
func (s *stage) delete(kindAndNames ...string) {
	s.Helper()
	s.kubectl(append([]string{"delete", "--namespace=" + s.name}, kindAndNames...)...)
}

// request sends a request to the API server as administrator. It is for frequent requests, because kubectl is
// slow.
func (s *stage) request(method, path, body string, into any) error {
	r, err := http.NewRequest(method, "https://"+apiAddress+":6443"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", map[string]string{"PATCH": "application/merge-patch+json"}[method])
	resp, err := s.api.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s\n%s", method, path, resp.Status, text)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(text, into)
	}
	return err
}

// object has the fields of Kubernetes objects that tests read.
type object struct {
	Metadata struct {
		Name        string
		Annotations map[string]string
	}
	Status struct {
		PodIP        string
		LoadBalancer struct {
			Ingress []struct{ IP, Hostname string }
		}
		ReadyReplicas int
	}
	Spec struct{ NodeName string }
	// Only EndpointSlices have endpoints.
	Endpoints []struct{ Conditions struct{ Ready bool } }
	// Only events have these fields.
	Reason, Message, Note string
	InvolvedObject        struct{ Kind, Name string }
}

// objects lists the objects of a kind in the namespace, for example "pods" or
// "apis/networking.k8s.io/v1/ingresses".
func (s *stage) objects(kind string) []object {
	s.Helper()
	group, resource := "api/v1", kind
	if i := strings.LastIndexByte(kind, '/'); i >= 0 {
		group, resource = kind[:i], kind[i+1:]
	}
	var list struct{ Items []object }
	if err := s.request("GET", "/"+group+"/namespaces/"+s.name+"/"+resource, "", &list); err != nil {
		s.Fatal(err)
	}
	return list.Items
}

// wantEvent waits for an event about an object of the namespace, and returns its message.
func (s *stage) wantEvent(kind, name, reason string) (message string) {
	s.Helper()
	eventually(s, fmt.Sprintf("an event %s on %s %s", reason, kind, name), func() error {
		for _, e := range s.objects("events") {
			if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason {
				message = e.Message
				return nil
			}
		}
		return errors.New("there is none")
	})
	return message
}

// deployment returns an application: a Deployment of n Pods, and its Service with port 80.
func deployment(name string, n int) string {
	return fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s}, spec: {replicas: %[2]d, selector: {matchLabels: {app: %[1]s}},
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 1}},
  template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: a, image: echo}]}}}}
---
`, name, n) + service(name)
}

// service returns a Service with all ports that the Pods of the kit serve.
func service(name string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %[1]s}, spec: {selector: {app: %[1]s}, ports: [
  {name: http, port: 80, targetPort: 3000}, {name: h2c, port: 81, targetPort: 3001, appProtocol: kubernetes.io/h2c},
  {name: https, port: 443, targetPort: 3443, appProtocol: https}, {name: lines, port: 22, targetPort: 3022}]}}`, name)
}

// ingress returns an Ingress from a path of a host to port 80 of a Service. With a Secret it has TLS.
func ingress(name, host, path, service, secret string) string {
	tls := ""
	if secret != "" {
		tls = fmt.Sprintf("tls: [{hosts: [%q], secretName: %s}], ", host, secret)
	}
	return fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: %s}, spec: {ingressClassName: "@stage", %s
  rules: [{host: %q, http: {paths: [{path: %q, pathType: Prefix, backend: {service: {name: %s, port: {number: 80}}}}]}}]}}`, name, tls, host, path, service)
}

// secret returns a Secret with a certificate for the hosts. Its common name is mark, by which clients
// recognise the certificate.
func (s *stage) secret(name, mark string, hosts ...string) string {
	s.Helper()
	p, err := newPair(nil, &x509.Certificate{Subject: pkix.Name{CommonName: mark}, DNSNames: hosts})
	if err != nil {
		s.Fatal(err)
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: %s}, type: kubernetes.io/tls, data: {tls.crt: %s, tls.key: %s}}",
		name, base64.StdEncoding.EncodeToString(p.cert), base64.StdEncoding.EncodeToString(p.key))
}

// rolledOut waits until all Pods of a Deployment are ready and up to date.
func (s *stage) rolledOut(name string) {
	s.Helper()
	s.kubectl("rollout", "status", "--namespace="+s.name, "deployment/"+name, "--timeout=90s")
}
