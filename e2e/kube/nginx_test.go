//go:build linux

package kube

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// TestAgainstNginx gives the same Ingresses to weir and to ingress-nginx's own code, runs real nginx with the
// configuration that this code makes, and sends the same requests to both. Each difference must be listed in
// testdata/nginx, with a reason; -update lists what is found. The file README.md there describes the files.
func TestAgainstNginx(t *testing.T) {
	againstNginx(t, "testdata/nginx", nil, "", "")
}

// TestAgainstNginxWithConfigMap is TestAgainstNginx with keys of the controller's ConfigMap, which weir reads too.
func TestAgainstNginxWithConfigMap(t *testing.T) {
	const folder = "testdata/nginx-configmap"
	text, err := os.ReadFile(filepath.Join(folder, "data"))
	if err != nil {
		t.Fatal(err)
	}
	data := map[string]string{}
	if err := yaml.UnmarshalStrict(text, &data); err != nil {
		t.Fatal(err)
	}
	againstNginx(t, folder, data, "errors", ", ingress_nginx: {config_map: ingress-nginx/ingress-nginx-controller, default_backend: '@stage/errors'}")
}

// againstNginx runs the suites of a folder. data are keys of the controller's ConfigMap, service is its default backend
// (empty: none), and more is the rest of the section kubernetes.
func againstNginx(t *testing.T, folder string, data map[string]string, service, more string) {
	s := newStage(t)
	suites := readSuites(t, folder)
	n := s.nginx(suites, data, cmp.Or(service, "-"))
	w := s.weir(fmt.Sprintf(weirBesideNginx, more))
	asked := 0
	for _, suite := range suites {
		for _, c := range suite.cases {
			for _, r := range c.requests {
				asked++
				inNginx, inWeir := r.send(n.address), r.send(w.address)
				d := differences(inNginx, inWeir)
				for i := range d {
					d[i] = strings.ReplaceAll(d[i], s.name, "@stage")
				}
				if len(d) > 0 {
					suite.found = append(suite.found, found{c: c, request: r.text, differences: d})
				}
			}
		}
	}
	t.Logf("%d requests to each of nginx and weir", asked)
	judge(t, folder, suites)
	if t.Failed() {
		t.Logf("nginx said\n%s\n%s", n.said(4<<10), n.errors(4<<10))
	}
}

// weirBesideNginx is weir's configuration for the tests beside nginx.
const weirBesideNginx = "kubernetes: {kubeconfig: '@kubeconfig', class: '@stage', controller: k8s.io/ingress-nginx, lease: weir/@stage, default_certificate: '@stage/cert'%s}\n"

// besideNginx is the controller's ConfigMap for the tests: snippets are allowed.
var besideNginx = map[string]string{"bind-address": "10.10.2.1", "worker-processes": "1", "error-log-path": "error.log", "error-log-level": "info",
	"upstream-keepalive-connections": "0", "disable-access-log": "true", "allow-snippet-annotations": "true", "annotations-risk-level": "Critical"}

// nginx is a running nginx with the configuration that ingress-nginx makes of a stage.
type nginx struct {
	*process
	dir, address string
}

func (n *nginx) errors(most int) string {
	text, _ := os.ReadFile(filepath.Join(n.dir, "error.log"))
	return string(text[max(0, len(text)-most):])
}

