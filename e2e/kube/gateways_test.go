//go:build linux

package kube

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// featured is a configuration that serves Gateways, with policies that they can choose.
var featured = strings.Replace(besideGateways, "class: '@stage'", "class: '@stage'\n  operator_namespaces: ['@stage']", 1) + `proxy_protocol: {local: {rules: [{from: [10.10.0.0/16], header: optional}]}}
tls_policies: {modern: {min_version: "1.3"}}
`

// gatewayAddress waits until a Gateway has an address, and returns it.
func (s *stage) gatewayAddress(name string) (address string) {
	s.Helper()
	eventually(s, "the Gateway "+name+" has an address", func() error {
		if address = s.kubectl("get", "gateway", name, "--namespace="+s.name, "--output=jsonpath={.status.addresses[0].value}"); address == "" {
			return errors.New("it has none")
		}
		return nil
	})
	return address
}

// wantCondition waits until a condition of the first parent of an HTTPRoute has a status, and returns its
// reason and message.
func (s *stage) wantCondition(route, kind, status string) (text string) {
	s.Helper()
	eventually(s, fmt.Sprintf("the condition %s of the HTTPRoute %s is %s", kind, route, status), func() error {
		path := fmt.Sprintf(`--output=jsonpath={.status.parents[0].conditions[?(@.type==%q)]['status','reason','message']}`, kind)
		if text = s.kubectl("get", "httproute", route, "--namespace="+s.name, path); !strings.HasPrefix(text, status+" ") {
			return fmt.Errorf("it is %q", text)
		}
		return nil
	})
	return text
}

// speak opens a connection, sends text, and returns the first lines of the answer.
func speak(address, text string, lines int) (all []string, err error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprint(c, text)
	for in := bufio.NewReader(c); len(all) < lines; {
		line, err := in.ReadString('\n')
		if err != nil {
			return all, err
		}
		all = append(all, strings.TrimSpace(line))
	}
	return all, nil
}

