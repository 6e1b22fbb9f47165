package tunnel

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/park"
)

// stream is a Stream of a shared connection. The test resets it as its peer would.
type stream struct {
	mu     sync.Mutex
	linked conn.Cuttable
	err    error         // the error of reset, or conn.ErrCut
	over   chan struct{} // closed by reset or Cut
	bytes  chan []byte   // Receive returns them
}

func newStream() *stream {
	return &stream{over: make(chan struct{}), bytes: make(chan []byte, 1)}
}

func (s *stream) end(err error) (linked conn.Cuttable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		close(s.over)
	}
	return s.linked
}

// reset ends the stream by itself, and cuts the linked end, as Link documents.
func (s *stream) reset(err error) {
	if linked := s.end(err); linked != nil {
		linked.Cut()
	}
}

func (s *stream) Cut()         { s.end(conn.ErrCut) }
func (s *stream) WasCut() bool { return errors.Is(s.Err(), conn.ErrCut) }

func (s *stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *stream) CutAlso(other conn.Cuttable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.linked = other
}

func (s *stream) Receive() ([]byte, error) {
	select {
	case p := <-s.bytes:
		return p, nil
	case <-s.over:
		return nil, s.Err()
	}
}

func (s *stream) Park(park.Waiter) bool { return false }
func (s *stream) Unpark() bool          { return true }
func (s *stream) Send([]byte) error     { return s.Err() }
func (s *stream) SendEnd() error        { return s.Err() }
func (s *stream) Close()                {}

var errReset = errors.New("the peer reset the stream")

// A reset of a stream ends its tunnel with the error of the stream, even while no goroutine waits
// for the stream: one goroutine waits until it can write to the connection, the other one reads there.
func TestStreamThatEndsByItself(t *testing.T) {
	for _, of := range []struct {
		name   string
		start  func(s *StreamEnd, c *ConnEnd, w waiting)
		reason string
	}{
		{"client", func(s *StreamEnd, c *ConnEnd, w waiting) { Start(s, c, Options{}, w) }, ReasonClientReset},
		{"endpoint", func(s *StreamEnd, c *ConnEnd, w waiting) { Start(c, s, Options{}, w) }, ReasonEndpointReset},
	} {
		t.Run(of.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				peer, inner := net.Pipe()
				defer peer.Close()
				s, c, result := newStream(), conn.New(inner), make(waiting, 1)
				defer c.Close()
				s.bytes <- []byte("nobody reads this")
				go of.start(&StreamEnd{Stream: s}, &ConnEnd{Conn: c}, result)
				synctest.Wait() // both goroutines wait for the connection
				s.reset(errReset)
				if r := <-result; r.Reason != of.reason || r.Err != errReset {
					t.Errorf("the tunnel ended with %q (%v), want %q (%v)", r.Reason, r.Err, of.reason, errReset)
				}
				if s.linked != nil {
					t.Error("the stream is still linked after the tunnel")
				}
			})
		})
	}
}

// Cut on a stream ends its tunnel as a cut, and not as a reset.
func TestCutOfAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, inner := net.Pipe()
		s, c, result := newStream(), conn.New(inner), make(waiting, 1)
		defer c.Close()
		go Start(&ConnEnd{Conn: c}, &StreamEnd{Stream: s}, Options{}, result)
		s.bytes <- []byte("down")
		if got, err := io.ReadAll(io.LimitReader(peer, 4)); string(got) != "down" || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
		synctest.Wait()
		s.Cut()
		if r := <-result; r.Reason != ReasonCut || !errors.Is(r.Err, conn.ErrCut) {
			t.Errorf("the tunnel ended with %q (%v), want a cut", r.Reason, r.Err)
		}
		peer.Close()
	})
}
