package http1

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// answer writes a response with a body in pieces, and returns the resulting writes. length is
// message.Unknown for a body of unknown length.
func answer(req *message.Request, length int64, pieces ...string) (writes []string, mustClose bool) {
	var s Server
	var res message.Response
	w := newWire()
	s.Init(w, Limits{})
	defer s.Close()
	res.Status = 200
	res.Reason = res.StoreString("OK")
	if res.Length = length; length != message.Unknown {
		res.AddField("Content-Length", fmt.Sprint(length))
	}
	res.Trailers.AddField("T", "u")
	s.WriteHead(req, &res, false)
	for _, p := range pieces {
		s.WriteBody([]byte(p))
	}
	s.WriteEnd(&res)
	s.Flush()
	if s.out.buf != nil || s.out.pooled != nil {
		panic("a writer that was flushed holds memory")
	}
	return w.written, s.MustClose()
}

func requestOf(minor int) *message.Request { return &message.Request{Minor: minor} }

func TestOneWriteForAMessageThatFits(t *testing.T) {
	f := func(minor int, length int64, want string, pieces ...string) {
		t.Helper()
		writes, mustClose := answer(requestOf(minor), length, pieces...)
		if len(writes) != 1 || writes[0] != want {
			t.Errorf("got %d writes: %q\nwant %q", len(writes), writes, want)
		}
		if mustClose != (minor == 0 && length == message.Unknown) {
			t.Errorf("must close: %v", mustClose)
		}
	}
	f(1, 0, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	f(1, 5, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "he", "", "llo")
	f(0, 5, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello", "hello")
	f(1, message.Unknown, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nT: u\r\n\r\n", "he", "", "llo")
	f(1, message.Unknown, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: u\r\n\r\n")
	f(0, message.Unknown, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", "he", "llo")
}

// Bodies of all sizes near the buffer size arrive completely, in at most one write per buffer.
// No buffer grows.
func TestLargeBodies(t *testing.T) {
	sizes := []int{100 << 10, 1<<20 + 1}
	for n := conn.BufferSize - 600; n < conn.BufferSize+50; n += 17 {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		body := string(pattern(n))
		for _, piece := range []int{n, conn.BufferSize, conn.BufferSize - 6, 5000} {
			var pieces []string
			for rest := body; rest != ""; {
				k := min(piece, len(rest))
				pieces, rest = append(pieces, rest[:k]), rest[k:]
			}
			for _, length := range []int64{int64(n), message.Unknown} {
				writes, _ := answer(requestOf(1), length, pieces...)
				checkWritten(t, fmt.Sprintf("%d bytes in pieces of %d, length %d", n, piece, length), writes, body)
				least := n/conn.BufferSize + 1
				if len(writes) > least+least/8+1 {
					t.Errorf("%d bytes in pieces of %d, length %d: %d writes", n, piece, length, len(writes))
				}
				for _, w := range writes {
					if length == message.Unknown && len(w) > conn.BufferSize {
						t.Errorf("a write of %d bytes: the buffer was outgrown", len(w))
					}
				}
			}
		}
	}
}

func checkWritten(t *testing.T, what string, writes []string, body string) {
	t.Helper()
	var c Client
	var req message.Request
	var res message.Response
	c.Init(newWire(writes...), Limits{})
	defer c.Close()
	parseInto(&req, getRequest)
	c.WriteHead(&req)
	c.WriteEnd(&req)
	if err := again(func() error { return c.ReadHead(&req, &res) }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	got, err := readAll(func() ([]byte, error) { return c.ReadBody(&res) })
	if got != body || err != nil || !c.in.empty() {
		t.Errorf("%s: %d bytes came back, %v", what, len(got), err)
	}
}

// weir writes a head that is larger than a buffer completely.
func TestLargeHead(t *testing.T) {
	value := strings.Repeat("x", 20<<10)
	head := get("A: " + value)
	out, end := forwarded(newWire(head+head), Limits{})
	if out != head+head || end != "EOF" {
		t.Errorf("%d bytes, %s", len(out), end)
	}
	in := lines("POST / HTTP/1.1", "Host: a", "A: "+value, "Transfer-Encoding: chunked", "") + "5\r\nhello\r\n0\r\n\r\n"
	out, end = forwarded(newWire(in), Limits{})
	equal(t, "a body behind it", joinChunks(t, out), joinChunks(t, in))
	equal(t, "end", end, "EOF")
}

func TestWriteHeadSaysWhetherTheConnectionEnds(t *testing.T) {
	f := func(minor, status int, length int64, last bool, want string, mustClose bool) {
		t.Helper()
		var s Server
		var res message.Response
		w := newWire()
		s.Init(w, Limits{})
		res.Status, res.Length = status, length
		s.WriteHead(requestOf(minor), &res, last)
		s.Flush()
		equal(t, fmt.Sprint(minor, status, length, last), w.output(), fmt.Sprintf("HTTP/1.1 %d \r\n%s\r\n", status, want))
		if s.MustClose() != mustClose {
			t.Errorf("must close: %v", s.MustClose())
		}
	}
	f(1, 200, 0, false, "Content-Length: 0\r\n", false)
	f(1, 200, 0, true, "Content-Length: 0\r\nConnection: close\r\n", true)
	f(0, 200, 0, false, "Content-Length: 0\r\nConnection: keep-alive\r\n", false)
	f(0, 200, 0, true, "Content-Length: 0\r\nConnection: close\r\n", true)
	f(1, 204, 0, false, "", false)
	f(1, 304, 0, false, "", false)
	f(1, 200, message.Unknown, false, "Transfer-Encoding: chunked\r\n", false)
	f(1, 200, message.Unknown, true, "Transfer-Encoding: chunked\r\nConnection: close\r\n", true)
	f(0, 200, message.Unknown, false, "Connection: close\r\n", true)
	f(1, 103, 0, true, "", false) // another head follows
	f(1, 999, 0, false, "Content-Length: 0\r\n", false)
}

func TestMustClose(t *testing.T) {
	var s Server
	var req message.Request
	post := lines("POST / HTTP/1.1", "Host: a", "Content-Length: 5", "")
	s.Init(newWire(post+"he", "llo"+post+"hello"+get()), Limits{})
	if s.MustClose() {
		t.Error("nothing has happened yet")
	}
	s.ReadHead(&req)
	if b, whole := s.BufferedBody(); whole || b != nil || !s.MustClose() || s.BodyEnded() {
		t.Error("a body is there in part: were it left unread, its rest would be the next request")
	}
	if err := s.ReadHead(&req); err != errNothingFollows {
		t.Errorf("a request was read out of a body: %v", err)
	}
	parts, err := readAll(func() ([]byte, error) { return s.ReadBody(&req) })
	if parts != "hello" || err != nil || s.MustClose() || !s.BodyEnded() {
		t.Errorf("the body was read: %q, %v", parts, err)
	}
	if _, err := s.ReadBody(&req); err != io.EOF {
		t.Errorf("behind its end: %v", err)
	}
	if err := s.ReadHead(&req); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b, whole := s.BufferedBody()
		if string(b) != "hello" || !whole {
			t.Errorf("a whole body: %q, %v", b, whole)
		}
	}
	s.SkipBody()
	s.SkipBody() // has nothing to skip
	if s.MustClose() {
		t.Error("the body was skipped")
	}
	if b, whole := s.BufferedBody(); len(b) > 0 || !whole {
		t.Errorf("a skipped body: %q, %v", b, whole)
	}
	if err := s.ReadHead(&req); err != nil || s.MustClose() {
		t.Fatal(err)
	}
	s.WriteHead(&req, &message.Response{Status: 200}, true)
	if !s.MustClose() || s.ReadHead(&req) != errNothingFollows {
		t.Error("the client was told that nothing follows")
	}
	s.Close()
	s.Close()
}

// BufferedBody returns the rest of a body after ReadBody.
func TestBufferedRest(t *testing.T) {
	var s Server
	var req message.Request
	s.Init(newWire(lines("POST / HTTP/1.1", "Host: a", "Content-Length: 5", "")+"he", "llo"+get()), Limits{})
	s.ReadHead(&req)
	if p, err := s.ReadBody(&req); string(p) != "he" || err != nil {
		t.Fatalf("%q, %v", p, err)
	}
	again(func() error { return s.in.fill(0) })
	if b, whole := s.BufferedBody(); string(b) != "llo" || !whole {
		t.Errorf("%q, %v", b, whole)
	}
	s.SkipBody()
	if err := s.ReadHead(&req); err != nil {
		t.Error(err)
	}
	if _, whole := s.BufferedBody(); !whole {
		t.Error("no body is a whole body")
	}
	s.Init(newWire(chunkedPost+"0\r\n\r\n"), Limits{})
	s.ReadHead(&req)
	if _, whole := s.BufferedBody(); whole {
		t.Error("chunks are not the body")
	}
}

// A waiting connection holds no memory, unless a part of a message has arrived.
func TestRelease(t *testing.T) {
	var s Server
	var req message.Request
	s.Init(newWire(get(), "GET", " / HTTP/1.1\r\nHost: a\r\n\r\n"), Limits{})
	s.ReadHead(&req)
	if err := s.ReadHead(&req); err != conn.ErrWouldBlock || s.HeadStarted() {
		t.Fatal(err)
	}
	s.Release()
	if s.in.buf != nil || s.in.pooled != nil {
		t.Error("an idle reader holds memory")
	}
	for {
		err := s.ReadHead(&req)
		if err == nil {
			break
		}
		if err != conn.ErrWouldBlock || !s.HeadStarted() {
			t.Fatal(err)
		}
		s.Release() // must not lose the beginning
	}
	w := newWire(get("A: " + strings.Repeat("x", 40<<10)))
	s.Init(w, Limits{})
	if err := s.ReadHead(&req); err != nil {
		t.Fatal(err)
	}
	s.Release()
	if s.in.buf != nil {
		t.Error("the memory for a large head is held")
	}
}

// failing accepts some bytes, then no more.
type failing struct{ left int }

var errFull = errors.New("full")

func (f *failing) Read([]byte) (int, error) { return 0, io.EOF }
func (f *failing) Write(p []byte) (int, error) {
	spoilPool()
	if f.left -= len(p); f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriteErrors(t *testing.T) {
	piece := pattern(6000)
	for _, length := range []int64{1 << 40, message.Unknown} {
		for _, room := range []int{0, 20000, 40000} {
			var s Server
			s.Init(&failing{left: room}, Limits{})
			s.WriteHead(requestOf(1), &message.Response{Status: 200, Length: length}, false)
			var err error
			for i := 0; i < 20 && err == nil; i++ {
				err = s.WriteBody(piece)
			}
			if err != errFull || s.out.pooled != nil {
				t.Errorf("room for %d: %v; a buffer is held: %v", room, err, s.out.pooled != nil)
			}
			s.Close()
			s.Close()
		}
	}
	var s Server
	s.Init(&failing{}, Limits{})
	s.WriteHead(requestOf(1), &message.Response{Status: 200, Length: 100000}, false)
	s.Flush()
	if err := s.WriteBody(pattern(100000)); err != errFull {
		t.Errorf("a large piece: %v", err)
	}
	spoilPool()
}

// stuck returns neither bytes nor an error.
type stuck struct{ failing }

func (*stuck) Read([]byte) (int, error) { return 0, nil }

func TestReaderThatMakesNoProgress(t *testing.T) {
	var s Server
	s.Init(&stuck{}, Limits{})
	if err := s.ReadHead(new(message.Request)); err != io.ErrNoProgress {
		t.Error(err)
	}
}