// TestGatewayFeatures: what weir adds to the Gateway API by annotations and experimental fields, with an API server that
// checks the objects.
func TestGatewayFeatures(t *testing.T) {
	s := newStage(t)
	s.applyGatewayAPI()
	s.apply(deployment("a", 1), s.secret("web", "web", "*.example"))
	s.rolledOut("a")
	gateway := func(more string) string {
		return `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge, annotations: {weirproxy.github.io/proxy-protocol: local, weirproxy.github.io/ssh: "a:22"}}, spec: {gatewayClassName: '@stage', listeners: [
  {name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}},
  {name: lines, port: 2222, protocol: TCP, allowedRoutes: {namespaces: {from: All}}},
  {name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: web}], options: {weirproxy.github.io/tls-policy: modern}}}` + more + `]}}
`
	}
	s.apply(gateway("") + `
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: open}, spec: {parentRefs: [{name: edge}], hostnames: [open.example, '*.issued.example'], rules: [{backendRefs: [{name: a, port: 80}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: guarded}, spec: {parentRefs: [{name: edge}], hostnames: [guarded.example], rules: [
  {matches: [{path: {value: /in}}], filters: [{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: a, port: 80}, http: {allowedResponseHeaders: [X-User]}}}], backendRefs: [{name: a, port: 80}]},
  {matches: [{path: {value: /none}}], filters: [{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: missing, port: 80}, http: {path: /check}}}], backendRefs: [{name: a, port: 80}]}]}}
`)
	config, resolve := s.issuers()
	w := s.weir(featured + config)
	address := s.gatewayAddress("edge")
	// The authority must find the address at its first attempt: weir waits before the second one.
	resolve(address)
	s.apply(gateway(`,
  {name: by-http, port: 443, protocol: HTTPS, hostname: one.issued.example, tls: {options: {weirproxy.github.io/issuer: by-http}}},
  {name: by-tls, port: 443, protocol: HTTPS, hostname: two.issued.example, tls: {options: {weirproxy.github.io/issuer: by-tls}}},
  {name: lost, port: 443, protocol: HTTPS, hostname: lost.issued.example, tls: {options: {weirproxy.github.io/issuer: by-http}}},
  {name: refused, port: 443, protocol: HTTPS, hostname: three.example, tls: {options: {weirproxy.github.io/issuer: by-tls}}}`))
	s.wantCondition("open", "Accepted", "True")
	c := client(address, false)
	get := func(url string, status int) (a answer) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s answers %d", url, status), func() (err error) {
			if a, err = ask(c, url); err == nil && a.Status != status {
				err = errors.New(a.String())
			}
			return err
		})
		return a
	}
	get("http://open.example/", 200)

	// The address of a PROXY header becomes the client's.
	eventually(t, "a PROXY header counts", func() error {
		lines, err := speak(address+":80", "PROXY TCP4 192.0.2.7 192.0.2.8 4711 80\r\nGET / HTTP/1.1\r\nHost: open.example\r\nConnection: close\r\n\r\n", 40)
		if text := strings.Join(lines, "\n"); !strings.Contains(text, "192.0.2.7") {
			return fmt.Errorf("%v: %s", err, text)
		}
		return nil
	})

	// The policy of the file refuses TLS 1.2, and SSH goes to its Service.
	get("https://open.example/", 200)
	if conn, err := tls.Dial("tcp", address+":443", &tls.Config{InsecureSkipVerify: true, ServerName: "open.example", MaxVersion: tls.VersionTLS12}); err == nil {
		conn.Close()
		t.Error("weir accepts TLS 1.2")
	}
	eventually(t, "SSH is served beside HTTPS", func() error {
		lines, err := speak(address+":443", "SSH-2.0-test\r\n", 1)
		if err == nil && !strings.HasPrefix(lines[0], "SSH-2.0-standin a-") {
			err = fmt.Errorf("it says %q", lines)
		}
		return err
	})

	s.wantIssued(address, "one.issued.example")
	s.wantIssued(address, "two.issued.example")
	programmed := func(listener string) string {
		return s.kubectl("get", "gateway", "edge", "--namespace="+s.name, fmt.Sprintf(`--output=jsonpath={.status.listeners[?(@.name==%q)].conditions[?(@.type=="Programmed")]['status','reason','message']}`, listener))
	}
	eventually(t, "the status says which certificates there are", func() error {
		for listener, want := range map[string]string{"by-http": "True Programmed weir serves", "by-tls": "True Programmed weir serves",
			"lost": "False CertificateNotIssued The issuer by-http has not issued the certificate of lost.issued.example: the certificate authority answered: "} {
			if text := programmed(listener); !strings.HasPrefix(text, want) {
				return fmt.Errorf("the condition of %s is %q", listener, text)
			}
		}
		return nil
	})
	eventually(t, "the issuer refuses a host", func() error {
		if text := s.kubectl("get", "gateway", "edge", "--namespace="+s.name, `--output=jsonpath={.status.listeners[?(@.name=="refused")].conditions[?(@.type=="ResolvedRefs")].reason}`); text != "IssuerNotAllowed" {
			return fmt.Errorf("the reason is %q", text)
		}
		return nil
	})

	// A server decides. Clients cannot set the header that it may set, and without a server the rule is closed.
	req, err := http.NewRequest("GET", "http://guarded.example/in", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-User", "me")
	get("http://guarded.example/in", 200)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a answer
	if err := a.take(resp); err != nil || a.Status != 200 || a.Headers.Get("X-User") != "" {
		t.Errorf("the Pod got %v: %v, %v", a.Headers, a, err)
	}
	get("http://guarded.example/none", 500)

	s.wantSlice("edge-"+s.name, address)
	s.wantContest()
	s.wantSentHeaders(address)
	s.wantLocalEndpoints(w)
	s.wantServedBeforeTold(address)
	s.wantBalancedGateway()
	s.wantSharedGateways()
	if !w.running() {
		t.Error("weir has ended")
	}
}

