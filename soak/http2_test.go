package soak

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// serveHTTP2 runs the standard library's server, with or without TLS.
func serveHTTP2(t *testing.T, handle http.HandlerFunc) (plain, secure string) {
	t.Helper()
	start := func(secure bool) string {
		protocols := new(http.Protocols)
		protocols.SetHTTP2(secure)
		protocols.SetUnencryptedHTTP2(!secure)
		s := &http.Server{Handler: handle, Protocols: protocols, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate()}}}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if secure {
				s.ServeTLS(ln, "", "")
			} else {
				s.Serve(ln)
			}
		}()
		t.Cleanup(func() { s.Close() })
		return ln.Addr().String()
	}
	return start(false), start(true)
}

func TestHTTP2(t *testing.T) {
	noLeaks(t)
	plain, secure := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.ProtoMajor != 2 || len(body) != 300_000 || r.ContentLength != 300_000 || r.Header.Get("X-Who") != "me" || r.Host != "app.example.org" {
			t.Errorf("the request is %s %s of %s, %d bytes, %v", r.Proto, r.URL, r.Host, len(body), r.Header)
		}
		w.Header().Set("X-Client", r.RemoteAddr)
		w.WriteHeader(http.StatusEarlyHints)
		w.Write(bytes.Repeat([]byte("x"), 200_000)) // more than the windows allow at once
	})
	for _, address := range []string{plain, secure} {
		r := soak(t, address, func(o *Options) {
			o.Protocol, o.TLS, o.Every, o.Body, o.AddressField = HTTP2, address == secure, time.Millisecond, 300_000, "X-Client"
			o.Host, o.Fields = "app.example.org", []string{"X-Who: me"}
		}, exchanges(9))
		wantKinds(t, r)
		if r.Received < 9*200_000 || r.Sent < 9*300_000 {
			t.Errorf("%d bytes were sent, %d received", r.Sent, r.Received)
		}
	}
}

// TestHTTP2Roles: endless bodies, slow readers, and faults in a request.
func TestHTTP2Roles(t *testing.T) {
	noLeaks(t)
	plain, _ := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Write(make([]byte, 1<<20))
	})
	r := soak(t, plain, func(o *Options) {
		o.Protocol, o.Connections, o.OpenBodies, o.SlowReaders = HTTP2, 9, 0.34, 0.34
		o.Faults = []Fault{{Part: Head, Offset: 5, Delay: time.Millisecond}}
	}, func(s *Snapshot) bool { return s.Open == 9 && s.Exchanges >= 3 })
	wantKinds(t, r)
	if r.Outcomes["open_bodies"][waiting] < 2 || r.Outcomes["slow_readers"][waiting] < 2 || r.Outcomes["faults"][served] < 3 {
		t.Errorf("outcomes: %v", r.Outcomes)
	}
}

// A scene is an HTTP/2 connection that a test controls. When act runs, the scene has read
// the request on stream 1.
type scene struct {
	*http2.Framer
	net.Conn
	block bytes.Buffer
}

func (s *scene) respond(id uint32, end bool, fields ...string) {
	s.block.Reset()
	e := hpack.NewEncoder(&s.block)
	for i := 0; i < len(fields); i += 2 {
		e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.block.Bytes(), EndHeaders: true, EndStream: end})
}

// play reads the preface and frames, including the first request's head, and then calls
// act.
func play(act func(*scene)) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		s := &scene{Framer: http2.NewFramer(c, c), Conn: c}
		s.WriteSettings()
		if s.request() {
			act(s)
			io.Copy(io.Discard, c)
		}
	}
}

// request reads frames, including the next request's head.
func (s *scene) request() bool {
	for {
		f, err := s.ReadFrame()
		if err != nil {
			return false
		}
		if _, ok := f.(*http2.HeadersFrame); ok {
			return true
		}
	}
}

func TestHTTP2Anomalies(t *testing.T) {
	f := func(name string, want Kind, detail string, act func(*scene)) {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			r := soak(t, serve(t, play(act)), func(o *Options) { o.Protocol = HTTP2 }, anomalies(3))
			wantKinds(t, r, want)
			for _, a := range r.Anomalies {
				if !strings.Contains(a.Examples[0].Detail, detail) {
					t.Errorf("%+v; want %q", a.Examples[0], detail)
				}
			}
		})
	}
	f("a reset stream", Reset, "INTERNAL_ERROR", func(s *scene) { s.WriteRSTStream(1, http2.ErrCodeInternal) })
	f("a connection given up", Reset, "ENHANCE_YOUR_CALM", func(s *scene) { s.WriteGoAway(1, http2.ErrCodeEnhanceYourCalm, []byte("too_many")) })
	f("a body that is too short", ShortBody, "3 bytes of 10", func(s *scene) {
		s.respond(1, false, ":status", "200", "content-length", "10")
		s.WriteData(1, true, []byte("abc"))
	})
	f("a connection that ends in a body", ShortBody, "the connection ended after 3 bytes", func(s *scene) {
		s.respond(1, false, ":status", "200")
		s.WriteData(1, false, []byte("abc"))
		s.Conn.(*net.TCPConn).CloseWrite()
	})
	f("another status", UnexpectedStatus, `503: "busy"`, func(s *scene) {
		s.respond(1, false, ":status", "503")
		s.WriteData(1, true, []byte("busy"))
	})
	f("no status", Malformed, "", func(s *scene) { s.respond(1, true, "server", "x") })
	f("another stream", Malformed, "stream 3", func(s *scene) { s.respond(3, true, ":status", "200") })
	f("a push", Malformed, "PUSH_PROMISE", func(s *scene) {
		s.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
	})
	f("closed", Closed, "waiting for a response", func(s *scene) { s.Conn.(*net.TCPConn).CloseWrite() })
	f("another protocol", Malformed, "does not speak HTTP/2", func(s *scene) { fmt.Fprint(s.Conn, "HTTP/1.1 400 Bad Request\r\n\r\n") })
}

// TestHTTP2Idle: a held connection answers pings and settings, makes further exchanges,
// and closes after GOAWAY.
func TestHTTP2Idle(t *testing.T) {
	noLeaks(t)
	pong := make(chan bool, 100)
	r := soak(t, serve(t, play(func(s *scene) {
		s.respond(1, true, ":status", "200")
		s.WritePing(false, [8]byte{7})
		s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
		for {
			f, err := s.ReadFrame()
			if err != nil {
				return
			}
			if p, ok := f.(*http2.PingFrame); ok && p.IsAck() && p.Data[0] == 7 {
				break
			}
		}
		pong <- true
		if s.request() {
			s.respond(3, true, ":status", "204")
			s.WriteGoAway(3, http2.ErrCodeNo, nil)
		}
	})), func(o *Options) { o.Protocol, o.Every = HTTP2, 20*time.Millisecond }, func(s *Snapshot) bool { return s.EndedIdle >= 3 })
	wantKinds(t, r)
	if r.EndedIdle < 3 || len(pong) < 3 || r.Statuses[204] < 3 {
		t.Errorf("%d ended idle, %d answered a ping, statuses %v", r.EndedIdle, len(pong), r.Statuses)
	}
}
