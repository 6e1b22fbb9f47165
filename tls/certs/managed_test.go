package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

// authority is a Managed with certificates that the test sets.
type authority struct {
	mu     sync.Mutex
	listed map[string]*tls.Certificate
	demand func(name string) (*tls.Certificate, error)
}

func (a *authority) Certificate(name string) *tls.Certificate {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.listed[name]
}

func (a *authority) Demand(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return a.demand(h.ServerName)
}

func (a *authority) All() []*tls.Certificate {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.listed))
}

func (a *authority) give(name string, c *tls.Certificate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listed == nil {
		a.listed = make(map[string]*tls.Certificate)
	}
	a.listed[name] = c
}

// pair makes a certificate as if an authority had issued it.
func (d dir) pair(id, keyType string, template *x509.Certificate) *tls.Certificate {
	d.t.Helper()
	e := d.write(id, keyType, template)
	c, err := tls.LoadX509KeyPair(e.CertFile, e.KeyFile)
	if err != nil {
		d.t.Fatal(err)
	}
	return &c
}

func acmeEntry(keyType string, hosts ...string) config.Certificate {
	return config.Certificate{ACME: &config.ACME{Hosts: hosts, KeyType: keyType}}
}

// load puts entries into use. by has the Managed of each ACME entry, in order.
func load(t *testing.T, s *Store, by []*authority, entries ...config.Certificate) {
	t.Helper()
	of := make(map[*config.ACME]*authority)
	for _, e := range entries {
		if e.ACME != nil {
			of[e.ACME] = by[len(of)]
		}
	}
	files, err := s.ReadFiles(entries)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Plan(entries, func(a *config.ACME) Managed { return of[a] }, files)
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
}

// refused reports whether a handshake for serverName ends with unrecognized_name.
func refused(t *testing.T, s *Store, serverName string) bool {
	t.Helper()
	_, err := shake(t, allSuites(s), modern, serverName)
	return err != nil && strings.Contains(err.Error(), "unrecognized name")
}

func TestNamesWithoutACertificateAreRefused(t *testing.T) {
	d := newDir(t)
	s := New(NewMetrics(prometheus.NewRegistry()))
	var missing []string
	s.Missing = func(name string) { missing = append(missing, name) }
	ec, rsa := new(authority), new(authority)
	load(t, s, []*authority{ec, rsa}, d.write("file", "ecdsa", names("file", "file.example.org")),
		acmeEntry("p256", "app.example.org", "*.wild.example.org"), acmeEntry("rsa2048", "app.example.org"))
	f := func(client *tls.Config, serverName, want string) {
		t.Helper()
		if got, err := served(t, s, client, serverName); got != want {
			t.Errorf("%q is served with %q, %v, want %q", serverName, got, err, want)
		}
	}
	for _, name := range []string{"app.example.org", "any.wild.example.org"} {
		if !refused(t, s, name) {
			t.Errorf("%s is not refused", name)
		}
	}
	if got := strings.Join(missing, " "); got != "app.example.org *.wild.example.org" {
		t.Errorf("missing are %q", got)
	}
	f(modern, "file.example.org", "file")
	f(modern, "other.example.org", "file")
	f(modern, "", "file")

	rsa.give("app.example.org", d.pair("rsa", "rsa", names("rsa", "app.example.org")))
	f(modern, "app.example.org", "rsa") // this certificate is better than none
	ec.give("app.example.org", d.pair("ec", "ecdsa", names("ec", "app.example.org")))
	ec.give("*.wild.example.org", d.pair("wild", "ecdsa", names("wild", "*.wild.example.org")))
	f(modern, "app.example.org", "ec")
	f(onlyRSA, "app.example.org", "rsa")
	f(modern, "any.wild.example.org", "wild")
	f(modern, "two.labels.wild.example.org", "file")
	if len(missing) != 2 {
		t.Errorf("missing are %q", missing)
	}
}

// If an ACME entry comes first, its first host is for clients without SNI.
func TestFirstEntryIsManaged(t *testing.T) {
	d := newDir(t)
	s := New(NewMetrics(prometheus.NewRegistry()))
	ec, rsa := new(authority), new(authority)
	load(t, s, []*authority{ec, rsa}, acmeEntry("p256", "z.example.org", "a.example.org"), acmeEntry("rsa4096", "a.example.org", "z.example.org"))
	if got, _ := served(t, s, modern, ""); got != "refused" {
		t.Error("a client without SNI is served with nothing")
	}
	for _, name := range []string{"a", "z"} {
		host := name + ".example.org"
		ec.give(host, d.pair(name+"-ec", "ecdsa", names(name+"-ec", host)))
		rsa.give(host, d.pair(name+"-rsa", "rsa", names(name+"-rsa", host)))
	}
	for client, want := range map[*tls.Config]string{modern: "z-ec", onlyRSA: "z-rsa"} {
		if got, _ := served(t, s, client, ""); got != want {
			t.Errorf("a client without SNI is served with %q, want %q", got, want)
		}
	}
}

