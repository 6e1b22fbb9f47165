package http2

import (
	"fmt"
	"time"
)

// pulse is how a trunk notices that its endpoint is gone without a word: it was
// told something and is silent since. The connection's idle probes do not find
// that while bytes of ours are on their way, for many minutes.
//
// grpc-go ends connections of which more than two PINGs come within five
// minutes in which it sent neither a head nor a body; so no more are sent.
type pulse struct {
	spoken time.Time // when something was sent to which nothing was heard since; zero: nothing
	last   time.Time // when the last PING was sent
	pings  int       // since an answer of the endpoint's to anything else

	pinged   bool // a PING is out
	doubtful bool // and for some time: nothing new should begin here
}

const (
	askAfter   = 10 * time.Second // of silence, a PING asks
	doubtAfter = 2 * time.Second  // without its answer, no new calls begin
	deadAfter  = 15 * time.Second // the connection ends

	freePings  = 2
	pingsApart = 6 * time.Minute // once those are used up
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

// Look is called about once a second. It asks a silent endpoint for a sign of
// life, and ends the connection where there is none.
func (t *Trunk) Look(now time.Time) {
	t.mu.Lock()
	p := &t.pulse
	switch {
	case t.lost != nil:
	case p.pinged && now.Sub(p.last) >= deadAfter:
		t.lose(errSilent)
		t.conn.Cut()
	case p.due(now):
		p.ask(now)
		t.core.pinging = false // the last one was answered by something else
		t.core.Ping()
		t.startFlusher()
	}
	if doubtful := p.pinged && now.Sub(p.last) >= doubtAfter; doubtful != p.doubtful {
		p.doubtful = doubtful
		t.measure()
	}
	t.unlock()
}
