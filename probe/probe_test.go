package probe

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/listener/header"
)

// serve runs an endpoint that handles each connection by f.
func serve(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c)
			}()
		}
	}()
	return l.Addr().String()
}

// buffered is a connection whose first bytes are in a buffer.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// readHeader reads a PROXY header. It reports false if there is none, or no valid one.
func readHeader(b *buffered) (ok bool, err error) {
	for n := 1; ; n++ {
		got, err := b.r.Peek(n)
		if err != nil {
			return false, err
		}
		size, err := header.Scan(got)
		if err != nil {
			return false, err
		}
		if size > 0 {
			_, err = header.Parse(got)
			b.r.Discard(size)
			return err == nil, err
		}
	}
}

// requires serves connections by f behind a PROXY header, and closes the others. A header
// that comes after the timeout is left to f, as some libraries do.
func requires(timeout time.Duration, closes bool, f func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		b := &buffered{c, bufio.NewReader(c)}
		c.SetReadDeadline(time.Now().Add(timeout))
		ok, err := readHeader(b)
		late := err != nil && os.IsTimeout(err)
		if !ok && (closes || !late) {
			return
		}
		c.SetReadDeadline(time.Time{})
		f(b)
	}
}

// accepts serves connections with and without a PROXY header.
func accepts(f func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		b := &buffered{c, bufio.NewReader(c)}
		if ok, err := readHeader(b); ok || err == header.ErrAbsent {
			f(b)
		}
	}
}

func http(c net.Conn) {
	line, _ := bufio.NewReader(c).ReadString('\n')
	if strings.HasPrefix(line, "GET / HTTP/1.1") {
		io.WriteString(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
	} else if line != "" {
		io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
	}
}

// overTLS serves TLS, and answers other bytes in plain text.
func overTLS(t *testing.T) func(net.Conn) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	return func(c net.Conn) {
		b := &buffered{c, bufio.NewReader(c)}
		if first, err := b.r.Peek(1); err == nil && first[0] != recordHandshake {
			io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\n")
			return
		}
		tls.Server(b, config).Handshake()
	}
}

// ssh greets first, and ends the connection at a line that is no version of a client.
func ssh(c net.Conn) {
	io.WriteString(c, "SSH-2.0-test\r\n")
	line, _ := bufio.NewReader(c).ReadString('\n')
	if line != "" && !strings.HasPrefix(line, "SSH-") {
		io.WriteString(c, "Invalid SSH identification string.\r\n")
	}
}

func echo(c net.Conn) { io.Copy(c, c) }

// inBubble probes an endpoint in memory, with the waits of a real probe.
func inBubble(t *testing.T, endpoint func(net.Conn)) (r *Report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var serving sync.WaitGroup
		defer serving.Wait() // the bubble demands it
		var err error
		if r, err = Run(t.Context(), Options{Address: "app.example.org:443", dial: network(endpoint, &serving)}); err != nil {
			t.Fatal(err)
		}
	})
	return r
}

func TestRun(t *testing.T) {
	t.Parallel()
	secure := overTLS(t)
	const soon = time.Second // less than the shortest wait
	for name, one := range map[string]struct {
		endpoint                   func(net.Conn)
		verdict                    Verdict
		protocol                   Protocol
		late, malformed, plaintext Reaction
	}{
		"http":                   {http, Not, HTTP, Answers, Answers, ""},
		"http requires":          {requires(soon, true, http), Requires, HTTP, Closes, Closes, ""},
		"http accepts":           {accepts(http), Accepts, HTTP, Waits, Closes, ""},
		"tls":                    {secure, Not, TLS, Answers, Answers, Answers},
		"tls requires":           {requires(soon, true, secure), Requires, TLS, Closes, Closes, Answers},
		"tls reads a late one":   {requires(time.Minute, true, secure), Requires, TLS, Waits, Closes, Answers},
		"tls forgets a late one": {requires(soon, false, secure), Requires, TLS, Answers, Closes, Answers},
		"tls accepts":            {accepts(secure), Accepts, TLS, Waits, Closes, Answers},
		"ssh":                    {ssh, Not, Greets, Answers, Answers, ""},
		"ssh requires":           {requires(soon, true, ssh), Requires, Greets, Closes, Closes, ""},
		"echo":                   {echo, Not, Other, Answers, Answers, ""},
		"echo requires":          {requires(soon, true, echo), Requires, Other, Closes, Closes, ""},
		"echo accepts":           {accepts(echo), Accepts, Other, Waits, Closes, ""},
		"closes":                 {func(net.Conn) {}, Unknown, Other, Closes, Closes, ""},
		"reads only":             {func(c net.Conn) { io.Copy(io.Discard, c) }, Unknown, Other, Waits, Waits, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := inBubble(t, one.endpoint)
			if r.Seconds > 60 || r.Connected != "192.0.2.2:443" {
				t.Errorf("%+v", r)
			}
			if r.Verdict != one.verdict || r.Protocol != one.protocol || r.Late != one.late || r.Malformed != one.malformed || r.Plaintext != one.plaintext {
				t.Errorf("%+v", r)
			}
			if reads := r.Verdict == Requires || r.Verdict == Accepts; r.Reads != (Reads{reads, reads, reads, reads, reads, reads, false}) {
				t.Errorf("it reads %+v", r.Reads)
			}
			truncated, spoofed := Closes, Serves
			switch r.Verdict {
			case Unknown:
				return
			case Not:
				truncated, spoofed = Answers, Answers
			}
			if r.Stalled != one.late || r.Duplicated != Answers || r.Truncated != truncated || r.Spoofed != spoofed || len(r.ServesMalformed) > 0 {
				t.Errorf("%+v", r)
			}
			var printed bytes.Buffer
			r.Print(&printed)
			if lines := strings.Count(printed.String(), "\n"); lines < len(r.Tries) {
				t.Errorf("the report has %d lines:\n%s", lines, &printed)
			}
		})
	}
}