func TestWhoHasNamesOnDemand(t *testing.T) {
	d := newDir(t)
	cert := d.pair("demanded", "ecdsa", names("demanded", "x.example.org"))
	var asked []string
	by := func(id string) *authority {
		return &authority{demand: func(name string) (*tls.Certificate, error) {
			asked = append(asked, id+" "+name)
			switch {
			case strings.HasPrefix(name, "no"):
				return nil, nil
			case strings.HasPrefix(name, "error"):
				return nil, errors.New("not in time")
			}
			return cert, nil
		}}
	}
	onDemand := func(hosts ...string) config.Certificate {
		e := acmeEntry("p256")
		e.ACME.OnDemand = &config.OnDemand{Hosts: hosts, Ask: "http://127.0.0.1/"}
		return e
	}
	s := New(NewMetrics(prometheus.NewRegistry()))
	f := func(serverName, wantServed, wantAsked string) {
		t.Helper()
		asked = nil
		got, _ := served(t, s, modern, serverName)
		if got != wantServed || strings.Join(asked, ", ") != wantAsked {
			t.Errorf("%q is served with %q after %q, want %q after %q", serverName, got, asked, wantServed, wantAsked)
		}
	}
	file := d.write("file", "ecdsa", names("file", "file.example.org", "*.files.example.org"))
	load(t, s, []*authority{by("a"), by("b")}, file, onDemand("*.shops.example.org", "shop.example.org"), onDemand("*.shops.example.org", "two.example.org"))
	f("one.shops.example.org", "demanded", "a one.shops.example.org")
	f("shop.example.org", "demanded", "a shop.example.org")
	f("two.example.org", "demanded", "b two.example.org")
	f("no.shops.example.org", "refused", "a no.shops.example.org")
	f("error.shops.example.org", "refused", "a error.shops.example.org")
	f("file.example.org", "file", "")
	f("any.files.example.org", "file", "")
	f("shops.example.org", "file", "")
	f("any.example.com", "file", "")
	f("", "file", "")

	load(t, s, []*authority{by("any"), by("b")}, file, onDemand(), onDemand("*.shops.example.org"))
	f("any.example.com", "demanded", "any any.example.com")
	f("one.shops.example.org", "demanded", "b one.shops.example.org")
	f("no.example.com", "refused", "any no.example.com")
	f("file.example.org", "file", "")
	f("", "file", "")
}

func TestExpiriesOfManagedCertificates(t *testing.T) {
	d := newDir(t)
	reg := prometheus.NewRegistry()
	s := New(NewMetrics(reg))
	a := new(authority)
	load(t, s, []*authority{a}, acmeEntry("p256", "app.example.org", "new.example.org"))
	f := func(want map[string]float64) {
		t.Helper()
		if got := gauges(t, reg); !maps.Equal(got, want) {
			t.Errorf("the series are %v, want %v", got, want)
		}
	}
	f(map[string]float64{})
	until := func(at int64) *tls.Certificate {
		c := names("a", "app.example.org")
		c.NotAfter = time.Unix(at, 0)
		return d.pair("a", "ecdsa", c)
	}
	a.give("app.example.org", until(1900000000))
	s.Refresh()
	f(map[string]float64{"app.example.org": 1.9e9})
	a.give("app.example.org", until(2000000000))
	s.Refresh()
	f(map[string]float64{"app.example.org": 2e9})
	load(t, s, nil)
	f(map[string]float64{})
}

