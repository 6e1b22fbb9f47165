package config

import (
	"strings"
	"testing"
)

func TestBackendOfURL(t *testing.T) {
	for _, test := range []struct {
		url      string
		protocol Protocol
		address  string
		host     string
		target   string
		error    string
	}{
		{url: "http://127.0.0.1:24001/check", protocol: ProtocolHTTP, address: "127.0.0.1:24001", host: "127.0.0.1:24001", target: "/check"},
		{url: "http://auth.example.org", protocol: ProtocolHTTP, address: "auth.example.org:80", host: "auth.example.org", target: "/"},
		{url: "https://issuer.example.org/keys.json?a=%2F", protocol: ProtocolHTTPS, address: "issuer.example.org:443", host: "issuer.example.org", target: "/keys.json?a=%2F"},
		{url: "https://[2001:db8::1]:8443/a%20b", protocol: ProtocolHTTPS, address: "[2001:db8::1]:8443", host: "[2001:db8::1]:8443", target: "/a%20b"},
		{url: "ftp://example.org/", error: "is not a URL"},
		{url: "/check", error: "is not a URL"},
		{url: "https:///check", error: "is not a URL"},
		{url: "http://a b/", error: "is not a URL"},
		{url: "https://ada:secret@example.org/", error: "has a user name"},
		{url: "https://example.org/a/../b", error: "has a path that two servers"},
		{url: "https://example.org/#here", error: "has a fragment"},
	} {
		b, target, err := BackendOfURL("auth/sso", test.url)
		if test.error != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.error) {
				t.Errorf("%s: %v", test.url, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
			continue
		}
		if b.Name != "auth/sso" || b.Protocol != test.protocol || b.Host != test.host || target != test.target ||
			len(b.Endpoints) != 1 || b.Endpoints[0].Address != test.address || b.HealthCheck != nil {
			t.Errorf("%s: %+v, %q", test.url, b, target)
		}
	}
}

func TestAllBackends(t *testing.T) {
	c := &Config{Backends: []*Backend{new(NewBackend("app"))}}
	if all := c.AllBackends(); len(all) != 1 {
		t.Errorf("%d backends", len(all))
	}
	c.Derive(NewBackend("auth/sso"))
	if all := c.AllBackends(); len(all) != 2 || all[1].Name != "auth/sso" || len(c.Backends) != 1 {
		t.Errorf("all are %v", all)
	}
}