// The report shows that an endpoint checks neither ports nor checksums.
func TestLenient(t *testing.T) {
	t.Parallel()
	r := inBubble(t, func(c net.Conn) {
		b := bufio.NewReader(c)
		switch first, _ := b.Peek(1); {
		case len(first) == 0:
			return
		case first[0] == 'P':
			b.ReadString('\n')
		case first[0] == '\r':
			var fixed [16]byte
			io.ReadFull(b, fixed[:])
			b.Discard(int(fixed[14])<<8 | int(fixed[15]))
		default:
			return
		}
		http(&buffered{c, b})
	})
	if r.Verdict != Requires || len(r.ServesMalformed) != len(malformed) || r.Malformed != Answers || !r.Reads.WrongCRC32C {
		t.Errorf("%+v", r)
	}
}

// A probe of an endpoint that treats every connection in the same way ends in time, has a reaction in
// each key, and does not take the endpoint for one that reads PROXY headers.
func TestHostile(t *testing.T) {
	t.Parallel()
	secure := overTLS(t)
	send := func(text string, every time.Duration) func(net.Conn) {
		return func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, text); err != nil {
					return
				}
				time.Sleep(every)
			}
		}
	}
	for name, one := range map[string]struct {
		endpoint func(net.Conn)
		verdict  Verdict
		protocol Protocol // empty: any
	}{
		"a byte now and then":      {send("x", 100*time.Millisecond), Not, Greets},
		"bytes without end":        {send(strings.Repeat("x", 1<<16), 0), Not, ""},
		"lines without end":        {send(strings.Repeat("PROXY TCP4\r\n", 1<<10), 0), Not, ""},
		"200 to anything":          {answers("HTTP/1.1 200 OK\r\n\r\n"), Not, HTTP},
		"GOAWAY to anything":       {answers("\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"), Not, Other},
		"ERROR to each line":       {eachLine("ERROR\r\n"), Not, Other},
		"a handshake without end":  {func(c net.Conn) { secure(c); send("\x16\x03\x03\x00\x01\x00", 100*time.Millisecond)(c) }, Not, TLS},
		"a PROXY header to anyone": {send("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", time.Hour), Not, Greets},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := inBubble(t, one.endpoint)
			if r.Verdict != one.verdict || one.protocol != "" && r.Protocol != one.protocol || r.Seconds > 60 {
				t.Errorf("%+v", r)
			}
			for _, reaction := range []Reaction{r.Late, r.Stalled, r.Truncated, r.Duplicated, r.Spoofed, r.Malformed} {
				if reaction == "" {
					t.Errorf("a reaction is missing: %+v", r)
				}
			}
		})
	}
}

// answers sends text after the first bytes, and ends the connection.
func answers(text string) func(net.Conn) {
	return func(c net.Conn) {
		if n, _ := c.Read(make([]byte, 4096)); n > 0 {
			io.WriteString(c, text)
		}
	}
}

