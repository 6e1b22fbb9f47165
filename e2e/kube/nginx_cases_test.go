//go:build linux

package kube

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/config/kube/annotation"
)

var update = flag.Bool("update", false, "write the differences from nginx that the tests find to testdata")

// suite is a file of cases, and the file of its differences.
type suite struct {
	file   string // of the differences
	cases  []*nginxCase
	listed []listed
	found  []found
}

// nginxCase is an Ingress, and requests to it.
type nginxCase struct {
	name     string
	objects  []string
	requests []*request
	// unsupported are the annotations of the Ingress that weir rates neither exact nor near.
	unsupported []string
}

// found are the differences in one request.
type found struct {
	c           *nginxCase
	request     string
	differences []string
}

// listed is an entry of a file of differences.
type listed struct {
	heading     string // the case and the request
	differences []string
	reason      string
	line        int
}

// written is a case as a file has it.
type written struct {
	Case        string            `json:"case"`
	Host        string            `json:"host"`        // empty: the name of the case below .example
	Annotations map[string]string `json:"annotations"` // without prefix: ingress-nginx's
	Paths       []string          `json:"paths"`       // PATH TYPE SERVICE; empty: /
	TLS         bool              `json:"tls"`         // the Ingress has TLS for the host
	Objects     []string          `json:"objects"`     // further objects; @host is the host
	Requests    []string          `json:"requests"`
}

// probes are requests that every case gets.
var probes = []string{"GET /", "GET /probe/a%20b?q=1&r=%2F", "HEAD /", "POST /form body 10", "OPTIONS / | Origin: https://origin.example | Access-Control-Request-Method: PUT", "https GET /"}

var notName = regexp.MustCompile(`[^a-z0-9]+`)

func readSuites(t *testing.T, folder string) (all []*suite) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(folder, "*.yaml"))
	hosts := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []written
		if err := yaml.UnmarshalStrict(text, &cases); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		one := &suite{file: strings.TrimSuffix(file, ".yaml") + ".differences"}
		for _, c := range cases {
			read := c.read(t)
			if before := hosts[c.name()]; before != "" {
				t.Fatalf("%s: the case %q has the same name as one in %s", file, c.Case, before)
			}
			hosts[c.name()] = file
			one.cases = append(one.cases, read)
		}
		one.listed = readDifferences(t, one.file)
		all = append(all, one)
	}
	return all
}

func (c *written) name() string {
	return strings.Trim(notName.ReplaceAllString(strings.ToLower(c.Case), "-"), "-")
}

func (c *written) read(t *testing.T) *nginxCase {
	t.Helper()
	name := c.name()
	host := c.Host
	if host == "" {
		host = name + ".example"
	}
	class := "@stage"
	i := &networkingv1.Ingress{TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "Ingress"}, ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: networkingv1.IngressSpec{IngressClassName: &class}}
	for key, value := range c.Annotations {
		if !strings.Contains(key, "/") {
			key = annotation.Nginx + key
		}
		i.Annotations[key] = strings.ReplaceAll(value, "@host", host)
	}
	rule := networkingv1.IngressRule{Host: host}
	rule.HTTP = &networkingv1.HTTPIngressRuleValue{}
	if len(c.Paths) == 0 {
		c.Paths = []string{"/"}
	}
	for _, p := range c.Paths {
		words := append(strings.Fields(p), "", "")
		kind, service := networkingv1.PathType("Prefix"), "app"
		if words[1] != "" {
			kind = networkingv1.PathType(words[1])
		}
		if words[2] != "" {
			service = words[2]
		}
		port := int32(80)
		if service == "secure" {
			port = 443
		}
		rule.HTTP.Paths = append(rule.HTTP.Paths, networkingv1.HTTPIngressPath{Path: words[0], PathType: &kind,
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: port}}}})
	}
	i.Spec.Rules = []networkingv1.IngressRule{rule}
	if c.TLS {
		i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{host}, SecretName: "cert"}}
	}
	text, err := yaml.Marshal(i)
	if err != nil {
		t.Fatal(err)
	}
	n := &nginxCase{name: c.Case, objects: []string{string(text)}}
	for _, o := range c.Objects {
		n.objects = append(n.objects, strings.ReplaceAll(o, "@host", host))
	}
	i.Namespace = class // the Secrets that annotations name are there
	for _, a := range annotation.Rate(i) {
		if a.Rating != annotation.Exact && a.Rating != annotation.Near {
			n.unsupported = append(n.unsupported, strings.TrimPrefix(a.Name, annotation.Nginx))
		}
	}
	for _, text := range append(slices.Clone(probes), c.Requests...) {
		r, err := readRequest(text, host)
		if err != nil {
			t.Fatalf("case %q: %v", c.Case, err)
		}
		n.requests = append(n.requests, r)
	}
	return n
}

