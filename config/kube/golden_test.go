package kube

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube/claim"
)

var update = flag.Bool("update", false, "write what the conversion makes into testdata; read the difference before committing it")

const plainConfig = `
node: node-a
listeners:
  web: {address: ":80", protocol: http}
  websecure: {address: ":443", protocol: tls}
kubernetes: {class: weir}
`

// TestGolden compares the conversion with the files in testdata. Each case has a name, a
// configuration (or none: plainConfig), manifests, and the result.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 8 {
		t.Fatalf("found %d files, %v", len(files), err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		head, rest, _ := strings.Cut(string(data), "=== ")
		out := head
		for _, text := range strings.Split("\n"+rest, "\n=== ") {
			text = strings.Trim(text, "\n") + "\n"
			title, rest, _ := strings.Cut(text, "\n")
			in, want, ok := strings.Cut(rest, "--- want\n")
			if !ok {
				t.Fatalf("%s: case %q has no line of --- want", name, title)
			}
			t.Run(filepath.Base(name)+"/"+title, func(t *testing.T) {
				got := convert(t, in)
				out += "=== " + title + "\n" + in + "--- want\n" + got + "\n"
				if !*update && strings.TrimSpace(got) != strings.TrimSpace(want) {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
		if *update {
			if err := os.WriteFile(name, []byte(strings.TrimRight(out, "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// convert shows the result for the manifests of a case.
func convert(t *testing.T, in string) string {
	t.Helper()
	text, manifests := plainConfig, in
	if rest, ok := strings.CutPrefix(in, "--- config\n"); ok {
		text, manifests, ok = strings.Cut(rest, "--- objects\n")
		if !ok {
			t.Fatal("a case with --- config needs --- objects")
		}
	}
	file := mustParse(t, text)
	m := mustRead(t, manifests)
	c := Converter{File: file}
	r := c.Convert(&m.Objects)
	checkRouting(t, file, r)

	// The order of objects does not change the result.
	reversed := m.Objects
	for _, all := range []any{&reversed.Classes, &reversed.Ingresses, &reversed.Services, &reversed.Secrets, &reversed.Namespaces} {
		v := reflect.ValueOf(all).Elem()
		v.Set(reflect.AppendSlice(reflect.Zero(v.Type()), v)) // a copy
		swap := reflect.Swapper(v.Interface())
		for i := range v.Len() / 2 {
			swap(i, v.Len()-1-i)
		}
	}
	if again := c.Convert(&reversed); !reflect.DeepEqual(again, r) {
		t.Errorf("in another order the objects become\n%+v\nnot\n%+v", again, r)
	}
	shown := show(r, m)
	slimmed := slimOf(t, m)
	if again := c.Convert(&slimmed.Objects); !reflect.DeepEqual(again, r) || show(again, slimmed) != shown {
		t.Errorf("slim objects become\n%+v\nnot\n%+v", again, r)
	}
	return shown
}

// slimOf returns slim copies of the objects.
func slimOf(t *testing.T, m *Manifests) *Manifests {
	t.Helper()
	s := *m
	s.Classes, s.Ingresses, s.Services, s.Secrets = slimAll(t, m.Classes), slimAll(t, m.Ingresses), slimAll(t, m.Services), slimAll(t, m.Secrets)
	s.Namespaces, s.Slices = slimAll(t, m.Namespaces), slimAll(t, m.Slices)
	if m.TCP != nil {
		s.TCP = slimAll(t, []*corev1.ConfigMap{m.TCP})[0]
	}
	return &s
}

func slimAll[T runtime.Object](t testing.TB, all []T) []T {
	t.Helper()
	s := make([]T, 0, len(all))
	for _, o := range all {
		one, err := slim(o.DeepCopyObject())
		if err != nil {
			t.Fatal(err)
		}
		s = append(s, one.(T))
	}
	return s
}

func mustParse(t testing.TB, text string) *config.Config {
	t.Helper()
	c, err := file.Parse("weir.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	return c
}

func mustRead(t testing.TB, manifests string) *Manifests {
	t.Helper()
	var m Manifests
	if err := m.Read(strings.NewReader(manifests)); err != nil {
		t.Fatalf("%v in\n%s", err, manifests)
	}
	for _, one := range m.ConfigMaps {
		if one.Name == "controller" {
			m.Controller = one
		} else if m.TCP == nil {
			m.TCP = one
		}
	}
	m.UseMaps()
	for _, s := range m.Secrets {
		if names := s.StringData["names"]; names != "" {
			cert, key := certify(t, strings.Fields(names)...)
			s.Data = map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}
		}
		for name, value := range s.StringData { // as the API server does
			if name != "names" {
				if s.Data == nil {
					s.Data = map[string][]byte{}
				}
				s.Data[name] = []byte(value)
			}
		}
	}
	return &m
}

// certify makes a certificate for names.
func certify(t testing.TB, names ...string) (cert, key []byte) {
	t.Helper()
	cert, key, err := newPair(names...)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func newPair(names ...string) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// show writes a Routing and the endpoints of its backends, one per line.
func show(r *Routing, m *Manifests) string {
	var b strings.Builder
	line := func(format string, args ...any) {
		b.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
	}
	for _, p := range r.HeaderPolicies {
		line("policy %s: %v %s", p.Name, p.Rules, p.HeaderTimeout)
	}
	for _, p := range r.Policies {
		line("TLS policy %s: %s by %s, depth %d, lists: %t, TLS %x to %x", p.Name, p.ClientAuth, p.ClientAuthCA, p.ClientAuthDepth, len(p.ClientAuthLists) > 0, p.MinVersion, p.MaxVersion)
	}
	for _, l := range r.Listeners {
		line("listener %s: %s %s %s", l.Name, l.Protocol, l.Address, l.HeaderPolicy)
	}
	for _, route := range r.Routes {
		line("%s", showRoute(route))
	}
	for i := range r.Backends {
		showBackend(line, r.Backends[i], m)
	}
	showAuth(line, r)
	if r.Default != nil {
		line("default certificate %s: %s", r.Default.Pair.Name, strings.Join(r.Default.Pair.Hosts, " "))
	}
	for _, c := range r.Certificates {
		state := ""
		if len(c.Pair.CertPEM) == 0 {
			state = " (refused)"
		}
		line("certificate %s: %s%s", c.Pair.Name, strings.Join(c.Pair.Hosts, " "), state)
	}
	if len(r.RequireLocal) > 0 {
		line("require_local %s", strings.Join(r.RequireLocal, " "))
	}
	for _, e := range r.Events {
		name := strings.TrimPrefix(e.Object.Namespace+"/"+e.Object.Name, "/")
		line("event %s %s %s: %s", e.Object.Kind, name, e.Reason, e.Message)
	}
	return b.String()
}

func showRoute(r *config.Route) string {
	var where []string
	for _, h := range hostsOf(r) {
		for _, p := range pathsOf(r) {
			where = append(where, h+" "+p.String())
		}
	}
	to := r.Backend
	for _, b := range r.Backends {
		to += fmt.Sprintf("%s:%d ", b.Name, b.Weight)
	}
	if r.Canary != nil {
		to += fmt.Sprintf("canary %+v", *r.Canary)
	}
	if r.Redirect != nil {
		to = fmt.Sprintf("https (%d, port %d)", r.Redirect.Status, r.Redirect.Port)
		if d := r.Redirect; d.Moves() {
			to = fmt.Sprintf("redirect to %s%s%s (%d)", d.To, d.Host, d.Path, d.Status)
			if d.Scheme != "" {
				to = fmt.Sprintf("redirect to %s://%s port %d %s (%d)", d.Scheme, d.Host, d.Port, d.Path, d.Status)
			}
		}
		if r.Backend != "" {
			to += ", or " + r.Backend
		}
	}
	if slices.ContainsFunc(r.Paths, func(p config.Path) bool { return p.Closed }) {
		to += " (closed)"
	}
	if r.Untraced {
		to += " untraced"
	}
	for _, m := range r.Mirror {
		to += fmt.Sprintf(" mirror %+v", m)
	}
	if r.Request != nil && len(r.Request.Set) > 0 {
		to += fmt.Sprintf(" request %v", r.Request.Set)
	}
	if f := r.Fallback; f != nil {
		to += fmt.Sprintf(" or %s %+v", f.Backend, f.Report)
	}
	if r.Sticky != nil {
		to += fmt.Sprintf(" sticky %+v", *r.Sticky)
	}
	if w := r.Rewrite; w != nil {
		to += strings.TrimSuffix(fmt.Sprintf(" path %s host %s", w.Path, w.Host), " host ")
	}
	if r.MaxBody != 0 {
		to += fmt.Sprintf(" max_body %d", r.MaxBody)
	}
	if r.HSTS != nil {
		to += fmt.Sprintf(" hsts %v", *r.HSTS)
	}
	if e := r.Response; e != nil {
		to += fmt.Sprintf(" without %v", e.Remove)
	}
	to += showGuards(r)
	if r.ClientCert != nil {
		to += fmt.Sprintf(" certificates %+v", *r.ClientCert)
	}
	if r.Clients != nil {
		to += fmt.Sprintf(" clients %v not %v", r.Clients.Allow, r.Clients.Deny)
	}
	policy := ""
	if r.TLSPolicy != config.DefaultTLSPolicy {
		policy = " policy " + r.TLSPolicy
	}
	return fmt.Sprintf("route %s: %s on %s%s -> %s", r.Name, strings.TrimSpace(strings.Join(where, ", ")), strings.Join(r.Listeners, "+"), policy, to)
}

func showBackend(line func(string, ...any), b *Backend, m *Manifests) {
	marks := string(b.Protocol)
	if b.PreferLocal {
		marks += " prefer_local"
	}
	if b.SendProxy > 0 {
		marks += fmt.Sprintf(" send_proxy v%d", b.SendProxy)
	}
	if b.UsesTLS() && b.Protocol == config.ProtocolGRPC {
		marks += " over TLS"
	}
	if b.Balance != config.LeastRequests {
		marks += fmt.Sprint(" ", b.Balance)
	}
	if b.Host != "" {
		marks += " host " + b.Host
	}
	if b.Sticky != nil {
		marks += " sticky"
	}
	if b.TLS.InsecureSkipVerify {
		marks += " unverified"
	}
	if b.RampUp != defaultRampUp && b.Source.Name != "" {
		marks += " ramp_up " + b.RampUp.String()
	}
	if b.HTTP2 != (b.Protocol == config.ProtocolHTTPS) {
		marks += " http2 on its own"
	}
	line("backend %s: %s", b.Name, marks)
	for _, e := range endpointsOf(b, m) {
		terminating := ""
		if e.Terminating {
			terminating = "terminating"
		}
		if !e.Foreign {
			terminating += " of ours"
		}
		line("  %s %s %s %s", e.Address, e.Node, e.Zone, terminating)
	}
}

func endpointsOf(b *Backend, m *Manifests) []config.Endpoint {
	var s *corev1.Service
	for _, one := range m.Services {
		if one.Namespace == b.Source.Namespace && one.Name == b.Source.Name {
			s = one
		}
	}
	of := slices.DeleteFunc(slices.Clone(m.Slices), func(e *discoveryv1.EndpointSlice) bool {
		return e.Namespace != b.Source.Namespace || e.Labels[discoveryv1.LabelServiceName] != b.Source.Name
	})
	return Endpoints(b, s, of)
}

// checkObject checks that a route names the object from which it was made, as its own name does.
func checkObject(t testing.TB, file *config.Config, r *config.Route) {
	t.Helper()
	of := []string{r.Namespace, r.Ingress, r.IngressHost}
	if slices.ContainsFunc(file.Routes, func(other *config.Route) bool { return other.Name == r.Name }) {
		return
	}
	isPort := strings.Count(r.Name, "/") == 2 && r.IngressHost == "" // NAMESPACE/CONFIGMAP/PORT
	if isPort {
		of = of[:1]
	}
	if !strings.HasPrefix(r.Name+"/", strings.Join(of, "/")+"/") {
		t.Errorf("route %s names its object %q", r.Name, of)
	}
}

// checkRouting checks properties that every Routing must have.
func checkRouting(t testing.TB, file *config.Config, r *Routing) {
	t.Helper()
	merged := r.Merge(file, nil)
	protocols := map[string]config.Protocol{}
	for _, l := range merged.Listeners {
		if protocols[l.Name] != "" {
			t.Errorf("two listeners are called %s", l.Name)
		}
		protocols[l.Name] = l.Protocol
		for _, other := range merged.Listeners {
			if other.Name != l.Name && config.Collide(l.Network, l.Address, other.Network, other.Address) {
				t.Errorf("the listeners %s and %s have one address, %s", l.Name, other.Name, l.Address)
			}
		}
	}
	backends := map[string]config.Protocol{}
	for _, b := range merged.Backends {
		if backends[b.Name] != "" {
			t.Errorf("two backends are called %s", b.Name)
		}
		backends[b.Name] = b.Protocol
		if b.Timeouts.Connect == 0 || b.ResolveInterval == 0 || b.Queue.Timeout == 0 || b.Retries.Attempts == 0 {
			t.Errorf("backend %s lacks defaults: %+v", b.Name, b)
		}
	}
	for _, name := range r.RequireLocal {
		if backends[name] == "" {
			t.Errorf("a ready endpoint is required of %s, which is no backend", name)
		}
	}
	known := map[string]bool{}
	for _, p := range merged.TLSPolicies {
		if known[p.Name] {
			t.Errorf("two TLS policies are called %s", p.Name)
		}
		known[p.Name] = true
	}
	policies := map[hostOn]string{}
	claimed := map[matchOn]string{}
	for _, route := range merged.Routes {
		if route.FirstBackend() == "" && !route.Answers() || route.Name == "" || len(route.Listeners) == 0 {
			t.Errorf("route %+v", route)
		}
		checkObject(t, file, route)
		for _, l := range route.Listeners {
			if protocols[l] == "" {
				t.Errorf("route %s is on %s, which is no listener", route.Name, l)
			}
			tcp := backends[route.FirstBackend()] == config.ProtocolTCP
			raw := protocols[l] == config.ProtocolTCP || route.FirstBytes != "" || route.TLS == config.TLSPassthrough
			if !route.OnlyRedirects() && (raw && !tcp || tcp && !raw && protocols[l] != config.ProtocolTLS) {
				t.Errorf("route %s on %s leads to backend %s, which speaks %q", route.Name, l, route.Backend, backends[route.Backend])
			}
			for _, h := range hostsOf(route) {
				if on := (hostOn{l, h}); protocols[l] == config.ProtocolTLS && route.FirstBytes == "" {
					if !known[route.TLSPolicy] {
						t.Errorf("route %s has the TLS policy %s, which does not exist", route.Name, route.TLSPolicy)
					}
					does := fmt.Sprint(route.TLSPolicy, " ", route.TLS, ", a tunnel: ", tcp)
					if policies[on] != "" && policies[on] != does {
						t.Errorf("host %q has %s and %s on %s", h, policies[on], does, l)
					}
					policies[on] = does
				}
				for _, p := range pathsOf(route) {
					if route.FirstBytes != "" || route.Match != nil {
						continue
					}
					c := matchOn{l, claim.Match{Host: h, Path: p}}
					if other, twice := claimed[c]; twice {
						t.Errorf("%s on %s has the routes %s and %s", c.Match, l, other, route.Name)
					}
					claimed[c] = route.Name
				}
			}
		}
	}
	checkPairs(t, r)
	for _, e := range r.Events {
		if e.Message == "" || e.Reason == "" || e.Object.Kind == "" || e.Object.Name == "" || strings.Contains(e.Message, "%!") {
			t.Errorf("event %+v", e)
		}
	}
}

// checkPairs checks that each host has at most one Secret of each kind, and that all
// served pairs are usable.
func checkPairs(t testing.TB, r *Routing) {
	t.Helper()
	if r.Default != nil && !r.Default.Pair.Default {
		t.Errorf("the default certificate %s is for its hosts alone", r.Default.Pair.Name)
	}
	for _, c := range r.Certificates {
		if c.Pair.Default {
			t.Errorf("the certificate %s is shown to everybody", c.Pair.Name)
		}
		if len(c.Pair.Hosts) == 0 {
			t.Errorf("nobody is served the certificate %s", c.Pair.Name)
		}
		if len(c.Pair.CertPEM) == 0 {
			continue
		}
		if _, err := config.CheckPair(c.Pair.CertPEM, []byte(c.Pair.KeyPEM)); err != nil {
			t.Errorf("certificate %s: %v", c.Pair.Name, err)
		}
	}
}

func TestManifests(t *testing.T) {
	f := func(text string, ingresses, others int) {
		t.Helper()
		var m Manifests
		if err := m.Read(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		if len(m.Ingresses) != ingresses || m.Others+len(m.Old) != others {
			t.Errorf("%d Ingresses and %d others in\n%s", len(m.Ingresses), m.Others, text)
		}
		for _, i := range m.Ingresses {
			if i.Namespace == "" || i.Name == "" {
				t.Errorf("Ingress %q in namespace %q", i.Name, i.Namespace)
			}
		}
	}
	const one = `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}}`
	f("", 0, 0)
	f("# nothing\n---\n", 0, 0)
	f(one+"\n---\n"+one, 2, 0)
	f("---\n# first\n---\n"+one+"\n---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}\n", 1, 1)
	f("{apiVersion: v1, kind: List, items: ["+one+","+one+"]}", 2, 0)
	f("{apiVersion: networking.k8s.io/v1, kind: IngressList, items: [{metadata: {name: a, namespace: b}}]}", 1, 0)
	f(`{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"a"}}`, 1, 0)
	f("{apiVersion: extensions/v1beta1, kind: Ingress, metadata: {name: a}}", 0, 1)

	for _, text := range []string{"a: b", "[]", "{", "kind: Ingress\napiVersion: networking.k8s.io/v1\nspec: []\n"} {
		var m Manifests
		if err := m.Read(bytes.NewReader([]byte(one + "\n---\n" + text))); err == nil || !strings.Contains(err.Error(), "document 2") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
