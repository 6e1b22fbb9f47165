package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pebble is Let's Encrypt's small ACME server: a certificate authority that
// forgets everything when it ends. It finds every name at 127.0.0.1 and comes
// to HAProxy there, which stands in front of weir and sends PROXY v2 headers.
type pebble struct {
	t                *testing.T
	dir              string
	address          string // where weir finds the directory
	direct           string // where it is, if there is a gate in between
	management       string
	own              certificate // of the directory
	config, resolver string
	env              []string
	process          *peerProcess
	// front are HAProxy's addresses, where validations and our clients come in.
	front struct{ web, secure string }
}

// pebbleOptions are what tests want of their authority.
type pebbleOptions struct {
	resolver string            // its name server; empty: one that says 127.0.0.1 to everything
	accounts map[string]string // external accounts, which are required then
	noNonces int               // per cent of good nonces that are refused
	validity time.Duration     // of certificates; 0: 90 days
	blocked  []string          // names that are never certified
}

// newPebble prepares an authority that run starts.
func newPebble(t *testing.T, o pebbleOptions) *pebble {
	t.Helper()
	needLinux(t)
	need(t, "pebble")
	need(t, "haproxy")
	p := &pebble{t: t, dir: t.TempDir(), address: freePort(t), management: freePort(t), resolver: o.resolver}
	p.front.web, p.front.secure = freePort(t), freePort(t)
	p.config = filepath.Join(p.dir, "pebble.json")
	if p.resolver == "" {
		p.resolver = nameServerForEverything(t)
	}
	p.env = []string{"PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0", "PEBBLE_WFE_NONCEREJECT=" + strconv.Itoa(o.noNonces)}
	own := writeCertificate(t, p.dir, "directory", false, "localhost")
	p.own = own
	port := func(address string) int {
		_, port, _ := net.SplitHostPort(address)
		n, _ := strconv.Atoi(port)
		return n
	}
	if o.validity == 0 {
		o.validity = 90 * 24 * time.Hour
	}
	type object map[string]any
	text, err := json.Marshal(object{"pebble": object{
		"listenAddress": p.address, "managementListenAddress": p.management,
		"certificate": own.cert, "privateKey": own.key, "keyAlgorithm": "ecdsa",
		"httpPort": port(p.front.web), "tlsPort": port(p.front.secure),
		"externalAccountBindingRequired": o.accounts != nil, "externalAccountMACKeys": o.accounts,
		"domainBlocklist": o.blocked,
		"retryAfter":      object{"authz": 1, "order": 1},
		"profiles":        object{"default": object{"description": "the only one", "validityPeriod": int(o.validity.Seconds())}},
	}})
	if err := errors.Join(err, os.WriteFile(p.config, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	return p
}

// nameServerForEverything is pebble-challtestsrv: each name is at 127.0.0.1.
func nameServerForEverything(t *testing.T) string {
	t.Helper()
	dns := freePort(t)
	runPeer(t, need(t, "pebble-challtestsrv"), "-defaultIPv4", "127.0.0.1", "-defaultIPv6", "",
		"-dnsserver", dns, "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-management", freePort(t)).listening(dns)
	return dns
}

// run starts the authority.
func (p *pebble) run() *pebble {
	p.t.Helper()
	p.process = runPeerWith(p.t, p.env, need(p.t, "pebble"), "-config", p.config, "-dnsserver", p.resolver)
	if p.direct == "" {
		p.direct = p.address
	}
	p.process.listening(p.direct, p.management)
	return p
}

// forwardTo puts HAProxy in front of weir, the two ports of which are called web and secure.
func (p *pebble) forwardTo(w *weir) { p.forward(w.at("web"), w.at("secure")) }

func (p *pebble) forward(web, secure string) {
	p.t.Helper()
	config := fmt.Sprintf(`
global
    maxconn 1000
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen web
    bind %s
    server weir %s send-proxy-v2
listen secure
    bind %s
    server weir %s send-proxy-v2
`, p.front.web, web, p.front.secure, secure)
	runProxy(p.t, "haproxy", p.dir, config).listening(p.front.web, p.front.secure)
}

// entry is a certificate entry that goes to this authority, for hosts or for those of the routes.
func (p *pebble) entry(hosts string, more ...string) string {
	settings := append([]string{"directory: 'https://" + p.address + "/dir'", "ca: '" + p.own.cert + "'"}, more...)
	if hosts != "" {
		settings = append(settings, "hosts: ["+hosts+"]")
	}
	return "{acme: {" + strings.Join(settings, ", ") + "}}"
}

// roots are what certificates of this run of the authority descend from.
func (p *pebble) roots() *x509.CertPool {
	p.t.Helper()
	pool := x509.NewCertPool()
	eventually(p.t, "pebble tells its root", func() error {
		resp, err := p.client().Get("https://" + p.management + "/roots/0")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && !pool.AppendCertsFromPEM(text) {
			err = fmt.Errorf("not a certificate: %q", text)
		}
		return err
	})
	return pool
}

func (p *pebble) client() *http.Client {
	return &http.Client{Timeout: 5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

var (
	pebbleOrder  = regexp.MustCompile(`Added order "`)
	pebbleIssued = regexp.MustCompile(`Issued certificate serial ([0-9a-f]+) for order`)
)

// orders counts the orders that were accepted.
func (p *pebble) orders() int { return len(pebbleOrder.FindAllString(p.process.log.String(), -1)) }

// issued are the serial numbers of all certificates so far.
func (p *pebble) issued() []string {
	var all []string
	for _, m := range pebbleIssued.FindAllStringSubmatch(p.process.log.String(), -1) {
		all = append(all, m[1])
	}
	return all
}

// shake makes a handshake for host at address that verifies the certificate by
// roots, and returns the connection and the leaf.
func shake(t testing.TB, address, host string, roots *x509.CertPool, own ...tls.Certificate) (*tls.Conn, *x509.Certificate, error) {
	t.Helper()
	raw, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { raw.Close() })
	raw.SetDeadline(time.Now().Add(patience))
	c := tls.Client(raw, &tls.Config{ServerName: host, RootCAs: roots, Certificates: own, NextProtos: []string{"http/1.1"}})
	if err := c.Handshake(); err != nil {
		raw.Close()
		return nil, nil, err
	}
	return c, c.ConnectionState().PeerCertificates[0], nil
}

// served waits until host is served with a certificate that roots verify, and returns its leaf.
func served(t testing.TB, address, host string, roots *x509.CertPool, own ...tls.Certificate) *x509.Certificate {
	t.Helper()
	var leaf *x509.Certificate
	within(t, time.Minute, "there is a certificate for "+host, func() (err error) {
		c, l, err := shake(t, address, host, roots, own...)
		if err == nil {
			leaf = l
			c.Close()
		}
		return err
	})
	return leaf
}

// refusedName reports whether a handshake for host ends with the alert for unknown names.
func refusedName(t testing.TB, address, host string) error {
	t.Helper()
	_, _, err := shake(t, address, host, nil)
	if err == nil {
		return errors.New("the handshake went through")
	}
	if !strings.Contains(err.Error(), "unrecognized name") {
		return fmt.Errorf("not the alert for unknown names: %w", err)
	}
	return nil
}

// serial writes a leaf's number as pebble does.
func serial(leaf *x509.Certificate) string { return fmt.Sprintf("%x", leaf.SerialNumber) }

// wantIssued fails the test unless exactly the leaves given were issued so far.
func (p *pebble) wantIssued(leaves ...*x509.Certificate) {
	p.t.Helper()
	var want []string
	for _, l := range leaves {
		want = append(want, serial(l))
	}
	slices.Sort(want)
	eventually(p.t, fmt.Sprintf("the authority issued %v, which are in use", want), func() error { // what it says comes a moment later
		var got []string
		for _, s := range p.issued() {
			got = append(got, strings.TrimLeft(s, "0"))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("it issued %v", got)
		}
		return nil
	})
}

// bind is a name server of the zone example.org that takes updates signed by a
// TSIG key. Each name in it is at 127.0.0.1.
type bind struct{ address, key string }

func startBIND(t *testing.T) bind {
	t.Helper()
	named := need(t, "named")
	dir := t.TempDir()
	b := bind{address: freePort(t), key: "d2VpciBrbm93cyB0aGlzIGtleSBieSBoZWFydCwgMzI="}
	_, port, _ := net.SplitHostPort(b.address)
	zone := "$TTL 1\n@ IN SOA ns hostmaster 1 3600 600 86400 1\n@ NS ns\nns A 127.0.0.1\n@ A 127.0.0.1\n* A 127.0.0.1\n"
	config := fmt.Sprintf(`
options {
    directory "%[1]s";
    pid-file "%[1]s/named.pid";
    session-keyfile "%[1]s/session.key";
    listen-on port %[2]s { 127.0.0.1; };
    listen-on-v6 { none; };
    recursion no;
    dnssec-validation no;
    notify no;
};
controls { };
key weir { algorithm hmac-sha256; secret "%[3]s"; };
zone "example.org" {
    type primary;
    file "%[1]s/zone";
    update-policy { grant weir zonesub TXT; };
};
`, dir, port, b.key)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "zone"), []byte(zone), 0o644),
		os.WriteFile(filepath.Join(dir, "named.conf"), []byte(config), 0o644)); err != nil {
		t.Fatal(err)
	}
	runPeer(t, named, "-g", "-n", "1", "-c", filepath.Join(dir, "named.conf")).listening(b.address)
	return b
}

// startRedis returns the URL of a Redis that forgets everything when the test ends.
func startRedis(t *testing.T) string {
	t.Helper()
	address := freePort(t)
	host, port, _ := net.SplitHostPort(address)
	runPeer(t, need(t, "redis-server"), "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", t.TempDir(),
		"--requirepass", "sesame").listening(address)
	return "redis://:sesame@" + address + "/3?prefix=e2e"
}
