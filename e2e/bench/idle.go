package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/e2e/freeport"
)

// idleRow returns a row that measures the memory of an idle connection. Before the measurement, the
// connection was used as its kind requires.
func idleRow(key string, budget float64) row {
	k, err := kindOf(key)
	if err != nil {
		panic(err)
	}
	r := row{Key: "idle-" + key, Name: k.name, idle: true, kind: k}
	if budget > 0 {
		r = withBudget(r, budget, "haproxy")
	}
	return r
}

// idleRound measures one proxy's resident memory per connection of the row's kind. It compares a ninth of
// -idle connections with all of them.
func (b *bench) idleRound(r row, name string) (sample, error) {
	f, err := b.slope(r.kind, name, max(1, b.idle/9), b.idle, 1000, freeport.Benchmark, nothing)
	return sample{KiB: f.resident}, err
}

// user is an HTTP/2 client that makes one request at a time.
type user struct {
	net.Conn
	framer *http2.Framer
	out    *bufio.Writer
	next   uint32 // the stream of the next request
}

// newUser starts HTTP/2 on c.
func newUser(c net.Conn) (held, error) {
	u := &user{Conn: c, out: bufio.NewWriterSize(c, 4<<10), next: 1}
	u.framer = http2.NewFramer(u.out, bufio.NewReaderSize(c, 4<<10))
	u.framer.SetReuseFrames()
	if _, err := u.out.WriteString(http2.ClientPreface); err != nil {
		return u, err
	}
	return u, u.framer.WriteSettings()
}

// exchange sends size bytes and receives as many.
func (u *user) exchange(size int) error {
	u.SetDeadline(time.Now().Add(60 * time.Second))
	id := u.next
	u.next += 2
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	enc.SetMaxDynamicTableSize(0)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", pathSmall}, {"user-agent", "weir-bench"}, {"accept", "*/*"}} {
		enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	u.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
	for body := zeros[:size]; len(body) > 0; {
		piece := body[:min(8<<10, len(body))] // every proxy's window of a stream is at least this large
		body = body[len(piece):]
		u.framer.WriteData(id, len(body) == 0, piece)
	}
	if err := u.out.Flush(); err != nil {
		return err
	}
	n, err := u.answer(id)
	if err == nil && n != size {
		err = fmt.Errorf("the answer has %d bytes of %d", n, size)
	}
	return err
}

// answer reads until stream id has ended, and returns the length of the body.
func (u *user) answer(id uint32) (n int, err error) {
	for {
		f, err := u.framer.ReadFrame()
		if err != nil {
			return n, err
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				u.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				u.framer.WritePing(true, f.Data)
			}
		case *http2.DataFrame:
			if f.StreamID == id {
				n += len(f.Data())
			}
			if f.Length > 0 {
				u.framer.WriteWindowUpdate(0, f.Length)
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return n, fmt.Errorf("the proxy says %v", f)
		}
		if h := f.Header(); h.StreamID == id && h.Flags.Has(http2.FlagDataEndStream) && (h.Type == http2.FrameData || h.Type == http2.FrameHeaders) {
			return n, u.out.Flush()
		}
	}
}
