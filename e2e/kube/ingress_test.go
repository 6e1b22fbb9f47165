//go:build linux

package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestAnyOrder creates the objects of an application in every order. weir serves the application when the
// last object exists. Until then, other applications are not affected.
func TestAnyOrder(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("steady", 1), ingress("steady", "steady.example", "/", "steady", ""))
	w := s.weir("")
	w.wantApp("http://steady.example/", "steady")
	for n, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		name := fmt.Sprintf("app-%d", n)
		host := name + ".example"
		parts := []string{deployment(name, 1), s.secret(name, name, host), ingress(name, host, "/", name, name)}
		for _, part := range order {
			w.wantApp("http://steady.example/", "steady")
			s.apply(parts[part])
		}
		if a := w.wantApp("https://"+host+"/", name); a.Certificate != name || a.Host != host {
			t.Errorf("%s has %s", host, a)
		}
		if a := w.wantStatus("http://"+host+"/a?b", 308); a.Location != "https://"+host+"/a?b" {
			t.Errorf("%s redirects to %q", host, a.Location)
		}
	}
}

// TestChanges changes and deletes an Ingress and its objects while weir serves it.
func TestChanges(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), deployment("b", 1), ingress("web", "web.example", "/", "a", ""))
	w := s.weir("")
	w.wantApp("http://web.example/", "a")
	w.wantStatus("http://other.example/", 404)

	s.apply(ingress("web", "web.example", "/", "b", ""))
	w.wantApp("http://web.example/", "b")
	s.apply(ingress("deeper", "web.example", "/api", "a", ""))
	w.wantApp("http://web.example/api/x", "a")
	w.wantApp("http://web.example/apis", "b")
	s.apply(ingress("web", "*.example", "/", "b", ""))
	w.wantApp("http://anything.example/", "b")
	w.wantStatus("http://web.example/apis", 404) // web.example has rules of its own, so *.example does not apply

	s.delete("service", "b")
	w.wantStatus("http://anything.example/", 503)
	w.wantApp("http://web.example/api", "a")
	s.wantEvent("Ingress", "web", "BackendNotFound")
	s.apply(service("b"))
	w.wantApp("http://anything.example/", "b")
	s.kubectl("scale", "--namespace="+s.name, "deployment/b", "--replicas=0")
	w.wantStatus("http://anything.example/", 503)
	s.kubectl("scale", "--namespace="+s.name, "deployment/b", "--replicas=1")
	w.wantApp("http://anything.example/", "b")

	s.delete("ingress", "deeper")
	w.wantApp("http://web.example/api", "b")
	s.delete("ingress", "web")
	w.wantStatus("http://web.example/", 404)
}

// TestSecretsRotated replaces certificates while clients use them.
func TestSecretsRotated(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 2), s.secret("web", "first", "web.example"), ingress("web", "web.example", "/", "a", "web"),
		s.secret("other", "other", "other.example"), ingress("other", "other.example", "/", "a", "other"))
	s.rolledOut("a")
	w := s.weir("")
	w.wantApp("https://web.example/", "a")
	w.wantApp("https://other.example/", "a")
	l := w.underLoad("https://web.example/")
	for _, mark := range []string{"second", "third", "fourth"} {
		s.apply(s.secret("web", mark, "web.example"))
		w.want("https://web.example/", "the certificate "+mark, func(a answer) bool { return a.Certificate == mark })
		l.more(50)
	}
	l.stop()

	// A broken certificate affects only its own host, and weir reports it in an event.
	s.apply("{apiVersion: v1, kind: Secret, metadata: {name: web}, type: kubernetes.io/tls, data: {tls.crt: bm9uZQ==, tls.key: bm9uZQ==}}")
	s.wantEvent("Ingress", "web", "InvalidCertificate")
	eventually(t, "nobody is served with a certificate that is broken", func() error {
		if a, err := w.get("https://web.example/"); err == nil {
			return fmt.Errorf("there is %s", a)
		}
		return nil
	})
	if a := w.wantApp("https://other.example/", "a"); a.Certificate != "other" {
		t.Errorf("other.example has %s", a)
	}
	s.apply(s.secret("web", "fifth", "web.example"))
	w.want("https://web.example/", "the certificate fifth", func(a answer) bool { return a.Certificate == "fifth" })
}