// issuers starts an authority, and returns a configuration with two issuers that order from it. The authority
// sends challenges to the address given to resolve; lost.issued.example has no address.
func (s *stage) issuers() (config string, resolve func(address string)) {
	s.Helper()
	pebble, err := exec.LookPath("pebble")
	if err != nil {
		leaveOut(s.T, "pebble is not installed (go install github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1)")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0") // pebble asks over TCP
	if err != nil {
		s.Fatal(err)
	}
	var to atomic.Value
	names := &dns.Server{Listener: ln, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		if ip, ok := to.Load().(net.IP); ok && r.Question[0].Qtype == dns.TypeA && r.Question[0].Name != "lost.issued.example." {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: ip})
		}
		w.WriteMsg(m)
	})}
	go names.ActivateAndServe()
	s.Cleanup(func() { names.Shutdown() })
	ca := startPebble(s, pebble, "PEBBLE_AUTHZREUSE=0", "-dnsserver", ln.Addr().String())
	config = "storage: '@dir/storage'\ncertificates:\n"
	for _, by := range []string{"http-01", "tls-alpn-01"} {
		config += fmt.Sprintf("- {acme: {directory: 'https://127.0.0.1:14000/dir', ca: %s, challenges: [%s], issuer: {name: by-%s, allow: [{namespaces: ['@stage'], hosts: ['*.issued.example']}]}}}\n", ca, by, by[:strings.IndexByte(by, '-')])
	}
	return config, func(address string) { to.Store(net.ParseIP(address)) }
}

// wantIssued waits until a listener serves a host with a certificate of the authority.
func (s *stage) wantIssued(address, host string) {
	s.Helper()
	eventually(s, "there is a certificate for "+host, func() error {
		conn, err := tls.Dial("tcp", address+":443", &tls.Config{InsecureSkipVerify: true, ServerName: host})
		if err != nil {
			return err
		}
		defer conn.Close()
		leaf := conn.ConnectionState().PeerCertificates[0]
		if err := leaf.VerifyHostname(host); err != nil || !strings.HasPrefix(leaf.Issuer.CommonName, "Pebble Intermediate") {
			return fmt.Errorf("it has the certificate of %v by %v: %w", leaf.DNSNames, leaf.Issuer, err)
		}
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 200 ") {
			return fmt.Errorf("it answers %q, %v", line, err)
		}
		return nil
	})
}

