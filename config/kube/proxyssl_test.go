package kube

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

// An Ingress with proxy-ssl-secret has a backend of its own, with what the Secret has.
func TestProxySSL(t *testing.T) {
	cert, key, err := newPair("client.example")
	if err != nil {
		t.Fatal(err)
	}
	secret := fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {tls.crt: %s, tls.key: %s, ca.crt: %[1]s}}\n---\n", base64.StdEncoding.EncodeToString(cert), base64.StdEncoding.EncodeToString(key))
	ingress := func(name, more string) string {
		return fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: %[1]s, annotations: {nginx.ingress.kubernetes.io/backend-protocol: HTTPS, %[2]s}}, spec: {ingressClassName: weir, rules: [{host: %[1]s.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 443}}}}]}}]}}
---
`, name, more)
	}
	const prefix = "nginx.ingress.kubernetes.io/proxy-ssl-"
	manifests := secret + "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 443}]}}\n---\n" + ingress("plain", "") +
		ingress("one", prefix+"secret: default/s, "+prefix+"verify: 'on', "+prefix+"name: n.example, "+prefix+"server-name: 'on', "+prefix+"protocols: TLSv1.2 TLSv1.3") +
		ingress("two", prefix+"secret: default/s")
	var m Manifests
	if err := m.Read(strings.NewReader(manifests)); err != nil {
		t.Fatal(err)
	}
	r := (&Converter{File: mustParse(t, plainConfig)}).Convert(&m.Objects)
	if len(r.Backends) != 3 {
		t.Fatalf("there are %d backends, want one of each Ingress", len(r.Backends))
	}
	for _, route := range r.Routes {
		for _, b := range r.Backends {
			if b.Name != route.Backend {
				continue
			}
			certified := bytes.Equal(b.TLS.CertPEM, cert) && bytes.Equal([]byte(b.TLS.KeyPEM), key)
			got := fmt.Sprintf("%v %v %v %q %d %d", certified, b.TLS.InsecureSkipVerify, b.TLS.Names, b.TLS.ServerName, b.TLS.MinVersion, b.TLS.MaxVersion)
			want := map[string]string{"plain": `false true [] "" 771 772`, "one": `true false [n.example] "n.example" 771 772`,
				"two": `true true [] "" 771 771`}[route.Ingress]
			if got != want {
				t.Errorf("%s has %s, want %s", route.Ingress, got, want)
			}
		}
	}
}