// TestBadObjects creates Ingresses with errors. Each gets an event that describes the error. weir serves the
// correct parts of each, and all other Ingresses.
func TestBadObjects(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), ingress("good", "good.example", "/", "a", ""))
	w := s.weir("")
	w.wantApp("http://good.example/", "a")
	f := func(name, manifest, reason, words string) {
		t.Helper()
		s.apply(manifest)
		if message := s.wantEvent("Ingress", name, reason); !strings.Contains(message, words) {
			t.Errorf("the event on %s says %q, want it to say %q", name, message, words)
		}
		w.wantApp("http://good.example/", "a")
	}
	// Ingresses that were created in the same second are ordered by name.
	f("taken", ingress("taken", "good.example", "/", "a", ""), "AlreadyTaken", s.name+"/good")
	f("missing", ingress("missing", "missing.example", "/", "nowhere", ""), "BackendNotFound", s.name+"/nowhere")
	w.wantStatus("http://missing.example/", 503)
	f("port", strings.Replace(ingress("port", "port.example", "/", "a", ""), "number: 80", "number: 8080", 1), "BackendNotFound", "8080")
	f("secret", ingress("secret", "secret.example", "/", "a", "nothing"), "InvalidCertificate", s.name+"/nothing")
	f("regexp", strings.Replace(ingress("regexp", "regexp.example", "/(.*)", "a", ""), "Prefix", "ImplementationSpecific", 1), "InvalidPath", "regular expression")
	f("resource", strings.Replace(ingress("resource", "resource.example", "/", "a", ""), "service: {name: a, port: {number: 80}}",
		"resource: {apiGroup: k8s.example, kind: Bucket, name: b}", 1), "ResourceBackend", "Bucket")
	w.wantStatus("http://resource.example/", 503)

	// The metrics count the faults by kind of object and by reason.
	w.wantMetric(1, "weir_kubernetes_faults", "kind", "ingresses", "reason", "ResourceBackend")
	w.wantMetric(1, "weir_kubernetes_synced")
	if w.metric("weir_kubernetes_objects", "kind", "ingresses", "state", "faulty") != 6 || w.metric("weir_kubernetes_change_duration_seconds_count", "what", "routes") == 0 {
		_, text, _ := w.page(8087, "/metrics")
		t.Errorf("of six faulty Ingresses, and of changes, there is\n%s", text)
	}
	// So does the status page, with the reasons. A fault goes when its object is mended.
	w.wantFaults("", "missing BackendNotFound", "port BackendNotFound", "regexp InvalidPath", "resource ResourceBackend", "secret InvalidCertificate", "taken AlreadyTaken")
	w.wantFaults("&faults=NOWHERE", "missing BackendNotFound")
	top := exec.Command(weirFile, "top", "--once", "http://"+w.at(8087))
	top.Env = append(os.Environ(), "WEIR_ADMIN_TOKEN="+adminToken)
	if out, err := top.CombinedOutput(); err != nil || !strings.Contains(string(out), "Ingress "+s.name+"/missing: BackendNotFound: ") || !strings.Contains(string(out), "1 more faults of objects") {
		t.Errorf("weir top: %v\n%s", err, out)
	}
	s.delete("ingress", "taken", "resource")
	s.apply(ingress("missing", "missing.example", "/", "a", ""))
	w.wantApp("http://missing.example/", "a")
	w.wantFaults("", "port BackendNotFound", "regexp InvalidPath", "secret InvalidCertificate")
	if w.metric("weir_http_requests_total", "route", s.name+"/good/good.example/", "namespace", s.name, "ingress", "good", "host", "good.example") == 0 {
		t.Error("no requests are counted for " + s.name + "/good/good.example/")
	}
}

