package main

import (
	"bufio"
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A kind is a connection whose memory is measured while it is idle.
type kind struct {
	key, name string
	// dial opens a connection.
	dial func(s setup) (held, error)
	// use does what the connection does before it becomes idle.
	use    func(h held) error
	mutual bool // the client sends a certificate
}

// held is a connection in use by a client.
type held interface {
	// exchange sends this many bytes and receives as many.
	exchange(size int) error
	io.Closer
}

var kinds = []kind{
	{"plain", "idle, plain keep-alive after a PROXY header", dialPlain, once, false},
	{"plain-used", "the same after 100 exchanges, 10 of 16 KiB", dialPlain, often, false},
	{"tls", "idle, TLS keep-alive", dialTLS, once, false},
	{"tls-used", "the same after 100 exchanges, 10 of 16 KiB", dialTLS, often, false},
	{"tls-mutual", "idle, TLS keep-alive with a client certificate", dialTLS, once, true},
	{"tls-mutual-used", "the same after 100 exchanges, 10 of 16 KiB", dialTLS, often, true},
	{"h2", "idle, HTTP/2 after one request", dialHTTP2, once, false},
	{"h2-used", "the same after 100 exchanges, 10 of 16 KiB", dialHTTP2, often, false},
	{"h2-uploads", "the same after 100 exchanges of 16 KiB", dialHTTP2, func(h held) error { return exchanges(h, 100, 16<<10) }, false},
	{"tunnel", "idle tunnel, both halves", dialRaw, once, false},
	{"used", "the same after 100 exchanges and 256 KiB", dialRaw, much, false},
	{"ws", "idle WebSocket", dialWebSocket, once, false},
	{"ws-used", "the same after 100 exchanges and 256 KiB", dialWebSocket, much, false},
	{"wss", "idle WebSocket over TLS", dialSecureWebSocket, once, false},
	{"wss-used", "the same after 100 exchanges and 256 KiB", dialSecureWebSocket, much, false},
	{"ws2", "idle WebSocket over HTTP/2, alone on its connection", dialWebSocket2, once, false},
	{"ws2-used", "the same after 100 exchanges and 256 KiB", dialWebSocket2, much, false},
	{"waiting", "not idle: an exchange that waits for its answer", dialWaiting(dialPlain), once, false},
	{"waiting-tls", "not idle: the same by TLS", dialWaiting(dialTLS), once, false},
}

// kindOf returns the kind with this key.
func kindOf(key string) (kind, error) {
	for _, k := range kinds {
		if k.key == key {
			return k, nil
		}
	}
	return kind{}, fmt.Errorf("there is no kind %q of connections", key)
}

// kindKeys returns all keys, for the help.
func kindKeys() string {
	var keys []string
	for _, k := range kinds {
		keys = append(keys, k.key)
	}
	return strings.Join(keys, ", ")
}

func once(h held) error { return h.exchange(128) }

func often(h held) error { return errors.Join(exchanges(h, 90, 128), exchanges(h, 10, 16<<10)) }

func much(h held) error { return errors.Join(exchanges(h, 100, 128), exchanges(h, 4, 64<<10)) }

func exchanges(h held, times, size int) error {
	for range times {
		if err := h.exchange(size); err != nil {
			return err
		}
	}
	return nil
}

// dialed counts connections, so that each comes from another address, like the clients of a load balancer.
var dialed atomic.Uint32

// dialFrom connects from one of 250 loopback addresses.
func dialFrom(port int) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+dialed.Add(1)%250))}}
	c, err := d.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	return c, c.SetDeadline(time.Now().Add(60 * time.Second))
}

// then returns the result of f for a connection. If f fails, it closes the connection.
func then[T any](c net.Conn, err error, f func(net.Conn) (T, error)) (t T, _ error) {
	if err != nil {
		return t, err
	}
	if t, err = f(c); err != nil {
		c.Close()
	}
	return t, err
}

func dialRaw(s setup) (held, error) {
	c, err := dialFrom(s.TCPPort)
	return then(c, err, func(c net.Conn) (held, error) { return rawHeld{c}, nil })
}

