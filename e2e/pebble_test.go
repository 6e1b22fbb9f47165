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

// pebble is a small ACME server from Let's Encrypt, which loses all state when it ends. For it, every name
// has the address 127.0.0.1. There it connects to HAProxy, which forwards to weir and sends PROXY v2 headers.
type pebble struct {
	t                *testing.T
	dir              string
	address          string // the address that weir uses for the directory
	direct           string // pebble's own address, if a gate uses the other one
	management       string
	own              certificate // the certificate of the directory
	config, resolver string
	env              []string
	process          *peerProcess
	// front has the addresses of HAProxy, for validations and for the test's clients.
	front struct{ web, secure string }
}

// pebbleOptions are the settings of a test for its authority.
type pebbleOptions struct {
	resolver string            // the name server; if empty, it answers 127.0.0.1 for every name
	accounts map[string]string // external accounts; if there are any, the authority requires one
	noNonces int               // percentage of valid nonces that pebble refuses
	validity time.Duration     // validity of certificates; 0: 90 days
	blocked  []string          // names for which pebble issues no certificate
}

// newPebble prepares an authority. Its method run starts it.
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

// nameServerForEverything starts pebble-challtestsrv, which answers 127.0.0.1 for each name, and returns its
// address.
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

// forwardTo makes HAProxy forward to the two ports of w that are called web and secure.
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

// entry returns a certificate entry that uses this authority, for hosts or, if hosts is empty, for the hosts
// of the routes.
func (p *pebble) entry(hosts string, more ...string) string {
	settings := append([]string{"directory: 'https://" + p.address + "/dir'", "ca: '" + p.own.cert + "'"}, more...)
	if hosts != "" {
		settings = append(settings, "hosts: ["+hosts+"]")
	}
	return "{acme: {" + strings.Join(settings, ", ") + "}}"
}

// roots returns the root certificates of this run of the authority.
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

// orders counts the orders that the authority accepted.
func (p *pebble) orders() int { return len(pebbleOrder.FindAllString(p.process.log.String(), -1)) }

// issued returns the serial numbers of all certificates that the authority has issued.
func (p *pebble) issued() []string {
	var all []string
	for _, m := range pebbleIssued.FindAllStringSubmatch(p.process.log.String(), -1) {
		all = append(all, m[1])
	}
	return all
}

// shake makes a TLS handshake for host at address and verifies the certificate with roots. It returns the
// connection and the leaf certificate.
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

// served waits until host has a certificate that roots verify, and returns the leaf certificate.
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

// refusedName returns nil if a handshake for host ends with the alert for unknown names.
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

// serial returns the serial number of a certificate as pebble writes it.
func serial(leaf *x509.Certificate) string { return fmt.Sprintf("%x", leaf.SerialNumber) }

// wantIssued fails the test unless the authority has issued exactly these certificates.
func (p *pebble) wantIssued(leaves ...*x509.Certificate) {
	p.t.Helper()
	var want []string
	for _, l := range leaves {
		want = append(want, serial(l))
	}
	slices.Sort(want)
	eventually(p.t, fmt.Sprintf("the authority issued %v, which are in use", want), func() error { // pebble's log may be a moment late
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

// bind is a name server for the zone example.org. It accepts updates that are signed with a TSIG key. Each
// name has the address 127.0.0.1.
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

// startRedis starts a Redis that loses all data when the test ends, and returns its URL.
func startRedis(t *testing.T) string {
	t.Helper()
	address := freePort(t)
	host, port, _ := net.SplitHostPort(address)
	runPeer(t, need(t, "redis-server"), "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", t.TempDir(),
		"--requirepass", "sesame").listening(address)
	return "redis://:sesame@" + address + "/3?prefix=e2e"
}
