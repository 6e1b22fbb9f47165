package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// brief makes all times for bodies shorter than a check of the client, and those for silent streams stream.
func brief(stream time.Duration) func(*config.Config) {
	return func(c *config.Config) {
		l, b := &c.Listeners[0].Timeouts, &c.Backends[0].Timeouts
		l.BodyIdle, l.StreamIdle, b.BodyIdle, b.StreamIdle = 50*time.Millisecond, stream, 50*time.Millisecond, stream
	}
}

// silence waits for longer than body_idle, and until weir knows that the stream is silent.
func (r *rig) silence() { r.waitForClientChecks(2) }

// Nobody owes anything while a server has no event to send: body_idle does not end the stream.
func TestServerSentEvents(t *testing.T) {
	for name, stream := range map[string]string{
		"chunked":     "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n",
		"until-close": "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\none",
	} {
		t.Run(name, func(t *testing.T) {
			r, e := newPlain(t, brief(time.Hour))
			c := r.dial("web")
			c.write(get)
			s := e.accept()
			s.head()
			s.write("%s", stream)
			c.head()
			c.wantRead("3\r\none\r\n")
			for range 2 {
				r.silence()
				if state := r.only().State(); state != conn.Tunnel {
					t.Errorf("a silent stream is %s", state)
				}
				if name == "chunked" {
					s.write("3\r\ntwo")
				} else {
					s.write("two")
				}
				c.wantRead("3\r\ntwo\r\n")
				if name == "chunked" { // some servers send the end of a chunk in a packet of its own
					s.write("\r\n")
				}
				if state := r.only().State(); state != conn.Active {
					t.Errorf("a stream that talks is %s", state)
				}
			}
			r.silence()
			r.only().Cut() // as if memory were short
			c.wantEnd(true)
			r.record().want(t, "status", 200, "reason", "cut")
		})
	}
}

// A client whose connection has TLS may pause its upload after the response has begun, too.
func TestSilentUploadOverTLS(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, secure, brief(time.Hour), "@app", e.address)
	c := r.dialTLS("web", "a", nil)
	c.write("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
	s := e.accept()
	s.head()
	s.wantRead("3\r\nabc\r\n")
	s.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	c.head()
	r.silence()
	c.write("3\r\ndef\r\n")
	s.wantRead("3\r\ndef\r\n")
}

// Whoever has begun a part whose length is known owes the rest of it. A body_idle that the file has limits silence, too.
func TestSilenceThatEnds(t *testing.T) {
	f := func(response string, tune func(*config.Config), reason, what string) {
		t.Helper()
		r, e := newPlain(t, tune)
		c := r.dial("web")
		c.write(get)
		s := e.accept()
		s.head()
		s.write("%s", response)
		c.head()
		rec := r.record()
		rec.want(t, "status", 200, "reason", reason)
		rec.wantError(t, what)
	}
	const chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	route := func(own config.RouteTimeouts) func(*config.Config) {
		return func(c *config.Config) {
			brief(time.Hour)(c)
			c.Routes[0].Timeouts = &own
		}
	}
	const bodyIdle = "sent no more of its response within 50ms (backends.app.timeouts.body_idle)"
	f("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", brief(time.Hour), "response_cut_short", bodyIdle)
	f(chunks+"9\r\nhello", brief(time.Hour), "response_cut_short", bodyIdle)
	f(chunks+"5\r\nhello\r\n", brief(0), "response_cut_short", bodyIdle+hintSilence)
	f(chunks+"5\r\nhello\r\n", brief(time.Second), "stream_idle", "neither side sent anything within 1s (backends.app.timeouts.stream_idle)")
	f(chunks+"5\r\nhello\r\n", route(config.RouteTimeouts{StreamIdle: time.Second}), "stream_idle", "within 1s (timeouts.stream_idle of the route)")
	f(chunks+"5\r\nhello\r\n", route(config.RouteTimeouts{BodyIdle: time.Second}), "response_cut_short", "within 1s (timeouts.body_idle of the route)")
}

const called = `
listeners: {web: {address: '@0', protocol: http, http2: {prior_knowledge: true}}}
routes: [{listeners: [web], backend: app}]
backends: {app: {protocol: grpc, ejection: {failures: 1}, endpoints: ['@app']}}
`

