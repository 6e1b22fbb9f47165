package config_test

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

// FuzzParse: no input makes Parse panic or hang; every error has a position and a message
// on one line; an accepted configuration has no zero timeout, and its effective
// configuration loads too and has the same effect.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("../examples/*.yaml")
	for _, name := range append(files, "testdata/acceptance.yaml") {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	rejected, err := os.ReadFile("testdata/rejected.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range strings.Split(string(rejected), "=== ")[1:] {
		_, rest, _ := strings.Cut(text, "\n")
		in, _, _ := strings.Cut(rest, "--- errors\n")
		f.Add([]byte(in))
	}
	f.Add([]byte(everyKey))
	f.Add([]byte(small))
	f.Add([]byte(certified("- acme: {on_demand: {hosts: ['*.example.org']}}\n- acme: {hosts: ['*.example.org'], dns: {rfc2136: {server: 'a:53', key_name: a, key: aHVudGVyMg==}}, storage: 'redis://a:hunter2@b/1?prefix=c'}\n") + oneRoute))
	f.Add([]byte(small + "  corp: {sha1_signatures: true, client_auth: {mode: require, ca: testdata/ca.pem, forward: []}}\nroutes:\n- {listeners: [web], redirect: https}\n- {listeners: [secure], tls_policy: corp, backend: app, hsts: {max_age: 8760h, include_subdomains: true, preload: true}}\n"))
	f.Add([]byte("listeners: {web: {address: ':80', protocol: http}}\nroutes: [{listeners: [web], backend: a}]\nbackends: {a: {protocol: https, endpoints: ['a:1'], tls: {min_version: 1.0, max_version: '1.2', cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA], sha1_signatures: true}}}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := file.Parse("weir.yaml", data, environment)
		if err != nil {
			wellFormed(t, err, !bytes.Contains(data, []byte("hunter2")))
			return
		}
		for _, l := range c.Listeners {
			noZero(t, "listener "+l.Name, l.Timeouts)
		}
		for _, b := range c.Backends {
			noZero(t, "backend "+b.Name, b.Timeouts)
			if b.ResolveInterval <= 0 || b.Queue.Timeout <= 0 || b.Ejection.For <= 0 || b.Retries.Attempts < 1 || len(b.Endpoints) == 0 {
				t.Errorf("backend %+v", b)
			}
			if o := b.TLS; o.MinVersion > o.MaxVersion || o.MinVersion < tls.VersionTLS10 || o.MaxVersion > tls.VersionTLS13 || b.HTTP2 && !config.CarriesHTTP2(&o) {
				t.Errorf("backend %+v", b)
			}
			if h := b.HealthCheck; h != nil && (h.Interval <= 0 || h.Timeout <= 0 || h.Timeout > h.Interval || h.Rise < 1 || h.Fall < 1 || h.HTTP == nil && h.GRPC == nil && !h.TCP) {
				t.Errorf("health check %+v", h)
			}
		}
		for _, h := range c.HeaderPolicies {
			if h.HeaderTimeout < time.Second || len(h.Rules) == 0 {
				t.Errorf("policy %+v", h)
			}
		}
		if c.Drain.Timeout <= 0 || c.Limits.Pending <= 0 || c.Limits.PendingPerSource <= 0 || c.Limits.HeadBytes <= 0 || c.Limits.HeadFields <= 0 || len(c.Listeners) == 0 || c.Node == "" {
			t.Errorf("configuration %+v", c)
		}
		for _, one := range c.Certificates {
			wellCertified(t, one)
		}
		for _, r := range c.Routes {
			if r.Backend == "" && r.Redirect == nil {
				t.Errorf("route %+v", r)
			}
		}
		accepts(t, data)
		reloads(t, c)
	})
}

// wellFormed checks errors. secret: the input does not itself contain the value from the
// environment, so no error may.
func wellFormed(t *testing.T, err error, secret bool) {
	t.Helper()
	errs, ok := err.(config.Errors)
	if !ok || len(errs) == 0 {
		t.Fatalf("the error is a %T: %v", err, err)
	}
	for _, e := range errs {
		if e.Position.File != "weir.yaml" || e.Position.Line < 1 || e.Position.Column < 1 || e.Message == "" || strings.ContainsAny(e.Message, "\n\r") {
			t.Errorf("error at %s: %q", e.Position, e.Message)
		}
		if secret && strings.Contains(e.Message, "hunter2") {
			t.Errorf("a value of the environment is in an error: %q", e.Message)
		}
	}
}

// noZero reports durations of a struct that are not above zero.
func noZero(t *testing.T, what string, timeouts any) {
	t.Helper()
	v := reflect.ValueOf(timeouts)
	for i := range v.NumField() {
		if v.Field(i).Int() <= 0 {
			t.Errorf("%s: %s is %d", what, v.Type().Field(i).Name, v.Field(i).Int())
		}
	}
}

// wellCertified: each entry has one source, and satisfies the assumptions of package
// tls/acme.
func wellCertified(t *testing.T, c config.Certificate) {
	t.Helper()
	sources := 0
	for _, is := range []bool{c.CertFile != "" && c.KeyFile != "", len(c.SelfSigned) > 0, c.ACME != nil} {
		if is {
			sources++
		}
	}
	if sources != 1 {
		t.Errorf("certificate %+v", c)
	}
	a := c.ACME
	if a == nil {
		return
	}
	if len(a.Hosts) == 0 && a.OnDemand == nil || a.Directory == "" || a.Storage == "" || len(a.Challenges) == 0 ||
		(a.DNS != nil) != slices.Equal(a.Challenges, []config.Challenge{config.ChallengeDNS01}) {
		t.Errorf("ACME entry %+v", a)
	}
	if o := a.OnDemand; o != nil && (o.Ask == "" && len(o.Hosts) == 0 || o.Timeout < time.Second || o.Concurrent < 1) {
		t.Errorf("on demand: %+v", o)
	}
	if e := a.ExternalAccount; e != nil && (e.KeyID == "" || e.MACKey == "") {
		t.Errorf("external account %+v", e)
	}
}
