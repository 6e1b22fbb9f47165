package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

// given makes a certificate entry with a pair instead of files.
func (d dir) given(t *testing.T, id, keyType string, isDefault bool, hosts ...string) config.Certificate {
	t.Helper()
	return d.givenAs(t, "ns/"+id, keyType, isDefault, names(id, id+".example.org"), hosts...)
}

// givenAs is like given, with any name and certificate template.
func (d dir) givenAs(t *testing.T, name, keyType string, isDefault bool, template *x509.Certificate, hosts ...string) config.Certificate {
	t.Helper()
	c := d.write(strings.ReplaceAll(name, "/", "-"), keyType, template)
	cert, err := os.ReadFile(c.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(c.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return config.Certificate{Pair: &config.Pair{Name: name, Hosts: hosts, Default: isDefault, CertPEM: cert, KeyPEM: config.Secret(key)}}
}

// A pair serves only the hosts that it was given for, whatever names its certificate has.
// The default pair also serves all other hosts.
func TestPairsAreForTheirHosts(t *testing.T) {
	d := newDir(t)
	missing := config.Certificate{Pair: &config.Pair{Name: "ns/missing", Hosts: []string{"missing.example"}}}
	alone := newStore(t, d.given(t, "a", "ecdsa", false, "a.example", "*.a.example"), missing)
	f := func(s *Store, serverName, want string) {
		t.Helper()
		if got, _ := served(t, s, modern, serverName); got != want {
			t.Errorf("%q is served %q, want %q", serverName, got, want)
		}
	}
	f(alone, "a.example", "a")
	f(alone, "A.example.", "a")
	f(alone, "b.a.example", "a")
	f(alone, "a.example.org", "refused") // the certificate has this name, but the pair was not given for it
	f(alone, "other.example", "refused")
	f(alone, "missing.example", "refused")

	both := newStore(t, d.given(t, "a", "ecdsa", false, "a.example"), missing, d.given(t, "d", "rsa", true, "d.example", "missing.example"))
	f(both, "a.example", "a")
	f(both, "other.example", "d")
	f(both, "missing.example", "d")
	f(both, "", "d")
}

// The first origin with a name owns it: a file before all others. Keys of other kinds
// never come from another origin.
func TestNamesHaveOneOwner(t *testing.T) {
	d := newDir(t)
	file := d.write("f", "rsa", names("f", "f.example", "*.f.example"))
	file2 := d.write("f2", "ecdsa", names("f2", "g.example"))
	of := func(id string, isDefault bool, hosts ...string) config.Certificate {
		return d.given(t, id, "ecdsa", isDefault, hosts...)
	}
	f := func(s *Store, serverName, want string) {
		t.Helper()
		if got, _ := served(t, s, modern, serverName); got != want {
			t.Errorf("%q is served %q, want %q", serverName, got, want)
		}
	}
	s := newStore(t, of("d", true, "d.example", "*.d.example", "f.example", "x.f.example", "a.example"), file, file2,
		of("a", false, "f.example", "*.f.example", "a.example", "*.d.example", "y.f.example"), of("b", false, "g.example"))
	f(s, "f.example", "f")
	f(s, "x.f.example", "f") // the wildcard of the file wins over the default certificate
	f(s, "z.f.example", "f")
	f(s, "g.example", "f2")
	f(s, "a.example", "a")
	f(s, "y.f.example", "a") // the file does not list it
	f(s, "d.example", "d")
	f(s, "", "d")

	// A pair with the names of the first entry does not serve unknown names.
	s = newStore(t, file, of("a", false, "f.example", "*.f.example"))
	f(s, "", "f")
	f(s, "other.example", "f")
	f(s, "f.example", "f")
}

// A default certificate serves all clients, even if none of its names can be a host.
func TestDefaultWithoutNames(t *testing.T) {
	d := newDir(t)
	s := newStore(t, d.given(t, "d", "ecdsa", true), d.given(t, "a", "ecdsa", false, "a.example"), d.write("f", "rsa", names("f", "f.example")))
	for name, want := range map[string]string{"": "d", "other.example": "d", "a.example": "a", "f.example": "f"} {
		if got, _ := served(t, s, modern, name); got != want {
			t.Errorf("%q is served %q, want %q", name, got, want)
		}
	}
}

// A reload keeps the entry of an unchanged pair, and makes a new entry for a changed one.
func TestPairsChange(t *testing.T) {
	d := newDir(t)
	a, b := d.given(t, "a", "ecdsa", false, "a.example"), d.given(t, "b", "ecdsa", false, "b.example")
	s := newStore(t, a, b)
	before := s.table.Load().entries
	b.Pair = &config.Pair{Name: b.Pair.Name, Hosts: []string{"b.example", "c.example"}, CertPEM: b.Pair.CertPEM, KeyPEM: b.Pair.KeyPEM}
	if err := s.Load([]config.Certificate{a, b}); err != nil {
		t.Fatal(err)
	}
	after := s.table.Load().entries
	if before[0] != after[0] || before[1] == after[1] || len(after[1].names) != 2 {
		t.Errorf("entries were %v and are %v", before, after)
	}
	if _, err := s.Reload(); err != nil || s.table.Load().entries[0] != after[0] {
		t.Errorf("reloading files touched a pair: %v", err)
	}
	if all := s.Ending(time.Now().Add(200 * 365 * 24 * time.Hour)); len(all) != 2 || all[0].Source != "ns/a" {
		t.Errorf("in 200 years %v end", all)
	}
	broken := config.Certificate{Pair: &config.Pair{Name: "ns/x", Hosts: []string{"x.example"}, CertPEM: []byte("x"), KeyPEM: "y"}}
	if err := s.Load([]config.Certificate{a, broken}); err == nil {
		t.Error("a broken pair was loaded")
	}
}

// Plan opens no file: a file that is broken meanwhile does not affect the pairs.
func TestPlanOpensNoFile(t *testing.T) {
	d := newDir(t)
	file, a := d.write("f", "ecdsa", names("f1", "f.example.org")), d.given(t, "a", "ecdsa", false, "a.example")
	s := newStore(t, file)
	d.write("f", "ecdsa", names("f2", "f.example.org"))
	p, err := s.Plan([]config.Certificate{file, a}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	for name, want := range map[string]string{"f.example.org": "f1", "a.example": "a"} {
		if got, _ := served(t, s, modern, name); got != want {
			t.Errorf("%s is served with %s, want %s", name, got, want)
		}
	}
	if replaced, err := s.Reload(); err != nil || len(replaced) != 1 {
		t.Errorf("the file was not read again: %v, %v", replaced, err)
	}
}

// Plan also opens no file if it uses the result of ReadFiles. The reload waits for files only in ReadFiles.
func TestPlanUsesFilesThatWereRead(t *testing.T) {
	d := newDir(t)
	file := d.write("f", "ecdsa", names("f1", "f.example.org"))
	s := newStore(t)
	entries := []config.Certificate{file, selfSigned("s.example.org")}
	files, err := s.ReadFiles(entries)
	if err != nil {
		t.Fatal(err)
	}
	s.ReadFile = func(path string) ([]byte, error) {
		t.Errorf("%s is read", path)
		return nil, errors.New("a test")
	}
	p, err := s.Plan(entries, nil, files)
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	if got, _ := served(t, s, modern, "f.example.org"); got != "f1" {
		t.Errorf("f.example.org is served with %s", got)
	}
	if _, err := s.Plan([]config.Certificate{selfSigned("other.example.org")}, nil, files); err == nil {
		t.Error("an entry is planned that was not read")
	}
}

// A change of files and a change of pairs do not undo each other, in either order.
func TestChangesKeepPairs(t *testing.T) {
	d := newDir(t)
	file, a, b := d.write("f", "ecdsa", names("f1", "f.example.org")), d.given(t, "a", "ecdsa", false, "a.example"), d.given(t, "b", "ecdsa", false, "b.example")
	s := newStore(t, file, a)
	d.write("f", "ecdsa", names("f2", "f.example.org"))
	changes, err := s.ReadAgain()
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := served(t, s, modern, "f.example.org"); got != "f1" {
		t.Errorf("%s is served before Commit", got)
	}
	p, err := s.Plan([]config.Certificate{file, a, b}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	if replaced := changes.Commit(); len(replaced) != 1 || replaced[0] != file.CertFile {
		t.Errorf("replaced are %v", replaced)
	}
	for name, want := range map[string]string{"f.example.org": "f2", "a.example": "a", "b.example": "b"} {
		if got, _ := served(t, s, modern, name); got != want {
			t.Errorf("%s is served with %s, want %s", name, got, want)
		}
	}
	if replaced := changes.Commit(); len(replaced) != 0 {
		t.Errorf("replaced again are %v", replaced)
	}
}

// Tenants cannot choose the size of /metrics: of the names in the Secrets of one
// namespace, only the names that expire first have series. The others are counted.
func TestNamesOfObjectsHaveFewSeries(t *testing.T) {
	d := newDir(t)
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.SetLimit(config.ObjectMetrics{Series: 1e6, CertificateNames: 10})
	s := New(m)
	soon, late := time.Unix(1900000000, 0), time.Unix(2000000000, 0)
	until := func(at time.Time, c *x509.Certificate) *x509.Certificate { c.NotAfter = at; return c }
	many := func(n int, above string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("%d.%s", i, above))
		}
		return all
	}
	file := d.write("file", "ecdsa", until(late, names("file", many(30, "file.example")...)))
	tenant := d.givenAs(t, "tenant/many", "ecdsa", false, until(late, names("many")), many(3000, "tenant.example")...)
	load := func(entries ...config.Certificate) (of, folded map[string]float64) {
		t.Helper()
		if err := s.Load(entries); err != nil {
			t.Fatal(err)
		}
		of = map[string]float64{}
		for name := range gauges(t, reg) {
			_, above, _ := strings.Cut(name, ".")
			of[above]++
		}
		return of, gaugesOf(t, reg, "weir_metrics_folded_certificate_names")
	}
	same := func(what string, got, want map[string]float64) {
		t.Helper()
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	// All names of the file have series. Of a namespace, the names that expire first have
	// series.
	of, folded := load(file, tenant, d.givenAs(t, "tenant/soon", "ecdsa", false, until(soon, names("soon")), "z.soon.example"),
		d.givenAs(t, "shop/shop", "ecdsa", false, until(late, names("shop")), many(10, "shop.example")...))
	same("names", of, map[string]float64{"file.example": 30, "tenant.example": 9, "soon.example": 1, "shop.example": 10})
	same("folded", folded, map[string]float64{"tenant": 2991})
	if at := gauges(t, reg)["z.soon.example"]; at != 1.9e9 {
		t.Errorf("the one that ends first has %v", at)
	}
	// Hosts without a certificate use the default one. They cannot displace the names in
	// the default certificate itself.
	of, folded = load(d.givenAs(t, "weir/default", "ecdsa", true, until(late, names("default", "z.default.example", "*.default.example")),
		append(many(100, "default.example"), "z.default.example", "*.default.example")...))
	same("names", of, map[string]float64{"default.example": 12})
	same("folded", folded, map[string]float64{"weir": 90})
	if g := gauges(t, reg); g["z.default.example"] == 0 || g["*.default.example"] == 0 {
		t.Errorf("the default certificate's own names are not among %v", g)
	}
	of, folded = load()
	same("names", of, nil)
	same("folded", folded, nil)
	m.SetLimit(config.ObjectMetrics{Series: 1e6, CertificateNames: 5000})
	of, folded = load(tenant)
	same("names", of, map[string]float64{"tenant.example": 3000})
	same("folded", folded, nil)
}

// There is also a limit for all namespaces together, and no namespace can use it up alone.
func TestNamesOfAllNamespacesAreBounded(t *testing.T) {
	all := map[string]expiry{}
	add := func(namespace string, n int, at time.Time) {
		for i := range n {
			name := fmt.Sprintf("%d.%s", i, namespace)
			all[name] = expiry{name: name, namespace: namespace, at: at.Add(time.Duration(i) * time.Hour)}
		}
	}
	now := time.Unix(1900000000, 0)
	for i := range 5 {
		add(fmt.Sprint("large-", i), 4000, now)
	}
	add("small", 100, now.AddDate(10, 0, 0))
	add("", 3, now)
	shown, folded := choose(all, &config.ObjectMetrics{Series: 1_000_000, CertificateNames: 3000})
	of := map[string]int{}
	for _, e := range shown {
		of[e.namespace]++
	}
	if len(shown) != 10_000+3 || of[""] != 3 || of["small"] != 100 || of["large-0"] != 1980 || folded["large-0"] != 2020 || folded["small"] != 0 {
		t.Errorf("%d are shown, %v, and folded %v", len(shown), of, folded)
	}
}

// A Secret that lists a name of the file is not used for it, so its expiry does not count
// for the name.
func TestExpiryIsOfWhatIsServed(t *testing.T) {
	d := newDir(t)
	reg := prometheus.NewRegistry()
	s := New(NewMetrics(reg))
	with := func(at int64, c *x509.Certificate) *x509.Certificate { c.NotAfter = time.Unix(at, 0); return c }
	err := s.Load([]config.Certificate{d.write("f", "ecdsa", with(2000000000, names("f", "f.example"))),
		d.givenAs(t, "tenant/t", "ecdsa", false, with(1900000000, names("t")), "f.example", "t.example")})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := gauges(t, reg), map[string]float64{"f.example": 2e9, "t.example": 1.9e9}; !maps.Equal(got, want) {
		t.Errorf("the series are %v, want %v", got, want)
	}
}

// A pair of a TLS policy serves the clients of this policy only: a name of it first, and any
// other name as well. Other pairs do not serve them.
func TestPairsOfOnePolicy(t *testing.T) {
	d := newDir(t)
	owned := func(id, keyType, owner string, hosts ...string) config.Certificate {
		c := d.given(t, id, keyType, true, hosts...)
		c.Pair.Owner = owner
		return c
	}
	s := newStore(t, owned("a", "ecdsa", "p", "a.example", "*.a.example"), owned("b", "ecdsa", "p", "b.example"), owned("b2", "rsa", "p", "b.example"),
		owned("c", "ecdsa", "q", "c.example"), d.given(t, "d", "ecdsa", false, "a.example", "d.example"))
	f := func(owner, name, want string) {
		t.Helper()
		c, err := s.Of(owner)(&tls.ClientHelloInfo{ServerName: name, SupportedVersions: []uint16{tls.VersionTLS13},
			SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}})
		got := "refused"
		if c != nil {
			got = c.Leaf.Subject.CommonName
		}
		if err != nil || got != want {
			t.Errorf("a client of %s that asks for %q gets %s (%v), not %s", owner, name, got, err, want)
		}
	}
	f("p", "a.example", "a")
	f("p", "X.A.example", "a")
	f("p", "x.y.a.example", "a") // any of them
	f("p", "b.example", "b")
	f("p", "", "a")
	f("p", "other.example", "a")
	f("q", "other.example", "c")
	f("q", "", "c")
	f("r", "a.example", "refused")
	for name, want := range map[string]string{"a.example": "d", "b.example": "refused", "c.example": "refused", "": "refused"} {
		if got, _ := served(t, s, modern, name); got != want {
			t.Errorf("a client without a policy of its own that asks for %q gets %s, not %s", name, got, want)
		}
	}
}