// wantSlice waits until the Service of a Gateway has an EndpointSlice with the address.
func (s *stage) wantSlice(service, address string) {
	s.Helper()
	eventually(s, "the Service of the Gateway has its address", func() error {
		if got := s.kubectl("get", "endpointslices", "--namespace="+s.name, "--selector=kubernetes.io/service-name="+service, "--output=jsonpath={.items[*].endpoints[*].addresses[*]}"); got != address {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

// wantContest checks that a host of the HTTPRoute open stays its own beside an Ingress of another namespace, and
// that both objects say so.
func (s *stage) wantContest() {
	s.Helper()
	other := s.stranger()
	other.apply(ingress("late", "open.example", "/", "a", ""))
	if text := other.wantEvent("Ingress", "late", "HostTaken"); !strings.Contains(text, "HTTPRoute "+s.name+"/open") {
		s.Errorf("the event says %q", text)
	}
	if text := s.wantCondition("open", "weirproxy.github.io/HostContested", "True"); !strings.Contains(text, "Ingress "+other.name+"/late") {
		s.Errorf("the condition says %q", text)
	}
	other.delete("ingress", "late")
	eventually(s, "the condition goes", func() error {
		if text := s.kubectl("get", "httproute", "open", "--namespace="+s.name, "--output=jsonpath={.status.parents[0].conditions[*].type}"); strings.Contains(text, "HostContested") {
			return errors.New(text)
		}
		return nil
	})
}

// toLines is a TCPRoute of the port 2222 of the Gateway edge to a Service of the same namespace.
func toLines(gatewayNamespace, service string) string {
	return fmt.Sprintf(`{apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {name: lines}, spec: {parentRefs: [{name: edge, namespace: %s, sectionName: lines}], rules: [{backendRefs: [{name: %s, port: 22}]}]}}`, gatewayNamespace, service)
}

// wantSentHeaders checks that weir sends a PROXY header to a Service with the annotation, as long as it has it. Another
// Service with the same Pods gets none. The Pods send back each line that they get.
func (s *stage) wantSentHeaders(address string) {
	s.Helper()
	s.apply(strings.Replace(service("told"), "app: told", "app: a", 1), toLines(s.name, "told"))
	s.kubectl("annotate", "--namespace="+s.name, "service/told", "weirproxy.github.io/send-proxy-protocol=v1")
	const header = "PROXY TCP4 192.0.2.7 192.0.2.8 4711 2222"
	want := func(what, echo string) {
		s.Helper()
		eventually(s, what, func() error {
			lines, err := speak(address+":2222", header+"\r\nhello\r\n", 2)
			if err == nil && (!strings.HasPrefix(lines[0], "SSH-2.0-standin a-") || !strings.HasSuffix(lines[1], ": "+echo)) {
				err = fmt.Errorf("it says %q", lines)
			}
			return err
		})
	}
	want("the Service gets the PROXY header", header)
	s.kubectl("annotate", "--namespace="+s.name, "service/told", "weirproxy.github.io/send-proxy-protocol-")
	want("without the annotation the Service gets no PROXY header", "hello")
	s.kubectl("annotate", "--namespace="+s.name, "service/told", "weirproxy.github.io/send-proxy-protocol=v1")
	want("the Service gets the PROXY header again", header)
	s.apply(toLines(s.name, "a"))
	want("the Service without the annotation gets no PROXY header", "hello")
	s.delete("tcproute/lines")
}

// wantLocalEndpoints checks that the annotation require-local of a Service of a route counts in a namespace of
// operators, and nowhere else.
func (s *stage) wantLocalEndpoints(w *weir) {
	s.Helper()
	w.wantVerdict(200, "")
	other := s.stranger()
	other.apply(service("absent"), toLines(s.name, "absent")) // no Pod
	s.kubectl("annotate", "--namespace="+other.name, "service/absent", "weirproxy.github.io/require-local=true")
	if text := other.wantEvent("Service", "absent", "OperatorOnly"); !strings.Contains(text, "kubernetes.operator_namespaces") {
		s.Errorf("the event says %q", text)
	}
	w.wantMetric(1, "weir_kubernetes_faults", "kind", "services", "reason", "OperatorOnly")
	w.wantVerdict(200, "")
	other.delete("tcproute/lines")

	s.apply(service("absent"), toLines(s.name, "absent"))
	s.kubectl("annotate", "--namespace="+s.name, "service/absent", "weirproxy.github.io/require-local=true")
	w.wantVerdict(503, s.name+"/absent")
	s.delete("tcproute/lines") // an annotation counts only while a route uses the Service
	w.wantVerdict(200, "")
	s.apply(toLines(s.name, "absent"))
	w.wantVerdict(503, s.name+"/absent")
	s.kubectl("annotate", "--namespace="+s.name, "service/absent", "weirproxy.github.io/require-local-")
	w.wantVerdict(200, "")
	s.delete("tcproute/lines")
}

// wantServedBeforeTold changes an HTTPRoute many times. As soon as its status says that a generation is accepted, requests get
// the answer of this generation.
func (s *stage) wantServedBeforeTold(address string) {
	s.Helper()
	s.apply(`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: turns}, spec: {parentRefs: [{name: edge, sectionName: web}], hostnames: [turns.example], rules: [{backendRefs: [{name: a, port: 80}]}]}}`)
	s.wantCondition("turns", "Accepted", "True")
	kept, path := client(address, false), "/apis/gateway.networking.k8s.io/v1/namespaces/"+s.name+"/httproutes"
	for turn := range 60 {
		var route acceptedRoute
		body := fmt.Sprintf(`{"spec":{"rules":[{"matches":[{"path":{"value":"/turn-%[1]d"}},{"path":{"value":"/any"}}],"filters":[{"type":"RequestHeaderModifier","requestHeaderModifier":{"set":[{"name":"X-Turn","value":"%[1]d"}]}}],"backendRefs":[{"name":"a","port":80}]}]}}`, turn)
		if err := s.request("PATCH", path+"/turns", body, &route); err != nil {
			s.Fatal(err)
		}
		if err := s.awaitAccepted(path, route); err != nil {
			s.Fatalf("turn %d: %v", turn, err)
		}
		for _, c := range []*http.Client{kept, client(address, false)} {
			for _, at := range []string{fmt.Sprintf("/turn-%d", turn), "/any"} {
				if a, err := ask(c, "http://turns.example"+at); err != nil || a.Status != 200 || a.Headers.Get("X-Turn") != fmt.Sprint(turn) {
					s.Errorf("turn %d: %s is answered with %v, X-Turn %q, %v", turn, at, a, a.Headers.Get("X-Turn"), err)
				}
			}
		}
	}
	s.delete("httproute/turns")
}

// acceptedRoute has the fields of an HTTPRoute that say whether it is accepted.
type acceptedRoute struct {
	Metadata struct {
		Name, ResourceVersion string
		Generation            int64
	}
	Status struct {
		Parents []struct {
			Conditions []struct {
				Type, Status       string
				ObservedGeneration int64
			}
		}
	}
}

// awaitAccepted watches a route from the given state on, and returns as soon as its generation is accepted.
func (s *stage) awaitAccepted(path string, route acceptedRoute) error {
	resp, err := s.api.Get("https://" + apiAddress + ":6443" + path + "?watch=1&fieldSelector=metadata.name%3D" + route.Metadata.Name + "&resourceVersion=" + route.Metadata.ResourceVersion)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for in := json.NewDecoder(resp.Body); ; {
		var change struct{ Object acceptedRoute }
		if err := in.Decode(&change); err != nil {
			return fmt.Errorf("the generation %d is not accepted: %w", route.Metadata.Generation, err)
		}
		for _, p := range change.Object.Status.Parents {
			for _, c := range p.Conditions {
				if c.Type == "Accepted" && c.Status == "True" && c.ObservedGeneration == route.Metadata.Generation {
					return nil
				}
			}
		}
	}
}

// gatewayRoute is a route of the Gateway edge to the Service a, for the path of its name.
func gatewayRoute(name string) string {
	return `{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: ` + name + `}, spec: {parentRefs: [{name: edge}], rules: [{matches: [{path: {value: /` + name + `}}], backendRefs: [{name: a, port: 80}]}]}}`
}

const plainGateway = `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge}, spec: {gatewayClassName: '@stage', listeners: [{name: web, port: 80, protocol: HTTP}]}}`

// wantRoute waits until a route of the Gateway edge is accepted, and its path answered at the address of the
// Gateway. It returns the address.
func (s *stage) wantRoute(route string) (address string) {
	s.Helper()
	address = s.gatewayAddress("edge")
	s.wantCondition(route, "Accepted", "True")
	eventually(s, "the route "+route+" is served", func() error { return answers(control, "http://"+address+"/"+route) })
	return address
}

// TestGatewaysComeAndGo: weir serves Gateways as soon as the cluster has their kinds, goes on without the kinds and
// without the API server, and a second replica takes over the addresses and the statuses when the leader dies.
func TestGatewaysComeAndGo(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("web", "web.example", "/", "a", ""))
	s.rolledOut("a")
	first := s.newWeir("node-a", besideGateways).launch().ready()
	first.wantStatus("http://web.example/", 200)
	remove := s.applyGatewayAPI()
	s.apply(plainGateway, gatewayRoute("one"))
	address := s.wantRoute("one")

	// The first replica has the address until it dies.
	second := s.newWeir("node-b", besideGateways).launch().ready()
	first.kill()
	s.apply(gatewayRoute("two"))
	if now := s.wantRoute("two"); now != address {
		t.Errorf("the Gateway had the address %s, and has %s", address, now)
	}
	s.wantRoute("one")

	// While the API server is away, weir serves the objects that it has read.
	t.Cleanup(func() {
		if !s.parts["kube-apiserver"].running() {
			s.startAPI()
		}
	})
	s.refused = true // a new API server refuses all requests until it has loaded its RBAC rules
	s.parts["kube-apiserver"].kill()
	eventually(t, "weir tells of the outage", func() error {
		if second.metric("weir_kubernetes_watch_errors_total") == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	if err := answers(control, "http://"+address+"/two"); err != nil {
		t.Errorf("without the API server: %v", err)
	}
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
	s.apply(gatewayRoute("three"))
	s.wantRoute("three")

	// Without the kinds there are no Gateways, and Ingresses are served as before.
	remove()
	eventually(t, "weir gives the address up", func() error {
		if answers(control, "http://"+address+"/one") == nil {
			return errors.New("it still answers")
		}
		return nil
	})
	second.wantStatus("http://web.example/", 200)
	s.applyGatewayAPI()
	s.apply(plainGateway, gatewayRoute("four"))
	s.wantRoute("four")
}