// nginx applies the objects of the suites, and starts nginx with what ingress-nginx makes of them.
func (s *stage) nginx(suites []*suite, data map[string]string, service string) *nginx {
	s.Helper()
	binary, err := exec.LookPath("nginx")
	if err != nil {
		binary = "/usr/sbin/nginx"
	}
	for _, file := range []string{binary, filepath.Join(kit, "ingress-nginx-conf"), "/usr/lib/nginx/modules/ngx_http_lua_module.so", "/usr/lib/nginx/modules/ngx_http_set_misc_module.so", "/usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so"} {
		if _, err := os.Stat(file); err != nil {
			leaveOut(s.T, err.Error()+"; e2e/kube/kit/build makes ingress-nginx-conf, and Debian has nginx and its modules")
		}
	}
	own := maps.Clone(besideNginx)
	maps.Copy(own, data)
	objects := []string{configMap("controller", own), s.secret("cert", "cert", "*.example", "*.sub.example"),
		`{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: "@stage"}, spec: {controller: k8s.io/ingress-nginx}}`}
	s.Cleanup(func() { s.cluster.kubectl("", "delete", "ingressclass", s.name, "--wait=false") })
	objects = append(objects, s.echoes()...)
	objects = append(objects, clientCerts().objects...)
	for _, suite := range suites {
		for _, c := range suite.cases {
			objects = append(objects, c.objects...)
		}
	}
	s.apply(objects...)
	if data != nil {
		s.settingsOf(data)
	}

	n := &nginx{dir: s.TempDir(), address: "10.10.2.1"}
	c := exec.Command(filepath.Join(kit, "ingress-nginx-conf"), filepath.Join(s.dir, "admin.kubeconfig"), s.name, s.name, "controller", service, n.dir)
	if out, err := c.CombinedOutput(); err != nil {
		s.Fatalf("ingress-nginx made no configuration: %v\n%s", err, out)
	}
	if n.process, err = start("nginx", filepath.Join(n.dir, "log"), exec.Command(binary, "-p", n.dir+"/", "-c", filepath.Join(n.dir, "nginx.conf"))); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(n.end)
	eventually(s, "nginx accepts connections", func() error {
		if !n.running() {
			s.Fatalf("nginx ended at once:\n%s\n%s", n.said(4<<10), n.errors(4<<10))
		}
		return answers(control, "http://"+n.address+"/healthz")
	})
	return n
}

// end ends nginx with its workers. They would outlive a master that is killed, and keep ports 80 and 443.
func (n *nginx) end() {
	n.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.exited:
	case <-time.After(patience):
		n.kill()
	}
}

// configMap returns a ConfigMap.
func configMap(name string, data map[string]string) string {
	text, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": name}, "data": data})
	return string(text)
}

// The backends of the tests beside nginx. Each is a Service, and its endpoints are served by the test.
// "gone" has no endpoint.
var echoNames = []string{"app", "other", "errors", "secure", "gone"}

// echoes serves the backends, and returns their objects.
func (s *stage) echoes() (objects []string) {
	for n, name := range echoNames {
		address := fmt.Sprintf("10.244.200.%d", n+1)
		port, scheme := 80, "http"
		if name == "secure" {
			port, scheme = 443, "https"
		}
		objects = append(objects, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {ports: [{name: %s, port: %d, targetPort: 3000}]}}`, name, scheme, port))
		if name == "gone" {
			continue
		}
		objects = append(objects, fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}},
  addressType: IPv4, ports: [{name: %[2]s, port: 3000}], endpoints: [{addresses: [%[3]s], conditions: {ready: true}}]}`, name, scheme, address))
		l, err := net.Listen("tcp", address+":3000")
		if err != nil {
			s.Fatal(err)
		}
		server := &http.Server{Handler: echo(name), ErrorLog: log.New(io.Discard, "", 0)}
		if name == "secure" {
			p, err := newPair(nil, selfSigned())
			if err != nil {
				s.Fatal(err)
			}
			pair, err := tls.X509KeyPair(p.cert, p.key)
			if err != nil {
				s.Fatal(err)
			}
			server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}}
			go server.ServeTLS(l, "", "")
		} else {
			go server.Serve(l)
		}
		s.Cleanup(func() { server.Close() })
	}
	return objects
}

// An echo responds with the request that it received. The HTTP header Do-Status sets the status, and each
// Do-Header a header of the response.
type echo string

type echoed struct {
	Backend, Method, URI, Host string
	Body                       int64
	Headers                    http.Header
}

