package soak

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/coder/websocket"
)

// A client does what "weir soak" cannot do. once returns an error if weir did something wrong. The test calls
// it again and again until the time is over.
type client struct {
	name string
	n    int // number of clients at the same time, multiplied by -load
	once func(ctx context.Context, n *node) error
}

var clients = []client{
	{"WebSockets", 6, webSockets("web", 10)},
	{"WebSockets over TLS", 6, webSockets("secure", 10)},
	{"WebSockets over HTTP/2", 4, webSockets2},
	{"half closes", 4, halfClose},
	{"tunnels to endpoints that die", 6, lostTunnel},
	{"malformed headers", 2, malformed},
	{"a listener that comes and goes", 2, passing},
	{"idle until the limit", 6, idleRequest},
	{"an idle tunnel until the limit", 6, idleTunnel},
}

// pause waits for d, or until the time is over.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// nowAndThen returns the length of a pause: mostly a moment, sometimes so long that weir parks the
// connection.
func nowAndThen() time.Duration {
	if mathrand.IntN(4) == 0 {
		return time.Duration(1500+mathrand.IntN(2000)) * time.Millisecond
	}
	return time.Duration(mathrand.IntN(100)) * time.Millisecond
}

func dial(n *node, listener string) (*net.TCPConn, error) {
	c, err := net.DialTimeout("tcp", n.at(listener), patience)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn), nil
}

// transport connects to one listener, and sends a PROXY header if the listener requires one.
func transport(n *node, listener string) *http.Transport {
	return &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, ServerName: host},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := dial(n, listener)
			if err == nil && listener == "secure" {
				_, err = io.WriteString(c, "PROXY TCP4 203.0.113.77 192.0.2.1 4711 443\r\n")
			}
			if err != nil {
				return nil, err
			}
			return c, c.SetDeadline(time.Time{})
		},
	}
}

// webSockets returns what a client does that sends some messages on a WebSocket, and then closes it.
func webSockets(listener string, messages int) func(context.Context, *node) error {
	return func(ctx context.Context, n *node) error { return webSocket(ctx, n, listener, messages) }
}

// webSocket sends messages on a WebSocket, with pauses, and expects each message back.
func webSocket(ctx context.Context, n *node, listener string, messages int) error {
	url := map[string]string{"web": "ws://", "secure": "wss://"}[listener] + host + "/steady/ws"
	bounded, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	c, _, err := websocket.Dial(bounded, url, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport(n, listener)}})
	if err != nil {
		return err
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 20)
	for i := 0; i < messages && ctx.Err() == nil; i++ {
		message := make([]byte, mathrand.IntN(100_000))
		rand.Read(message)
		if err := c.Write(bounded, websocket.MessageBinary, message); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if _, got, err := c.Read(bounded); err != nil || !bytes.Equal(got, message) {
			return fmt.Errorf("message %d: %d bytes of %d came back, %w", i, len(got), len(message), err)
		}
		pause(ctx, nowAndThen())
	}
	// The package waits only five seconds for the other end, which a machine with much other work may take.
	if err := c.Close(websocket.StatusNormalClosure, ""); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// halfClose sends many bytes through a tunnel that was idle, closes its sending half, and expects all bytes
// back.
func halfClose(ctx context.Context, n *node) error {
	c, err := dial(n, "raw")
	if err != nil {
		return err
	}
	defer c.Close()
	sent := make([]byte, 1+mathrand.IntN(1<<20))
	rand.Read(sent)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(sent[:1])
		pause(ctx, nowAndThen())
		_, err2 := c.Write(sent[1:])
		failed <- errors.Join(err, err2, c.CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err = errors.Join(err, <-failed); err != nil || !bytes.Equal(got, sent) {
		return fmt.Errorf("%d bytes of %d came back: %w", len(got), len(sent), err)
	}
	return nil
}

// lostTunnel uses a tunnel to endpoints that die and are removed from the configuration. The tunnel may end
// at any time, but it must end, and every byte that arrives must be right.
func lostTunnel(ctx context.Context, n *node) error {
	c, err := dial(n, "lost")
	if err != nil { // weir resets the connection if there is no endpoint
		pause(ctx, 50*time.Millisecond)
		return notInTime(err)
	}
	defer c.Close()
	for b := byte(0); ctx.Err() == nil; b++ {
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte{b}); err != nil {
			return notInTime(err)
		}
		got := []byte{0}
		if _, err := io.ReadFull(c, got); err != nil {
			return notInTime(err)
		}
		if got[0] != b {
			return fmt.Errorf("%d came back for %d", got[0], b)
		}
		if pause(ctx, nowAndThen()); b == 20 {
			return nil
		}
	}
	return nil
}

