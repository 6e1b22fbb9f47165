package certs

import (
	"os"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// given is a pair that comes without files, out of files.
func (d dir) given(t *testing.T, id, keyType string, isDefault bool, hosts ...string) config.Certificate {
	t.Helper()
	c := d.write(id, keyType, names(id, id+".example.org"))
	cert, err := os.ReadFile(c.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(c.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return config.Certificate{Pair: &config.Pair{Name: "ns/" + id, Hosts: hosts, Default: isDefault, CertPEM: cert, KeyPEM: config.Secret(key)}}
}

// A pair is for the hosts that it was given for, whatever names it has, and for
// nobody else unless it is the default.
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
	f(alone, "a.example.org", "refused") // it names it, and was not given for it
	f(alone, "other.example", "refused")
	f(alone, "missing.example", "refused")

	both := newStore(t, d.given(t, "a", "ecdsa", false, "a.example"), missing, d.given(t, "d", "rsa", true, "d.example", "missing.example"))
	f(both, "a.example", "a")
	f(both, "other.example", "d")
	f(both, "missing.example", "d")
	f(both, "", "d")
}

// A name is its first owner's, the file's before all, and keys of other kinds
// come from nobody else.
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
	f(s, "x.f.example", "f") // the file's wildcard goes before the default certificate
	f(s, "z.f.example", "f")
	f(s, "g.example", "f2")
	f(s, "a.example", "a")
	f(s, "y.f.example", "a") // the file does not list it
	f(s, "d.example", "d")
	f(s, "", "d")

	// Nobody is shown to strangers for having the first entry's names.
	s = newStore(t, file, of("a", false, "f.example", "*.f.example"))
	f(s, "", "f")
	f(s, "other.example", "f")
	f(s, "f.example", "f")
}

// A default certificate is that of everybody, even where its names can be no hosts.
func TestDefaultWithoutNames(t *testing.T) {
	d := newDir(t)
	s := newStore(t, d.given(t, "d", "ecdsa", true), d.given(t, "a", "ecdsa", false, "a.example"), d.write("f", "rsa", names("f", "f.example")))
	for name, want := range map[string]string{"": "d", "other.example": "d", "a.example": "a", "f.example": "f"} {
		if got, _ := served(t, s, modern, name); got != want {
			t.Errorf("%q is served %q, want %q", name, got, want)
		}
	}
}

// What did not change is not read again, and what did is another one.
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

// A change of pairs opens no file: one that is broken by now harms no pair.
func TestPlanPairsOpensNoFile(t *testing.T) {
	d := newDir(t)
	file, a := d.write("f", "ecdsa", names("f1", "f.example.org")), d.given(t, "a", "ecdsa", false, "a.example")
	s := newStore(t, file)
	d.write("f", "ecdsa", names("f2", "f.example.org"))
	p, err := s.PlanPairs([]config.Certificate{file, a}, nil)
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
