package proxy

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"testing"
)

// weir verifies the certificate of a Service as ingress-nginx does: with the CAs of proxy-ssl-secret, and the name of
// proxy-ssl-name. All test servers have the same certificate, for example.com.
func TestIngressProxySSL(t *testing.T) {
	s := httptest.NewTLSServer(nil)
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	s.Close()
	manifests := fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: ca, namespace: a}, data: {ca.crt: %s}}\n---\n{apiVersion: v1, kind: Secret, metadata: {name: none, namespace: a}, stringData: {other: a}}\n---\n", ca)
	add := func(host string, annotations ...string) {
		manifests += ingress("a/"+host, 1, host+".test Prefix / "+host, append(annotations, "backend-protocol: HTTPS")...)
	}
	add("right", "proxy-ssl-secret: a/ca", "proxy-ssl-verify: on", "proxy-ssl-name: example.com", "proxy-ssl-server-name: on")
	add("latest", "proxy-ssl-secret: a/ca", "proxy-ssl-verify: on", "proxy-ssl-name: example.com", "proxy-ssl-protocols: TLSv1.3")
	add("wrong", "proxy-ssl-secret: a/ca", "proxy-ssl-verify: on", "proxy-ssl-name: other.example")
	add("unnamed", "proxy-ssl-secret: a/ca", "proxy-ssl-verify: on")
	add("lax", "proxy-ssl-secret: a/ca", "proxy-ssl-name: other.example")
	add("missing", "proxy-ssl-secret: a/gone")
	add("empty-secret", "proxy-ssl-secret: a/none")
	add("foreign", "proxy-ssl-secret: b/ca")
	add("plain", "proxy-ssl-verify: on")
	// The cases of ingress-nginx's test/e2e/annotations/proxyssl.go: the Service has no TLS, so the annotations only need a
	// Secret.
	over := map[string][]string{"alone": nil, "checked": {"proxy-ssl-verify: on", "proxy-ssl-verify-depth: 2", "proxy-ssl-server-name: on"},
		"ciphers": {"proxy-ssl-ciphers: HIGH:!AES"}, "versions": {"proxy-ssl-protocols: TLSv1.2 TLSv1.3"}}
	for host, annotations := range over {
		manifests += ingress("a/"+host, 1, host+".test Prefix / "+host, append(annotations, "proxy-ssl-secret: a/ca", "tls: "+host+".test")...)
	}
	i := newIngressRig(t, "", manifests)
	for host, want := range map[string]string{"right": "right GET / over TLS", "latest": "latest GET / over TLS", "wrong": "502", "unnamed": "502", "lax": "lax GET / over TLS",
		"missing": "503", "empty-secret": "503", "foreign": "503", "plain": "plain GET / over TLS"} {
		if got := i.ask("GET http://" + host + ".test/").short(); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
	for host := range over {
		for request, want := range map[string]string{"http://" + host + ".test/": "308 https://" + host + ".test/", "https://" + host + ".test/": host + " GET /"} {
			if got := i.ask("GET " + request).short(); got != want {
				t.Errorf("%s: %s, want %s", request, got, want)
			}
		}
	}
}
