package proxy

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/conn"
)

const crowded = `
listeners: {web: {address: '@0', protocol: http, http2: {prior_knowledge: true}}, raw: {address: 'unix:/a', protocol: tcp}}
routes:
- {name: web, listeners: [web], in_flight: {most: 1}, backend: app}
- {name: raw, listeners: [raw], in_flight: {most: 1, per: route}, backend: lines}
backends: {app: {endpoints: ['@app']}, lines: {protocol: tcp, endpoints: ['@app']}}
`

// A slot is given back once, whatever ends the exchange or the tunnel.
func TestSlotsOfExchanges(t *testing.T) {
	app := newEndpoint(t)
	r := newRig(t, crowded, nil, "@app", app.address)
	told := make(chan string, 1)
	r.adjust(func(p *Proxy) { p.Panicked = func(_ string, value any, _ []byte) { told <- fmt.Sprint(value) } })
	open := func(route string, want float64) {
		t.Helper()
		eventually(t, "the slots of "+route, func() error {
			if n := r.counter("weir_in_flight_open", "route", route); n != want {
				return fmt.Errorf("%v are taken, want %v", n, want)
			}
			return nil
		})
	}

	first, second := r.dial("web"), r.dial("web")
	first.write(get)
	s := app.accept()
	s.head()
	open("web", 1)
	second.write(get)
	if h := second.head(); !strings.HasPrefix(h, "HTTP/1.1 503 ") {
		t.Fatal(h)
	}
	r.record().want(t, "status", 503, "reason", "in_flight")
	s.write(ok("x"))
	first.wantResponse(200, "x")
	r.record()
	open("web", 0)

	first.write(get) // the client goes away
	s.head()
	open("web", 1)
	first.Close()
	open("web", 0)
	r.record().want(t, "reason", "client_gone")

	client, ours := net.Pipe() // a panic
	defer client.Close()
	r.serve(conn.New(&faulty{Conn: ours, first: strings.NewReader(get)}), "web")
	serveOnce(app.accept(), ok("x"))
	next(t, told, "panic")
	open("web", 0)

	two := r.dial2("web") // a reset stream
	id := two.request(true, "/")
	s = app.accept()
	s.head()
	open("web", 1)
	two.framer.WriteRSTStream(id, 8)
	open("web", 0)
	r.record().want(t, "reason", "client_gone")

	third := r.dial("web") // an upgrade
	third.write("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	s = app.accept()
	s.head()
	s.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	third.head()
	s.write("hello")
	third.wantRead("hello")
	open("web", 1)
	third.Close()
	s.Close()
	open("web", 0)
	r.record()

	r.listen("raw", "tcp", "127.0.0.1:0") // a tunnel
	a := r.dial("raw")
	a.write("hello")
	s = app.accept()
	s.wantRead("hello")
	open("raw", 1)
	if b, err := net.Dial("tcp", r.addrs["raw"]); err == nil { // the reset may come before Dial returns
		newPeer(t, b).wantEnd(true)
	}
	r.record().want(t, "route", "raw", "reason", "in_flight")
	a.Close()
	s.Close()
	open("raw", 0)
	r.record()
}