func (name echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, _ := io.Copy(io.Discard, r.Body)
	for _, line := range r.Header["Do-Header"] {
		key, value, _ := strings.Cut(line, ":")
		w.Header().Add(key, strings.TrimSpace(value))
	}
	status, err := strconv.Atoi(cmp.Or(r.Header.Get("Do-Status"), "200"))
	if err != nil {
		status = 500
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(echoed{string(name), r.Method, r.RequestURI, r.Host, n, r.Header})
}

// request is one request of a case, or the same one several times.
type request struct {
	text, host, method, target string
	https                      bool
	cert                       string // the client's certificate, see clientCerts; empty: none
	from                       string // the client's address
	times                      int
	body                       int // bytes; -1: none
	headers                    []string
}

// response is what the client and the backend saw of a request.
type response struct {
	err      error
	statuses []string // of a request that is sent several times
	status   int
	headers  http.Header
	backend  *echoed // nil: no backend responded
}

func (r *request) send(address string) response {
	if r.times <= 1 {
		return r.once(address)
	}
	var all response
	for range r.times {
		one := r.once(address)
		if one.err != nil {
			return one
		}
		all.statuses = append(all.statuses, strconv.Itoa(one.status))
	}
	return all
}

func (r *request) once(address string) (a response) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	port := "80"
	if r.https {
		port = "443"
	}
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(cmp.Or(r.from, "10.10.0.100"))}}
	c, err := from.DialContext(ctx, "tcp", net.JoinHostPort(address, port))
	if err != nil {
		return response{err: err}
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	c.SetDeadline(deadline)
	if r.https {
		settings := &tls.Config{InsecureSkipVerify: true, ServerName: r.host, NextProtos: []string{"http/1.1"}}
		if r.cert != "" {
			settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return clientCerts().named(r.cert) }
		}
		c = tls.Client(c, settings)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.method, r.target, r.host)
	for _, h := range r.headers {
		text.WriteString(h + "\r\n")
	}
	if r.body >= 0 {
		fmt.Fprintf(&text, "Content-Length: %d\r\n", r.body)
	}
	text.WriteString("\r\n")
	if r.body > 0 {
		text.WriteString(strings.Repeat("b", r.body))
	}
	if _, err := io.WriteString(c, text.String()); err != nil {
		return response{err: err}
	}
	in, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: r.method})
	if err != nil {
		return response{err: err}
	}
	defer in.Body.Close()
	body, err := io.ReadAll(in.Body)
	a = response{status: in.StatusCode, headers: in.Header, err: err}
	var seen echoed
	if json.Unmarshal(body, &seen) == nil && seen.Backend != "" {
		a.backend = &seen
	}
	if r.method == "HEAD" { // nobody can tell who responded
		a.backend = nil
	}
	return a
}

// unstable are HTTP headers that differ from request to request, or only because two programs are two.
var unstable = map[string]bool{"Date": true, "Connection": true, "Keep-Alive": true, "Content-Length": true, "Transfer-Encoding": true, "Server": true, "Do-Status": true, "Do-Header": true}

// differences compares two responses. Of those with another status it compares nothing else.
func differences(nginx, weir response) (all []string) {
	differ := func(what, inNginx, inWeir string) {
		if inNginx != inWeir {
			all = append(all, fmt.Sprintf("%s: nginx %s, weir %s", what, cmp.Or(inNginx, "none"), cmp.Or(inWeir, "none")))
		}
	}
	if nginx.err != nil || weir.err != nil {
		differ("error", failure(nginx.err), failure(weir.err))
		return all
	}
	if nginx.statuses != nil {
		differ("statuses", strings.Join(nginx.statuses, " "), strings.Join(weir.statuses, " "))
		return all
	}
	if differ("status", strconv.Itoa(nginx.status), strconv.Itoa(weir.status)); len(all) > 0 {
		return all
	}
	compare := func(what string, inNginx, inWeir http.Header) {
		names := map[string]bool{}
		for name := range inNginx {
			names[name] = true
		}
		for name := range inWeir {
			names[name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if !unstable[name] {
				differ(what+" "+name, stable(name, inNginx[name]), stable(name, inWeir[name]))
			}
		}
	}
	a, b := nginx.backend, weir.backend
	if a == nil || b == nil {
		differ("answered by", who(a), who(b))
	}
	if a != nil && b != nil {
		differ("answered by", who(a), who(b))
		differ("method", a.Method, b.Method)
		differ("URI", a.URI, b.URI)
		differ("Host", a.Host, b.Host)
		differ("length of the body", fmt.Sprint(a.Body), fmt.Sprint(b.Body))
		compare("request header", a.Headers, b.Headers)
	}
	if a == nil && b == nil { // the pages of errors are each program's own
		delete(nginx.headers, "Content-Type")
		delete(weir.headers, "Content-Type")
	}
	compare("response header", nginx.headers, weir.headers)
	return all
}

func who(e *echoed) string {
	if e == nil {
		return "the proxy"
	}
	return e.Backend
}

// failure names the kind of a network error.
func failure(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed"
	}
	return "failed"
}

// stable is the value of a header, with what is random replaced.
func stable(name string, values []string) string {
	if name == "X-Request-Id" {
		for i, v := range values {
			if len(v) >= 32 {
				values = slices.Clone(values)
				values[i] = "(random)"
			}
		}
	}
	return strings.Join(values, " | ")
}