func TestEnding(t *testing.T) {
	const day = 24 * time.Hour
	d := newDir(t)
	reg := prometheus.NewRegistry()
	s := New(NewMetrics(reg))
	now := time.Now()
	living := func(id string, life, left time.Duration) *x509.Certificate {
		c := names(id, id+".example.org")
		c.NotAfter = now.Add(left)
		c.NotBefore = c.NotAfter.Add(-life)
		return c
	}
	a := new(authority)
	f := func(managed bool, life, left time.Duration, want bool) {
		t.Helper()
		if managed {
			a.give("m.example.org", d.pair("m", "ecdsa", living("m", life, left)))
			load(t, s, []*authority{a}, acmeEntry("p256", "m.example.org"))
		} else {
			load(t, s, nil, d.write("f", "ecdsa", living("f", life, left)))
		}
		got := s.Ending(now)
		if (len(got) == 1) != want {
			t.Errorf("managed %v, %s of %s left: told of are %+v", managed, left, life, got)
		}
		if want && len(got) == 1 && (got[0].Names[0] == "" || got[0].Source == "" || !got[0].NotAfter.Equal(now.Add(left).Truncate(time.Second))) {
			t.Errorf("told is %+v", got[0])
		}
		due := gaugesOf(t, reg, "weir_tls_certificate_renewal_due_timestamp_seconds") // the alert and the log must use the same time
		for name, at := range due {
			if (at < float64(now.Unix())) != want {
				t.Errorf("managed %v, %s of %s left: %s is due in %v s", managed, left, life, name, at-float64(now.Unix()))
			}
		}
		if len(due) != 1 {
			t.Errorf("the series are %v", due)
		}
	}
	f(false, 365*day, 15*day, false)
	f(false, 365*day, 13*day, true)
	f(false, 365*day, -day, true)
	f(false, 30*day, 13*day, true)
	f(false, 7*day, 3*day, false)
	f(false, 7*day, 2*day, true)
	f(true, 90*day, 29*day, false)
	f(true, 90*day, 13*day, true)
	f(true, 6*day, 38*time.Hour, false)
	f(true, 6*day, 30*time.Hour, true)

	load(t, s, nil, selfSigned("self.example.org"))
	if got := s.Ending(now.Add(selfSignedLife - 13*day)); len(got) != 1 || got[0].Source != "self-signed" {
		t.Errorf("told of a self-signed certificate is %+v", got)
	}
}

// If a pair becomes unusable, ReadFiles keeps the pair that was read before, even if other
// entries change. It refuses a pair that was never usable.
func TestPlanKeepsGoodPairs(t *testing.T) {
	d := newDir(t)
	a, b := d.write("a", "ecdsa", names("a1", "a.example.org")), d.write("b", "ecdsa", names("b1", "b.example.org"))
	s := newStore(t, a, b)
	d.put(a.KeyFile, []byte("half a ke"))
	d.write("b", "ecdsa", names("b2", "b.example.org"))
	c := d.write("c", "ecdsa", names("c1", "c.example.org"))
	commit, err := s.Prepare([]config.Certificate{a, b, c})
	if err != nil {
		t.Fatal(err)
	}
	commit()
	for name, want := range map[string]string{"a.example.org": "a1", "b.example.org": "b2", "c.example.org": "c1"} {
		if got, _ := served(t, s, modern, name); got != want {
			t.Errorf("%s is served with %s, want %s", name, got, want)
		}
	}
	if names, ok := s.InUse(a.CertFile, a.KeyFile); !ok || len(names) != 1 || names[0] != "a.example.org" {
		t.Errorf("in use: %q, %v", names, ok)
	}
	if _, ok := s.InUse(a.CertFile, b.KeyFile); ok {
		t.Error("a pair that nobody has is in use")
	}
	if _, err := s.Prepare([]config.Certificate{{CertFile: b.CertFile, KeyFile: a.KeyFile}}); err == nil {
		t.Error("a pair that was never good is taken")
	}
}

// Certificates that an authority issues for one TLS policy are served to the clients of this policy only, whatever
// its names and even as the first entry.
func TestAuthorityOfOnePolicy(t *testing.T) {
	d := newDir(t)
	m := &authority{}
	store := New(NewMetrics(prometheus.NewRegistry()))
	var missing []string
	store.Missing = func(name string) { missing = append(missing, name) }
	for range 2 {
		plan, err := store.Plan([]config.Certificate{{ACME: &config.ACME{Hosts: []string{"a.example"}, KeyType: "p256", Owner: "p", OnDemand: &config.OnDemand{}}}}, func(*config.ACME) Managed { return m }, nil)
		if err != nil {
			t.Fatal(err)
		}
		plan.Commit()
	}
	get := func(owner, name string) *tls.Certificate {
		t.Helper()
		find := store.Get
		if owner != "" {
			find = store.Of(owner)
		}
		c, err := find(&tls.ClientHelloInfo{ServerName: name, SupportedVersions: []uint16{tls.VersionTLS13}, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}})
		if err != nil {
			t.Errorf("%s, %s: %v", owner, name, err)
		}
		return c
	}
	if get("p", "a.example") != nil || !slices.Equal(missing, []string{"a.example"}) {
		t.Errorf("there is a certificate before the authority issued one, or %q is missing", missing)
	}
	c := d.pair("a", "ecdsa", names("a", "a.example"))
	m.give("a.example", c)
	if get("p", "a.example").Leaf != c.Leaf || get("p", "").Leaf != c.Leaf {
		t.Error("a client of the policy does not get the certificate")
	}
	for _, name := range []string{"a.example", "", "other.example"} {
		if get("q", name) != nil || get("", name) != nil {
			t.Errorf("a client of another policy gets the certificate for %q", name)
		}
	}
}
