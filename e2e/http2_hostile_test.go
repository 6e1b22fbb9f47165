package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// attack is an HTTP/2 attack: begin sends its start, and next sends its i-th piece.
type attack struct {
	name  string
	begin func(h *h2conn) error
	next  func(h *h2conn, i int) error
	want  string // GOAWAY's code and reason; a list if several budgets may be spent first
	most  int    // the number of pieces that weir may accept
}

func streamID(i int) uint32 { return uint32(1 + 2*i) }

func post1(h *h2conn) error { return h.head(1, false, postFields()...) }

const calm = "ENHANCE_YOUR_CALM "

var attacks = []attack{
	{"rapid reset", nil, func(h *h2conn, i int) error {
		h.get(streamID(i))
		return h.framer.WriteRSTStream(streamID(i), http2.ErrCodeCancel)
	}, calm + "rapid_reset|provoked_resets", 1000},
	{"MadeYouReset, by a window of nothing", nil, func(h *h2conn, i int) error {
		h.head(streamID(i), false, postFields()...)
		return h.raw(http2.FrameWindowUpdate, 0, streamID(i), number(0))
	}, calm + "provoked_resets", 1000},
	{"MadeYouReset, by a window that overflows", nil, func(h *h2conn, i int) error {
		h.head(streamID(i), false, postFields()...)
		return h.raw(http2.FrameWindowUpdate, 0, streamID(i), number(1<<31-1))
	}, calm + "provoked_resets", 1000},
	{"MadeYouReset, by a second head", nil, func(h *h2conn, i int) error {
		h.head(streamID(i), false, postFields()...)
		return h.head(streamID(i), false, postFields()...)
	}, calm + "provoked_resets", 1000},
	{"malformed requests", nil, func(h *h2conn, i int) error { return h.head(streamID(i), true, getFields("Upper: case")...) }, calm + "provoked_resets", 1000},
	{"empty heads", nil, func(h *h2conn, i int) error {
		return h.raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, streamID(i), "")
	}, calm + "provoked_resets", 1000},
	{"streams in excess", nil, func(h *h2conn, i int) error { return h.head(streamID(i), false, postFields()...) }, calm + "provoked_resets", 2000},
	{"an endless head", func(h *h2conn) error { return h.raw(http2.FrameHeaders, 0, 1, string(h.fields(getFields()...))) }, func(h *h2conn, i int) error {
		return h.raw(http2.FrameContinuation, 0, 1, "\x00\x01x\x7f\x85\x7f"+strings.Repeat("y", 16000))
	}, calm + "continuation_flood", 50},
	{"empty CONTINUATIONs", func(h *h2conn) error { return h.raw(http2.FrameHeaders, 0, 1, string(h.fields(getFields()...))) }, func(h *h2conn, i int) error {
		return h.raw(http2.FrameContinuation, 0, 1, "")
	}, calm + "continuation_flood", 600},
	{"SETTINGS", nil, func(h *h2conn, i int) error { return h.framer.WriteSettings() }, calm + "settings_flood", 1000},
	{"long SETTINGS", nil, func(h *h2conn, i int) error {
		return h.raw(http2.FrameSettings, 0, 0, strings.Repeat("\x00\x04\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00", 1300))
	}, calm + "settings_flood", 1000},
	{"PINGs", nil, func(h *h2conn, i int) error { return h.framer.WritePing(false, [8]byte{1}) }, calm + "ping_flood", 5000},
	{"empty DATA", post1, func(h *h2conn, i int) error { return h.framer.WriteData(1, false, nil) }, calm + "empty_frames", 5000},
	{"DATA of padding", post1, func(h *h2conn, i int) error {
		return h.raw(http2.FrameData, http2.FlagDataPadded, 1, "\x03\x00\x00\x00")
	}, calm + "empty_frames", 5000},
	{"PRIORITYs", nil, func(h *h2conn, i int) error { return h.raw(http2.FramePriority, 0, 3, "\x00\x00\x00\x00\x10") }, calm + "useless_frames", 20000},
	{"unknown frames", nil, func(h *h2conn, i int) error { return h.raw(99, 0, 0, "?") }, calm + "useless_frames", 20000},
	{"windows by 1", nil, func(h *h2conn, i int) error { return h.framer.WriteWindowUpdate(0, 1) }, calm + "window_flood", 20000},
	{"a window of nothing", nil, func(h *h2conn, i int) error { return h.raw(http2.FrameWindowUpdate, 0, 0, number(0)) }, "PROTOCOL_ERROR bad_window", 1000},
	{"a window that overflows", nil, func(h *h2conn, i int) error { return h.raw(http2.FrameWindowUpdate, 0, 0, number(1<<31-1)) }, "FLOW_CONTROL_ERROR window_overflow", 1000},
	{"a bomb of HPACK", func(h *h2conn) error { return h.head(1, true, getFields("bomb: "+strings.Repeat("x", 3900))...) }, func(h *h2conn, i int) error {
		index := h.fields("bomb: " + strings.Repeat("x", 3900))
		return h.raw(http2.FrameHeaders, http2.FlagHeadersEndStream|http2.FlagHeadersEndHeaders, streamID(i+1), string(h.fields(getFields()...))+strings.Repeat(string(index), 16000)+"\xff")
	}, "COMPRESSION_ERROR bad_compression", 1000},
}

