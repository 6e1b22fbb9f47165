package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// These tests run weir against a real ACME server, a real name server and a real Redis. In all of them a load
// balancer in front of weir sends PROXY headers, and the policy requires them.

// acmeConfig returns a configuration with two listeners that require PROXY headers, with a redirect on one of
// them, and with the certificates and routes of a test.
func acmeConfig(certificates, routes string) string {
	return `
listeners:
  web: {address: '@web', protocol: http, proxy_protocol: edge}
  secure: {address: '@secure', protocol: tls, proxy_protocol: edge}
proxy_protocol:
  edge: {header_timeout: 5s, rules: [{from: [127.0.0.0/8], header: require}]}
certificates:
` + certificates + `
routes:
  - {listeners: [web], redirect: https}
` + routes + `
backends:
  app: {endpoints: ['@app']}
`
}

// entries returns a list of certificate entries in YAML.
func entries(all ...string) string {
	var b strings.Builder
	for _, e := range all {
		b.WriteString("  - " + e + "\n")
	}
	return b.String()
}

// routesTo returns one plain route to the backend app for each host.
func routesTo(hosts ...string) string {
	var b strings.Builder
	for _, h := range hosts {
		fmt.Fprintf(&b, "  - {listeners: [secure], hosts: ['%s'], backend: app}\n", h)
	}
	return b.String()
}

// newACMEWeir prepares a weir with a backend app, and a load balancer in front of it.
func newACMEWeir(t *testing.T, ca *pebble) *weir {
	t.Helper()
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	ca.forwardTo(w)
	return w
}

// The authority can validate a name even if the routes are closed to strangers. Challenges come without a
// client certificate, from networks that the policy does not allow, over a port that redirects, and through a
// load balancer.
func TestChallengesComeThroughEveryPolicy(t *testing.T) {
	t.Parallel()
	ca := newPebble(t, pebbleOptions{noNonces: 25, accounts: map[string]string{"kid-1": "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"}}).run()
	w := newACMEWeir(t, ca)
	client := writeCertificate(t, w.dir, "client", false, "robot-7.example.org")
	w.env = []string{"OPERATOR=ops@example.org", "MAC_KEY=zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"}
	common := []string{"email: '${OPERATOR}'", "external_account: {key_id: kid-1, mac_key: '${MAC_KEY}'}", "storage: '@@dir/acme'"}
	w.start(acmeConfig(entries(
		ca.entry("plain.example.org", append(common, "challenges: [http-01]")...),
		ca.entry("robots.example.org, partners.example.org", append(common, "challenges: [tls-alpn-01]")...)),
		routesTo("plain.example.org")+`
  - {listeners: [secure], hosts: [robots.example.org], tls_policy: robots, backend: app}
  - {listeners: [secure], hosts: [partners.example.org], tls_policy: partners, backend: app}
tls_policies:
  robots: {client_auth: {mode: require, ca: '`+client.cert+`'}}
  # Nothing that the authority's client can speak.
  partners: {min_version: "1.0", max_version: "1.1", cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA], from: [127.0.0.0/8]}
`))
	roots := ca.roots()
	robot, err := tls.LoadX509KeyPair(client.cert, client.key)
	if err != nil {
		t.Fatal(err)
	}
	plain := served(t, ca.front.secure, "plain.example.org", roots)
	robots := served(t, ca.front.secure, "robots.example.org", roots, robot)

	old := &tls.Config{ServerName: "partners.example.org", RootCAs: roots, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11,
		CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}}
	var partners *tls.Conn
	within(t, time.Minute, "an old partner is served", func() error {
		partners = tls.Client(dial(t, ca.front.secure), old)
		return partners.Handshake()
	})
	ca.wantIssued(plain, robots, partners.ConnectionState().PeerCertificates[0])
	ca.process.log.awaits(t, `Binding with CA using kid "kid-1"`)
	for challenge, want := range map[string]float64{"http-01": 1, "tls-alpn-01": 2} {
		if n := w.metric("weir_acme_challenges_total", "type", challenge, "result", "answered"); n < want {
			t.Errorf("%v challenges of type %s were answered", n, challenge)
		}
	}

	// Requests that are no challenges still need a client certificate.
	secret := func(protocols ...string) error {
		c := tls.Client(dial(t, ca.front.secure), &tls.Config{ServerName: "robots.example.org", InsecureSkipVerify: true, NextProtos: protocols})
		_, err := askSeen(c, "robots.example.org", "/secret")
		return err
	}
	for _, protocols := range [][]string{nil, {"http/1.1"}, {"acme-tls/1"}, {"acme-tls/1", "http/1.1"}, {"http/1.1", "acme-tls/1"}} {
		if secret(protocols...) == nil {
			t.Errorf("with the protocols %q nobody wants a client certificate", protocols)
		}
	}
	// The plain port redirects all other requests.
	redirected := func(uri string) int {
		c := dial(t, ca.front.web)
		resp, _, err := ask(c, bufio.NewReader(c), "GET", "plain.example.org", uri)
		if err != nil {
			t.Fatal(err)
		}
		if want := "https://plain.example.org" + uri; resp.Header.Get("Location") != want && resp.StatusCode == 308 {
			t.Errorf("%s is redirected to %q", uri, resp.Header.Get("Location"))
		}
		return resp.StatusCode
	}
	if got := redirected("/a?b=c"); got != 308 {
		t.Errorf("a request on the plain port gets %d", got)
	}
}

