package soak

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// serveEcho is a real server that sends messages back. It counts the connections that were
// closed as RFC 6455 requires.
func serveEcho(t *testing.T, secure bool) (url string, closed *atomic.Int64) {
	t.Helper()
	closed = new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "chat.example.org" || r.URL.Path != "/socket" || r.Header.Get("X-Who") != "me" {
			t.Errorf("the upgrade is for %s of %s, %v", r.URL, r.Host, r.Header)
		}
		w.Header().Set("X-Client", r.RemoteAddr)
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Errorf("cannot accept the WebSocket: %v", err)
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 20)
		c.Write(r.Context(), websocket.MessageText, []byte("hello")) // unsolicited, but allowed
		for {
			kind, text, err := c.Read(r.Context())
			if err != nil {
				if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
					closed.Add(1)
				}
				return
			}
			if c.Write(r.Context(), kind, text) != nil {
				return
			}
		}
	}))
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(s.URL, "http") + "/socket", closed
}

func TestWebSocket(t *testing.T) {
	noLeaks(t)
	f := func(name string, secure bool, change func(*Options)) {
		t.Run(name, func(t *testing.T) {
			url, closed := serveEcho(t, secure)
			r := soak(t, url, func(o *Options) {
				o.Every, o.Host, o.Fields, o.AddressField = time.Millisecond, "chat.example.org", []string{"X-Who: me"}, "X-Client"
				change(o)
			}, func(s *Snapshot) bool {
				var upgrades uint64
				for _, n := range s.Upgrade {
					upgrades += n
				}
				return s.Exchanges >= 9 && upgrades >= 3
			})
			wantKinds(t, r)
			if r.Requests < 9 || r.Statuses[101] < 3 || r.Latency["upgrade"].Count < 3 {
				t.Errorf("%d messages, statuses %v, upgrades %+v", r.Requests, r.Statuses, r.Latency["upgrade"])
			}
			// Connections that received a message while they closed do not count.
			for deadline := time.Now().Add(patience); closed.Load() < 1; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("no connection was closed with a Close frame")
				}
			}
		})
	}
	f("ping", false, func(*Options) {})
	f("ping over TLS", true, func(o *Options) { o.Body = maxControl })
	f("pings at a rate", false, func(o *Options) { o.Rate = 200 })
}

// sceneWS answers the upgrade, reads a frame, and then calls act.
func sceneWS(accept string, act func(c net.Conn, payload []byte)) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewReader(c)
		request, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if accept == "end" {
			return
		}
		if accept == "" {
			sum := sha1.Sum([]byte(request.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
			accept := base64.StdEncoding.EncodeToString(sum[:])
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", accept)
		} else {
			io.WriteString(c, accept)
		}
		if payload, ok := readMasked(r); ok {
			act(c, payload)
			io.Copy(io.Discard, r)
		}
	}
}

// readMasked reads a short frame of a client.
func readMasked(r *bufio.Reader) (payload []byte, ok bool) {
	head := make([]byte, 6)
	if _, err := io.ReadFull(r, head); err != nil || head[1]&masked == 0 {
		return nil, false
	}
	payload = make([]byte, head[1]&^masked)
	_, err := io.ReadFull(r, payload)
	for i := range payload {
		payload[i] ^= head[2+i%4]
	}
	return payload, err == nil
}

func send(c net.Conn, first byte, payload []byte) {
	c.Write(append([]byte{first, byte(len(payload))}, payload...))
}

