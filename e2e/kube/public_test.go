//go:build linux

package kube

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/config/kube/annotation"
)

const publicFolder = "testdata/public"

// TestPublicManifests serves the Ingresses of public projects, unchanged but for their names and hosts, and requests
// each of their paths. No answer may be 404 or 503, except for those that the file not-served lists with a reason.
// An entry that is served fails the test; -update writes what is found.
func TestPublicManifests(t *testing.T) {
	s := newStage(t)
	files, _ := filepath.Glob(filepath.Join(publicFolder, "*.yaml"))
	if len(files) < 40 {
		t.Fatalf("found %d files", len(files))
	}
	objects := append(s.echoes(), s.secret("cert", "cert", "*.example"), publicUsers)
	var wanted []publicRequest
	for n, file := range files {
		made, requests := readPublic(t, n, file)
		objects, wanted = append(objects, made...), append(wanted, requests...)
	}
	s.apply(objects...)
	w := s.weir(fmt.Sprintf(weirBesideNginx, ""))
	all := suite{file: filepath.Join(publicFolder, "not-served")}
	all.listed = readDifferences(t, all.file)
	for _, r := range wanted {
		if status := r.send(w.address); status == "404" || status == "503" || strings.HasPrefix(status, "error") {
			all.found = append(all.found, found{c: &nginxCase{name: r.file}, request: r.name, differences: []string{status}})
		}
	}
	t.Logf("%d requests to the Ingresses of %d files", len(wanted), len(files))
	all.judge(t, func(string) bool { return false })
}

// publicUsers is a Secret for the Ingresses that name one with passwords.
const publicUsers = "{apiVersion: v1, kind: Secret, metadata: {name: public-users}, stringData: {auth: 'user:{PLAIN}pass'}}"

// publicRequest is a request for a path of an Ingress.
type publicRequest struct {
	file, name, host, path string // file: its name without .yaml
}

// send returns the status of the last response: if weir redirects to https, the request follows.
func (r *publicRequest) send(address string) string {
	one := request{method: "GET", host: r.host, target: r.path, body: -1, times: 1}
	a := one.once(address)
	if a.err == nil && strings.HasPrefix(a.headers.Get("Location"), "https://"+r.host) {
		one.https = true
		a = one.once(address)
	}
	if a.err != nil {
		return "error: " + failure(a.err)
	}
	return strconv.Itoa(a.status)
}

// readPublic reads a file, and returns its Ingresses with names and hosts of their own, Services for them, and the
// requests. n is the number of the file.
func readPublic(t *testing.T, n int, file string) (objects []string, requests []publicRequest) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	short := strings.TrimSuffix(filepath.Base(file), ".yaml")
	for _, word := range []string{"# Source: https://github.com/", "# Licence: "} {
		if !strings.Contains(string(text), word) {
			t.Errorf("%s has no line %q", file, word)
		}
	}
	ports := map[string]map[networkingv1.ServiceBackendPort]bool{} // of the Services
	secure := map[string]bool{}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var i networkingv1.Ingress
		if err := yaml.Unmarshal([]byte(document), &i); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if i.Kind != "Ingress" {
			continue
		}
		own := func(name string) string { return fmt.Sprintf("p%d-%s", n, name) }
		hostOf := func(host string) string {
			if rest, ok := strings.CutPrefix(host, "*."); ok {
				return fmt.Sprintf("*.p%d.%s", n, rest)
			}
			return strings.TrimSuffix(fmt.Sprintf("p%d.%s", n, cmp.Or(host, "every.example")), ".")
		}
		i.Name, i.Namespace = own(i.Name), ""
		class := "@stage"
		i.Spec.IngressClassName = &class
		delete(i.Annotations, "kubernetes.io/ingress.class")
		if i.Annotations[annotation.Nginx+"auth-secret"] != "" {
			i.Annotations[annotation.Nginx+"auth-secret"] = "public-users"
		}
		https := strings.HasPrefix(i.Annotations[annotation.Nginx+"backend-protocol"], "HTTPS") || i.Annotations[annotation.Nginx+"ssl-passthrough"] == "true"
		for r := range i.Spec.Rules {
			rule := &i.Spec.Rules[r]
			host := hostOf(rule.Host)
			written := cmp.Or(rule.Host, "*")
			rule.Host = host
			if rule.HTTP == nil {
				requests = append(requests, publicRequest{short, written + " /", strings.Replace(host, "*", "any", 1), "/"})
				continue
			}
			for p := range rule.HTTP.Paths {
				path := &rule.HTTP.Paths[p]
				s := path.Backend.Service
				s.Name = own(s.Name)
				if ports[s.Name] == nil {
					ports[s.Name] = map[networkingv1.ServiceBackendPort]bool{}
				}
				ports[s.Name][s.Port], secure[s.Name] = true, secure[s.Name] || https
				requests = append(requests, publicRequest{short, written + " " + path.Path, strings.Replace(host, "*", "any", 1), sampleOf(t, path.Path)})
			}
		}
		for c := range i.Spec.TLS {
			for h, host := range i.Spec.TLS[c].Hosts {
				i.Spec.TLS[c].Hosts[h] = hostOf(host)
			}
		}
		made, err := yaml.Marshal(&i)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, string(made))
	}
	for name, of := range ports {
		objects = append(objects, publicService(name, of, secure[name])...)
	}
	return objects, requests
}

// publicService returns a Service with these ports, all of which lead to a backend of the test.
func publicService(name string, of map[networkingv1.ServiceBackendPort]bool, secure bool) []string {
	address := "10.244.200.1"
	if secure {
		address = "10.244.200.4"
	}
	var ports, ends []string
	number := int32(81)
	for port := range of {
		if port.Number == 0 {
			port.Number, number = number, number+1
		}
		port.Name = cmp.Or(port.Name, fmt.Sprintf("port-%d", port.Number))
		ports = append(ports, fmt.Sprintf("{name: %s, port: %d, targetPort: 3000}", port.Name, port.Number))
		ends = append(ends, fmt.Sprintf("{name: %s, port: 3000}", port.Name))
	}
	slices.Sort(ports)
	slices.Sort(ends)
	return []string{fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %q}, spec: {ports: [%s]}}", name, strings.Join(ports, ", ")),
		fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]q, labels: {kubernetes.io/service-name: %[1]q}}, addressType: IPv4, ports: [%[2]s], endpoints: [{addresses: [%[3]s], conditions: {ready: true}}]}`,
			name, strings.Join(ends, ", "), address)}
}

// expressions are parts of regular expressions, and texts that match them.
var expressions = strings.NewReplacer("(/|$)(.*)", "/x", "(/|$)", "/", "?(.*)", "x", "(.*)", "x", ".*", "x", "/*", "/", "[0-9]+", "1", "$", "")

// sampleOf returns a path that matches the path of an Ingress.
func sampleOf(t *testing.T, path string) string {
	t.Helper()
	sample := cmp.Or(expressions.Replace(path), "/")
	if e, err := regexp.Compile("^" + path); err != nil || !e.MatchString(sample) && !strings.HasPrefix(sample, path) {
		t.Errorf("%q does not match %q: %v", sample, path, err)
	}
	return sample
}