// A wildcard needs DNS-01: weir sets records in the test's own zone by signed updates.
func TestWildcardByNameServer(t *testing.T) {
	t.Parallel()
	need(t, "pebble")
	dns := startBIND(t)
	ca := newPebble(t, pebbleOptions{resolver: dns.address, noNonces: 20}).run()
	w := newACMEWeir(t, ca)
	w.env = []string{"TSIG_KEY=" + dns.key}
	w.start(acmeConfig(entries(ca.entry("'*.example.org', example.org", "storage: '@@dir/acme'",
		"dns: {rfc2136: {server: '"+dns.address+"', key_name: weir, key: '${TSIG_KEY}'}, resolvers: ['"+dns.address+"']}")),
		routesTo("*.example.org", "example.org")))
	roots := ca.roots()
	wildcard, apex := served(t, ca.front.secure, "any.example.org", roots), served(t, ca.front.secure, "example.org", roots)
	ca.wantIssued(wildcard, apex)
	if got := wildcard.DNSNames; len(got) != 1 || got[0] != "*.example.org" {
		t.Errorf("any.example.org is served with a certificate for %q", got)
	}
	// weir removes the records again.
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", dns.address)
	}}
	eventually(t, "the zone is as before", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		records, err := resolver.LookupTXT(ctx, "_acme-challenge.example.org")
		if len(records) > 0 {
			return fmt.Errorf("it has %q", records)
		}
		var missing *net.DNSError
		if err != nil && !(errors.As(err, &missing) && missing.IsNotFound) {
			return err
		}
		return nil
	})
}