// eachLine sends text for each line of the first bytes, and waits.
func eachLine(text string) func(net.Conn) {
	return func(c net.Conn) {
		got := make([]byte, 4096)
		n, _ := c.Read(got)
		io.WriteString(c, strings.Repeat(text, bytes.Count(got[:n], []byte("\n"))))
		io.Copy(io.Discard, c)
	}
}

func TestRequest(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"app.example.org:443":    "Host: app.example.org\r\n",
		"app.example.org.:443":   "Host: app.example.org\r\n",
		"192.0.2.7:443":          "Host: 192.0.2.7\r\n",
		"[2001:db8::7]:443":      "Host: [2001:db8::7]\r\n",
		"[fe80::7%eth0]:443":     "Host: [fe80::7]\r\n",
		"[::ffff:192.0.2.7]:443": "Host: [::ffff:192.0.2.7]\r\n",
		":443":                   "Host: localhost\r\n",
	} {
		if got := string(request(hostOf(address))); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}

// Host may have a port, as in a URL. Neither SNI nor the HTTP header gets it.
func TestHostWithPort(t *testing.T) {
	t.Parallel()
	first := make(chan []byte, 64)
	at := serve(t, func(c net.Conn) {
		b := make([]byte, 4096)
		if n, err := c.Read(b); err == nil {
			first <- b[:n]
		}
	})
	if _, err := Run(t.Context(), Options{Address: at, Host: "app.example.org:8443", Wait: time.Millisecond, Patience: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	named := 0
	for len(first) > 0 {
		b := <-first
		if bytes.Contains(b, []byte("org:8443")) {
			t.Errorf("a connection began with %q", b)
		}
		if bytes.Contains(b, []byte("app.example.org")) {
			named++
		}
	}
	if named == 0 {
		t.Error("no connection named the host")
	}
}

// The end of the caller's context ends a probe at once.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 64)
	at := serve(t, func(c net.Conn) {
		arrived <- struct{}{}
		io.Copy(io.Discard, c)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := Run(ctx, Options{Address: at, Wait: time.Hour, Patience: time.Hour})
		done <- err
	}()
	for range 4 {
		<-arrived
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("no error")
	}
}

func TestRunOfNothing(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for address, want := range map[string]string{l.Addr().String(): "check the address", "127.0.0.1": "not HOST:PORT", "unix:/run/app.sock": "a Unix socket", "https://app.example.org:443": "a URL"} {
		if _, err := Run(t.Context(), Options{Address: address}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

func TestOnlyRecords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"\x15\x03\x01\x00\x02\x02\x28":         true,
		"\x15\x03\x01\x00\x02\x02\x28\x15\x03": true,
		"\x15\x03\x01\x00\x02\x02\x28HTTP":     false,
		"HTTP/1.1 400":                         false,
		"\x16\x03\x03\x40\x00cut":              true,
		"\x16":                                 true,
		"H":                                    false,
	} {
		if got := onlyRecords([]byte(text)); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

// Replies come from strangers.
func FuzzReply(f *testing.F) {
	for _, s := range []string{"", "H", "HTTP/1.1 ", "HTTP/1.1 200 OK\r\n", "\x15", "\x15\x03\x01\x00\x02\x02", "\x16\x03\x03\x00\x01\x02", "SSH-2.0\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, protocol := range []Protocol{TLS, HTTP, Greets, Other} {
			p := &prober{found: found{protocol: protocol, base: map[string]reply{}}}
			for _, sent := range [][]byte{nil, []byte("PROXY UNKNOWN\r\n")} {
				r := reply{bytes: b, sent: sent}
				if shown := p.shown(r); len(b) == 0 && shown != Waits {
					t.Errorf("%s to nothing", shown)
				}
				if s := r.summary(); strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) {
					t.Errorf("%q is not printable", s)
				}
			}
		}
	})
}

// A server that knows no certificate for the name has read the ClientHello.
func TestShakesHands(t *testing.T) {
	t.Parallel()
	config := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, io.ErrUnexpectedEOF }}
	for want, w := range map[bool]writer{true: none, false: honest(1)} {
		synctest.Test(t, func(t *testing.T) {
			var serving sync.WaitGroup
			defer serving.Wait()
			p := &prober{Options: Options{Patience: DefaultPatience, dial: network(func(c net.Conn) { tls.Server(c, config).Handshake() }, &serving)}}
			r, err := p.try(t.Context(), w, clientHello("app.example.org"), false)
			if got := shakesHands(r.bytes); err != nil || got != want {
				t.Errorf("%t, %v: %q", got, err, r.bytes)
			}
		})
	}
}
