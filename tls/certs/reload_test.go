package certs

import (
	"crypto/x509"
	"errors"
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/weirproxy/weir/config"
)

func TestLoadErrors(t *testing.T) {
	d := newDir(t)
	good := d.write("good", "ecdsa", names("good", "good.example.org"))
	other := d.write("other", "rsa", names("other", "other.example.org"))
	nameless := d.write("nameless", "ecdsa", &x509.Certificate{})
	p224 := d.write("p224", "p224", names("p224", "p224.example.org"))
	garbage := config.Certificate{CertFile: d.path + "/garbage.crt", KeyFile: good.KeyFile}
	d.put(garbage.CertFile, []byte("not a certificate"))
	f := func(bad config.Certificate, want ...string) {
		t.Helper()
		s := newStore(t, good)
		before := s.table.Load()
		bad.Position = config.Position{File: "weir.yaml", Line: 7, Column: 5}
		err := s.Load([]config.Certificate{other, bad})
		if err == nil {
			t.Fatalf("Load accepted %+v", bad)
		}
		for _, w := range append(want, "weir.yaml:7:5: ") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("the error %q does not say %q", err, w)
			}
		}
		if s.table.Load() != before {
			t.Error("a failed Load changed the certificates")
		}
	}
	f(config.Certificate{CertFile: d.path + "/none.crt", KeyFile: good.KeyFile}, "none.crt", "cert")
	f(config.Certificate{CertFile: good.CertFile, KeyFile: d.path + "/none.key"}, "none.key", "key")
	f(config.Certificate{CertFile: good.CertFile, KeyFile: other.KeyFile}, "good.crt", "other.key")
	f(config.Certificate{CertFile: good.KeyFile, KeyFile: good.KeyFile}, "good.key")
	f(garbage, "garbage.crt")
	f(nameless, "nameless.crt", "no name")
	f(p224, "p224.crt", "P-256")
	f(selfSigned("ä.example.org"), "ä.example.org")

	s := newStore(t)
	err := s.Load([]config.Certificate{garbage, good, nameless})
	if err == nil || !strings.Contains(err.Error(), "garbage.crt") || !strings.Contains(err.Error(), "nameless.crt") {
		t.Errorf("the error %v does not tell of both bad entries", err)
	}
}

func TestPrepareChangesNothingUntilCommit(t *testing.T) {
	d := newDir(t)
	s := newStore(t, d.write("old", "ecdsa", names("old", "app.example.org")))
	commit, err := s.Prepare([]config.Certificate{d.write("new", "ecdsa", names("new", "app.example.org"))})
	if err != nil {
		t.Fatal(err)
	}
	if name, _ := served(t, s, modern, "app.example.org"); name != "old" {
		t.Errorf("%s is served before commit", name)
	}
	commit()
	if name, _ := served(t, s, modern, "app.example.org"); name != "new" {
		t.Errorf("%s is served after commit", name)
	}
}

func TestLoadKeepsUnchangedFiles(t *testing.T) {
	d := newDir(t)
	a, b := d.write("a", "ecdsa", names("a", "a.example.org")), d.write("b", "ecdsa", names("b", "b.example.org"))
	s := newStore(t, a, b)
	before := s.table.Load().entries
	if err := s.Load([]config.Certificate{b, a}); err != nil {
		t.Fatal(err)
	}
	after := s.table.Load().entries
	if after[0] != before[1] || after[1] != before[0] {
		t.Error("entries with unchanged files were read anew")
	}
	if name, _ := served(t, s, modern, ""); name != "b" {
		t.Errorf("clients without SNI get %s, want the entry that is first now", name)
	}
}

