package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Story 1 of the design: a load balancer sent a client's PROXY header late. The proxy treated the connection
// as one without a header, and answered in plain text on a TLS port. weir must close such a connection
// without writing a byte.

const edgeConfig = `
listeners:
  secure: {address: '@secure', protocol: tls, proxy_protocol: edge}
proxy_protocol:
  edge:
    header_timeout: 1s
    rules: [{from: [127.0.0.0/8], header: require}]
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes: [{listeners: [secure], backend: app}]
backends:
  app: {endpoints: ['@app']}
`

// headerTimeout is the header_timeout of edgeConfig. On a busy machine weir may take longer, by at most
// patience.
const headerTimeout = time.Second

// theHeaders are PROXY headers for a client at 203.0.113.9.
var theHeaders = map[string][]byte{
	"v1": v1Header("203.0.113.9:4711", "192.0.2.1:443"),
	"v2": withChecksum(v2Header("203.0.113.9:4711", "192.0.2.1:443",
		tlv{0x02, []byte("app.example.org")}, tlv{0x05, []byte("id-1")}), false),
}

func startEdge(t *testing.T) (*weir, *webBackend) { return startEdgeWith(t, headerTimeout) }

func startEdgeWith(t *testing.T, timeout time.Duration) (*weir, *webBackend) {
	t.Helper()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	return w.start(strings.Replace(edgeConfig, "header_timeout: 1s", "header_timeout: "+timeout.String(), 1)), app
}

// refusedSilently sends first, waits until weir closes the connection, and then still sends the rest. weir
// must not answer, and must not wait longer than its timeout.
func refusedSilently(t *testing.T, address string, first, rest []byte) error {
	began := time.Now()
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(began.Add(headerTimeout + patience))
	c.Write(first) // may fail if the machine is so busy that weir has already closed
	got, err := readToEnd(c)
	if err != nil {
		return fmt.Errorf("after %d bytes of the header weir did not close: %w", len(first), err)
	}
	c.Write(rest) // fails because weir has closed; otherwise it would provoke a response
	more, _ := readToEnd(c)
	if got = append(got, more...); len(got) > 0 {
		return fmt.Errorf("after %d bytes of the header weir wrote %q", len(first), got[:min(len(got), 100)])
	}
	return nil
}

