package policy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/tls/hello"
)

func TestHandshakeResultOfErrors(t *testing.T) {
	f := func(err error, want string) {
		t.Helper()
		if got := HandshakeResult(err); got != want {
			t.Errorf("HandshakeResult(%v) = %s, want %s", err, got, want)
		}
	}
	f(nil, ResultOK)
	f(io.EOF, ResultClientClosed)
	f(io.ErrUnexpectedEOF, ResultClientClosed)
	f(&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, ResultClientClosed)
	f(&net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)}, ResultClientClosed)
	f(os.ErrDeadlineExceeded, ResultTimeout)
	f(context.DeadlineExceeded, ResultTimeout)
	f(&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, ResultTimeout)
	f(conn.ErrCut, ResultCut)
	f(fmt.Errorf("shaking hands: %w", tls.RecordHeaderError{Msg: "no"}), ResultBadRecord)
	f(fmt.Errorf("%w: over 5 bytes", hello.ErrTooLong), ResultBadRecord)
	f(fmt.Errorf("reading: %w", hello.ErrBadSSLv2), ResultBadRecord)
	f(fmt.Errorf("%w: two names", hello.ErrMalformed), ResultBadRecord)
	f(&net.OpError{Op: "remote error", Err: tls.AlertError(48)}, ResultClientRefused)
	f(&net.OpError{Op: "local error", Err: tls.AlertError(20)}, ResultBadRecord)
	f(fmt.Errorf("%w: no", ErrClientCertificate), ResultClientCertificate)
	f(errors.New("something else"), ResultOther)
	f(&net.OpError{Op: "read", Err: errors.New("something else")}, ResultOther)
	for begin, want := range map[string]string{"GET / HTTP/1.1\r\n\r\n": ResultPlainHTTP, "PRI * HTTP/2.0\r\n": ResultPlainHTTP,
		"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n": ResultProxyHeader, "\r\n\r\n\x00\r\nQUIT\n\x21": ResultProxyHeader, "SSH-2.0-x\r\n": ResultBadRecord,
		"\x80\x09\x01\x03\x01\x00\x00\x00\x00\x00\x00": ResultBadRecord, "\x80\x09\x02\x03\x01\x00\x00\x00\x00\x00\x00": ResultBadRecord} {
		_, _, err := hello.Read(strings.NewReader(begin), 0)
		f(err, want)
	}
}

// crypto/tls reports most causes only in the text of its errors. Real handshakes produce
// them here.
func TestHandshakeResultOfHandshakes(t *testing.T) {
	ca := newAuthority(t, "ca")
	cert := ca.issue(t, "a.example.org", false, time.Now().Add(time.Hour))
	server := newPolicy(t, config.TLSPolicy{}, cert, keyring{}.attach).Config
	f := func(what string, server, client *tls.Config, want string) {
		t.Helper()
		_, err := shake(t, server, client)
		if got := HandshakeResult(err); got != want {
			t.Errorf("%s: the result is %s (%v), want %s", what, got, err, want)
		}
	}
	f("version", server, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, ResultNoCommonVersion)
	f("suite", server, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}}, ResultNoCommonSuite)
	f("protocol", server, &tls.Config{NextProtos: []string{"h2"}}, ResultNoCommonProtocol)
	f("protocol, TLS 1.2", server, &tls.Config{NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS12}, ResultNoCommonProtocol)
	none := newPolicy(t, config.TLSPolicy{}, nil, keyring{}.attach).Config
	f("name", none, &tls.Config{ServerName: "a.example.org"}, ResultUnknownName)
	f("name, TLS 1.2", none, &tls.Config{ServerName: "a.example.org", MaxVersion: tls.VersionTLS12}, ResultUnknownName)
	notGot, err := New(anything(), func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return nil, fmt.Errorf("it is being got: %w", context.DeadlineExceeded)
	}, keyring{}.attach)
	if err != nil {
		t.Fatal(err)
	}
	f("a certificate that is not there in time", notGot.Config, &tls.Config{ServerName: "a.example.org"}, ResultUnknownName)
	required := newPolicy(t, config.TLSPolicy{ClientAuth: config.ClientAuthRequire, ClientAuthPool: ca.pem}, cert, keyring{}.attach).Config
	f("no client certificate", required, &tls.Config{}, ResultClientCertificate)
	f("garbage as client certificate", required, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{{1, 2, 3}}, PrivateKey: cert.PrivateKey}}}, ResultClientCertificate)
	stolen := &tls.Certificate{Certificate: cert.Certificate, PrivateKey: newKey(false)}
	f("a certificate without its key", required, client(tls.VersionTLS13, stolen), ResultClientCertificate)
	f("a certificate without its key, TLS 1.2", required, client(tls.VersionTLS12, stolen), ResultClientCertificate)
	refusing := &tls.Config{VerifyConnection: func(tls.ConnectionState) error { return errors.New("no") }}
	f("a client that does not trust us", server, refusing, ResultClientRefused)

	// crypto/tls cannot be configured to be such a client, so the test changes its
	// ClientHello.
	sent := capture(t, &tls.Config{ServerName: "a.example.org"})
	f2 := func(what string, sent []byte, want string) {
		t.Helper()
		a, b := newPipe()
		a.SetDeadline(time.Now().Add(20 * time.Second))
		go func() {
			a.Write(sent)
			io.Copy(io.Discard, a)
			a.Close()
		}()
		err := tls.Server(b, server).Handshake()
		b.Close()
		if got := HandshakeResult(err); got != want {
			t.Errorf("%s: the result is %s (%v), want %s", what, got, err, want)
		}
	}
	algorithms := bytes.Index(sent, []byte{0x00, 0x0d, 0x00}) // signature_algorithms; all of them become unknown
	old := bytes.Clone(sent)
	for i := algorithms + 6; i < algorithms+6+int(old[algorithms+5]); i++ {
		old[i] = 0xfe
	}
	f2("signatures", old, ResultNoCommonSignature)
	f2("plain HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), ResultPlainHTTP)
	f2("SSLv2", []byte("\x80\x2e\x01\x03\x01\x00\x03\x00\x00\x00\x20\x00\x00\x2f"), ResultSSLv2Hello)
	f2("SSLv2, longer than 255 bytes", []byte("\x81\x2e\x01\x03\x01\x00\x03\x00\x00\x00\x20\x00\x00\x2f"), ResultSSLv2Hello)
	f2("a hello with its length wrong", append([]byte{22, 3, 1, 0, 6, 1, 0, 0, 2, 9, 9}, sent...), ResultBadRecord)
	f2("a hello too long", []byte("\x16\x03\x01\x00\x04\x01\xff\xff\xff"), ResultBadRecord)
	f2("another message first", []byte("\x16\x03\x01\x00\x04\x0e\x00\x00\x00"), ResultBadRecord)
	f2("endless warnings", bytes.Repeat([]byte("\x15\x03\x01\x00\x02\x01\x5a"), 100), ResultBadRecord)
	f2("a fallback that was not needed", fallback(sent), ResultNoCommonVersion)
	f2("application data first", []byte("\x17\x03\x03\x00\x01x"), ResultBadRecord)
}