// residentKiB returns the resident memory of the process.
func (w *weir) residentKiB() int {
	w.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	n, _ := strconv.Atoi(strings.Fields(rest)[0])
	return n
}

// memory returns a limit in KiB for a number of MiB. It is larger for a binary with the race detector, which
// needs several times as much memory.
func memory(mib int) int {
	if races() {
		mib *= 6
	}
	return mib << 10
}

// neighbour sends requests on its own connection without a pause. All of them must be answered.
func neighbour(t *testing.T, w *weir) (stop func() int) {
	client, end, asked := goHTTP2(t, false), make(chan struct{}), 0
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			res, err := client.Get("https://" + w.at("secure") + "/bytes/1000")
			if err != nil {
				t.Errorf("another connection was disturbed: %v", err)
				return
			}
			if n, err := io.Copy(io.Discard, res.Body); err != nil || n != 1000 || res.StatusCode != 200 {
				t.Errorf("another connection was disturbed: %s, %d bytes, %v", res.Status, n, err)
			}
			res.Body.Close()
			asked++
		}
	})
	return func() int {
		close(end)
		all.Wait()
		client.CloseIdleConnections()
		return asked
	}
}

// weir ends the connection of each attack after a limited number of pieces, with the reason in GOAWAY. Other
// connections are not disturbed.
func TestHostileClientsOfHTTP2(t *testing.T) {
	needLinux(t)
	w, _ := startHTTP2(t)
	before := w.residentKiB()
	stop := neighbour(t, w)
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			code, reasons, _ := strings.Cut(a.want, " ")
			counted := w.hostile(reasons)
			for _, listener := range []string{"web", "secure"} {
				h := dialH2(t, w, listener)
				h.hold()
				how := make(chan ended, 1)
				go func() { how <- h.toTheEnd() }()
				if a.begin != nil {
					a.begin(h)
				}
				borne := 0
				for ; borne < a.most; borne++ {
					if err := a.next(h, borne); err != nil {
						break
					}
				}
				h.out.Flush()
				if got := <-how; got.code.String() != code || !slices.Contains(strings.Split(reasons, "|"), got.why) {
					t.Errorf("%s: it ended with %s after %d", listener, got, borne)
				}
				h.Close()
			}
			eventually(t, "it is counted", func() error {
				if got := w.hostile(reasons); got != counted+2 {
					return fmt.Errorf("%v of reason %s", got-counted, reasons)
				}
				return nil
			})
		})
	}
	if n := stop(); n < 10 {
		t.Errorf("the neighbour asked %d times", n)
	}
	if grown := w.residentKiB() - before; grown > memory(128) {
		t.Errorf("weir has grown by %d KiB", grown)
	}
	eventually(t, "nothing is left", func() error {
		if n := w.metric("weir_backend_requests_in_flight"); n != 0 {
			return fmt.Errorf("%v requests", n)
		}
		return nil
	})
}

