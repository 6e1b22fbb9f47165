package proxy

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/memory"
)

// hoard sets a memory limit and charges memory until the test ends, so that every connection may have
// only room bytes.
func (r *rig) hoard(room int) {
	r.Helper()
	const limit = 64 << 20
	r.proxy.Memory.SetLimit(limit)
	var other memory.Account
	other.Open(r.proxy.Memory, netip.MustParsePrefix("192.0.2.1/32"), nil)
	other.Force(limit + limit/2 - room) // fair shares give nobody more memory than that
	r.stop = append(r.stop, other.Close)
}

// A request without memory gets 503 with a reason. Weir closes its connection and releases its
// charge.
func TestRequestsRefusedForMemory(t *testing.T) {
	r := newRig(t, plain, nil, "@app", newHandler(t, echo))
	r.hoard(memory.Exchange / 2)
	c := r.dial("web")
	c.write("GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
	if resp, _ := c.response("GET"); resp.StatusCode != 503 || !resp.Close {
		t.Errorf("the answer is %d, close %t", resp.StatusCode, resp.Close)
	}
	r.record().want(t, "status", 503, "reason", "memory")

	// The same applies to a request of which only a part has arrived.
	c = r.dial("web")
	c.write("GET /a HTTP/1.1\r\nHo")
	if resp, _ := c.response("GET"); resp.StatusCode != 503 {
		t.Errorf("the answer is %d", resp.StatusCode)
	}
	r.record().want(t, "status", 503, "reason", "memory")
}

func TestLargeHeadsRefusedForMemory(t *testing.T) {
	large := "X-Large: " + strings.Repeat("v", 40_000)
	app := newHandler(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/large" {
			w.Header().Set("X-Large", large)
		}
		io.WriteString(w, "hello")
	})
	r := newRig(t, plain, nil, "@app", app)
	r.hoard(memory.Exchange + 16<<10)
	c := r.dial("web")
	c.write("GET /a HTTP/1.1\r\nHost: a\r\n" + large + "\r\n\r\n")
	if resp, _ := c.response("GET"); resp.StatusCode != 503 {
		t.Errorf("a request with a large head is answered %d", resp.StatusCode)
	}
	r.record().want(t, "status", 503, "reason", "memory")

	c = r.dial("web")
	for range 8 { // it is not the endpoint's fault, so the endpoint stays in use
		c.write("GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
		if resp, body := c.response("GET"); resp.StatusCode != 503 || !strings.Contains(body, "not enough memory") {
			t.Errorf("a response with a large head became %d %q", resp.StatusCode, body)
		}
		r.record().want(t, "status", 503, "reason", "memory")
	}
	c.write("GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
	if resp, body := c.response("GET"); resp.StatusCode != 200 || body != "hello" {
		t.Errorf("a small one after that is %d %q", resp.StatusCode, body)
	}
	r.record()
}

func TestUploadsRefusedForMemory(t *testing.T) {
	r := newRig(t, plain, nil, "@app", newHandler(t, echo))
	r.hoard(memory.Exchange + 8<<10)
	c := r.dial("web")
	c.write(post(100_000))
	if resp, _ := c.response("POST"); resp.StatusCode != 503 {
		t.Errorf("the answer is %d", resp.StatusCode)
	}
	r.record().want(t, "status", 503, "reason", "memory")
}

// The log says that a connection was closed because of the memory it held.
func TestLargestConnectionEnds(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write("GET /a HTTP/1.1\r\nHost: a\r\nX-Large: " + strings.Repeat("v", 60_000) + "\r\n\r\n")
	eventually(t, "the request is charged", func() error {
		if n := r.proxy.Memory.Used(); n < 100_000 {
			return fmt.Errorf("%d bytes are used", n)
		}
		return nil
	})
	e.accept().head() // from here on, the connection charges nothing more, which could end it too early
	r.proxy.Memory.SetLimit(60_000)
	other := r.dial("web")
	other.write("GET /b HTTP/1.1\r\nHost: a\r\n\r\n")
	if resp, _ := other.response("GET"); resp.StatusCode != 503 {
		t.Errorf("while all is in use, another request is answered %d", resp.StatusCode)
	}
	for _, rec := range []entry{r.record(), r.record()} {
		rec.want(t, "reason", "memory")
		rec.wantError(t, "limits.memory")
	}
	eventually(t, "the end is counted", func() error { // a moment after it has begun
		if n := r.proxy.Memory.Ended(); n != 1 {
			return fmt.Errorf("%d connections were ended", n)
		}
		return nil
	})
}

// What a handshake makes weir hold is charged if it is more than usual: until it ends, and with passthrough until the
// tunnel starts.
func TestLargeHandshakesAreCharged(t *testing.T) {
	const terminated = `
listeners: {tls: {address: '@0', protocol: tls}}
certificates: [{self_signed: {hosts: [a.example.org]}}]
routes: [{listeners: [tls], hosts: [a.example.org], backend: app}]
backends:
  app: {endpoints: ['127.0.0.1:1']}
  raw: {protocol: tcp, endpoints: ['@raw'], max_connections: 1}
`
	padding := strings.Repeat("\x00\x15\x03\xe4"+strings.Repeat("\x00", 996), 40) // 40 extensions
	name := "\x00\x00\x00\x12\x00\x10\x00\x00\x0dd.example.org"
	body := "\x03\x03" + strings.Repeat("r", 32) + "\x00\x00\x02\x13\x01\x01\x00" + string(binary.BigEndian.AppendUint16(nil, uint16(len(name+padding)))) + name + padding
	message := string(binary.BigEndian.AppendUint32(nil, 1<<24|uint32(len(body)))) + body
	hello := ""
	for len(message) > 0 {
		n := min(len(message), 16_000)
		hello += "\x16\x03\x01" + string(binary.BigEndian.AppendUint16(nil, uint16(n))) + message[:n]
		message = message[n:]
	}
	f := func(what, text, sent string) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, text, nil, "@raw", e.address)
		first := r.dial("tls")
		if sent == hello { // it takes the only place at the endpoint
			first.write(hello)
			e.accept()
		}
		c := r.dial("tls")
		c.write(sent)
		eventually(t, what+" is charged", func() error {
			if n := r.proxy.Memory.Used(); n < int64(len(sent)) {
				return fmt.Errorf("%d bytes are used", n)
			}
			return nil
		})
		c.Close()
		first.Close()
	}
	refused := func(text string) {
		r := newRig(t, text, nil, "@raw", "127.0.0.1:1")
		r.hoard(40_000)
		r.dial("tls").write(hello[:len(hello)-1])
		r.refusal().want(t, "reason", "memory")
	}
	passed := strings.Replace(terminated, "backends:", "  - {listeners: [tls], hosts: [d.example.org], tls: passthrough, backend: raw}\nbackends:", 1)
	passed = strings.Replace(passed, "routes: [{listeners: [tls], hosts: [a.example.org], backend: app}]", "routes:\n  - {listeners: [tls], hosts: [a.example.org], backend: app}", 1)
	refused(terminated)
	refused(passed)
	f("a ClientHello that weir terminates", terminated, hello[:len(hello)-1])
	f("a ClientHello that may pass through", passed, hello[:len(hello)-1])
	f("a passthrough that waits for its endpoint", passed, hello)
}