// wantFaults waits until the status page shows exactly these faults of Ingresses, as "NAME REASON". query adds
// to the parameters of the request.
func (w *weir) wantFaults(query string, want ...string) {
	w.Helper()
	eventually(w, fmt.Sprintf("the status page shows the faults %q", want), func() error {
		var o struct {
			Objects *struct {
				Synced bool
				Faults struct {
					All, Matching int
					Rows          []struct{ Kind, Object, Reason, Message string }
				}
			}
		}
		status, text, err := w.page(8087, "/status/overview?rows=100"+query)
		if err == nil {
			err = json.Unmarshal([]byte(text), &o)
		}
		if err != nil || status != 200 || o.Objects == nil || !o.Objects.Synced {
			return fmt.Errorf("%d, %v: %s", status, err, text)
		}
		var got []string
		for _, f := range o.Objects.Faults.Rows {
			name, below := strings.CutPrefix(f.Object, w.name()+"/")
			if !below || f.Kind != "Ingress" || f.Message == "" {
				return fmt.Errorf("it shows %+v", f)
			}
			got = append(got, name+" "+f.Reason)
		}
		if !slices.Equal(got, want) || o.Objects.Faults.Matching != len(want) {
			return fmt.Errorf("it shows %q, %d of %d", got, o.Objects.Faults.Matching, o.Objects.Faults.All)
		}
		return nil
	})
}

// TestSolver creates the objects by which cert-manager answers an HTTP-01 challenge.
func TestSolver(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1), s.secret("web", "web", "web.example"), ingress("web", "web.example", "/", "a", "web"), deployment("solver", 1))
	w := s.weir("")
	w.wantApp("https://web.example/", "a")
	const path = "/.well-known/acme-challenge/HDWAqB6AbEgI7eZ7"
	w.wantStatus("http://web.example"+path, 308) // the application may have an ACME client of its own
	s.apply(strings.NewReplacer("{name: solver}", `{name: cm-acme-http-solver-x7k2p, annotations: {nginx.ingress.kubernetes.io/whitelist-source-range: "0.0.0.0/0,::/0"}}`,
		"Prefix", "ImplementationSpecific").Replace(ingress("solver", "web.example", path, "solver", "")))
	w.wantApp("http://web.example"+path, "solver")
	w.wantStatus("http://web.example/", 308)
	s.delete("ingress", "cm-acme-http-solver-x7k2p")
	w.want("http://web.example"+path, "none of the solver's Pods", func(a answer) bool { return a.Pod == "" })
	w.wantApp("https://web.example/", "a")
}

// TestProtocols: the port of a Service names its protocol, and an annotation of an Ingress can name another
// one.
func TestProtocols(t *testing.T) {
	s := newStage(t)
	s.apply(deployment("a", 1))
	w := s.weir("")
	f := func(name, port, annotation, proto string, tls bool) {
		t.Helper()
		manifest := strings.Replace(ingress(name, name+".example", "/", "a", ""), "number: 80", port, 1)
		if annotation != "" {
			manifest = strings.Replace(manifest, "{name: "+name+"}", "{name: "+name+", annotations: {nginx.ingress.kubernetes.io/backend-protocol: "+annotation+"}}", 1)
		}
		s.apply(manifest)
		if a := w.wantApp("http://"+name+".example/", "a"); a.Proto != proto || a.TLS != tls {
			t.Errorf("by %s the Pod is asked in %s, with TLS: %v; want %s and %v", name, a.Proto, a.TLS, proto, tls)
		}
	}
	f("plain", "name: http", "", "HTTP/1.1", false)
	f("h2c", "name: h2c", "", "HTTP/2.0", false)
	f("https", "number: 443", "", "HTTP/2.0", true)
	f("annotated", "number: 443", "HTTPS", "HTTP/2.0", true)
	f("grpc", "number: 81", "GRPC", "HTTP/2.0", false)
	f("grpcs", "number: 443", "GRPCS", "HTTP/2.0", true)
}
