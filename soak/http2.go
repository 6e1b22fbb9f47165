package soak

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// http2Speaker speaks HTTP/2, one stream at a time.
type http2Speaker struct {
	*link
	framer *http2.Framer // writes to out
	out    bytes.Buffer
	fields *hpack.Encoder
	block  bytes.Buffer // what fields writes to

	next      uint32 // number of the next stream
	leaving   bool   // the other side accepts no new streams
	window    int64  // bytes that the other side accepts on the connection
	perStream int64  // bytes that it accepts on a new stream
	biggest   int    // the largest frame that it accepts, in bytes
	current   h2stream
}

// h2stream is the stream of the exchange that runs.
type h2stream struct {
	id     uint32
	window int64
	status int
	length int64 // Content-Length; -1: none
	came   int64
	field  string
	seen   []byte
	ended  bool
	grpc   grpcResponse
}

// The defaults of RFC 9113, which hold until SETTINGS arrive.
const (
	h2Window = 65535
	h2Frame  = 16384
)

func newHTTP2Speaker(l *link) *http2Speaker {
	s := &http2Speaker{link: l, next: 1, window: h2Window, perStream: h2Window, biggest: h2Frame}
	s.fields = hpack.NewEncoder(&s.block)
	s.framer = http2.NewFramer(&s.out, l)
	s.framer.SetReuseFrames()
	s.framer.SetMaxReadFrameSize(h2Frame)
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	return s
}

// begin sends the preface.
func (s *http2Speaker) begin() error {
	s.out.WriteString(http2.ClientPreface)
	s.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	return during("sending the preface", s.flush())
}

func (s *http2Speaker) exchange() (last bool, err error) {
	s.current = h2stream{id: s.next, window: s.perStream, length: -1}
	s.next += 2
	if err := s.request(); err != nil {
		return true, err
	}
	for !s.current.ended {
		if err := s.frame(); err != nil {
			return true, during("waiting for a response", err)
		}
	}
	if err := s.check(); err != nil {
		return true, err
	}
	return s.leaving || s.role == openBody || s.next > 1<<30, nil
}

func (s *http2Speaker) request() error {
	bodies := len(s.run.body) > 0 || s.role == openBody
	s.encodeHead()
	s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: s.current.id, BlockFragment: s.block.Bytes(), EndHeaders: true, EndStream: !bodies})
	if err := s.send(Head, s.out.Bytes(), s.write); err != nil {
		return during("sending the head of a request", err)
	}
	s.out.Reset()
	if s.role == openBody {
		s.framer.WriteData(s.current.id, false, []byte("0123456789"))
		return during("sending the body of a request", s.flush())
	}
	if !bodies {
		return nil
	}
	if err := s.send(Body, s.run.body, s.data); err != nil {
		return during("sending the body of a request", err)
	}
	if s.current.ended { // the response ended before the body was sent
		s.framer.WriteRSTStream(s.current.id, http2.ErrCodeCancel)
	} else {
		s.framer.WriteData(s.current.id, true, nil)
	}
	return during("ending the body of a request", s.flush())
}

func (s *http2Speaker) grpc() bool { return s.run.Protocol == GRPC }

func (s *http2Speaker) write(b []byte) error {
	_, err := s.Write(b)
	return err
}

func (s *http2Speaker) flush() error {
	defer s.out.Reset()
	return s.write(s.out.Bytes())
}

func (s *http2Speaker) encodeHead() {
	s.block.Reset()
	method, scheme := s.run.method(), "http"
	if s.role == openBody || s.grpc() {
		method = "POST"
	}
	if s.run.TLS {
		scheme = "https"
	}
	put := func(name, value string) { s.fields.WriteField(hpack.HeaderField{Name: name, Value: value}) }
	put(":method", method)
	put(":scheme", scheme)
	put(":authority", s.run.Host)
	put(":path", s.run.Path)
	put("user-agent", "weir-soak")
	if s.run.Body > 0 && s.role != openBody {
		put("content-length", strconv.Itoa(s.run.Body))
	}
	if s.grpc() {
		put("content-type", "application/grpc")
		put("te", "trailers")
	}
	for _, f := range s.run.Fields {
		name, value, _ := strings.Cut(f, ":")
		put(strings.ToLower(name), strings.TrimSpace(value))
	}
}

// data sends bytes of a body, as far as the windows allow.
func (s *http2Speaker) data(b []byte) error {
	for len(b) > 0 && !s.current.ended {
		n := min(len(b), s.biggest, int(min(s.window, s.current.window)))
		if n <= 0 {
			if err := s.frame(); err != nil {
				return err
			}
			continue
		}
		s.framer.WriteData(s.current.id, false, b[:n])
		if err := s.flush(); err != nil {
			return err
		}
		s.window -= int64(n)
		s.current.window -= int64(n)
		b = b[n:]
	}
	return nil
}

// readFrame reads a frame. Its errors have more detail than those of the framer.
func (s *http2Speaker) readFrame() (http2.Frame, error) {
	f, err := s.framer.ReadFrame()
	switch detail := s.framer.ErrorDetail(); {
	case err == nil:
		return f, nil
	case detail != nil:
		return nil, problemf(Malformed, "%v: %v", err, detail)
	case errors.Is(err, http2.ErrFrameTooLarge):
		return nil, problemf(Malformed, "a frame is too long, or the target does not speak HTTP/2")
	}
	return nil, s.ended(err)
}