// hostile counts the HTTP/2 connections that ended for one of the reasons.
func (w *weir) hostile(reasons string) (n float64) {
	for reason := range strings.SplitSeq(reasons, "|") {
		n += w.metric("weir_http2_errors_total", "scope", "connection", "reason", reason)
	}
	return n
}

// A client that returns the windows of stream and connection for each DATA frame is honest, also if its small
// windows make weir send very small frames.
func TestClientWithSmallWindowsIsNoFlood(t *testing.T) {
	t.Parallel()
	w, _ := startHTTP2(t)
	for _, c := range []struct{ window, streams, size uint32 }{{16 << 10, 20, 200_000}, {100, 50, 5000}, {1, 10, 1000}} {
		h := dialH2(t, w, "web", http2.Setting{ID: http2.SettingInitialWindowSize, Val: c.window})
		for i := range int(c.streams) {
			h.head(streamID(i), true, ":method: GET", ":scheme: https", fmt.Sprintf(":path: /bytes/%d", c.size), ":authority: a")
		}
		for left := c.streams; left > 0; {
			f, err := h.framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch f := f.(type) {
			case *http2.DataFrame:
				if n := f.Header().Length; n > 0 {
					h.framer.WriteWindowUpdate(0, n)
					h.framer.WriteWindowUpdate(f.StreamID, n)
				}
				if f.StreamEnded() {
					left--
				}
			case *http2.RSTStreamFrame, *http2.GoAwayFrame:
				t.Fatalf("windows of %d: %v", c.window, f)
			}
		}
		h.Close()
	}
}

// Clients that request much and read nothing make weir hold only little memory, and weir ends their requests
// in time.
func TestNobodyReadsByHTTP2(t *testing.T) {
	t.Parallel()
	needLinux(t)
	long(t)
	w := newWeir(t)
	w.address["app"] = serveHTTP(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/much" {
			rw.Write(make([]byte, 1000))
			return
		}
		for piece := make([]byte, 10_000); r.Context().Err() == nil; {
			if _, err := rw.Write(piece); err != nil {
				return
			}
		}
	})
	w.start(strings.Replace(http2Config, "prior_knowledge: true}}", "prior_knowledge: true}, timeouts: {body_idle: 2s}}", 1))
	before := w.residentKiB()
	stop := neighbour(t, w)
	f := func(what string, settings []http2.Setting, ask func(h *h2conn, i int) error) {
		t.Helper()
		var all []*h2conn
		for range 10 {
			h := dialH2(t, w, "web", settings...)
			all = append(all, h)
			for i := range 90 {
				if ask(h, i) != nil {
					break
				}
			}
		}
		most := 0
		within(t, 2*patience, what+": they are given up", func() error {
			most = max(most, w.residentKiB()-before)
			if n := w.metric("weir_backend_requests_in_flight", "backend", "app"); n > 1 { // one request is from neighbour
				return fmt.Errorf("%v are in flight", n)
			}
			return nil
		})
		if most > memory(160) {
			t.Errorf("%s: weir has grown by %d KiB for 900 requests", what, most)
		}
		for _, h := range all {
			h.Close()
		}
	}
	large := func(h *h2conn, i int) error {
		return h.head(streamID(i), true, ":method: GET", ":scheme: https", ":path: /much", ":authority: a")
	}
	f("windows of nothing", []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, large)
	f("windows of a byte", []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1}}, large)
	f("large windows, and nobody reads the socket", []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}}, func(h *h2conn, i int) error {
		if i == 0 {
			h.framer.WriteWindowUpdate(0, 1<<30)
		}
		return large(h, i)
	})
	stop()
}