// call is a gRPC call both of whose directions are open.
type call struct {
	*rig
	client   *client2
	id       uint32
	server   *peer
	endpoint *xhttp2.Framer
	stream   uint32
}

func newCall(t *testing.T, tune func(*config.Config)) *call {
	return newCallOf(t, "application/grpc", tune)
}

func newCallOf(t *testing.T, contentType string, tune func(*config.Config)) *call {
	e := newEndpoint(t)
	x := &call{rig: newRig(t, called, tune, "@app", e.address)}
	x.client = x.dial2("web")
	x.id = x.client.request(false, "/s/M", ":method: POST", "content-type: "+contentType, "te: trailers")
	x.server, x.endpoint = e.acceptH2()
	x.stream = nextFrame[*xhttp2.HeadersFrame](t, x.endpoint).StreamID
	return x
}

// goOn gives the test more time for its reads.
func (x *call) goOn() {
	x.client.SetDeadline(time.Now().Add(patience))
	x.server.SetDeadline(time.Now().Add(patience))
}

func (x *call) silence() {
	x.rig.silence()
	x.goOn()
}

// respond sends the head of the response.
func (x *call) respond() {
	x.endpoint.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: x.stream, BlockFragment: []byte{0x88}, EndHeaders: true})
	x.client.until("the head", func() bool { return len(x.client.on(x.id).heads) == 1 })
}

// finish ends the call from both sides.
func (x *call) finish(want string) {
	x.Helper()
	x.client.data(x.id, true, "")
	x.endpoint.WriteData(x.stream, true, []byte("end"))
	if a := x.client.answer(x.id); a.reset != "" || a.body.String() != want+"end" {
		x.Errorf("the client got %+v", a)
	}
	x.record().want(x, "status", 200, "reason", nil)
}

// A gRPC call may be silent in both directions, before and after the head of the response.
func TestSilentCall(t *testing.T) {
	x := newCall(t, brief(time.Hour))
	x.silence()
	state := func(want conn.State) {
		t.Helper()
		eventually(t, "the connection is "+want.String(), func() error {
			if got := x.only().State(); got != want {
				return fmt.Errorf("it is %s", got)
			}
			return nil
		})
	}
	state(conn.Tunnel)
	x.respond()
	x.silence()
	state(conn.Tunnel)
	x.client.data(x.id, false, "ping")
	if d := nextFrame[*xhttp2.DataFrame](t, x.endpoint); string(d.Data()) != "ping" {
		t.Errorf("%q", d.Data())
	}
	x.silence()
	x.endpoint.WriteData(x.stream, false, []byte("pong"))
	x.client.until("pong", func() bool { return x.client.on(x.id).body.String() == "pong" })
	x.silence()
	state(conn.Tunnel)
	other := x.client.request(true, "/..%2f") // a request beside it
	x.client.want2(other, 400, "*")
	x.record()
	x.finish("pong")
	state(conn.Idle)
}

// The streaming calls of the Connect protocol may be silent, too.
func TestSilentConnectCall(t *testing.T) {
	x := newCallOf(t, "application/connect+proto", brief(time.Hour))
	x.silence()
	x.respond()
	x.finish("")
}

