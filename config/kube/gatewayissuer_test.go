package kube

import (
	"slices"
	"strings"
	"testing"
)

// A namespace may order max_names names from an issuer. The oldest objects keep theirs, names that several
// listeners have count once, and other namespaces have a limit of their own.
func TestIssuerLimitsNames(t *testing.T) {
	text := strings.Replace(gatewayConfig, "issuer: {name: public,", "issuer: {name: public, max_names: 2,", 1)
	gw := func(namespace, name, created string, hosts ...string) string {
		var listeners []string
		for _, h := range hosts {
			listeners = append(listeners, "{name: "+strings.ReplaceAll(h, ".", "-")+", port: 443, protocol: HTTPS, hostname: "+h+", tls: {options: {weirproxy.github.io/issuer: public}}}")
		}
		return "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {namespace: " + namespace + ", name: " + name + ", creationTimestamp: '2026-01-0" + created + "T00:00:00Z'}, spec: {gatewayClassName: weir, listeners: [" +
			strings.Join(listeners, ", ") + "]}}\n---\n"
	}
	const a, b, c, d = "a.all.example", "b.all.example", "c.all.example", "d.all.example"
	f := func(manifests string, want ...string) {
		t.Helper()
		var got []string
		refused := 0
		for line := range strings.Lines(convertGateways(t, text, manifests)) {
			if _, host, is := strings.Cut(line, "certificate by public of "); is {
				got = append(got, strings.TrimSpace(host[strings.LastIndex(host, " ")+1:]))
			}
			if strings.Contains(line, "IssuerNotAllowed: The issuer public orders no certificate: older objects of the namespace have the 2 names that it may request (max_names of the issuer)") {
				refused++
			}
		}
		slices.Sort(got)
		if all := strings.Count(manifests, "hostname: "); !slices.Equal(got, want) || refused != all-len(got) {
			t.Errorf("weir orders %v and refuses %d, want %v of %d", got, refused, want, all)
		}
	}
	f(gw("one", "g", "1", a, b), a, b)
	f(gw("one", "g", "1", c, b, a), a, b)
	f(gw("one", "g", "2", a, b)+gw("one", "h", "1", c), a, c)
	f(gw("one", "g", "1", a)+gw("one", "h", "2", a, b, c), a, a, b)
	f(gw("one", "g", "1", a, b, c)+gw("two", "g", "2", d), a, b, d)
}