func dialPlain(s setup) (held, error) {
	c, err := dialFrom(s.ProxyPort)
	return then(c, err, func(c net.Conn) (held, error) {
		n := dialed.Load()
		_, err := fmt.Fprintf(c, "PROXY TCP4 198.18.%d.%d 192.0.2.1 40000 80\r\n", n>>8&255, n&255)
		return &httpHeld{Conn: c}, err
	})
}

func dialTLS(s setup) (held, error) {
	c, err := dialSecure(s, "http/1.1")
	return then(c, err, func(c net.Conn) (held, error) { return &httpHeld{Conn: c}, nil })
}

func dialHTTP2(s setup) (held, error) {
	c, err := dialSecure(s, "h2")
	return then(c, err, func(c net.Conn) (held, error) { return newUser(c) })
}

func dialWebSocket(s setup) (held, error) {
	c, err := dialFrom(s.HTTPPort)
	return then(c, err, upgraded)
}

func dialSecureWebSocket(s setup) (held, error) {
	c, err := dialSecure(s, "http/1.1")
	return then(c, err, upgraded)
}

// dialSecure does the TLS handshake, with a client certificate if the setup requires one.
func dialSecure(s setup, protocol string) (net.Conn, error) {
	config := shake{}.client()
	config.NextProtos = []string{protocol}
	config.DynamicRecordSizingDisabled = true // the connection uses large records from the beginning
	if s.Mutual {
		cert, err := clientCertificate(s.Dir)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{cert}
	}
	c, err := dialFrom(s.TLSPort)
	return then(c, err, func(c net.Conn) (net.Conn, error) {
		t := tls.Client(c, config)
		err := t.Handshake()
		if got := t.ConnectionState().NegotiatedProtocol; err == nil && got != protocol {
			err = fmt.Errorf("the proxy chose %q", got)
		}
		return t, err
	})
}

// clientCertificate returns another certificate for each client, so that a proxy cannot
// share the memory for them.
func clientCertificate(dir string) (tls.Certificate, error) {
	ca, err := tls.LoadX509KeyPair(filepath.Join(dir, "clients.crt"), filepath.Join(dir, "clients.key"))
	if err != nil {
		return ca, err
	}
	key := ca.PrivateKey.(crypto.Signer)
	t := certificateOf(fmt.Sprint("client ", dialed.Load()))
	der, err := x509.CreateCertificate(rand.Reader, t, ca.Leaf, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// zeros are the bytes that the clients send.
var zeros = make([]byte, 64<<10)

// rawHeld is a tunnel to a server that sends all bytes back.
type rawHeld struct{ net.Conn }

func (h rawHeld) exchange(size int) error {
	h.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := h.Write(zeros[:size]); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, struct{ io.Reader }{h.Conn}, int64(size))
	return err
}

// httpHeld makes requests of HTTP/1.1.
type httpHeld struct{ net.Conn }

func (h *httpHeld) exchange(size int) error {
	h.SetDeadline(time.Now().Add(60 * time.Second))
	request := fmt.Appendf(nil, "POST / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: weir-bench\r\nContent-Length: %d\r\n\r\n", size)
	if _, err := h.Write(append(request, zeros[:size]...)); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(h.Conn, 4<<10), nil)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK || n != int64(size) {
		return fmt.Errorf("the answer is %s with %d bytes of %d, %w", resp.Status, n, size, err)
	}
	return err
}

// waiting is a request that the backend does not answer: an active connection, for
// comparison with idle ones.
type waiting struct {
	net.Conn
	asked bool
}

func (h *waiting) exchange(int) error {
	if h.asked {
		return nil // the request still waits
	}
	h.asked = true
	_, err := io.WriteString(h, "GET "+pathHold+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
	return err
}

// pathHold is the path that gets no answer.
const pathHold = "/hold"

func dialWaiting(dial func(setup) (held, error)) func(setup) (held, error) {
	return func(s setup) (held, error) {
		h, err := dial(s)
		if err != nil {
			return h, err
		}
		return &waiting{Conn: h.(*httpHeld).Conn}, nil
	}
}

// upgraded turns a connection into a tunnel by an HTTP upgrade.
func upgraded(c net.Conn) (held, error) {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"); err != nil {
		return nil, err
	}
	head, err := readHead(c)
	if err == nil && !strings.HasPrefix(head, "HTTP/1.1 101 ") {
		err = fmt.Errorf("the proxy answers an upgrade with %q", head)
	}
	return rawHeld{c}, err
}

