package e2e

import (
	"bufio"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const clientCertConfig = `
listeners:
  secure: {address: '@secure', protocol: tls}
certificates: [{self_signed: {hosts: [app.example.org, open.example.org]}}]
tls_policies:
  robots: {client_auth: {mode: request, ca: '@@dir/ca.crt', forward: [subject, san, fingerprint, certificate, chain]}}
routes:
  - {listeners: [secure], hosts: [app.example.org], tls_policy: robots, backend: app}
  - {listeners: [secure], hosts: [app.example.org], paths: [/tlv], tls_policy: robots, backend: told}
  - {listeners: [secure], hosts: [open.example.org], backend: app}
backends:
  app: {endpoints: ['@app']}
  told: {endpoints: ['@told'], send_proxy: v2}
`

// spoofed are HTTP headers with which a client claims to be another client, in several spellings that
// backends read as the same header.
var spoofed = []string{
	"X-Client-Cert-Subject: CN=root", "x_client_cert_subject: CN=root", "X.Client.Cert.SAN: DNS:root", "X-Client-Cert-SHA256: 00",
	"Client-Cert: :cm9vdA==:", "client_cert: :cm9vdA==:", "Client-Cert-Chain: :cm9vdA==:", "X-SSL-Client-CN: root",
}

// A backend that trusts the HTTP headers about client certificates gets only those that weir sets.
func TestClientCertificateReachesTheBackend(t *testing.T) {
	t.Parallel()
	need(t, "curl")
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	told := newHeaderBackend(t)
	w.address["told"] = told.address
	ca := newAuthority(t, "robots' CA")
	robot, files := ca.client(w.dir, "robot-7.example.org")
	if err := os.WriteFile(w.dir+"/ca.crt", ca.pem, 0o644); err != nil {
		t.Fatal(err)
	}
	w.start(clientCertConfig)
	base := "https://app.example.org:" + port(w.at("secure"))
	args := []string{"--resolve", "app.example.org:" + port(w.at("secure")) + ":127.0.0.1", "--resolve", "open.example.org:" + port(w.at("secure")) + ":127.0.0.1"}
	for _, s := range spoofed {
		args = append(args, "-H", s)
	}
	certified := slices.Concat(args, []string{"--cert", files.cert, "--key", files.key})

	leaf := robot.Certificate[0]
	sum := sha256.Sum256(leaf)
	want := map[string]string{
		"X-Client-Cert-Subject": `CN=robot-7.example.org,O=Example\2C Inc.`,
		"X-Client-Cert-San":     "DNS:robot-7.example.org, IP:192.0.2.7",
		"X-Client-Cert-Sha256":  hex.EncodeToString(sum[:]),
		"Client-Cert":           ":" + base64.StdEncoding.EncodeToString(leaf) + ":",
		"Client-Cert-Chain":     ":" + base64.StdEncoding.EncodeToString(ca.cert.Raw) + ":",
	}
	f := func(want map[string]string, args ...string) {
		t.Helper()
		s := curlSeen(t, args...)
		for name, values := range s.Header {
			plain := strings.NewReplacer("_", "-", ".", "-").Replace(http.CanonicalHeaderKey(name))
			if !strings.Contains(strings.ToLower(plain), "client-c") {
				continue
			}
			if len(values) != 1 || want[name] != values[0] {
				t.Errorf("the backend hears %s: %q", name, values)
			}
		}
		for name := range want {
			if s.Header.Get(name) == "" {
				t.Errorf("the backend does not hear %s", name)
			}
		}
	}
	f(want, slices.Concat(certified, []string{base + "/"})...)
	f(nil, slices.Concat(args, []string{base + "/"})...) // weir asks for a certificate, the client sends none
	f(nil, slices.Concat(certified, []string{"https://open.example.org:" + port(w.at("secure")) + "/"})...)
	f(want, slices.Concat(certified, []string{base + "/", "-H", "Connection: Client-Cert, X-Client-Cert-Subject"})...)

	// The names of many partners' CAs do not fit into a handshake, and weir verifies certificates nevertheless.
	bundle := slices.Clone(ca.pem)
	for i := range 70 {
		bundle = append(bundle, newAuthority(t, fmt.Sprintf("partner %d %s", i, strings.Repeat("x", 1000))).pem...)
	}
	if err := os.WriteFile(w.dir+"/ca.crt", bundle, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(executable(t), "check", w.config).CombinedOutput(); err != nil || !strings.Contains(string(out), "the names of its 71 CAs") {
		t.Errorf("weir check: %v\n%s", err, out)
	}
	w.reload(clientCertConfig + "log: {level: info}\n")
	f(want, slices.Concat(certified, []string{base + "/"})...)
	f(nil, slices.Concat(args, []string{base + "/", "--tls-max", "1.2"})...)

	// The same in the PROXY header, for a backend that reads PROXY headers.
	request := func(certificates ...tls.Certificate) sslTLV {
		t.Helper()
		config := anyCertificate("app.example.org")
		config.Certificates = certificates
		c := tls.Client(dial(t, w.at("secure")), config)
		if resp, body, err := ask(c, bufio.NewReader(c), "GET", "app.example.org", "/tlv"); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v, %v: %s", resp, err, body)
		}
		return <-told.seen
	}
	if s := request(robot); s.client != 0x07 || s.verify != 0 || s.sub[0x21] != "TLSv1.3" || s.sub[0x22] != "robot-7.example.org" || s.sub[0x23] == "" {
		t.Errorf("the header says %+v of a client with a certificate", s)
	}
	if s := request(); s.client != 0x01 || s.verify == 0 || s.sub[0x21] != "TLSv1.3" || s.sub[0x22] != "" {
		t.Errorf("the header says %+v of a client without one", s)
	}
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// sslTLV is the content of PP2_TYPE_SSL.
type sslTLV struct {
	client byte
	verify uint32
	sub    map[byte]string
}

// headerBackend reads a PROXY v2 header with its own parser, answers one request and closes the connection.
type headerBackend struct {
	address string
	seen    chan sslTLV
}

func newHeaderBackend(t *testing.T) *headerBackend {
	t.Helper()
	b := &headerBackend{seen: make(chan sslTLV, 10)}
	b.address = serve(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		s, err := readSSLTLV(r)
		if err != nil {
			t.Errorf("the header of weir: %v", err)
			return
		}
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		b.seen <- s
	})
	return b
}

func readSSLTLV(r io.Reader) (sslTLV, error) {
	s := sslTLV{sub: map[byte]string{}}
	head := make([]byte, 16)
	if _, err := io.ReadFull(r, head); err != nil {
		return s, err
	}
	if string(head[:12]) != string(v2Signature) || head[12] != 0x21 || head[13] != 0x11 {
		return s, fmt.Errorf("it begins with % x", head)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[14:]))
	if _, err := io.ReadFull(r, body); err != nil {
		return s, err
	}
	found := false
	err := eachTLV(body[12:], func(kind byte, value []byte) error {
		if kind != 0x20 {
			return nil
		}
		if found || len(value) < 5 {
			return errors.New("more than one TLV about TLS, or a short one")
		}
		found = true
		s.client, s.verify = value[0], binary.BigEndian.Uint32(value[1:])
		return eachTLV(value[5:], func(kind byte, value []byte) error {
			s.sub[kind] = string(value)
			return nil
		})
	})
	if err == nil && !found {
		err = errors.New("it says nothing about TLS")
	}
	return s, err
}

func eachTLV(b []byte, f func(kind byte, value []byte) error) error {
	for len(b) > 0 {
		if len(b) < 3 || len(b) < 3+int(binary.BigEndian.Uint16(b[1:])) {
			return fmt.Errorf("a TLV is cut: % x", b)
		}
		n := 3 + int(binary.BigEndian.Uint16(b[1:]))
		if err := f(b[0], b[3:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
