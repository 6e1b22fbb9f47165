package e2e

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

const familiesConfig = `
listeners:
  raw: {address: '@raw', protocol: tcp, proxy_protocol: edge}
  web: {address: '@web', protocol: http, proxy_protocol: edge, trust_forwarded: [198.51.100.0/24]}
  tls: {address: '@tls', protocol: tls, proxy_protocol: edge}
proxy_protocol: {edge: {rules: [{from: [127.0.0.0/8], header: require}]}}
certificates: [{self_signed: {hosts: [app.example.org, db.example.org]}}]
routes:
  - {listeners: [raw], backend: tunnel}
  - {listeners: [web, tls], hosts: [app.example.org], backend: app}
  - {listeners: [tls], hosts: [db.example.org], backend: tunnel}
  - {listeners: [tls], hosts: [vault.example.org], tls: passthrough, backend: tunnel}
backends:
  app: {endpoints: ['@told'], send_proxy: VERSION}
  tunnel: {protocol: tcp, endpoints: ['@told'], send_proxy: VERSION}
`

// An endpoint gets the client's address even if the client and the address that it connected to have
// different families.
func TestSendProxyKeepsClientsOfOtherFamilies(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1", "v2"} {
		w := newWeir(t)
		told := make(chan string, 1)
		w.address["told"] = serve(t, func(c net.Conn) {
			told <- headerLine(c)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			io.Copy(io.Discard, c)
		})
		w.start(strings.ReplaceAll(familiesConfig, "VERSION", version))
		f := func(listener, host string, header []byte, forwarded, want string) {
			t.Helper()
			c := dialWith(t, w.at(listener), header)
			defer c.Close()
			if listener == "tls" {
				c = tls.Client(c, anyCertificate(host))
			}
			go fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n", host, forwarded) // the handshake of passed TLS gets no answer
			select {
			case got := <-told:
				if got != want {
					t.Errorf("%s, %s %s: the endpoint got %q, not %q", version, listener, host, got, want)
				}
			case <-time.After(patience):
				t.Fatalf("%s, %s %s: the endpoint got nothing", version, listener, host)
			}
		}
		six := v2Header("[2001:db8::7]:1000", "[::ffff:192.0.2.1]:443")
		four := v2Header("[::ffff:198.51.100.7]:1000", "[2001:db8::1]:443")
		for _, at := range [][2]string{{"raw", ""}, {"web", "app.example.org"}, {"tls", "app.example.org"}, {"tls", "db.example.org"}, {"tls", "vault.example.org"}} {
			f(at[0], at[1], six, "", "TCP6 2001:db8::7 ::ffff:192.0.2.1 1000 443")
			f(at[0], at[1], four, "", "TCP6 ::ffff:198.51.100.7 2001:db8::1 1000 443")
			f(at[0], at[1], v2Header("198.51.100.7:1000", "192.0.2.1:443"), "", "TCP4 198.51.100.7 192.0.2.1 1000 443")
		}
		f("web", "app.example.org", v1Header("198.51.100.7:1000", "192.0.2.1:443"), "X-Forwarded-For: 2001:db8::8\r\n", "TCP6 2001:db8::8 ::ffff:192.0.2.1 0 443")
		f("web", "app.example.org", v1Header("198.51.100.7:1000", "192.0.2.1:443"), "X-Forwarded-For: ::ffff:203.0.113.8\r\n", "TCP4 203.0.113.8 192.0.2.1 0 443")
	}
}

const mixedConfig = `
listeners:
  web: {address: '@web', protocol: http, proxy_protocol: edge}
proxy_protocol:
  edge:
    rules:
      - {from: [127.0.0.1/32], header: require}
      - {from: [127.0.0.2/32], header: require, mixed_families: true}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['@app']}}
`

// nginx writes PROXY headers with an IPv6 client and its own IPv4 address. A rule may accept them;
// otherwise the log says how.
func TestMixedFamiliesOfNginx(t *testing.T) {
	t.Parallel()
	needLinux(t) // for addresses in 127.0.0.0/8
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(mixedConfig)
	for line, client := range map[string]string{"TCP6 2001:db8::7 192.0.2.1": "2001:db8::7", "TCP4 192.0.2.7 2001:db8::1": "192.0.2.7"} {
		c := dial(t, w.at("web"), "127.0.0.2")
		fmt.Fprintf(c, "PROXY %s 1000 443\r\n", line)
		if got, err := askSeen(c, "app.example.org", "/"); err != nil || got.Header.Get("X-Real-Ip") != client {
			t.Errorf("%s: %v, the backend got %v", line, err, got)
		}
		c = dialWith(t, w.at("web"), []byte("PROXY "+line+" 1000 443\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"))
		if got, err := readToEnd(c); err != nil || len(got) > 0 {
			t.Errorf("%s without the key: %q, %v", line, got, err)
		}
	}
	w.log.awaits(t, "as nginx writes them")
	w.log.awaits(t, "mixed_families in the rule of proxy_protocol.edge")
}

// headerLine reads a PROXY header, and returns it in the words of version 1.
func headerLine(c net.Conn) string {
	r := bufio.NewReader(c)
	if first, err := r.Peek(1); err == nil && first[0] == 'P' {
		line, _ := r.ReadString('\n')
		return strings.TrimSuffix(strings.TrimPrefix(line, "PROXY "), "\r\n")
	}
	fixed := make([]byte, 16)
	if _, err := io.ReadFull(r, fixed); err != nil {
		return err.Error()
	}
	body := make([]byte, binary.BigEndian.Uint16(fixed[14:]))
	if _, err := io.ReadFull(r, body); err != nil {
		return err.Error()
	}
	word, size := map[byte]string{0x11: "TCP4", 0x21: "TCP6"}[fixed[13]], map[byte]int{0x11: 4, 0x21: 16}[fixed[13]]
	if fixed[12] != 0x21 || word == "" {
		return fmt.Sprintf("%x", fixed[12:14])
	}
	from, _ := netip.AddrFromSlice(body[:size])
	to, _ := netip.AddrFromSlice(body[size : 2*size])
	return fmt.Sprintf("%s %s %s %d %d", word, from, to, binary.BigEndian.Uint16(body[2*size:]), binary.BigEndian.Uint16(body[2*size+2:]))
}
