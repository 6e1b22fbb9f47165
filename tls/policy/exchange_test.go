package policy

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// The post-quantum key exchange is the default. A client without it gets another one.
func TestKeyExchange(t *testing.T) {
	cert := newAuthority(t, "ca").issue(t, "a.example.org", false, time.Now().Add(time.Hour))
	f := func(policy config.TLSPolicy, client *tls.Config, want tls.CurveID, wantRetry bool) {
		t.Helper()
		p := newPolicy(t, policy, cert, keyring{}.attach)
		state, err := shake(t, Server(func(*tls.ClientHelloInfo) (*Policy, error) { return p, nil }, nil), client)
		if err != nil || state.CurveID != want || state.HelloRetryRequest != wantRetry {
			t.Errorf("client %v, policy %v: %v, retried %v, error %v; want %v, retried %v",
				client.CurvePreferences, policy.Curves, state.CurveID, state.HelloRetryRequest, err, want, wantRetry)
		}
	}
	only := func(curves ...tls.CurveID) *tls.Config { return &tls.Config{CurvePreferences: curves} }
	f(config.TLSPolicy{}, &tls.Config{}, tls.X25519MLKEM768, false)
	f(config.TLSPolicy{}, only(tls.X25519MLKEM768, tls.X25519), tls.X25519MLKEM768, false)
	f(config.TLSPolicy{}, only(tls.X25519, tls.CurveP256), tls.X25519, false)
	f(config.TLSPolicy{}, only(tls.CurveP256), tls.CurveP256, false)
	f(config.TLSPolicy{}, only(tls.CurveP384), tls.CurveP384, false)
	f(config.TLSPolicy{}, &tls.Config{MaxVersion: tls.VersionTLS12}, tls.X25519, false) // the post-quantum one needs TLS 1.3
	p384 := config.TLSPolicy{Curves: []uint16{uint16(tls.CurveP384)}}
	f(p384, &tls.Config{}, tls.CurveP384, true)
	hybrid := config.TLSPolicy{Curves: []uint16{uint16(tls.X25519MLKEM768)}}
	f(hybrid, &tls.Config{}, tls.X25519MLKEM768, false)
	p := newPolicy(t, hybrid, cert, keyring{}.attach)
	if _, err := shake(t, p.Config, only(tls.X25519)); HandshakeResult(err) != ResultNoCommonSuite {
		t.Errorf("a policy of the hybrid alone and a client without: %v", err)
	}
}

// If the client first tries a key exchange that weir does not support, weir requests
// another one.
func TestHelloRetryRequestWithOpenSSL(t *testing.T) {
	cert := newAuthority(t, "ca").issue(t, "a.example.org", false, time.Now().Add(time.Hour))
	p := newPolicy(t, config.TLSPolicy{}, cert, keyring{}.attach)
	got, output := openSSL(t, p, "-tls1_3", "-groups", "X448:P-256")
	if got != ResultOK || !strings.Contains(output, "P-256") && !strings.Contains(output, "prime256v1") {
		t.Errorf("the result is %s; openssl says:\n%s", got, output)
	}
}

// inPieces is a client's connection that splits its output: into records of record bytes,
// until they are encrypted, and into segments.
type inPieces struct {
	net.Conn
	record, segment int
	mu              sync.Mutex
	encrypted       bool
}

func (c *inPieces) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cut := c.cut(p)
	for piece := range slices.Chunk(cut, c.segment) {
		if _, err := c.Conn.Write(piece); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// cut splits the handshake records of p. crypto/tls writes complete records.
func (c *inPieces) cut(p []byte) (out []byte) {
	for len(p) > 0 {
		n := 5 + int(binary.BigEndian.Uint16(p[3:]))
		if p[0] != 22 {
			c.encrypted = true
		}
		if c.encrypted || c.record == 0 {
			out = append(out, p[:n]...)
		} else {
			for piece := range slices.Chunk(p[5:n], c.record) {
				out = append(out, 22, p[1], p[2], 0, byte(len(piece)))
				out = append(out, piece...)
			}
		}
		p = p[n:]
	}
	return out
}

// A modern ClientHello does not fit into one segment, and may arrive in any pieces.
func TestClientHelloInPieces(t *testing.T) {
	file, list := newECH(t)
	keys := parseECH(t, file)
	ca := newAuthority(t, "ca")
	cert := ca.issue(t, "a.example.org", false, time.Now().Add(time.Hour))
	f := func(record, segment int, client *tls.Config, want tls.CurveID) {
		t.Helper()
		var seen []string
		p := newPolicy(t, config.TLSPolicy{}, cert, keyring{}.attach)
		server := Server(func(h *tls.ClientHelloInfo) (*Policy, error) {
			seen = append(seen, h.ServerName)
			return p, nil
		}, keys)
		client.ServerName = "a.example.org"
		a, b := newPipe()
		state, err := shakeOver(&inPieces{Conn: a, record: record, segment: segment}, b, server, client)
		if err != nil || state.CurveID != want || !slices.Equal(seen, []string{"a.example.org"}) || state.ECHAccepted != (client.EncryptedClientHelloConfigList != nil) {
			t.Errorf("records of %d, segments of %d: %v, ECH %v, choose saw %q, error %v", record, segment, state.CurveID, state.ECHAccepted, seen, err)
		}
	}
	for _, segment := range []int{1, 7, 1400, 1 << 20} {
		for _, record := range []int{0, 1, 4, 200} {
			f(record, segment, &tls.Config{}, tls.X25519MLKEM768)
			f(record, segment, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, tls.X25519)
			f(record, segment, &tls.Config{MaxVersion: tls.VersionTLS12}, tls.X25519)
			f(record, segment, &tls.Config{EncryptedClientHelloConfigList: list}, tls.X25519MLKEM768)
		}
	}
}
