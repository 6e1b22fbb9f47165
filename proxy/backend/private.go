package backend

import "time"

// A private link is a connection that the endpoint authenticated for one client
// connection. No other client connection may use it. Between its exchanges the pool of the
// endpoint keeps it, like an idle one, but gives it to no other client connection.

// MakePrivate binds the link permanently to the client connection whose exchange uses
// it. It does nothing if the link is an HTTP/2 stream: HTTP/2 has no credentials for
// connections. A client that sends such credentials anyway gets, by Need.Private, a
// connection that ends with its only stream.
func (s *Link) MakePrivate() { s.private = !s.Shared() }

// Private returns true after MakePrivate.
func (s *Link) Private() bool { return s.private }

// Hold keeps a private link for its client connection until Reclaim or Drop, for at most
// keep_alive. It closes the link and returns false if the endpoint was removed, if it is
// terminating while others serve, or if its TLS or PROXY header settings changed.
func (e *Endpoint) Hold(s *Link) bool {
	e.mu.Lock()
	if e.removed.Load() || e.draining.Load() || !e.dial.Load().takes(s.own.made) {
		e.mu.Unlock()
		s.Close()
		return false
	}
	if e.held == nil {
		e.held = make(map[*Link]struct{})
	}
	s.own.idleSince = e.ticks
	e.held[s] = struct{}{}
	e.stock()
	e.mu.Unlock()
	return true
}

// Reclaim takes back a link from Hold. It returns false if the link has ended; then
// the caller must not use it any more.
func (s *Link) Reclaim() bool {
	e := s.endpoint
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, held := e.held[s]; !held {
		return false
	}
	delete(e.held, s)
	s.Reused = true
	return true
}

// Drop closes a link from Hold, if it has not ended.
func (s *Link) Drop() {
	if s.Reclaim() {
		s.Close()
	}
}

// HeldCount counts the private links that no exchange uses now.
func (e *Endpoint) HeldCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.held)
}

// sweepHeld returns the links that were idle for keepAlive seconds. It also checks some
// of the others, and returns those that the endpoint has closed. The caller holds e.mu.
func (e *Endpoint) sweepHeld(keepAlive uint32) (closing []*Link) {
	checked := 0
	for s := range e.held {
		late := e.ticks-s.own.idleSince >= keepAlive || s.endsSoon(e.ticks)
		if !late {
			if checked++; checked > checksPerTick || !s.ended() { // the order of the map differs each time
				continue
			}
		}
		delete(e.held, s)
		closing = append(closing, s)
	}
	return closing
}

// SpeaksHTTP1 returns true if weir may use HTTP/1.1 with the endpoint.
func (e *Endpoint) SpeaksHTTP1() bool { return e.dial.Load().http2 != always }

// AcquireAt is Acquire for one given endpoint. It returns ErrNoReady if the endpoint may
// not be used now.
func (b *Backend) AcquireAt(e *Endpoint, by Requester) error {
	if !e.up.Load() {
		return ErrNoReady
	}
	if !b.queue.take() {
		cfg := b.Settings()
		if err := b.queue.wait(cfg.Queue.Size, cfg.Queue.Timeout, time.Time{}, by); err != nil {
			return err
		}
	}
	e.inFlight.Add(1)
	b.budget.attempts.Add(1)
	b.wake()
	return nil
}