// socket2 is a WebSocket on a stream of HTTP/2 (RFC 8441).
type socket2 struct {
	net.Conn
	framer *http2.Framer
}

func dialWebSocket2(s setup) (held, error) {
	c, err := dialSecure(s, "h2")
	return then(c, err, func(c net.Conn) (held, error) {
		h := &socket2{c, http2.NewFramer(c, bufio.NewReaderSize(c, 4<<10))}
		return h, h.open()
	})
}

// open requests the WebSocket when the proxy has reported that it accepts such requests.
func (h *socket2) open() error {
	if _, err := io.WriteString(h, http2.ClientPreface); err != nil {
		return err
	}
	if err := h.framer.WriteSettings(); err != nil {
		return err
	}
	for {
		f, err := h.framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if f.IsAck() {
				continue
			}
			if v, _ := f.Value(http2.SettingEnableConnectProtocol); v != 1 {
				return errors.New("the proxy takes no WebSockets over HTTP/2")
			}
			if err := errors.Join(h.framer.WriteSettingsAck(), h.ask()); err != nil {
				return err
			}
		case *http2.HeadersFrame:
			fields, err := hpack.NewDecoder(4096, nil).DecodeFull(f.HeaderBlockFragment())
			if err == nil && (len(fields) == 0 || fields[0].Value != "200") {
				err = fmt.Errorf("the proxy answers a WebSocket with %v", fields)
			}
			return err
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return fmt.Errorf("the proxy answers a WebSocket with %v", f)
		}
	}
}

func (h *socket2) ask() error {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "CONNECT"}, {":protocol", "websocket"}, {":scheme", "https"}, {":authority", "localhost"},
		{":path", "/"}, {"sec-websocket-version", "13"}} {
		enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
}

func (h *socket2) exchange(size int) error {
	h.SetDeadline(time.Now().Add(60 * time.Second))
	for size > 0 {
		piece := min(size, 16<<10) // one frame; every window is at least this large
		size -= piece
		if err := h.framer.WriteData(1, false, zeros[:piece]); err != nil {
			return err
		}
		for piece > 0 {
			f, err := h.framer.ReadFrame()
			if err != nil {
				return err
			}
			switch f := f.(type) {
			case *http2.DataFrame:
				n := len(f.Data())
				if piece -= n; n > 0 {
					err = errors.Join(h.framer.WriteWindowUpdate(0, uint32(n)), h.framer.WriteWindowUpdate(1, uint32(n)))
				}
			case *http2.RSTStreamFrame, *http2.GoAwayFrame:
				err = fmt.Errorf("the proxy ends a WebSocket with %v", f)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readHead reads the head of a message, and no byte more.
func readHead(c net.Conn) (string, error) {
	var head []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(head), "\r\n\r\n"); head = append(head, b[0]) {
		if _, err := io.ReadFull(c, b); err != nil {
			return string(head), err
		}
	}
	return string(head), nil
}

// serveEcho is a backend that sends back the bytes that it receives: of tunnels, of
// requests with a body, and of connections after an upgrade.
func serveEcho(port int) (stop func(), err error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReaderSize(c, 4<<10)
				first, err := r.Peek(4)
				switch {
				case err != nil:
					return
				case string(first) == "POST" || string(first) == "GET ":
					answerAll(c, r)
				}
				io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{r}, make([]byte, 4<<10))
			}()
		}
	}()
	return func() { l.Close() }, nil
}

// answerAll answers requests until a client requests an upgrade, or until the connection ends.
func answerAll(c net.Conn, r *bufio.Reader) {
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if req.Header.Get("Upgrade") != "" {
			sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455, section 4.2.2
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
				base64.StdEncoding.EncodeToString(sum[:]))
			return
		}
		if req.URL.Path == pathHold {
			r.Peek(1) // waits until the connection ends
			return
		}
		var answer bytes.Buffer
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(&answer, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		if _, err := c.Write(answer.Bytes()); err != nil {
			return
		}
	}
}