// all runs the functions at the same time and reports every error.
func all(t *testing.T, fs []func() error) {
	t.Helper()
	var running sync.WaitGroup
	for _, f := range fs {
		running.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
}

func TestStory1HeaderLateAtEveryByte(t *testing.T) {
	t.Parallel()
	w, app := startEdge(t)
	var late []func() error
	for version, h := range theHeaders {
		for n := range h {
			late = append(late, func() error {
				if err := refusedSilently(t, w.at("secure"), h[:n], append(h[n:], clientHello(t)...)); err != nil {
					return fmt.Errorf("%s: %w", version, err)
				}
				return nil
			})
		}
	}
	all(t, late)
	w.wantMetric(float64(len(late)), "weir_proxy_headers_total", "listener", "secure", "result", "late")
	if n := app.connections.Load(); n != 0 {
		t.Errorf("the backend saw %d connections", n)
	}
}

func TestStory1ThousandLateHeadersAtOnce(t *testing.T) {
	needLinux(t)
	w, app := startEdge(t)
	files, routines := w.descriptors(), w.goroutines()
	var late []func() error
	for i := range 1000 {
		h := theHeaders[[]string{"v1", "v2"}[i%2]]
		n := i / 2 % len(h)
		late = append(late, func() error {
			return refusedSilently(t, w.at("secure"), h[:n], append(h[n:], clientHello(t)...))
		})
	}
	all(t, late)
	w.wantMetric(1000, "weir_proxy_headers_total", "listener", "secure", "result", "late")
	if n := app.connections.Load(); n != 0 {
		t.Errorf("the backend saw %d connections", n)
	}
	eventually(t, "descriptors and goroutines go back", func() error {
		// At the first count weir may not have reserved all descriptors of its own ports. A leak would have
		// hundreds.
		if f, g := w.descriptors(), w.goroutines(); f > files+10 || g > routines+5 {
			return fmt.Errorf("%d descriptors were %d, %d goroutines were %d", f, files, g, routines)
		}
		return nil
	})
}

func TestStory1HeaderInPiecesInTime(t *testing.T) {
	t.Parallel()
	w, _ := startEdgeWith(t, 10*time.Second) // longer than all connections together need on a busy machine
	var split []func() error
	for version, h := range theHeaders {
		for n := range h {
			split = append(split, func() error {
				s, err := askInPieces(w.at("secure"), h[:n], h[n:])
				if err == nil && s.Header.Get("X-Forwarded-For") != "203.0.113.9" {
					err = fmt.Errorf("X-Forwarded-For is %q", s.Header.Get("X-Forwarded-For"))
				}
				if err != nil {
					return fmt.Errorf("%s split after %d bytes: %w", version, n, err)
				}
				return nil
			})
		}
		// Each byte in its own piece.
		split = append(split, func() error {
			_, err := askInPieces(w.at("secure"), slices.Collect(slices.Chunk(h, 1))...)
			return err
		})
	}
	all(t, split)
	want := float64(len(theHeaders["v1"]) + len(theHeaders["v2"]) + 2)
	w.wantMetric(want, "weir_proxy_headers_total", "listener", "secure", "result", "accepted")
}

// askInPieces sends a header in pieces some milliseconds apart, and then a request over TLS.
func askInPieces(address string, pieces ...[]byte) (seen, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return seen{}, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	for i, p := range pieces {
		if i > 0 {
			time.Sleep(200 * time.Millisecond / time.Duration(len(pieces)))
		}
		if _, err := c.Write(p); err != nil {
			return seen{}, err
		}
	}
	return askSeen(tls.Client(c, anyCertificate("app.example.org")), "app.example.org", "/")
}

func TestStory1WhatIsNoHeader(t *testing.T) {
	t.Parallel()
	w, app := startEdge(t)
	v1, v2 := theHeaders["v1"], theHeaders["v2"]
	for name, c := range map[string]struct {
		send   []byte
		result string
	}{
		"silence":                     {nil, "late"},
		"a ClientHello at once":       {clientHello(t), "missing"},
		"plain HTTP":                  {[]byte("GET / HTTP/1.1\r\nHost: app.example.org\r\n\r\n"), "missing"},
		"an SSH client":               {[]byte("SSH-2.0-OpenSSH_9.2\r\n"), "missing"},
		"garbage":                     {[]byte("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10"), "missing"},
		"v1 of an unknown family":     {[]byte("PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n"), "malformed"},
		"v1 with two spaces":          {[]byte("PROXY  TCP4 1.2.3.4 1.2.3.4 1 2\r\n"), "malformed"},
		"v1 without an end":           {[]byte("PROXY TCP4 " + strings.Repeat("1", 200)), "malformed"},
		"v1 with a bare LF":           {[]byte("PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n"), "malformed"},
		"v2 of version 3":             {append(append(slices.Clone(v2[:12]), 0x31), v2[13:]...), "malformed"},
		"v2 with an unknown command":  {append(append(slices.Clone(v2[:12]), 0x25), v2[13:]...), "malformed"},
		"v2 too short for its family": {v2Raw(0x21, 0x11, []byte{1, 2, 3}), "malformed"},
		"v2 with a wrong checksum":    {withChecksum(v2Header("203.0.113.9:1", "192.0.2.1:2"), true), "checksum"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			before := w.metric("weir_proxy_headers_total", "result", c.result)
			// A ClientHello follows the header. If weir accepts the header by mistake, it answers the
			// ClientHello.
			if err := refusedSilently(t, w.at("secure"), c.send, clientHello(t)); err != nil {
				t.Error(err)
			}
			w.wantMetric(before+1, "weir_proxy_headers_total", "result", c.result)
		})
	}
	t.Run("cut", func(t *testing.T) {
		for _, h := range [][]byte{v1, v2} {
			before := w.metric("weir_proxy_headers_total", "result", "truncated")
			c := dialWith(t, w.at("secure"), h[:len(h)-3])
			c.(*net.TCPConn).CloseWrite()
			if got, err := readToEnd(c); err != nil || len(got) > 0 {
				t.Errorf("weir wrote %q, %v", got, err)
			}
			w.wantMetric(before+1, "weir_proxy_headers_total", "result", "truncated")
		}
	})
	t.Run("plain-HTTP-after-a-header", func(t *testing.T) {
		for _, h := range [][]byte{v1, v2} {
			c := dialWith(t, w.at("secure"), append(slices.Clone(h), "GET / HTTP/1.1\r\nHost: app.example.org\r\n\r\n"...))
			got, err := readToEnd(c)
			if err := noPlaintext(got); err != nil {
				t.Error(err)
			}
			if err != nil {
				t.Errorf("weir did not close: %v", err)
			}
		}
	})
	if n := app.connections.Load(); n != 0 {
		t.Errorf("the backend saw %d connections", n)
	}
}

// clientHello returns the first message of a TLS client.
func clientHello(t testing.TB) []byte {
	t.Helper()
	helloOnce.Do(func() {
		client, server := net.Pipe()
		go func() {
			tls.Client(client, anyCertificate("app.example.org")).Handshake()
		}()
		head := make([]byte, 5)
		if _, err := io.ReadFull(server, head); err != nil {
			t.Error(err)
		}
		body := make([]byte, int(head[3])<<8|int(head[4]))
		if _, err := io.ReadFull(server, body); err != nil {
			t.Error(err)
		}
		server.Close()
		helloBytes = append(head, body...)
	})
	return slices.Clone(helloBytes)
}

var (
	helloOnce  sync.Once
	helloBytes []byte
)
