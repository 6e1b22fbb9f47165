package soak

import (
	"bufio"
	"errors"
	"io"
	"time"
)

// rawSpeaker sends the bytes of --send, and checks the reply.
type rawSpeaker struct{ *link }

func (s *rawSpeaker) begin() error { return nil }

func (s *rawSpeaker) exchange() (last bool, err error) {
	err = s.send(Head, s.run.Send, func(b []byte) error {
		_, err := s.Write(b)
		return err
	})
	if err != nil || s.run.reply == nil {
		return false, during("sending", err)
	}
	var got []byte
	part := make([]byte, 512)
	for !s.run.reply.Match(got) {
		n, err := s.Read(part)
		got = append(got, part[:n]...)
		switch {
		case err != nil && len(got) > 0 && kindOf(err) != PlaintextOnTLS && !s.mustEnd():
			return true, problemf(UnexpectedReply, "%.64q, and then %v", got, err)
		case err != nil:
			return true, during("waiting for a reply", err)
		case len(got) >= seenLimit:
			return true, problemf(UnexpectedReply, "%d bytes that do not match: %.64q…", len(got), got)
		}
	}
	return false, s.checkAddress("", got)
}

// idleUntil accepts and ignores all bytes that arrive.
func (s *rawSpeaker) idleUntil(t time.Time) error {
	for time.Now().Before(t) {
		ready, err := s.await(t)
		switch {
		case errors.Is(err, io.EOF):
			return errIdleEnd
		case err != nil || !ready:
			return during("while held", err)
		}
		r := readers.Get().(*bufio.Reader) // many bytes may arrive
		r.Reset(s.top)
		s.has = false
		s.until(time.Now(), true)
		r.Peek(1)
		readers.Put(r)
	}
	return nil
}
