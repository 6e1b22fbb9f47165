package http2

import (
	"fmt"
	"time"
)

// pulse detects an endpoint that has disappeared without closing the connection: weir has
// sent something, and has received nothing since. The connection's TCP keep-alive probes
// need many minutes to detect that while bytes of weir are unacknowledged.
//
// grpc-go ends a connection if it receives more than two PINGs within five minutes in
// which grpc-go sent neither a head nor a body. So weir sends no more.
type pulse struct {
	spoken time.Time // when weir sent the first bytes since it last received any; zero: none
	last   time.Time // when the last PING was sent
	pings  int       // PINGs sent since the endpoint last sent a head or a body

	pinged   bool // a PING was sent, and no bytes have arrived since
	doubtful bool // for longer than doubtAfter: no new call should begin
}

const (
	askAfter   = 10 * time.Second // of silence: weir sends a PING
	doubtAfter = 2 * time.Second  // without an answer: no new calls begin
	deadAfter  = 15 * time.Second // without an answer: weir ends the connection

	freePings  = 2
	pingsApart = 6 * time.Minute // the interval of PINGs after freePings
)

func (p *pulse) said(now time.Time) {
	if p.spoken.IsZero() {
		p.spoken = now
	}
}

func (p *pulse) heard(time.Time) { p.spoken, p.pinged = time.Time{}, false }

func (p *pulse) answered() { p.pings = 0 }

// due reports whether a PING should be sent now.
func (p *pulse) due(now time.Time) bool {
	return !p.pinged && !p.spoken.IsZero() && now.Sub(p.spoken) >= askAfter &&
		(p.pings < freePings || now.Sub(p.last) >= pingsApart)
}

func (p *pulse) ask(now time.Time) {
	p.pinged, p.last = true, now
	p.pings++
}

var errSilent = fmt.Errorf("the endpoint did not answer an HTTP/2 PING within %v", deadAfter)

// Pulse is called about once a second. It sends a PING to a silent endpoint, and ends the
// connection if no bytes arrive after that.
func (t *Trunk) Pulse(now time.Time) {
	t.mu.Lock()
	p := &t.pulse
	switch {
	case t.lost != nil:
	case p.pinged && now.Sub(p.last) >= deadAfter:
		t.lose(errSilent)
		t.conn.Cut()
	case p.due(now):
		p.ask(now)
		t.core.ForgetPing() // other frames answered the last one
		t.core.Ping()
		t.startFlusher()
	}
	if doubtful := p.pinged && now.Sub(p.last) >= doubtAfter; doubtful != p.doubtful {
		p.doubtful = doubtful
		t.measure()
	}
	t.unlock()
}