// If memory is short, silent calls end like idle tunnels. Their connection stays.
func TestSilentCallIsShed(t *testing.T) {
	x := newCall(t, brief(time.Hour))
	x.respond()
	x.silence()
	eventually(t, "the connection counts as a tunnel", func() error {
		if got := x.only().State(); got != conn.Tunnel {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	x.proxy.CutTunnels(func(*conn.Conn) bool { return true })
	if a := x.client.answer(x.id); a.reset == "" {
		t.Errorf("%+v", a)
	}
	x.record().want(t, "status", 200, "reason", "cut")
	x.client.alive()
}

// One side that sends, or a PING, shows that a call is alive. Real silence ends it.
func TestSignsOfLife(t *testing.T) {
	long(t)
	const limit = 2 * time.Second
	x := newCall(t, brief(limit))
	x.respond()
	for what, live := range map[string]func(){
		"the client sends":   func() { x.client.data(x.id, false, "x") },
		"the endpoint sends": func() { x.endpoint.WriteData(x.stream, false, []byte("x")) },
		"the client pings":   func() { x.client.framer.WritePing(false, [8]byte{1}) },
		"the endpoint pings": func() { x.endpoint.WritePing(false, [8]byte{1}) },
	} {
		for begun := time.Now(); time.Since(begun) < limit+limit/2; {
			x.goOn()
			live()
			select {
			case rec := <-x.records:
				t.Fatalf("the call ended while %s: %v", what, rec)
			case <-time.After(limit / 10):
			}
		}
	}
	begun := time.Now()
	rec := x.record()
	if d := time.Since(begun); d < limit/2 {
		t.Errorf("the call ended after %v", d)
	}
	rec.want(t, "status", 200, "reason", "stream_idle")
	rec.wantError(t, "neither side sent anything")
	if n := x.counter("weir_backend_ejections_total", "backend", "app"); n != 0 {
		t.Errorf("the endpoint was ejected %v times", n)
	}
}

// The client of a request that is no gRPC call owes the body until the response begins.
func TestConversationOverHTTP1(t *testing.T) {
	r, e := newPlain(t, brief(time.Hour))
	c := r.dial("web")
	c.write(postChunked + "1\r\na\r\n")
	c.wantResponse(408, "*")
	r.record().want(t, "status", 408, "reason", "slow_body")
	e.accept()

	c = r.dial("web")
	c.write(postChunked + "1\r\na\r\n")
	s := e.accept()
	s.head()
	s.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n")
	c.head()
	c.wantRead("1\r\nA\r\n")
	r.silence()
	c.write("1\r\nb\r\n0\r\n\r\n")
	s.wantRead("1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
	s.write("0\r\n\r\n")
	c.wantRead("0\r\n\r\n")
	r.record().want(t, "status", 200, "reason", nil)

	// In the middle of a chunk, the client owes the rest.
	c = r.dial("web")
	c.write(postChunked + "9\r\nabc")
	s.head()
	s.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	c.head()
	r.record().want(t, "status", 200, "reason", "slow_body")
}

// The access log names the setting that ended the silence of a client.
func TestSilentClient(t *testing.T) {
	f := func(body, stream time.Duration, route *config.RouteTimeouts, sent, reason, what string) {
		t.Helper()
		r, e := newPlain(t, func(c *config.Config) {
			c.Listeners[0].Timeouts.BodyIdle, c.Listeners[0].Timeouts.StreamIdle = body, stream
			c.Routes[0].Timeouts = route
		})
		c := r.dial("web")
		c.write(postChunked + sent)
		s := e.accept()
		s.head()
		s.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n")
		c.head()
		rec := r.record()
		rec.want(t, "status", 200, "reason", reason)
		rec.wantError(t, what)
		if text := fmt.Sprint(rec["error"]); reason == "slow_body" && strings.HasSuffix(text, hintSilence) != (sent == "") {
			t.Errorf("after %q the error is %s", sent, text)
		}
	}
	const short, long = 50 * time.Millisecond, time.Hour
	f(short, 0, nil, "", "slow_body", "(listeners.web.timeouts.body_idle is 50ms, ")
	f(short, 0, nil, "9\r\nabc", "slow_body", "(listeners.web.timeouts.body_idle is 50ms, ")
	f(short, short, nil, "", "stream_idle", "neither side sent anything within 50ms (listeners.web.timeouts.stream_idle)")
	f(short, long, &config.RouteTimeouts{StreamIdle: short}, "", "stream_idle", "within 50ms (timeouts.stream_idle of the route)")
}

// Times of the file: body_idle limits silence only where the file has it.
func TestStreamIdleOfFile(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "1h0m0s",
		"timeouts: {body_idle: 2m}, ":   "0s",
		"timeouts: {stream_idle: 2m}, ": "2m0s",
		"timeouts: {connect: 1s}, ":     "1h0m0s",
		"timeouts: {body_idle: 2m, stream_idle: 3m}, ": "3m0s",
	} {
		newRig(t, strings.Replace(plain, "endpoints:", text+"endpoints:", 1), func(c *config.Config) {
			if got := c.Backends[0].Timeouts.StreamIdle.String(); got != want {
				t.Errorf("%q: %s, want %s", text, got, want)
			}
		}, "@app", "127.0.0.1:1")
	}
}