// fallback makes hello a ClientHello for TLS 1.2 at most. TLS_FALLBACK_SCSV (RFC 7507)
// replaces its first suite.
func fallback(hello []byte) []byte {
	h := bytes.Clone(hello)
	versions := bytes.Index(h, []byte{0x00, 0x2b, 0x00})
	h[versions] = 0xfa // supported_versions becomes an unknown extension
	suites := 5 + 4 + 2 + 32 + 1 + int(h[5+4+2+32]) + 2
	h[suites], h[suites+1] = 0x56, 0x00
	return h
}

// capture returns the first flight of a crypto/tls client.
func capture(t *testing.T, client *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	client.InsecureSkipVerify = true
	go func() {
		tls.Client(a, client).Handshake()
		a.Close()
	}()
	b.SetDeadline(time.Now().Add(20 * time.Second))
	_, sent, err := hello.Read(b, 0)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	return sent
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	ok := func() {
		m.Handshake("websecure", "default", tls.VersionTLS13, tls.TLS_AES_128_GCM_SHA256, nil)
	}
	ok()
	ok()
	m.Handshake("websecure", "", 0, 0, io.EOF)
	m.Handshake("gone", "partners", tls.VersionTLS10, tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA, nil)
	f := func(want map[string]float64) {
		t.Helper()
		got := series(t, reg)
		for labels, value := range want {
			if got[labels] != value {
				t.Errorf("%s is %v, want %v", labels, got[labels], value)
			}
		}
		if len(got) != len(want) {
			t.Errorf("the series are %v, want %v", got, want)
		}
	}
	f(map[string]float64{
		"TLS_AES_128_GCM_SHA256 websecure default ok TLS 1.3":    2,
		" websecure  client_closed ":                             1,
		"TLS_RSA_WITH_3DES_EDE_CBC_SHA gone partners ok TLS 1.0": 1,
	})
	m.Retain(func(listener, policy string) bool { return listener != "gone" })
	f(map[string]float64{
		"TLS_AES_128_GCM_SHA256 websecure default ok TLS 1.3": 2,
		" websecure  client_closed ":                          1,
	})
	if n := testing.AllocsPerRun(100, ok); n != 0 {
		t.Errorf("counting a handshake allocates %v times", n)
	}
	// A listener that is added again starts at zero.
	m.Handshake("gone", "partners", tls.VersionTLS10, tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA, nil)
	if got := series(t, reg)["TLS_RSA_WITH_3DES_EDE_CBC_SHA gone partners ok TLS 1.0"]; got != 1 {
		t.Errorf("a listener that came back counts %v, want 1", got)
	}
}

// series returns the values of the counter by its label values, in the order of label names.
func series(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, family := range families {
		if family.GetName() != "weir_tls_handshakes_total" {
			t.Errorf("there is a metric %s", family.GetName())
		}
		for _, m := range family.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			got[strings.Join(values, " ")] = m.GetCounter().GetValue()
		}
	}
	return got
}