// frame reads a frame, answers it, and records its content.
func (s *http2Speaker) frame() error {
	f, err := s.readFrame()
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		err = s.settings(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			s.framer.WritePing(true, f.Data)
		}
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			s.window += int64(f.Increment)
		} else if f.StreamID == s.current.id {
			s.current.window += int64(f.Increment)
		}
	case *http2.GoAwayFrame:
		err = s.goAway(f)
	case *http2.RSTStreamFrame:
		if f.StreamID == s.current.id && !s.current.ended {
			err = problemf(Reset, "the stream was reset with %s", f.ErrCode)
		}
	case *http2.MetaHeadersFrame:
		err = s.head(f)
	case *http2.DataFrame:
		s.body(f)
	case *http2.PushPromiseFrame:
		err = problemf(Malformed, "the target sent PUSH_PROMISE, although server push is disabled")
	}
	if err != nil || s.out.Len() == 0 {
		return err
	}
	return s.flush()
}

// ended returns the meaning of err, with which the connection ended.
func (s *http2Speaker) ended(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) || s.current.ended || s.current.status == 0 {
		return err
	}
	return problemf(ShortBody, "the connection ended after %d bytes of %s", s.current.came, lengthOf(s.current.length))
}

func (s *http2Speaker) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	err := f.ForeachSetting(func(set http2.Setting) error {
		switch set.ID {
		case http2.SettingInitialWindowSize:
			s.current.window += int64(set.Val) - s.perStream
			s.perStream = int64(set.Val)
		case http2.SettingMaxFrameSize:
			s.biggest = int(min(set.Val, 1<<16))
		case http2.SettingHeaderTableSize:
			s.fields.SetMaxDynamicTableSizeLimit(min(set.Val, 4096))
		}
		return set.Valid()
	})
	if err != nil {
		return problemf(Malformed, "SETTINGS: %v", err)
	}
	s.framer.WriteSettingsAck()
	return nil
}

func (s *http2Speaker) goAway(f *http2.GoAwayFrame) error {
	s.leaving = true
	switch {
	case f.ErrCode != http2.ErrCodeNo:
		return problemf(Reset, "GOAWAY with %s %.64q", f.ErrCode, f.DebugData())
	case f.LastStreamID < s.current.id && !s.current.ended:
		return errIdleEnd // the target did not process the request
	}
	return nil
}

func (s *http2Speaker) head(f *http2.MetaHeadersFrame) error {
	c := &s.current
	if f.StreamID != c.id || c.ended {
		return problemf(Malformed, "headers came on stream %d, which expects none", f.StreamID)
	}
	if status := f.PseudoValue("status"); c.status == 0 {
		code, err := strconv.Atoi(status)
		if err != nil || code < 100 {
			return problemf(Malformed, "a response with the status %q", status)
		}
		if code >= 200 {
			c.status = code
			s.run.status(code)
		}
		for _, field := range f.RegularFields() {
			switch field.Name {
			case "content-length":
				c.length, _ = strconv.ParseInt(field.Value, 10, 64)
			case strings.ToLower(s.run.AddressField):
				c.field = field.Value
			}
		}
	}
	for _, field := range f.RegularFields() {
		c.grpc.note(field.Name, field.Value)
	}
	c.ended = f.StreamEnded()
	return nil
}

// body takes bytes of a body, and opens the windows for as many.
func (s *http2Speaker) body(f *http2.DataFrame) {
	c := &s.current
	n := f.Length // with its padding
	if n > 0 {
		s.framer.WriteWindowUpdate(0, n)
	}
	if f.StreamID != c.id || c.ended {
		return
	}
	c.came += int64(len(f.Data()))
	c.grpc.messages.take(f.Data())
	keep := 64
	if s.run.clientIn != nil {
		keep = seenLimit
	}
	if room := keep - len(c.seen); room > 0 {
		c.seen = append(c.seen, f.Data()[:min(room, len(f.Data()))]...)
	}
	if c.ended = f.StreamEnded(); !c.ended && n > 0 {
		s.framer.WriteWindowUpdate(c.id, n)
	}
}

// check checks the complete response.
func (s *http2Speaker) check() error {
	c := &s.current
	defer func() { c.seen = nil }()
	switch {
	case c.status == 0:
		return problemf(Malformed, "a stream ended without a response")
	case c.length >= 0 && c.came != c.length:
		return problemf(ShortBody, "received %d bytes of %d", c.came, c.length)
	case s.grpc():
		return s.checkGRPC()
	case !s.run.expects(c.status):
		return problemf(UnexpectedStatus, "%d: %.64q", c.status, c.seen)
	}
	return s.checkAddress(c.field, c.seen)
}

// idleUntil answers frames that may arrive between exchanges.
func (s *http2Speaker) idleUntil(t time.Time) error {
	for {
		ready, err := s.await(t)
		if err == nil && !ready {
			return nil
		}
		if err == nil {
			err = s.frame()
		}
		switch {
		case errors.Is(err, io.EOF) || err == nil && s.leaving:
			return errIdleEnd
		case err != nil:
			return during("while idle", err)
		}
	}
}