func TestWebSocketAnomalies(t *testing.T) {
	f := func(name, message string, want Kind, detail, accept string, act func(c net.Conn, payload []byte)) {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			r := soak(t, "ws://"+serve(t, sceneWS(accept, act)), func(o *Options) {
				o.Message = message
				if want == Timeout {
					o.Timeout = 300 * time.Millisecond
				}
			}, anomalies(3))
			wantKinds(t, r, want)
			if len(r.Anomalies) > 0 && !strings.Contains(r.Anomalies[0].Examples[0].Detail, detail) {
				t.Errorf("the example is %q, want %q", r.Anomalies[0].Examples[0].Detail, detail)
			}
		})
	}
	const ping, echo = MessagePing, MessageEcho
	nothing := func(net.Conn, []byte) {}
	f("no upgrade", ping, UnexpectedStatus, `403 Forbidden: "no"`, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", nothing)
	f("another key", ping, Malformed, "Sec-WebSocket-Accept", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n", nothing)
	f("another protocol", ping, Malformed, "h2c", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", nothing)
	f("an end instead of the upgrade", ping, Closed, "waiting for the upgrade", "end", nothing)
	f("another pong", ping, UnexpectedReply, `"other"`, "", func(c net.Conn, _ []byte) { send(c, final|opPong, []byte("other")) })
	f("another message", echo, UnexpectedReply, `got "other"`, "", func(c net.Conn, _ []byte) { send(c, final|opText, []byte("other")) })
	f("a longer message", echo, UnexpectedReply, "answered with another", "", func(c net.Conn, p []byte) { send(c, final|opText, append(p, "and more"...)) })
	f("a shorter message", echo, UnexpectedReply, "too early", "", func(c net.Conn, p []byte) { send(c, final|opText, p[:5]) })
	f("a masked frame", ping, Malformed, "masked", "", func(c net.Conn, p []byte) { c.Write([]byte{final | opPong, masked, 0, 0, 0, 0}) })
	f("a reserved bit", ping, Malformed, "begins with 0xca", "", func(c net.Conn, p []byte) { send(c, final|0x40|opPong, p) })
	f("a control frame in parts", ping, Malformed, "fragmented", "", func(c net.Conn, p []byte) { send(c, opPong, p) })
	f("a Close frame instead of an answer", ping, Closed, `1000 "bye"`, "", func(c net.Conn, p []byte) { send(c, final|opClose, []byte("\x03\xe8bye")) })
	f("no Close frame", ping, Closed, "without a Close frame", "", func(c net.Conn, p []byte) { c.(*net.TCPConn).CloseWrite() })
	f("an error while idle", ping, Closed, `while idle: the target closed the WebSocket with 1011 "oops"`, "", func(c net.Conn, p []byte) {
		send(c, final|opPong, p)
		send(c, final|opClose, []byte("\x03\xf3oops"))
	})
	f("no answer", ping, Timeout, "waiting for the answer to a message: it took longer than --timeout", "", func(c net.Conn, p []byte) {})
}

// TestWebSocketFrames: an answer may be fragmented, with pings and other messages in
// between, and the target may close while the tool expects nothing.
func TestWebSocketFrames(t *testing.T) {
	noLeaks(t)
	f := func(message string, act func(c net.Conn, payload []byte)) {
		t.Helper()
		r := soak(t, "ws://"+serve(t, sceneWS("", act)), func(o *Options) { o.Message = message }, func(s *Snapshot) bool { return s.EndedIdle >= 3 })
		wantKinds(t, r)
		if r.EndedIdle < 3 || r.Requests < 3 {
			t.Errorf("%d messages, %d ended idle", r.Requests, r.EndedIdle)
		}
	}
	f(MessageEcho, func(c net.Conn, p []byte) {
		send(c, opText, p[:5])
		send(c, final|opPing, []byte("are you there?"))
		send(c, opContinuation, nil)
		send(c, final|opContinuation, p[5:])
		pong, ok := readMasked(bufio.NewReader(c))
		if !ok || !bytes.Equal(pong, []byte("are you there?")) {
			t.Errorf("the pong has %q", pong)
		}
		send(c, final|opText, []byte("news"))
		send(c, final|opClose, []byte("\x03\xe9"))
	})
	f(MessagePing, func(c net.Conn, p []byte) {
		c.Write(append([]byte{final | opBinary, 126, 0, 200}, make([]byte, 200)...))
		c.Write(append([]byte{final | opBinary, 127, 0, 0, 0, 0, 0, 1, 0, 0}, make([]byte, 65536)...))
		send(c, final|opPong, nil)
		send(c, final|opPong, p)
		send(c, final|opClose, nil)
	})
}

// TestWebSocketEcho: the target sends messages of all sizes back.
func TestWebSocketEcho(t *testing.T) {
	noLeaks(t)
	for _, size := range []int{0, 3, 125, 126, 65535, 65536, 300_000} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer c.CloseNow()
			c.SetReadLimit(1 << 20)
			for {
				kind, text, err := c.Read(r.Context())
				if err != nil || c.Write(r.Context(), kind, text) != nil {
					return
				}
				if size > 0 && len(text) != size || !bytes.HasPrefix(text, []byte("wei")) {
					t.Errorf("%d bytes came, want %d: %.20q", len(text), size, text)
				}
			}
		}))
		r := soak(t, s.URL, func(o *Options) {
			o.Protocol, o.Message, o.Body, o.Every = WebSocket, MessageEcho, size, time.Millisecond
		}, exchanges(9))
		wantKinds(t, r)
		s.Close()
	}
}

// TestWebSocketFaults: faults are in the upgrade request.
func TestWebSocketFaults(t *testing.T) {
	noLeaks(t)
	url, _ := serveEcho(t, false)
	r := soak(t, url, func(o *Options) {
		o.Host, o.Fields = "chat.example.org", []string{"X-Who: me"}
		o.Faults = []Fault{{Part: Head, Offset: 10, Delay: 5 * time.Millisecond}}
	}, outcomes(faulty, served, 3))
	wantKinds(t, r)
	if r.Outcomes["faults"][served] != 3 {
		t.Errorf("outcomes: %v", r.Outcomes)
	}
}
