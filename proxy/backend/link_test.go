package backend

import (
	"testing"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2"
)

// Both kinds of transport report the properties of their connection to an attempt.
func TestTransports(t *testing.T) {
	own := newLink(nil, &conn.Conn{}, nil)
	call := &Link{call: callTransport{Call: new(http2.Trunk).Call()}}
	call.transport = &call.call
	f := func(s *Link, shared, silent bool) {
		t.Helper()
		if s.Shared() != shared || s.CanRefuse() != shared || s.EndsByLength() == shared {
			t.Errorf("shared %t: shared %t, can refuse %t, ends by length %t", shared, s.Shared(), s.CanRefuse(), s.EndsByLength())
		}
		if s.MakePrivate(); s.Private() == shared {
			t.Errorf("shared %t: private %t", shared, s.Private())
		}
		since := s.Sent()
		if s.SentNothing(since) != silent {
			t.Errorf("shared %t: nothing was sent: %t", shared, !silent)
		}
		own.own.BytesWritten++
		if s.SentNothing(since) {
			t.Errorf("shared %t: a byte was sent", shared)
		}
	}
	f(own, false, true)
	f(call, true, false)
}