// A client may send handshake messages after the handshake (RFC 8446, section 4.6). crypto/tls keeps up to 64 KiB of
// one until it is complete.
func TestLargeHandshakeMessagesEndTheConnection(t *testing.T) {
	r := newRig(t, reported, func(c *config.Config) {
		for i := range c.Listeners {
			c.Listeners[i].Timeouts.RequestHead = time.Hour
		}
	})
	keys := new(bytes.Buffer)
	c := r.dialTLS("tls", "a.example.org", func(c *tls.Config) { c.MinVersion, c.KeyLogWriter = tls.VersionTLS13, keys })
	_, secret, _ := strings.Cut(keys.String(), "CLIENT_TRAFFIC_SECRET_0 ")
	seal := sealer(t, c.Conn.(*tls.Conn), strings.Fields(secret)[1])
	wire := c.Conn.(*tls.Conn).NetConn()
	const handshake, keyUpdate = "\x16", "\x18"
	message := keyUpdate + "\x00\xff\xff" + strings.Repeat("k", 8_000) // 65,535 bytes will follow
	for n := range uint64(3) {
		wire.Write(seal(n, message+handshake))
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection ends with %v", err)
	}
}

// sealer returns a function that encrypts the nth record of a TLS 1.3 client, with its type at the end.
func sealer(t *testing.T, c *tls.Conn, secret string) func(n uint64, inner string) []byte {
	raw, err := hex.DecodeString(secret)
	if err != nil {
		t.Fatal(err)
	}
	expand := func(label string, n int) []byte {
		key, err := hkdf.Expand(sha256.New, raw, fmt.Sprintf("\x00%c%ctls13 %s\x00", n, 6+len(label), label), n)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	var aead cipher.AEAD
	if suite := c.ConnectionState().CipherSuite; suite == tls.TLS_CHACHA20_POLY1305_SHA256 {
		aead, err = chacha20poly1305.New(expand("key", chacha20poly1305.KeySize))
	} else if block, failed := aes.NewCipher(expand("key", 16)); suite == tls.TLS_AES_128_GCM_SHA256 && failed == nil {
		aead, err = cipher.NewGCM(block)
	}
	if aead == nil || err != nil {
		t.Fatal(tls.CipherSuiteName(c.ConnectionState().CipherSuite), err)
	}
	iv := expand("iv", aead.NonceSize())
	return func(n uint64, inner string) []byte {
		head := binary.BigEndian.AppendUint16([]byte("\x17\x03\x03"), uint16(len(inner)+aead.Overhead()))
		nonce := binary.BigEndian.AppendUint64(bytes.Clone(iv[:4]), binary.BigEndian.Uint64(iv[4:])^n)
		return aead.Seal(bytes.Clone(head), nonce, []byte(inner), head)
	}
}