// weir ends connections on which a head is never completed, and connections on which the client sends
// nothing, or only PINGs.
func TestHeadsThatNeverEndByHTTP2(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	w.start(strings.Replace(http2Config, "prior_knowledge: true}}", "prior_knowledge: true}, timeouts: {request_head: 1s, keep_alive: 3s}}", 1))
	var all sync.WaitGroup
	defer all.Wait()
	f := func(what string, send func(h *h2conn)) {
		t.Helper()
		h := dialH2(t, w, "web")
		send(h)
		began := time.Now()
		all.Go(func() {
			h.toTheEnd()
			if d := time.Since(began); d > patience-time.Second {
				t.Errorf("%s: it ended only with the test's own deadline", what)
			}
		})
	}
	f("a head without its end", func(h *h2conn) { h.raw(http2.FrameHeaders, 0, 1, string(h.fields(getFields()...))) })
	f("half a frame", func(h *h2conn) { h.Write([]byte{0, 0, 20, 1, 4, 0, 0}) })
	f("nothing at all", func(h *h2conn) {})
	f("nothing but PINGs", func(h *h2conn) {
		go func() {
			for h.framer.WritePing(false, [8]byte{1}) == nil {
				time.Sleep(100 * time.Millisecond)
			}
		}()
	})
	c := dialWith(t, w.at("web"), []byte(http2.ClientPreface[:10]))
	c.SetDeadline(time.Now().Add(patience))
	if _, err := readToEnd(c); err != nil {
		t.Errorf("half a preface: %v", err)
	}
}

// weir refuses or breaks off requests with invalid trailers, with a body of another length than announced, or
// with fields of HTTP/1.1. No part of such a request reaches the backend as another request.
func TestSmugglingByHTTP2(t *testing.T) {
	t.Parallel()
	raw := newRawBackend(t)
	w := newWeir(t)
	w.address["app"] = raw.address
	w.start(http2Config)
	refused := func(what string, fields ...string) {
		t.Helper()
		h := dialH2(t, w, "web")
		h.head(1, false, fields...)
		h.framer.WriteData(1, true, []byte("GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"))
		status, _, err := h.answer(1)
		if err == nil && status[0] != '4' && status[0] != '5' {
			t.Errorf("%s: status %s", what, status)
		}
		h.Close()
	}
	refused("transfer-encoding", postFields("transfer-encoding: chunked")...)
	refused("connection", postFields("connection: keep-alive")...)
	refused("upgrade", postFields("upgrade: h2c")...)
	refused("te", postFields("te: gzip")...)
	refused("two lengths", postFields("content-length: 0", "content-length: 34")...)
	// With a length of 0 the endpoint could answer before weir reads the DATA frame.
	refused("a length that is too small", postFields("content-length: 10")...)
	refused("a length that is too large", postFields("content-length: 340")...)
	refused("line ends in a value", postFields("x: y\r\nTransfer-Encoding: chunked")...)
	refused("a line feed in a value", postFields("x: y\nz: 1")...)
	refused("NUL in a value", postFields("x: y\x00")...)
	refused("line ends in a name", postFields("x\r\ny: 1")...)
	refused("a space in a name", postFields("transfer-encoding : chunked")...)
	refused("a name in upper case", postFields("X-Upper: 1")...)
	refused("a path with a line end", ":method: POST", ":scheme: https", ":path: / HTTP/1.1\r\nHost: b\r\n\r\n", ":authority: a")
	refused("a path with a space", ":method: POST", ":scheme: https", ":path: / HTTP/1.1", ":authority: a")
	refused("a path that is none", ":method: POST", ":scheme: https", ":path: http://b/", ":authority: a")
	refused("a method with a space", ":method: POST / HTTP/1.1", ":scheme: https", ":path: /", ":authority: a")
	refused("an authority with a line end", ":method: POST", ":scheme: https", ":path: /", ":authority: a\r\nX: y")
	refused("an authority and another Host", ":method: POST", ":scheme: https", ":path: /", ":authority: a", "host: b")
	refused("a second pseudo-field", postFields(":path: /other")...)
	for _, head := range raw.seen() {
		if strings.Contains(head, "smuggled") && strings.HasPrefix(head, "GET /smuggled") {
			t.Errorf("the backend read a request that nobody sent:\n%s", head)
		}
		for _, bad := range []string{"transfer-encoding: chunked\r\ncontent-length", "upper", "te: gzip"} {
			if strings.Contains(strings.ToLower(head), bad) {
				t.Errorf("the backend got\n%s", head)
			}
		}
	}
}
