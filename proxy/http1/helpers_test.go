package http1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// wire is the other end of a connection. A read returns at most one piece. Between two pieces a
// read would block once. Reads and writes overwrite the memory in the pool, so that a test
// fails if a codec still uses a slice of it.
type wire struct {
	pieces  [][]byte
	blocked bool
	final   error // after the last piece; nil: io.EOF
	written []string
	reads   int
}

func newWire(pieces ...string) *wire {
	w := new(wire)
	for _, p := range pieces {
		if p != "" {
			w.pieces = append(w.pieces, []byte(p))
		}
	}
	return w
}

// inBytes returns a wire that delivers in, one byte per read.
func inBytes(in string) *wire { return newWire(strings.Split(in, "")...) }

func (w *wire) Read(p []byte) (int, error) {
	spoilPool()
	w.reads++
	if w.blocked {
		w.blocked = false
		return 0, conn.ErrWouldBlock
	}
	if len(w.pieces) == 0 {
		if w.final != nil {
			return 0, w.final
		}
		return 0, io.EOF
	}
	n := copy(p, w.pieces[0])
	if w.pieces[0] = w.pieces[0][n:]; len(w.pieces[0]) == 0 {
		w.pieces = w.pieces[1:]
		w.blocked = true
	}
	return n, nil
}

func (w *wire) Write(p []byte) (int, error) {
	w.written = append(w.written, string(p))
	spoilPool()
	return len(p), nil
}

func (w *wire) output() string { return strings.Join(w.written, "") }

// spoilPool overwrites the buffers in the pool. It panics if the pool has a buffer twice.
func spoilPool() {
	a, b := conn.GetBuffer(), conn.GetBuffer()
	if a == b {
		panic("a buffer was put back twice")
	}
	for _, buf := range []*conn.Buffer{a, b} {
		copy(buf[:], spoil)
		copy(buf[conn.BufferSize/2:], spoil)
		copy(buf[conn.BufferSize-len(spoil):], spoil)
	}
	conn.PutBuffer(a)
	conn.PutBuffer(b)
}

var spoil = bytes.Repeat([]byte{'!'}, 512)

// again calls f until it does not return conn.ErrWouldBlock.
func again(f func() error) error {
	for {
		if err := f(); err != conn.ErrWouldBlock {
			return err
		}
	}
}

// readAll reads a body piece by piece; before counts the pieces already seen.
func readAll(next func() ([]byte, error)) (string, error) {
	var b strings.Builder
	for {
		p, err := next()
		b.Write(p)
		if err == io.EOF {
			return b.String(), nil
		}
		if err != nil && err != conn.ErrWouldBlock {
			return b.String(), err
		}
	}
}

// outcome returns an error in the form of the tests: "400 bad_host", or its text.
func outcome(err error) string {
	var r *message.Refusal
	if errors.As(err, &r) {
		return fmt.Sprintf("%d %s", r.Status, r.Reason)
	}
	return err.Error()
}

// forwarded passes on every request of a client's connection to an endpoint. It returns the
// bytes that the endpoint gets, and how the connection ends ("EOF": orderly).
func forwarded(w *wire, limits Limits) (out, end string) { return forwardedBy(w, limits, 0) }

// forwardedBy is like forwarded, for a server that accepts the faults in l.
func forwardedBy(w *wire, limits Limits, l Lenient) (out, end string) {
	var server Server
	var req message.Request
	server.Init(w, limits)
	server.Tolerate(l)
	defer server.Close()
	var client Client
	to := newWire()
	client.Init(to, limits)
	defer client.Close()
	for {
		if err := again(func() error { return server.ReadHead(&req) }); err != nil {
			return to.output(), outcome(err)
		}
		client.WriteHead(&req)
		if b, whole := server.BufferedBody(); whole {
			client.WriteBody(b)
			server.SkipBody()
		}
		for !server.BodyEnded() {
			p, err := server.ReadBody(&req)
			if err != nil && err != io.EOF && err != conn.ErrWouldBlock {
				client.Flush()
				return to.output(), outcome(err)
			}
			client.WriteBody(p)
		}
		client.WriteEnd(&req)
		client.Flush()
	}
}

// returned passes on the response to a request to its client, including preceding 1xx. Only the
// method, version and Upgrade of the request matter. It returns the bytes that the client gets,
// and how reading ended ("" without an error).
func returned(w *wire, request string) (out, end string, client *Client) {
	return returnedBy(w, request, func(*Client) {})
}

// returnedBy is like returned. set changes the Client first.
func returnedBy(w *wire, request string, set func(*Client)) (out, end string, client *Client) {
	var req message.Request
	var res message.Response
	client = new(Client)
	client.Init(w, Limits{})
	set(client)
	parseInto(&req, request)
	client.WriteHead(&req)
	client.WriteEnd(&req)
	client.Flush()
	w.written = nil
	var server Server
	to := newWire()
	server.Init(to, Limits{})
	defer server.Close()
	for {
		if err := again(func() error { return client.ReadHead(&req, &res) }); err != nil {
			server.Flush()
			return to.output(), outcome(err), client
		}
		server.WriteHead(&req, &res, false)
		if !res.Informational() {
			break
		}
	}
	for !client.BodyEnded() {
		p, err := client.ReadBody(&res)
		if err != nil && err != io.EOF && err != conn.ErrWouldBlock {
			server.Flush()
			return to.output(), outcome(err), client
		}
		server.WriteBody(p)
	}
	server.WriteEnd(&res)
	server.Flush()
	return to.output(), "", client
}

// parseInto reads a request that must be valid.
func parseInto(req *message.Request, in string) {
	var s Server
	s.Init(newWire(in), Limits{})
	defer s.Close()
	if err := s.ReadHead(req); err != nil {
		panic(fmt.Sprintf("%q: %v", in, err))
	}
}

// lines joins lines with the line ends of HTTP.
func lines(l ...string) string { return strings.Join(l, "\r\n") + "\r\n" }

// get returns a GET request with these fields.
func get(fields ...string) string {
	return lines(append(append([]string{"GET / HTTP/1.1", "Host: a"}, fields...), "")...)
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s\n got %q\nwant %q", what, got, want)
	}
}

func pattern(n int) []byte {
	return bytes.Repeat([]byte("0123456789abcdefghijklmnopqrstu\n"), n/32+1)[:n]
}
