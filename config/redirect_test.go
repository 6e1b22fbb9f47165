package config_test

import "testing"

// A redirect to https leads to the port on which clients reach the tls listener.
func TestRedirectUsesPublicPort(t *testing.T) {
	f := func(what, listeners, redirect, secureRoute string, want int) {
		t.Helper()
		c := mustParse(t, "listeners:\n  web: {address: ':8080', protocol: http}\n"+listeners+
			"certificates: [{self_signed: {hosts: [a.example.org, b.example.org]}}]\nbackends: {app: {endpoints: ['127.0.0.1:9001']}}\n"+
			"routes:\n- {listeners: [web], hosts: [a.example.org], redirect: "+redirect+"}\n- "+secureRoute+"\n")
		for i := range c.Routes {
			if d := c.Routes[i].Redirect; d != nil && d.Port != want {
				t.Errorf("%s: the redirect leads to port %d, want %d", what, d.Port, want)
			}
		}
	}
	const (
		one    = "  secure: {address: ':8443', protocol: tls, public_port: 444}\n"
		two    = one + "  other: {address: ':9443', protocol: tls, public_port: 445}\n"
		ofHost = "{listeners: [secure], hosts: [a.example.org], backend: app}"
		ofAll  = "{listeners: [secure], backend: app}"
	)
	f("the listener of the host", one, "https", ofHost, 444)
	f("the only listener", one, "https", ofAll, 444)
	f("the listener of the host, and another", two, "https", ofHost+"\n- {listeners: [other], hosts: [b.example.org], backend: app}", 444)
	f("two listeners of the host", two, "https", "{listeners: [secure, other], hosts: [a.example.org], backend: app}", 443)
	f("another status", one, "{scheme: https, status: 301}", ofHost, 444)
	f("a port in the file", one, "{port: 446}", ofHost, 446)
	f("no public_port", "  secure: {address: ':8443', protocol: tls}\n", "https", ofHost, 443)
}
