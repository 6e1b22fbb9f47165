package proxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
)

// ingressRig serves Ingresses. Behind each Service is a server that answers with what it received, and three behind a
// Service whose name begins with "three"; none behind "empty".
type ingressRig struct {
	*rig
	file, manifests string
	servers         map[string][]*httptest.Server // by the name of the backend
	pods            int                           // behind a Service whose name begins with "three"
	copied          chan string                   // what servers got whose URL an annotation has
}

const ingressFile = `
listeners:
  web: {address: "@1", protocol: http}
  websecure: {address: "@2", protocol: tls}
certificates: [{self_signed: {hosts: ["a.example", "b.example", "*.c.example"]}}]
kubernetes: {class: weir}
`

// newIngressRig serves the manifests. file replaces ingressFile if it is not empty.
func newIngressRig(t testing.TB, file, manifests string) *ingressRig {
	t.Helper()
	if file == "" {
		file = ingressFile
	}
	i := &ingressRig{file: file, manifests: manifests, servers: map[string][]*httptest.Server{}, pods: 3, copied: make(chan string, 100)}
	i.rig = newRig(t, file, func(c *config.Config) { i.convert(t, c) })
	t.Cleanup(func() { // before that of the rig, which looks for goroutines
		for _, all := range i.servers {
			for _, s := range all {
				s.Close()
			}
		}
	})
	return i
}

// change serves other manifests, or the same with another number of Pods.
func (i *ingressRig) change(manifests string) {
	i.Helper()
	i.manifests = manifests
	i.load(i.file, func(c *config.Config) { i.convert(i.TB, c) })
}

func (i *ingressRig) convert(t testing.TB, file *config.Config) {
	t.Helper()
	var m kube.Manifests
	if err := m.Read(strings.NewReader(i.manifests)); err != nil {
		t.Fatal(err)
	}
	if nginx := file.Kubernetes.IngressNginx; nginx != nil {
		m.UseMaps()
		for _, o := range m.ConfigMaps {
			if nginx.ConfigMap == (config.ObjectName{Namespace: o.Namespace, Name: o.Name}) {
				m.Objects.Controller = o
			}
		}
	}
	routing := (&kube.Converter{File: file}).Convert(&m.Objects)
	endpoints := map[string][]config.Endpoint{}
	for _, b := range routing.Backends {
		n := 1
		switch {
		case b.Source.Name == "" && len(b.Endpoints) == 1: // of a URL
		case b.Source.Name == "", strings.HasPrefix(b.Source.Name, "empty"):
			continue
		case strings.HasPrefix(b.Source.Name, "three"):
			n = i.pods
		}
		for len(i.servers[b.Name]) < n {
			i.servers[b.Name] = append(i.servers[b.Name], i.server(b, len(i.servers[b.Name])))
		}
		for _, s := range i.servers[b.Name][:n] {
			endpoints[b.Name] = append(endpoints[b.Name], config.Endpoint{Address: s.Listener.Addr().String(), Weight: 1})
		}
	}
	*file = *routing.Merge(file, endpoints)
}

// server is a server that answers with its name, and with the request.
func (i *ingressRig) server(b *kube.Backend, pod int) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.Source.Name == "" {
			body, _ := io.ReadAll(r.Body)
			i.copied <- fmt.Sprintf("%s %s %s %d", r.Method, r.Host, r.RequestURI, len(body))
			return
		}
		w.Header().Set("Pod", fmt.Sprint(pod))
		if status := r.Header.Get("Want-Status"); status != "" {
			code := 0
			fmt.Sscan(status, &code)
			w.WriteHeader(code)
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s%s\n", b.Source.Name, r.Method, r.RequestURI, map[bool]string{true: " over TLS"}[r.TLS != nil])
		lines := []string{"Host: " + r.Host}
		for name, values := range r.Header {
			for _, v := range values {
				lines = append(lines, name+": "+v)
			}
		}
		slices.Sort(lines)
		fmt.Fprintf(w, "%s\n\n%s", strings.Join(lines, "\n"), body)
	}))
	s.Config.ErrorLog = nil
	if b.UsesTLS() || b.Protocol == config.ProtocolTCP {
		s.StartTLS()
	} else {
		s.Start()
	}
	return s
}