// notInTime returns err if it is a timeout, and nil for all other errors, which are expected.
func notInTime(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// wrongHeaders are first bytes after which a listener for TLS must close the connection: malformed PROXY
// headers, or none.
var wrongHeaders = []string{
	"GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n",
	"\x16\x03\x01\x00\x05hello there",
	"PROXY TCP4 203.0.113.300 192.0.2.1 4711 443\r\n",
	"PROXY TCP4 203.0.113.3 192.0.2.1 4711 443",
	"PROXY TCP9 203.0.113.3 192.0.2.1 4711 443\r\nGET / HTTP/1.1\r\n\r\n",
	"PROXY " + string(make([]byte, 200)),
	"\r\n\r\n\x00\r\nQUIT\n\x31\x11\x00\x0c123412341212",
	"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x02123412341212",
	"\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff123412341212",
}

// malformed sends one of wrongHeaders, and expects that weir closes the connection without sending a byte.
func malformed(ctx context.Context, n *node) error {
	c, err := dial(n, "secure")
	if err != nil {
		return err
	}
	defer c.Close()
	header := wrongHeaders[mathrand.IntN(len(wrongHeaders))]
	if _, err := io.WriteString(c, header); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err = notInTime(err); err != nil || len(got) > 0 {
		return fmt.Errorf("%q is answered with %q: %w", header, got, err)
	}
	pause(ctx, 100*time.Millisecond)
	return nil
}

// passing connects to a listener that some configurations lack. If the listener accepts the connection, weir
// must serve it.
func passing(ctx context.Context, n *node) error {
	defer pause(ctx, 20*time.Millisecond)
	c, err := dial(n, "extra")
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	} else if err != nil {
		return err
	}
	defer c.Close()
	_, err = request(c)
	return err
}

// request makes a request and reads the whole response. stays is false if weir announces the end of the
// connection, which it does while it is drained.
func request(c net.Conn) (stays bool, err error) {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); err != nil {
		return false, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	_, err = answer(resp, err)
	return err == nil && !resp.Close, err
}

// idleLimit is the idle timeout of the listeners brief and brief-raw.
const idleLimit = 2 * time.Second

func idleRequest(ctx context.Context, n *node) error {
	return untilTheLimit(ctx, n, "brief", request)
}

func idleTunnel(ctx context.Context, n *node) error {
	return untilTheLimit(ctx, n, "brief-raw", func(c net.Conn) (bool, error) {
		_, err := io.WriteString(c, "x")
		if err == nil {
			_, err = io.ReadFull(c, []byte{0})
		}
		return true, err
	})
}

// untilTheLimit uses a connection once, and expects that weir closes it after idleLimit, not earlier, and
// without sending a byte.
func untilTheLimit(ctx context.Context, n *node, listener string, use func(net.Conn) (stays bool, err error)) error {
	c, err := dial(n, listener)
	if err != nil {
		return err
	}
	defer c.Close()
	begun := time.Now()
	if stays, err := use(c); err != nil || !stays {
		return err
	}
	got, err := io.ReadAll(c)
	if err = notInTime(err); err != nil || len(got) > 0 {
		return fmt.Errorf("it is not ended within %s: %q, %w", patience, got, err)
	}
	if d := time.Since(begun); d < idleLimit {
		return fmt.Errorf("it was ended after %s, not after %s", d, idleLimit)
	}
	return nil
}