// readRequest reads a request: [https] [cert NAME] [host NAME] [from ADDRESS] [N times] METHOD TARGET [body N] [| HEADER: VALUE]...
func readRequest(text, host string) (*request, error) {
	parts := strings.Split(text, " | ")
	r := &request{text: text, host: strings.Replace(host, "*", "any", 1), body: -1, times: 1}
	for _, h := range parts[1:] {
		r.headers = append(r.headers, strings.ReplaceAll(h, "@host", host))
	}
	words := strings.Fields(parts[0])
	for len(words) > 0 {
		switch {
		case words[0] == "https":
			r.https, words = true, words[1:]
		case words[0] == "cert" && len(words) > 1:
			r.cert, words = words[1], words[2:]
		case words[0] == "host" && len(words) > 1:
			r.host, words = words[1], words[2:]
		case words[0] == "from" && len(words) > 1:
			r.from, words = words[1], words[2:]
		case len(words) > 1 && words[1] == "times":
			n, err := strconv.Atoi(words[0])
			if err != nil {
				return nil, fmt.Errorf("request %q: %w", text, err)
			}
			r.times, words = n, words[2:]
		case words[0] == "body" && len(words) > 1:
			n, err := strconv.Atoi(words[1])
			if err != nil {
				return nil, fmt.Errorf("request %q: %w", text, err)
			}
			r.body, words = n, words[2:]
		case r.method == "":
			r.method, words = words[0], words[1:]
		case r.target == "":
			r.target, words = words[0], words[1:]
		default:
			return nil, fmt.Errorf("request %q: what is %q", text, words[0])
		}
	}
	if r.target == "" {
		return nil, fmt.Errorf("request %q has no target", text)
	}
	return r, nil
}

func selfSigned() *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: "secure"}, DNSNames: []string{"secure"}}
}

// readDifferences reads a file of differences: blocks of a heading, lines of differences that begin with a
// tab, and a line with the reason.
func readDifferences(t *testing.T, file string) (all []listed) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for n, line := range strings.Split(string(text), "\n") {
		rest, indented := strings.CutPrefix(line, "\t")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case !indented:
			all = append(all, listed{heading: line, line: n + 1})
		case len(all) == 0:
			t.Fatalf("%s: the first line has no case", file)
		case strings.HasPrefix(rest, "because "):
			all[len(all)-1].reason = strings.TrimPrefix(rest, "because ")
		default:
			all[len(all)-1].differences = append(all[len(all)-1].differences, rest)
		}
	}
	return all
}

// unexplained is the reason of a difference that is written by -update. It must be replaced.
const unexplained = "???"

// unsupported begins the reason of a difference in a case whose annotations weir does not support.
const unsupported = "not supported yet: "

// everywhereFile has differences in many cases.
const everywhereFile = "everywhere.differences"

// pattern returns a function that matches a difference; * stands for any text.
func pattern(text string) func(string) bool {
	parts := strings.Split(text, "*")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return regexp.MustCompile("^(?:" + strings.Join(parts, ".*") + ")$").MatchString
}

// judge compares the differences that the test found with the listed ones.
func judge(t *testing.T, folder string, suites []*suite) {
	t.Helper()
	general := readDifferences(t, filepath.Join(folder, everywhereFile))
	used := map[string]bool{}
	isGeneral := func(difference string) bool {
		for _, g := range general {
			for _, d := range g.differences {
				if pattern(d)(difference) {
					used[d] = true
					return true
				}
			}
		}
		return false
	}
	for _, s := range suites {
		s.judge(t, isGeneral)
	}
	for _, g := range general {
		for _, d := range g.differences {
			if !used[d] {
				t.Errorf("%s:%d: no request has this difference any more; remove it: %s", everywhereFile, g.line, d)
			}
		}
	}
}

// judge compares the differences that the test found with those that the file of the suite lists, except
// for general ones. With -update it writes the file.
func (s *suite) judge(t *testing.T, isGeneral func(string) bool) {
	t.Helper()
	before := map[string]listed{}
	for _, l := range s.listed {
		before[l.heading] = l
	}
	var out strings.Builder
	for _, f := range s.found {
		d := slices.DeleteFunc(f.differences, isGeneral)
		if len(d) == 0 {
			continue
		}
		heading := f.c.name + ": " + f.request
		known, ok := before[heading]
		delete(before, heading)
		reason := unexplained
		if len(f.c.unsupported) > 0 {
			reason = unsupported + strings.Join(f.c.unsupported, ", ")
		}
		switch {
		case ok && slices.Equal(known.differences, d):
			reason = s.hold(t, known, f.c, reason)
		case !*update && ok:
			t.Errorf("%s:%d: %s: the differences are others now:\n\t%s", s.file, known.line, heading, strings.Join(d, "\n\t"))
		case !*update:
			t.Errorf("%s: %s: a difference that is not listed:\n\t%s", s.file, heading, strings.Join(d, "\n\t"))
		}
		fmt.Fprintf(&out, "%s\n\t%s\n\tbecause %s\n\n", heading, strings.Join(d, "\n\t"), reason)
	}
	if *update {
		if err := os.WriteFile(s.file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, heading := range slices.Sorted(maps.Keys(before)) {
		t.Errorf("%s:%d: %s: no request has this difference any more; remove the entry", s.file, before[heading].line, heading)
	}
}

// hold checks the reason of a difference, and returns the reason to write.
func (s *suite) hold(t *testing.T, l listed, c *nginxCase, now string) string {
	t.Helper()
	stale := strings.HasPrefix(l.reason, unsupported) && l.reason != now
	switch {
	case *update && (stale || l.reason == ""):
		return now
	case stale && len(c.unsupported) == 0:
		t.Errorf("%s:%d: %s: weir rates all annotations exact or near now, but differs: give another reason", s.file, l.line, l.heading)
	case stale:
		t.Errorf("%s:%d: %s: the reason must be %q", s.file, l.line, l.heading, now)
	case !*update && (l.reason == "" || l.reason == unexplained):
		t.Errorf("%s:%d: %s: a difference without a reason", s.file, l.line, l.heading)
	}
	return l.reason
}
