package acme

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"github.com/miekg/dns"

	"github.com/weirproxy/weir/config"
)

// nobody is the URL of an authority at which no process listens.
const nobody = "https://127.0.0.1:1/dir"

func entryFor(dir string, hosts ...string) config.Certificate {
	return config.Certificate{ACME: &config.ACME{Hosts: hosts, Directory: nobody, KeyType: "p256",
		Challenges: []config.Challenge{config.ChallengeHTTP01, config.ChallengeTLSALPN01}, Storage: config.Secret(dir)}}
}

// engineOf opens the storage of an entry in the same way as the Manager.
func engineOf(t *testing.T, c config.Certificate) *engine {
	t.Helper()
	h := newHarness(t, nil)
	plan, err := h.Prepare([]config.Certificate{c})
	if err != nil {
		t.Fatal(err)
	}
	e, err := plan.Entry(c.ACME).a.open()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// plant puts a certificate for name into the storage of an entry, as if weir had obtained
// it.
func plant(t *testing.T, c config.Certificate, name string, life time.Duration) {
	t.Helper()
	e := engineOf(t, c)
	certPEM, keyPEM := selfSignedFor(t, name, life)
	meta, err := json.Marshal(certmagic.CertificateResource{SANs: []string{name}, IssuerData: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string][]byte{
		certmagic.StorageKeys.SiteCert(e.issuer.IssuerKey(), name):       certPEM,
		certmagic.StorageKeys.SitePrivateKey(e.issuer.IssuerKey(), name): keyPEM,
		certmagic.StorageKeys.SiteMeta(e.issuer.IssuerKey(), name):       meta,
	} {
		if err := e.config.Storage.Store(within(t), key, value); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServesWhatTheStorageHas(t *testing.T) {
	c := entryFor(t.TempDir(), "app.example.org", "*.example.org")
	plant(t, c, "app.example.org", 90*24*time.Hour)
	h := newHarness(t, nil)
	e := h.use(c)[0]
	found := h.expect(Found, "app.example.org")
	if time.Until(found.NotAfter) < 80*24*time.Hour || found.Directory != nobody {
		t.Errorf("the event is %+v", found)
	}
	if e.Certificate("app.example.org") == nil {
		t.Error("a certificate that is in the storage is not served")
	}
	for _, name := range []string{"*.example.org", "www.example.org", ""} {
		if e.Certificate(name) != nil {
			t.Errorf("%q is served with a certificate", name)
		}
	}
	if n := len(e.All()); n != 1 {
		t.Errorf("there are %d certificates", n)
	}
}

// Each order of an issuer has the end of its own certificate.
func TestEndsOfOrders(t *testing.T) {
	issuer := &config.ACMEIssuer{Name: "public"}
	order := func(dir string, issuer *config.ACMEIssuer, host string) config.Certificate {
		c := entryFor(dir, host)
		c.ACME.Issuer, c.ACME.Owner = issuer, "gateway/"+host
		return c
	}
	dir := t.TempDir()
	all := []config.Certificate{order(dir, issuer, "app.example.org"), order(dir, issuer, "new.example.org"), order(t.TempDir(), &config.ACMEIssuer{Name: "other"}, "app.example.org")}
	plant(t, all[0], "app.example.org", 90*24*time.Hour)
	h := newHarness(t, nil)
	entries := []*config.ACME{all[0].ACME, all[1].ACME, all[2].ACME}
	if got := h.Ends(entries); !got[0].IsZero() {
		t.Errorf("before there is a plan: %v", got)
	}
	h.use(all...)
	found := h.expect(Found, "app.example.org")
	if got := h.Ends(entries); !got[0].Equal(found.NotAfter) || !got[1].IsZero() || !got[2].IsZero() {
		t.Errorf("the certificate ends at %v, and the orders have %v", found.NotAfter, got)
	}
}

// If a storage is down at the start, or a folder cannot be made, weir starts
// nevertheless. When the storage works again, weir uses it without help of an operator.
func TestStorageIsDownAtTheStart(t *testing.T) {
	c := entryFor(t.TempDir(), "app.example.org")
	plant(t, c, "app.example.org", 90*24*time.Hour)
	var opened atomic.Int32
	h := newHarness(t, func(path string) (Storage, error) {
		if opened.Add(1) < 3 {
			return nil, errors.New("the storage is down")
		}
		return directory{&certmagic.FileStorage{Path: path}}, nil
	})
	e := h.use(c)[0]
	if told := h.expect(StorageError, "app.example.org"); told.Err == nil || told.Next.IsZero() {
		t.Errorf("the event is %+v", told)
	}
	h.expect(Found, "app.example.org")
	if e.Certificate("app.example.org") == nil {
		t.Error("the certificate is not served")
	}
}

func TestReloadKeepsWhatIsServed(t *testing.T) {
	c := entryFor(t.TempDir(), "a.example.org", "b.example.org")
	plant(t, c, "a.example.org", 90*24*time.Hour)
	plant(t, c, "b.example.org", 90*24*time.Hour)
	var opened atomic.Int32
	h := newHarness(t, func(path string) (Storage, error) {
		opened.Add(1)
		return directory{&certmagic.FileStorage{Path: path}}, nil
	})
	e := h.use(c)[0]
	h.expect(Found, "a.example.org")
	for e.Certificate("b.example.org") == nil {
		h.expect(Found, "b.example.org")
	}
	first := e.Certificate("a.example.org")

	same := *c.ACME
	same.Hosts = []string{"a.example.org"}
	e = h.use(config.Certificate{Position: config.Position{Line: 7}, ACME: &same})[0]
	// The test compares the leaves, because renewal information that has arrived meanwhile makes a new
	// tls.Certificate.
	if e.Certificate("a.example.org").Leaf != first.Leaf {
		t.Error("a reload took another certificate for a name that stayed")
	}
	if e.Certificate("b.example.org") != nil {
		t.Error("a name that is gone is still served")
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("the storage was opened %d times", n)
	}

	other := same
	other.Email = "ops@example.org"
	e = h.use(config.Certificate{ACME: &other})[0]
	if e.Certificate("a.example.org") == nil {
		t.Error("with other settings the name has no certificate for a moment")
	}
	if e.a.settings.Email != other.Email {
		t.Error("the settings did not change")
	}
	plan, err := h.Prepare(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.authorities) != 1 {
		t.Error("Prepare changed something")
	}
	plan.Commit()
	if len(h.authorities) != 0 {
		t.Error("an authority that no entry names is still there")
	}
}

func TestSettings(t *testing.T) {
	base := *entryFor("/var/lib/weir").ACME
	base.ExternalAccount = &config.ExternalAccount{KeyID: "kid", MACKey: "a"}
	base.DNS = &config.DNSChallenge{RFC2136: config.RFC2136{Key: "b"}}
	f := func(wantSame bool, change func(*config.ACME)) {
		t.Helper()
		one := base
		external, dns := *base.ExternalAccount, *base.DNS
		one.ExternalAccount, one.DNS = &external, &dns
		change(&one)
		if same := settingsOf(&one) == settingsOf(&base); same != wantSame {
			t.Errorf("the settings are the same: %v, want %v", same, wantSame)
		}
	}
	f(true, func(*config.ACME) {})
	f(true, func(a *config.ACME) { a.Hosts = []string{"app.example.org"} })
	f(false, func(a *config.ACME) { a.Email = "ops@example.org" })
	f(false, func(a *config.ACME) { a.Storage = "/srv/weir" })
	f(false, func(a *config.ACME) { a.CAPool = []byte("x") })
	f(false, func(a *config.ACME) { a.ExternalAccount.MACKey = "c" })
	f(false, func(a *config.ACME) { a.DNS.RFC2136.Key = "c" })
	f(false, func(a *config.ACME) { a.OnDemand = &config.OnDemand{Ask: "http://127.0.0.1/"} })
	f(false, func(a *config.ACME) { a.KeyType = "p384" })
}

func TestKeyTypesAreKeptApart(t *testing.T) {
	dir := t.TempDir()
	c := entryFor(dir, "app.example.org")
	plant(t, c, "app.example.org", 90*24*time.Hour)
	rsa := entryFor(dir, "app.example.org")
	rsa.ACME.KeyType = "rsa2048"
	e := engineOf(t, rsa)
	key := certmagic.StorageKeys.SiteCert(e.issuer.IssuerKey(), "app.example.org")
	if e.config.Storage.Exists(within(t), key) {
		t.Error("an RSA entry finds the ECDSA certificate")
	}
	if err := e.config.Storage.Store(within(t), key, []byte("rsa")); err != nil {
		t.Fatal(err)
	}
	if text, err := engineOf(t, c).config.Storage.Load(within(t), key); err != nil || string(text) == "rsa" {
		t.Errorf("the RSA certificate took the ECDSA one's place: %v", err)
	}
	all, err := e.config.Storage.List(within(t), "certificates", true)
	if err != nil || !strings.Contains(strings.Join(all, " "), key) {
		t.Errorf("the storage lists %q, %v", all, err)
	}
	if _, err := e.config.Storage.Stat(within(t), key); err != nil {
		t.Error(err)
	}
	if err := e.config.Storage.Store(within(t), "acme/account", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if !engineOf(t, c).config.Storage.Exists(within(t), "acme/account") {
		t.Error("accounts are not shared")
	}
	if err := e.config.Storage.Delete(within(t), "certificates"); err != nil {
		t.Fatal(err)
	}
	if !engineOf(t, c).config.Storage.Exists(within(t), key) {
		t.Error("deleting the RSA certificates deleted the others")
	}
}

// A storage that hangs while it is opened delays neither a reload nor Close.
func TestStorageHangs(t *testing.T) {
	open, opening := make(chan struct{}), make(chan struct{}, 1)
	h := newHarness(t, func(string) (Storage, error) {
		opening <- struct{}{}
		<-open
		return nil, errors.New("too late")
	})
	t.Cleanup(func() { close(open) })
	h.use(entryFor(t.TempDir(), "app.example.org"))
	<-opening
	h.use() // this reload removes the entry
	h.use(entryFor(t.TempDir(), "app.example.org"))
	<-opening
	start := time.Now()
	h.Close()
	if took := time.Since(start); took > 2*closePatience+patience/2 {
		t.Errorf("Close took %s", took)
	}
}

// certmagic knows only one challenge for a name at a time, even with several storages.
func TestOneAttemptForAName(t *testing.T) {
	h := newHarness(t, nil)
	var inside, most atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if !h.reserve(within(t), "app.example.org") {
				t.Error("the name cannot be had")
				return
			}
			if n := inside.Add(1); n > most.Load() {
				most.Store(n)
			}
			inside.Add(-1)
			h.release("app.example.org")
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d have the name at once", most.Load())
	}
	h.reserve(within(t), "app.example.org")
	ctx, cancel := cancelled()
	defer cancel()
	if h.reserve(ctx, "app.example.org") {
		t.Error("a name that is taken can be had")
	}
	if !h.reserve(ctx, "other.example.org") {
		t.Error("a name that is free cannot be had")
	}
}

// slowStorage blocks reads of challenges until block is closed.
type slowStorage struct {
	Storage
	block chan struct{}
	loads atomic.Int32
}

func (s *slowStorage) Load(ctx context.Context, key string) ([]byte, error) {
	if strings.Contains(key, "challenge_tokens") {
		s.loads.Add(1)
		if s.block != nil {
			<-s.block
		}
	}
	return s.Storage.Load(ctx, key)
}

// putChallenge stores a challenge, as another process does.
func putChallenge(t *testing.T, c config.Certificate, kind, name string) acme.Challenge {
	t.Helper()
	e := engineOf(t, c)
	one := acme.Challenge{Type: kind, Token: "token", KeyAuthorization: "token.thumbprint", Identifier: acme.Identifier{Type: "dns", Value: name}}
	text, err := json.Marshal(one)
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("acme/%s/challenge_tokens/%s.json", certmagic.StorageKeys.Safe(e.issuer.IssuerKey()), name)
	if err := e.config.Storage.Store(within(t), key, text); err != nil {
		t.Fatal(err)
	}
	return one
}

func TestChallengesOfOtherProcesses(t *testing.T) {
	c := entryFor(t.TempDir(), "app.example.org", "alpn.example.org")
	putChallenge(t, c, acme.ChallengeTypeHTTP01, "app.example.org")
	putChallenge(t, c, acme.ChallengeTypeHTTP01, "stranger.example.org")
	putChallenge(t, c, acme.ChallengeTypeTLSALPN01, "alpn.example.org")
	slow := &slowStorage{}
	h := newHarness(t, func(path string) (Storage, error) {
		slow.Storage = directory{&certmagic.FileStorage{Path: path}}
		return slow, nil
	})
	h.use(c)
	f := func(host, token string, want bool) {
		t.Helper()
		text, ok := h.HTTP01(host, token)
		if ok != want || ok && text != "token.thumbprint" {
			t.Errorf("HTTP01(%q, %q) = %q, %v", host, token, text, ok)
		}
	}
	f("app.example.org", "token", true)
	f("APP.example.org.", "token", true)
	f("app.example.org", "other", false)
	f("app.example.org", "", false)
	f("alpn.example.org", "token", false)
	f("", "token", false)
	before := slow.loads.Load()
	f("stranger.example.org", "token", false)
	f("../app.example.org", "token", false)
	if slow.loads.Load() != before {
		t.Error("a name that no entry has made the storage read")
	}

	before = slow.loads.Load()
	for host, want := range map[string]bool{"app.example.org": true, "APP.example.org.": true, "alpn.example.org": true, "stranger.example.org": false, "[2001:db8::1]": false, "": false} {
		if got := h.OrdersHTTP01(host); got != want {
			t.Errorf("OrdersHTTP01(%q) = %v", host, got)
		}
	}
	if slow.loads.Load() != before {
		t.Error("OrdersHTTP01 made the storage read")
	}
	cert, err := h.TLSALPN01(&tls.ClientHelloInfo{ServerName: "alpn.example.org"})
	if err != nil || cert == nil {
		t.Errorf("TLSALPN01: %v", err)
	}
	for _, name := range []string{"app.example.org", "stranger.example.org", ""} {
		if cert, err := h.TLSALPN01(&tls.ClientHelloInfo{ServerName: name}); err == nil {
			t.Errorf("%q gets %v", name, cert.Leaf)
		}
	}
}

// Clients that request challenges again and again while the storage is slow must not wait
// long, and their requests must not accumulate.
func TestChallengesAreBounded(t *testing.T) {
	c := entryFor(t.TempDir(), "app.example.org")
	slow := &slowStorage{block: make(chan struct{})}
	h := newHarness(t, func(path string) (Storage, error) {
		slow.Storage = directory{&certmagic.FileStorage{Path: path}}
		return slow, nil
	})
	h.use(c)
	t.Cleanup(func() { close(slow.block) })
	var all sync.WaitGroup
	for range 4 * maxLookups {
		all.Go(func() {
			if _, ok := h.HTTP01("app.example.org", "token"); ok {
				t.Error("a challenge was answered out of nothing")
			}
		})
	}
	all.Wait() // each waits for lookupTimeout at most
	if n := slow.loads.Load(); n > maxLookups {
		t.Errorf("the storage was read %d times at once", n)
	}
}

func TestAddressOf(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		if got := addressOf(name); got != want {
			t.Errorf("addressOf(%q) = %q, want %q", name, got, want)
		}
	}
	f("1.2.0.192.in-addr.arpa", "192.0.2.1")
	f("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa", "2001:db8::1")
	f("2.0.192.in-addr.arpa", "")
	f("in-addr.arpa", "")
	f("300.2.0.192.in-addr.arpa", "")
	f("1.0.0.ip6.arpa", "")
	f("x.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa", "")
	f("app.example.org", "")
	f("", "")
}

func FuzzAddressOf(f *testing.F) {
	for _, name := range []string{"1.2.0.192.in-addr.arpa", "in-addr.arpa", "....in-addr.arpa", "x.ip6.arpa",
		"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa", strings.Repeat(".", 33) + "ip6.arpa"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		ip := addressOf(name)
		if ip == "" {
			return
		}
		if back, err := dns.ReverseAddr(ip); err != nil || addressOf(strings.TrimSuffix(back, ".")) != ip {
			t.Errorf("%q is %q, whose reverse name is %q, %v", name, ip, back, err)
		}
	})
}

func TestPlaceholder(t *testing.T) {
	h := newHarness(t, nil)
	h.use(entryFor(t.TempDir(), "app.example.org"))
	p := h.placeholder
	if !net.ParseIP(p.host).IsLoopback() {
		t.Errorf("the placeholder is on %s", p.host)
	}
	c, err := net.Dial("tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the placeholder says %d bytes, %v", n, err)
	}
}

// countingDirectory is an authority that answers every request with an error.
func countingDirectory(t *testing.T) (url string, ca []byte, asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"type":"urn:ietf:params:acme:error:rejectedIdentifier","detail":"we do not like you","status":403}`)
	}))
	certPEM, keyPEM := selfSignedFor(t, "localhost", time.Hour)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.URL + "/dir", certPEM, asked
}

// A reload that comes late in a shutdown opens nothing, because nothing would close it again.
func TestPrepareAfterClose(t *testing.T) {
	h := newHarness(t, nil)
	h.Close()
	if _, err := h.Prepare([]config.Certificate{entryFor(t.TempDir(), "a.example.org")}); err == nil || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("the error is %v", err)
	}
	if h.placeholder != nil {
		t.Error("a port is open")
	}
}