// Before an authority revokes certificates, it asks clients to renew them at once (ARI). Such a renewal
// disturbs no connection.
func TestRenewalBreaksNoConnection(t *testing.T) {
	long(t)
	t.Parallel()
	var ca *pebble
	var g *gate
	var w *weir
	var roots *x509.CertPool
	var first *x509.Certificate
	for first == nil || !renewable(first) {
		ca = newPebble(t, pebbleOptions{validity: 3 * time.Minute})
		g = newGate(t, ca, false)
		ca.run()
		w = newACMEWeir(t, ca)
		w.start(acmeConfig(entries(ca.entry("app.example.org", "storage: '@@dir/acme'")), routesTo("app.example.org")))
		roots = ca.roots()
		first = served(t, ca.front.secure, "app.example.org", roots)
	}

	// Some clients keep their connections, others open new ones. All of them verify the certificate.
	stop, running := make(chan struct{}), sync.WaitGroup{}
	var requests atomic.Int64
	for i := range 4 {
		running.Go(func() {
			for {
				c, _, err := shake(t, ca.front.secure, "app.example.org", roots)
				if err != nil {
					t.Errorf("a handshake: %v", err)
					return
				}
				r := bufio.NewReader(c)
				for n := 0; n < 1 || i%2 == 0; n++ {
					if resp, _, err := ask(c, r, "GET", "app.example.org", "/"); err != nil || resp.StatusCode != 200 {
						t.Errorf("request %d of a connection: %v, %v", n, resp, err)
						return
					}
					requests.Add(1)
					select {
					case <-stop:
						c.Close()
						return
					case <-time.After(20 * time.Millisecond):
					}
				}
				c.Close()
			}
		})
	}
	seen := []*x509.Certificate{first}
	for len(seen) < 3 && renewable(seen[len(seen)-1]) {
		last := serial(seen[len(seen)-1])
		g.renew(last)
		within(t, 2*time.Minute, "the certificate is renewed", func() error { // weir repeats a failed attempt after a minute
			c, leaf, err := shake(t, ca.front.secure, "app.example.org", roots)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			if serial(leaf) == last {
				return fmt.Errorf("not yet; %v attempts failed", w.metric("weir_acme_issuances_total", "result", "failed"))
			}
			seen = append(seen, leaf)
			return nil
		})
	}
	eventually(t, "there is a load", func() error {
		if n := requests.Load(); n < 50 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	close(stop)
	running.Wait()
	if got := ca.issued(); len(got) != len(seen) {
		t.Errorf("%d certificates were issued, and %d were wanted", len(got), len(seen))
	}
	w.wantMetric(float64(len(seen)-1), "weir_acme_issuances_total", "result", "renewed")
}

// renewable returns false if pebble cannot renew a certificate. pebble identifies certificates by the digits
// of the serial number. Clients send the bytes of the serial number, which begin with a zero byte if its
// first bit is set. pebble does not find such a certificate, and answers the renewal with 500. This affects
// one of 256 certificates.
func renewable(leaf *x509.Certificate) bool { return leaf.SerialNumber.BitLen()%8 != 0 }

// If the authority cannot be reached, weir still starts. When the authority is back, weir gets the
// certificates without help from an operator.
func TestAuthorityIsDownAtTheStart(t *testing.T) {
	t.Parallel()
	ca := newPebble(t, pebbleOptions{})
	w := newACMEWeir(t, ca)
	own := writeCertificate(t, w.dir, "own", false, "own.example.org")
	w.start(acmeConfig(entries("{cert: '"+own.cert+"', key: '"+own.key+"'}", ca.entry("app.example.org", "storage: '@@dir/acme'")),
		routesTo("app.example.org", "own.example.org")))
	w.wantVerdict(200)
	if _, _, err := shake(t, ca.front.secure, "own.example.org", own.pool); err != nil {
		t.Errorf("a name with a certificate: %v", err)
	}
	if err := refusedName(t, ca.front.secure, "app.example.org"); err != nil {
		t.Errorf("a name without one: %v", err)
	}
	eventually(t, "the log says so", func() error {
		for line := range strings.Lines(w.log.String()) {
			if strings.Contains(line, "app.example.org") && strings.Contains(line, ca.address) &&
				(strings.Contains(line, `"warn"`) || strings.Contains(line, `"error"`)) {
				return nil
			}
		}
		return errNotYet
	})
	ca.run()
	ca.wantIssued(served(t, ca.front.secure, "app.example.org", ca.roots()))
}

// A weir in a crash loop must not use up what an authority allows in an hour.
func TestRestartsDoNotAskTheAuthorityAgain(t *testing.T) {
	t.Parallel()
	ca := newPebble(t, pebbleOptions{blocked: []string{"never.example.org"}})
	g := newGate(t, ca, false)
	ca.run()
	w := newACMEWeir(t, ca)
	config := acmeConfig(entries(ca.entry("never.example.org", "storage: '@@dir/acme'")), routesTo("never.example.org"))
	w.start(config)
	eventually(t, "the authority refuses", func() error {
		if g.asked.Load() == 0 || !strings.Contains(w.log.String(), "rejectedIdentifier") {
			return errNotYet
		}
		return nil
	})
	asked := g.asked.Load()
	for range 3 {
		w.cmd.Process.Kill() // a crash is a kill without warning
		<-w.exited
		w.log.reset()
		w.start(config)
		eventually(t, "weir says that it waits", func() error {
			if !strings.Contains(w.log.String(), "not requested again yet") {
				return errNotYet
			}
			return nil
		})
		if err := refusedName(t, ca.front.secure, "never.example.org"); err != nil {
			t.Error(err)
		}
	}
	if n := g.asked.Load(); n != asked {
		t.Errorf("the restarts made %d orders", n-asked)
	}
}

// shownCertificate is a row of the certificates in GET /status/overview.
type shownCertificate struct {
	Names    []string  `json:"names"`
	Source   string    `json:"source"`
	NotAfter time.Time `json:"not_after"`
	Next     time.Time `json:"next"`
	Error    string    `json:"error"`
}

// shownCertificates returns the certificates that the status page shows, by their first name.
func (w *weir) shownCertificates() map[string]shownCertificate {
	w.t.Helper()
	var o struct {
		Certificates struct {
			Rows []shownCertificate `json:"rows"`
		} `json:"certificates"`
	}
	status, body, err := w.get("admin", "/status/overview")
	if err == nil {
		err = json.Unmarshal([]byte(body), &o)
	}
	if err != nil || status != 200 {
		w.t.Fatalf("%d %s: %v", status, body, err)
	}
	all := make(map[string]shownCertificate)
	for _, c := range o.Certificates.Rows {
		all[c.Names[0]] = c
	}
	return all
}

// The authority refuses a name. The status page and weir top show the reason and the time of the next attempt.
// They also do so after a restart, although weir then sends no request to the authority.
func TestFailedCertificateIsShown(t *testing.T) {
	t.Parallel()
	ca := newPebble(t, pebbleOptions{blocked: []string{"never.example.org"}}).run()
	w := newACMEWeir(t, ca)
	config := acmeConfig(entries(ca.entry("app.example.org, never.example.org", "storage: '@@dir/acme'")), routesTo("app.example.org", "never.example.org"))
	w.start(config)
	served(t, ca.front.secure, "app.example.org", ca.roots())
	for _, when := range []string{"after the attempt", "after a restart"} {
		within(t, time.Minute, "the status page shows both certificates "+when, func() error {
			shown := w.shownCertificates()
			if c := shown["app.example.org"]; c.Source != "acme" || time.Until(c.NotAfter) < time.Hour || c.Error != "" {
				return fmt.Errorf("app.example.org: %+v", c)
			}
			if c := shown["never.example.org"]; c.Source != "acme" || !c.NotAfter.IsZero() || !strings.Contains(c.Error, "rejectedIdentifier") || time.Until(c.Next) <= 0 {
				return fmt.Errorf("never.example.org: %+v", c)
			}
			return nil
		})
		if out := w.run(executable(t), "top", "--once", w.at("admin")); !regexp.MustCompile(`node-a: no certificate for never\.example\.org yet: .*rejectedIdentifier.*; next attempt in [0-9ms]+\n`).MatchString(out) {
			t.Errorf("%s weir top prints\n%s", when, out)
		}
		if when == "after the attempt" {
			w.cmd.Process.Kill()
			<-w.exited
			w.log.reset()
			w.start(config)
		}
	}
	t.Run("in Chromium", func(t *testing.T) {
		p := newPage(newBrowser(t, ""))
		p.size(1280, 900, "light")
		p.call(p.session, "Page.navigate", map[string]any{"url": "http://" + w.at("admin") + "/"})
		p.contains("certificates", "never.example.org")
		p.contains("certificates", "no certificate yet")
		p.contains("certificates", "rejectedIdentifier")
		p.wants(`String(/in [0-9]+ (s|min)/.test([...document.querySelectorAll("#certificates tbody tr")].find(r => r.textContent.includes("never.example.org")).textContent))`, "true")
		p.contains("problems", "1 of 2 certificates have a problem")
	})
}

// A weir that crashes in the middle of an order never learns its result. After the restart it does not order
// again at once.
func TestCrashesDuringAnOrderDoNotAskAgain(t *testing.T) {
	t.Parallel()
	ca := newPebble(t, pebbleOptions{})
	g := newGate(t, ca, true)
	ca.run()
	w := newACMEWeir(t, ca)
	config := acmeConfig(entries(ca.entry("app.example.org", "storage: '@@dir/acme'")), routesTo("app.example.org"))
	for range 3 {
		w.start(config)
		eventually(t, "weir asks, or says that it waits", func() error {
			if g.asked.Load() == 0 || w.log.String() == "" {
				return errNotYet
			}
			if g.asked.Load() > 1 {
				t.Fatalf("%d orders were asked for", g.asked.Load())
			}
			return nil
		})
		w.cmd.Process.Kill()
		<-w.exited
		w.log.reset()
	}
	w.start(config)
	eventually(t, "weir says that it waits", func() error {
		if !strings.Contains(w.log.String(), "not requested again yet") {
			return errNotYet
		}
		return nil
	})
	if n := g.asked.Load(); n != 1 {
		t.Errorf("%d orders were asked for by 4 processes", n)
	}
}

// A binary takes over while weir waits for the answer to an order. The old process gives the order up, and only
// then the new one makes its own, although the old one still has a connection. Other names are served all the time.
func TestUpgradeDuringAnOrder(t *testing.T) {
	t.Parallel()
	ca := newPebble(t, pebbleOptions{})
	g := newGate(t, ca, false)
	ca.run()
	w := newUpgradable(t)
	w.address["app"] = newWebBackend(t, "app").address
	ca.forwardTo(w)
	config := func(hosts ...string) string {
		return acmeConfig(entries(ca.entry("", "storage: '@@dir/acme'")), routesTo(hosts...)) + "pid_file: '@@dir/weir.pid'\ndrain: {lame_duck: 0s, timeout: 30s}\n"
	}
	w.start(config("app.example.org"))
	roots := ca.roots()
	first := served(t, ca.front.secure, "app.example.org", roots)
	l := &load{w: w, stop: make(chan struct{})}
	l.run("TLS handshakes", func() error {
		c, _, err := shake(t, ca.front.secure, "app.example.org", roots)
		if err == nil {
			c.Close()
		}
		return err
	})
	defer l.end()
	asks := func(n int64) {
		t.Helper()
		within(t, time.Minute, fmt.Sprint("weir orders ", n, " times"), func() error {
			if got := g.asked.Load(); got != n {
				return fmt.Errorf("it asked %d times", got)
			}
			return nil
		})
	}

	g.holdOrders()
	w.reload(config("app.example.org", "more.example.org"))
	asks(2)
	idle, _, err := shake(t, ca.front.secure, "app.example.org", roots)
	if err != nil {
		t.Fatal(err)
	}
	old, _ := w.upgrade()
	asks(3)
	if !isRunning(old) {
		t.Error("the old process has ended")
	}
	l.next(20)
	if n := g.asked.Load(); n != 3 {
		t.Errorf("two processes order: they asked %d times", n)
	}
	g.openOrders()
	more := served(t, ca.front.secure, "more.example.org", roots)
	ca.wantIssued(first, more)
	if n := ca.orders(); n != 2 {
		t.Errorf("the authority accepted %d orders", n)
	}
	idle.Close()
	gone(t, old)
	l.next(20)
}

// asker is the server that weir asks whether it may order a certificate for a name (on_demand.ask).
type asker struct {
	address string
	lock    sync.Mutex
	asked   map[string]int
	hold    chan struct{} // answers about names that begin with "slow" wait for it
}

func newAsker(t *testing.T) *asker {
	t.Helper()
	a := &asker{address: freePort(t), asked: map[string]int{}, hold: make(chan struct{})}
	l, err := net.Listen("tcp", a.address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: a}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return a
}

func (a *asker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("domain")
	a.lock.Lock()
	a.asked[name]++
	a.lock.Unlock()
	if strings.HasPrefix(name, "slow") {
		select {
		case <-a.hold:
		case <-r.Context().Done():
		}
	}
	if !strings.HasPrefix(name, "good") {
		http.Error(w, "no customer of ours", http.StatusForbidden)
	}
}

func (a *asker) count(name string) int {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.asked[name]
}

// begunWith counts the questions about names that begin with prefix.
func (a *asker) begunWith(prefix string) (n int) {
	a.lock.Lock()
	defer a.lock.Unlock()
	for name, asked := range a.asked {
		if strings.HasPrefix(name, prefix) {
			n += asked
		}
	}
	return n
}

// Strangers can ask for any number of names. They get no certificates for them, and clients that ask for a
// known name are still served.
func TestStrangersNamesAreNotCertified(t *testing.T) {
	t.Parallel()
	ca := newPebble(t, pebbleOptions{})
	g := newGate(t, ca, false)
	ca.run()
	w := newACMEWeir(t, ca)
	asker := newAsker(t)
	own := writeCertificate(t, w.dir, "own", false, "own.example.org")
	w.start(acmeConfig(entries("{cert: '"+own.cert+"', key: '"+own.key+"'}",
		ca.entry("", "storage: '@@dir/acme'", "on_demand: {ask: 'http://"+asker.address+"/allowed', hosts: ['*.customers.example.org'], timeout: 30s, concurrent: 2}"),
		ca.entry("fixed.pattern.example.org", "storage: '@@dir/acme'", "key_type: p384", "on_demand: {hosts: ['*.pattern.example.org'], timeout: 30s}")),
		routesTo("own.example.org", "*.customers.example.org", "*.pattern.example.org")))
	roots := ca.roots()
	for _, host := range []string{"fixed.pattern.example.org", "good.customers.example.org", "any.pattern.example.org"} {
		// The first handshake waits for the certificate, for at most the timeout of the entry.
		served(t, ca.front.secure, host, roots)
	}
	if n := asker.count("good.customers.example.org"); n == 0 {
		t.Error("the allowed name was not asked for")
	}
	ordered := g.asked.Load()

	f := func(host string, wantAsked int) {
		t.Helper()
		c := tls.Client(dial(t, ca.front.secure), anyCertificate(host))
		if c.Handshake() == nil && c.ConnectionState().PeerCertificates[0].VerifyHostname(host) == nil {
			t.Errorf("%s was certified", host)
		}
		if n := asker.count(host); n != wantAsked {
			t.Errorf("%s was asked for %d times", host, n)
		}
	}
	f("bad.customers.example.org", 1)
	f("good.elsewhere.example.org", 0)
	f("good.two.customers.example.org", 0)
	f("customers.example.org", 0)
	if err := refusedName(t, ca.front.secure, "bad.customers.example.org"); err != nil {
		t.Error(err)
	}

	// Many names at once, while the answers of asker are slow, too.
	var flood sync.WaitGroup
	for i := range 300 {
		flood.Go(func() {
			kind := []string{"slow", "bad", "elsewhere"}[i%3]
			host := fmt.Sprintf("%s%d.customers.example.org", kind, i)
			if kind == "elsewhere" {
				host = fmt.Sprintf("x%d.example.com", i)
			}
			c, err := net.DialTimeout("tcp", ca.front.secure, patience)
			if err != nil {
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			if tls.Client(c, anyCertificate(host)).Handshake() == nil && kind != "elsewhere" {
				t.Errorf("%s was served", host)
			}
		})
	}
	eventually(t, "somebody waits for a slow answer", func() error {
		if asker.begunWith("slow") == 0 { // any of the slow names may be the first
			return errNotYet
		}
		return nil
	})
	for range 20 {
		c, _, err := shake(t, ca.front.secure, "own.example.org", own.pool)
		if err != nil {
			t.Fatalf("an ordinary handshake meanwhile: %v", err)
		}
		c.Close()
		c, _, err = shake(t, ca.front.secure, "good.customers.example.org", roots)
		if err != nil {
			t.Fatalf("one for a name that was certified on demand: %v", err)
		}
		c.Close()
	}
	close(asker.hold)
	flood.Wait()
	if n := g.asked.Load(); n != ordered {
		t.Errorf("strangers caused %d orders", n-ordered)
	}
}
