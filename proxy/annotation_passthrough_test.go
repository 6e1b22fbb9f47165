package proxy

import "testing"

// The cases of ingress-nginx's test/e2e/settings/ssl_passthrough.go: the Service terminates TLS, also beside hosts whose
// TLS weir decrypts, and requests without TLS reach the same Service over TLS.
func TestIngressPassthrough(t *testing.T) {
	i := newIngressRig(t, "", ingress("a/through", 1, "testpassthrough.com Prefix / secured, testpassthrough.com Prefix /plain plain", "ssl-passthrough: true")+
		ingress("a/usual", 1, "a.example Prefix / usual", "tls: a.example")+
		ingress("a/allowed", 1, "denied.test Prefix / secured", "ssl-passthrough: true", "whitelist-source-range: 192.0.2.0/24")+
		ingress("b/other", 2, "testpassthrough.com Prefix /other plain", "ssl-passthrough: true"))
	for request, want := range map[string]string{
		"https://testpassthrough.com/x":     "secured GET /x over TLS",
		"https://testpassthrough.com/plain": "secured GET /plain over TLS", // paths have no meaning
		"https://a.example/":                "usual GET /",
		"http://testpassthrough.com/x":      "secured GET /x over TLS",
		"http://testpassthrough.com/plain":  "plain GET /plain",
		"http://testpassthrough.com/other":  "plain GET /other",
		"http://denied.test/":               "403",
		"https://unknown.test/":             "404",
	} {
		if got := i.ask("GET " + request).short(); got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
	if err := i.handshake("denied.test"); err == nil {
		t.Error("a client that the list excludes reaches the Service")
	}
}