func TestReload(t *testing.T) {
	d := newDir(t)
	a := d.write("a", "ecdsa", names("a1", "a.example.org"))
	b := d.write("b", "ecdsa", names("b1", "b.example.org"))
	s := newStore(t, a, b, selfSigned("self.example.org"))
	self := serial(t, s, "self.example.org")
	f := func(wantReplaced []string, wantErr, wantA, wantB string) {
		t.Helper()
		before := s.table.Load()
		replaced, err := s.Reload()
		if strings.Join(replaced, " ") != strings.Join(wantReplaced, " ") {
			t.Errorf("Reload replaced %q, want %q", replaced, wantReplaced)
		}
		if (err != nil) != (wantErr != "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("Reload: error %v, want %q", err, wantErr)
		}
		if len(wantReplaced) == 0 && s.table.Load() != before {
			t.Error("Reload swapped the table though nothing changed")
		}
		gotA, _ := served(t, s, modern, "a.example.org")
		gotB, _ := served(t, s, modern, "b.example.org")
		if gotA != wantA || gotB != wantB {
			t.Errorf("served are %s and %s, want %s and %s", gotA, gotB, wantA, wantB)
		}
	}
	f(nil, "", "a1", "b1")

	d.write("a", "ecdsa", names("a2", "a.example.org"))
	f([]string{a.CertFile}, "", "a2", "b1")

	// A reader sees a pair that does not match between two writes.
	oldCert, _ := os.ReadFile(a.CertFile)
	d.write("a", "rsa", names("a3", "a.example.org"))
	newCert, _ := os.ReadFile(a.CertFile)
	d.put(a.CertFile, oldCert)
	d.write("b", "ecdsa", names("b2", "b.example.org"))
	f([]string{b.CertFile}, "a.crt", "a2", "b2")
	f(nil, "stays in use", "a2", "b2")
	d.put(a.CertFile, newCert)
	f([]string{a.CertFile}, "", "a3", "b2")

	if err := os.Remove(b.CertFile); err != nil {
		t.Fatal(err)
	}
	f(nil, "b.crt", "a3", "b2")

	for client, want := range self {
		if got := serial(t, s, "self.example.org")[client]; got != want {
			t.Error("Reload changed a self-signed certificate")
		}
	}
}

func TestReloadRenewsSelfSigned(t *testing.T) {
	s := newStore(t, selfSigned("self.example.org"))
	old := s.table.Load().entries[0]
	old.notAfter = time.Now().Add(renewBefore - time.Hour)
	if _, err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if e := s.table.Load().entries[0]; e == old || time.Until(e.notAfter) < selfSignedLife-time.Hour {
		t.Error("a self-signed certificate that ends soon was not renewed")
	}
}

func TestMetrics(t *testing.T) {
	d := newDir(t)
	reg := prometheus.NewRegistry()
	s := New(NewMetrics(reg))
	soon, late := time.Unix(1900000000, 0), time.Unix(2000000000, 0)
	with := func(c *x509.Certificate, at time.Time) *x509.Certificate { c.NotAfter = at; return c }
	both := d.write("e", "ecdsa", with(names("e", "both.example.org", "e.example.org"), late))
	f := func(entries []config.Certificate, want map[string]float64) {
		t.Helper()
		if err := s.Load(entries); err != nil {
			t.Fatal(err)
		}
		if got := gauges(t, reg); !maps.Equal(got, want) {
			t.Errorf("the series are %v, want %v", got, want)
		}
	}
	f([]config.Certificate{both, d.write("r", "rsa", with(names("r", "both.example.org"), soon))},
		map[string]float64{"both.example.org": 1.9e9, "e.example.org": 2e9})
	f([]config.Certificate{both}, map[string]float64{"both.example.org": 2e9, "e.example.org": 2e9})
	f(nil, nil)
}

// gauges returns the values of the expiry metric by name.
func gauges(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	return gaugesOf(t, reg, "weir_tls_certificate_not_after_timestamp_seconds")
}

// gaugesOf returns the values of a metric by its label.
func gaugesOf(t *testing.T, reg *prometheus.Registry, metric string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, family := range families {
		if family.GetName() != metric {
			continue
		}
		for _, m := range family.GetMetric() {
			values[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return values
}

// weir does not read a pipe in place of a file, because it might never end.
func TestPipesAreNoCertificates(t *testing.T) {
	d := newDir(t)
	c := d.write("app", "ecdsa", names("app", "app.example.org"))
	s := newStore(t, c)
	if err := errors.Join(os.Remove(c.CertFile), syscall.Mkfifo(c.CertFile, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), "app.crt: it is not a regular file") {
		t.Errorf("the error is %v", err)
	}
	if name, _ := served(t, s, modern, "app.example.org"); name != "app" {
		t.Errorf("%s is served", name)
	}
}