// reaction is a response: its status, its headers, the first line of its body, and the body.
type reaction struct {
	*http.Response
	first, body string
}

// ask sends a request to a listener. request is "METHOD http://HOST/path" or https, and then lines of headers.
func (i *ingressRig) ask(request string) reaction {
	i.Helper()
	first, headers, _ := strings.Cut(request, "\n")
	method, url, _ := strings.Cut(first, " ")
	scheme, rest, _ := strings.Cut(url, "://")
	host, path, _ := strings.Cut(rest, "/")
	listener := map[string]string{"http": "web", "https": "websecure"}[scheme]
	c, err := net.Dial("tcp", i.addrs[listener])
	if err != nil {
		i.Fatal(err)
	}
	defer c.Close()
	if scheme == "https" {
		c = tls.Client(c, &tls.Config{ServerName: host, InsecureSkipVerify: true})
	}
	if headers != "" {
		headers = strings.ReplaceAll(strings.TrimSpace(headers), "\n", "\r\n") + "\r\n"
	}
	fmt.Fprintf(c, "%s /%s HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n", method, path, host, headers)
	res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		i.Fatalf("%s: %v", request, err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		i.Fatalf("%s: %v", request, err)
	}
	line, _, _ := strings.Cut(string(body), "\n")
	return reaction{res, line, string(body)}
}

// short is the status, and what else matters: Location of a redirect, or the first line of the body.
func (a reaction) short() string {
	if location := a.Header.Get("Location"); location != "" {
		return fmt.Sprintf("%d %s", a.StatusCode, location)
	}
	if a.StatusCode != 200 {
		return fmt.Sprint(a.StatusCode)
	}
	return a.first
}

// ingress makes a manifest. rules are "HOST PATHTYPE PATH SERVICE" each, and annotations "name: value" of ingress-nginx.
func ingress(name string, age int, rules string, annotations ...string) string {
	namespace, name, _ := strings.Cut(name, "/")
	var b strings.Builder
	fmt.Fprintf(&b, "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: %s, namespace: %s, creationTimestamp: \"2026-01-%02dT00:00:00Z\", annotations: {", name, namespace, age)
	tls := ""
	for _, a := range annotations {
		key, value, _ := strings.Cut(a, ": ")
		if key == "tls" {
			tls = fmt.Sprintf("tls: [{hosts: [%s]}], ", value)
			continue
		}
		fmt.Fprintf(&b, "nginx.ingress.kubernetes.io/%s: %q, ", key, value)
	}
	fmt.Fprintf(&b, "}}, spec: {ingressClassName: weir, %srules: [", tls)
	services := map[string]bool{}
	for rule := range strings.SplitSeq(rules, ", ") {
		words := strings.Fields(rule)
		host := strings.TrimPrefix(words[0], "-")
		fmt.Fprintf(&b, "{host: %q, http: {paths: [{pathType: %s, path: %q, backend: {service: {name: %s, port: {number: 80}}}}]}},", host, words[1], words[2], words[3])
		services[words[3]] = true
	}
	b.WriteString("]}}\n---\n")
	for s := range services {
		fmt.Fprintf(&b, "{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s}, spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}}\n---\n", s, namespace)
	}
	return b.String()
}

// handshake opens a TLS connection for a host.
func (i *ingressRig) handshake(host string) error {
	i.Helper()
	c, err := net.Dial("tcp", i.addrs["websecure"])
	if err != nil {
		i.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	return tls.Client(c, &tls.Config{ServerName: host, InsecureSkipVerify: true}).Handshake()
}
