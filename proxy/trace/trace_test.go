package trace

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/message"
)

// message of protocol buffers: the values by the number of their field.
type fields map[protowire.Number][][]byte

// decode reads a message. Numbers are kept as their bytes.
func decode(t testing.TB, b []byte) fields {
	t.Helper()
	all := fields{}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatalf("not a protocol buffer: %x", b)
		}
		b = b[n:]
		value := b
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			t.Fatalf("field %d is cut short", number)
		}
		if value = b[:n]; kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(b)
		}
		all[number] = append(all[number], value)
		b = b[n:]
	}
	return all
}

func (f fields) text(n protowire.Number) string {
	if len(f[n]) == 0 {
		return ""
	}
	return string(f[n][0])
}

func (f fields) number(n protowire.Number) uint64 {
	if len(f[n]) == 0 {
		return 0
	}
	v, _ := protowire.ConsumeVarint(f[n][0])
	return v
}

func (f fields) time(n protowire.Number) time.Time {
	if len(f[n]) == 0 {
		return time.Time{}
	}
	v, _ := protowire.ConsumeFixed64(f[n][0])
	return time.Unix(0, int64(v)).UTC()
}

// attributesOf returns repeated KeyValues as text.
func attributesOf(t testing.TB, all [][]byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, b := range all {
		kv := decode(t, b)
		v := decode(t, kv[2][0])
		switch {
		case v[1] != nil:
			out[kv.text(1)] = v.text(1)
		case v[2] != nil:
			out[kv.text(1)] = fmt.Sprint(v.number(2) == 1)
		default:
			out[kv.text(1)] = fmt.Sprint(int64(v.number(3)))
		}
	}
	return out
}

// span is a decoded Span.
type span struct {
	trace, id, parent, name string
	kind                    uint64
	from, to                time.Time
	attributes              map[string]string
	failed                  bool
}

func spansOf(t testing.TB, body []byte) (all []span, resource map[string]string) {
	t.Helper()
	rs := decode(t, decode(t, body)[1][0])
	resource = attributesOf(t, decode(t, rs[1][0])[1])
	scoped := decode(t, rs[2][0])
	if name := decode(t, scoped[1][0]).text(1); name != "github.com/weirproxy/weir" {
		t.Errorf("the scope is %q", name)
	}
	for _, b := range scoped[2] {
		f := decode(t, b)
		s := span{trace: hex.EncodeToString(f[1][0]), id: hex.EncodeToString(f[2][0]), parent: hex.EncodeToString([]byte(f.text(4))), name: f.text(5),
			kind: f.number(6), from: f.time(7), to: f.time(8), attributes: attributesOf(t, f[9])}
		if status := f[15]; status != nil {
			s.failed = decode(t, status[0]).number(3) == 2
		}
		all = append(all, s)
	}
	return all, resource
}

func counter() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
}

func TestParse(t *testing.T) {
	f := func(text string, want bool) {
		t.Helper()
		if _, ok := Parse([]byte(text)); ok != want {
			t.Errorf("%q is valid: %t", text, ok)
		}
	}
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	f(good, true)
	f("", false)
	f(good[:54], false)
	f(good+"-x", false)
	f("cc"+good[2:], true)
	f("cc"+good[2:]+"-later", true)
	f("cc"+good[2:]+".later", false)
	f("ff"+good[2:], false)
	f(strings.ToUpper(good), false)
	f(strings.Replace(good, "-", "_", 1), false)
	f("00-00000000000000000000000000000000-00f067aa0ba902b7-01", false)
	f("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false)
	f("00-4bf92f3577b34da6a3ce929d0e0e473x-00f067aa0ba902b7-01", false)
	f("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g", false)
	p, _ := Parse([]byte(good))
	if hex.EncodeToString(p.Trace[:]) != good[3:35] || hex.EncodeToString(p.Span[:]) != good[36:52] || !p.Sampled {
		t.Errorf("%+v", p)
	}
	for flags, want := range map[string]bool{"00": false, "01": true, "02": false, "03": true, "ff": true} {
		if p, _ := Parse([]byte(good[:53] + flags)); p.Sampled != want {
			t.Errorf("flags %s: sampled is %t", flags, p.Sampled)
		}
	}
	header := []byte(good)
	Unsample(header)
	if string(header) != good[:53]+"00" {
		t.Errorf("%s", header)
	}
	Unsample(nil)
}

func FuzzParse(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	f.Add("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x")
	f.Fuzz(func(t *testing.T, text string) {
		p, ok := Parse([]byte(text))
		if !ok && p != (Parent{}) {
			t.Errorf("%q: %+v", text, p)
		}
		if ok && string(appendHeader(nil, &p.Trace, &p.Span))[3:52] != text[3:52] {
			t.Errorf("%q is read as %+v", text, p)
		}
		Unsample([]byte(text))
	})
}

// The share decides, except for requests of trusted senders with a traceparent.
func TestSampling(t *testing.T) {
	b := NewBuffer(1<<20, counter())
	parent, _ := Parse([]byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"))
	quiet := parent
	quiet.Sampled = false
	f := func(share float64, p Parent, trusted bool, least, most int) {
		t.Helper()
		tracer, n := NewTracer(share, nil, b), 0
		for range 10_000 {
			if x := tracer.Begin(p, trusted); x != nil {
				if n++; x.ID == [16]byte{} || x.Span == [8]byte{} || p.Trace != [16]byte{} && x.ID != p.Trace {
					t.Fatalf("the ids are %x and %x", x.ID, x.Span)
				}
			}
		}
		if n < least || n > most {
			t.Errorf("share %v, trusted %t: %d of 10,000 are traced", share, trusted, n)
		}
	}
	f(0, Parent{}, false, 0, 0)
	f(1, Parent{}, false, 10_000, 10_000)
	f(0.1, Parent{}, false, 800, 1200)
	f(0.1, Parent{}, true, 800, 1200)
	f(0, parent, true, 10_000, 10_000)
	f(1, quiet, true, 0, 0)
	f(0, parent, false, 0, 0)
	f(1, quiet, false, 10_000, 10_000)
	tracer := NewTracer(0.01, nil, b)
	if n := testing.AllocsPerRun(1000, func() {
		if x := tracer.Begin(Parent{}, false); x != nil {
			traces.Put(x)
		}
	}); n != 0 {
		t.Errorf("the decision takes %v allocations", n)
	}
}

func head(lines ...string) *message.Head {
	h := new(message.Head)
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		h.AddField(name, value)
	}
	return h
}

func linesOf(h *message.Head) (all []string) {
	for i := range h.Fields {
		if !h.Fields[i].Dropped {
			all = append(all, string(h.Name(i))+": "+string(h.Value(i)))
		}
	}
	return all
}

// The endpoint gets the span of the attempt, in the trace of the client.
func TestInject(t *testing.T) {
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	tracer := NewTracer(1, nil, NewBuffer(1<<20, counter()))
	f := func(known bool, kept int, lines ...string) {
		t.Helper()
		h := head(lines...)
		p, _ := Find(h)
		if (p.Trace != [16]byte{}) != known {
			t.Errorf("%q: the parent is %+v", lines, p)
		}
		x := tracer.Begin(p, false)
		x.Inject(h)
		for attempt := range 10 {
			x.Try(time.Time{}, "10.0.0.1:80", 0)
			id := x.last().span
			if attempt >= mostTries {
				continue
			}
			want := "traceparent: 00-" + hex.EncodeToString(x.ID[:]) + "-" + hex.EncodeToString(id[:]) + "-01"
			got, found := linesOf(h), 0
			for _, l := range got {
				if strings.EqualFold(l, want) {
					found++
				} else if strings.Contains(strings.ToLower(l), "traceparent") {
					t.Errorf("%q: another header is %q", lines, l)
				}
			}
			if found != 1 || len(got) != kept+1 {
				t.Errorf("%q becomes %q; want %q once", lines, got, want)
			}
			if known && !strings.Contains(want, good[3:35]) {
				t.Errorf("%q is in another trace: %s", lines, want)
			}
		}
	}
	f(false, 1, "Host: a")
	f(true, 2, "Host: a", "Traceparent: "+good, "tracestate: a=b")
	f(false, 1, "Host: a", "traceparent: nonsense", "tracestate: a=b")
	f(false, 1, "Host: a", "traceparent: "+good, "traceparent: "+good, "Tracestate: a=b")
}

// full returns a record of a request.
func full() *accesslog.Record {
	q := new(message.Request)
	q.Reset()
	q.Method, q.Target, q.Host = q.StoreString("GET"), q.StoreString("/cart?id=7&token=secret"), q.StoreString("shop.example")
	q.Path = q.Range(3, 8)
	q.AddField("User-Agent", "curl/8\xff")
	return &accesslog.Record{Kind: "http", Listener: "web", Route: "shop", Backend: "app", Endpoint: "10.1.0.4:8080", Request: q, Version: "1.1", Status: 200, Secure: true,
		Started: time.Unix(1764073845, 123), Duration: time.Second, Received: 10, Sent: 20, SNI: "shop.example", TLS: &accesslog.TLS{Version: "TLS 1.3", CipherSuite: "X", Resumed: true},
		Client: netip.MustParseAddrPort("192.0.2.1:0"), Origin: &conn.Origin{Header: new(header.Header), Client: netip.MustParseAddrPort("192.0.2.9:1"), Peer: netip.MustParseAddrPort("10.0.0.9:33000")}}
}

// A trace has the spans of the request, of what came before it, and of each attempt.
func TestSpans(t *testing.T) {
	b := NewBuffer(1<<20, counter())
	parent, _ := Parse([]byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"))
	x := NewTracer(1, []string{"token"}, b).Begin(parent, false)
	begun := time.Now()
	x.Try(begun.Add(-time.Second), "10.1.0.3:8080", 0)
	x.Tried(0, "connect")
	x.Try(time.Time{}, "10.1.0.4:8080", 0)
	x.Answered(200)
	x.Tried(300*time.Microsecond, "")
	ids := []string{hex.EncodeToString(x.Span[:]), hex.EncodeToString(x.tries[0].span[:]), hex.EncodeToString(x.tries[1].span[:])}
	r := full()
	accepted := r.Started.Add(-time.Second)
	x.Finish(r, &Prelude{Accepted: accepted, Header: 100 * time.Millisecond, Handshake: 200 * time.Millisecond})
	resource, scope := Resource{Name: "weir", Version: "v1", Node: "n"}.preamble()
	c := b.take()
	all, about := spansOf(t, request(resource, scope, c.b))
	if about["service.name"] != "weir" || about["service.version"] != "v1" || about["host.name"] != "n" {
		t.Errorf("the resource is %v", about)
	}
	if len(all) != 6 || c.spans != 6 {
		t.Fatalf("there are %d spans, counted as %d: %+v", len(all), c.spans, all)
	}
	for i, want := range []struct {
		name, id, parent string
		kind             uint64
		failed           bool
	}{{"GET shop", ids[0], "00f067aa0ba902b7", server, false}, {"PROXY header", "", ids[0], internal, false}, {"TLS handshake", "", ids[0], internal, false},
		{"queue", "", ids[0], internal, false}, {"GET", ids[1], ids[0], client, true}, {"GET", ids[2], ids[0], client, false}} {
		s := all[i]
		if s.name != want.name || want.id != "" && s.id != want.id || s.parent != want.parent || s.kind != want.kind || s.failed != want.failed || s.trace != "4bf92f3577b34da6a3ce929d0e0e4736" || s.to.Before(s.from) {
			t.Errorf("span %d is %+v, want %+v", i, s, want)
		}
	}
	root := all[0]
	if !root.from.Equal(r.Started) || !root.to.Equal(r.Started.Add(r.Duration)) {
		t.Errorf("the request took from %v to %v", root.from, root.to)
	}
	for key, want := range map[string]string{"http.request.method": "GET", "url.path": "/cart", "url.query": "id=7&token=***", "url.scheme": "https", "server.address": "shop.example", "server.port": "443",
		"client.address": "192.0.2.1", "network.peer.address": "10.0.0.9", "network.peer.port": "33000", "network.protocol.version": "1.1", "user_agent.original": "curl/8\ufffd", "http.response.status_code": "200",
		"http.route": "shop", "weir.backend": "app", "weir.listener": "web", "http.request.size": "10", "http.response.size": "20", "tls.protocol.version": "1.3", "tls.resumed": "true", "tls.client.server_name": "shop.example"} {
		if root.attributes[key] != want {
			t.Errorf("%s is %q, not %q", key, root.attributes[key], want)
		}
	}
	if _, has := root.attributes["client.port"]; has || root.attributes["error.type"] != "" {
		t.Errorf("the attributes are %v", root.attributes)
	}
	if h := all[1]; !h.from.Equal(accepted) || h.to.Sub(h.from) != 100*time.Millisecond || !all[2].from.Equal(h.to) || all[2].to.Sub(all[2].from) != 200*time.Millisecond {
		t.Errorf("the PROXY header and the handshake are %+v", all[1:3])
	}
	if q := all[3]; q.to.Sub(q.from) < time.Second {
		t.Errorf("the queue is %+v", q)
	}
	if a := all[4].attributes; a["error.type"] != "connect" || a["server.address"] != "10.1.0.3" || a["server.port"] != "8080" {
		t.Errorf("the failed attempt has %v", a)
	}
	if a := all[5].attributes; a["error.type"] != "" || a["http.response.status_code"] != "200" || a["http.request.resend_count"] != "1" || a["weir.connect.microseconds"] != "300" {
		t.Errorf("the other attempt has %v", a)
	}

	// A failed request, with a method that the conventions do not know, and more attempts than have a span.
	x = NewTracer(1, nil, b).Begin(Parent{}, false)
	for range 20 {
		x.Try(time.Time{}, "unix:/run/app.sock", 0)
		x.Tried(0, "endpoint_closed")
	}
	r = full()
	r.Request.Method, r.Status, r.Reason, r.Err, r.Route = r.Request.StoreString("BREW"), 502, "endpoint_closed", errors.New("why"), ""
	x.Finish(r, nil)
	all, _ = spansOf(t, request(resource, scope, b.take().b))
	if a := all[0].attributes; len(all) != 1+mostTries || all[0].name != "HTTP" || a["http.request.method"] != "_OTHER" || a["http.request.method_original"] != "BREW" || a["error.type"] != "endpoint_closed" ||
		a["error.message"] != "why" || !all[0].failed || all[0].parent != "" || all[1].attributes["server.address"] != "unix:/run/app.sock" {
		t.Errorf("the spans are %+v", all)
	}
}

// Long and malformed values of clients are limited, and the spans stay readable.
func FuzzSpan(f *testing.F) {
	f.Add("GET", "/x?token=y", "a", "curl")
	f.Add("\xff", "?\x00\xff", "[::1]:99999", strings.Repeat("x", 3000))
	f.Fuzz(func(t *testing.T, method, target, host, agent string) {
		b := NewBuffer(1<<20, counter())
		x := NewTracer(1, []string{"token"}, b).Begin(Parent{}, false)
		r := full()
		q := r.Request
		q.Reset()
		path, _, _ := strings.Cut(target, "?")
		q.Method, q.Target, q.Host = q.StoreString(method), q.StoreString(target), q.StoreString(host)
		q.Path = q.Range(len(method), len(method)+len(path))
		q.AddField("User-Agent", agent)
		x.Try(time.Time{}, "10.0.0.1:80", 0)
		x.Finish(r, nil)
		resource, scope := Resource{Name: "weir"}.preamble()
		all, _ := spansOf(t, request(resource, scope, b.take().b))
		if len(all) != 2 {
			t.Fatalf("%d spans", len(all))
		}
		for key, value := range all[0].attributes {
			if strings.ToValidUTF8(value, "") != value || len(value) > 3*mostText {
				t.Errorf("%s has %d bytes: %q", key, len(value), value)
			}
		}
	})
}

// The buffer is bounded. What does not fit is counted, and costs no encoding.
func TestBufferIsBounded(t *testing.T) {
	dropped := counter()
	b := NewBuffer(10_000, dropped)
	tracer := NewTracer(1, nil, b)
	for range 100 {
		tracer.Begin(Parent{}, false).Finish(full(), nil)
	}
	kept := 0
	for c := b.take(); c.spans > 0; c = b.take() {
		kept += c.spans
		if len(c.b) > 10_000 {
			t.Errorf("%d bytes", len(c.b))
		}
	}
	if kept < 5 || kept+int(testutil.ToFloat64(dropped)) != 100 {
		t.Errorf("%d spans were kept, and %v dropped", kept, testutil.ToFloat64(dropped))
	}
	tracer.Begin(Parent{}, false).Finish(full(), nil)
	if b.take().spans != 1 {
		t.Error("there is no room after the buffer was read")
	}
	big := NewBuffer(10<<20, dropped)
	for range 1000 {
		NewTracer(1, nil, big).Begin(Parent{}, false).Finish(full(), nil)
	}
	chunks := 0
	for c := big.take(); c.spans > 0; c = big.take() {
		if chunks++; len(c.b) > chunkSize+4096 {
			t.Errorf("a chunk has %d bytes", len(c.b))
		}
	}
	if chunks < 2 {
		t.Errorf("%d chunks", chunks)
	}
}

// receiver plays a receiver of spans.
type receiver struct {
	mu     sync.Mutex
	bodies [][]byte
	answer func(n int) error // to request n; nil: all succeed
	tries  int
	log    []string
}

func (r *receiver) send(ctx context.Context, body []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries++
	if r.answer != nil {
		if err := r.answer(r.tries); err != nil {
			return err
		}
	}
	r.bodies = append(r.bodies, bytes.Clone(body))
	return nil
}

// exporting runs an Exporter in front of r.
func exporting(t *testing.T, r *receiver) (*Tracer, *Exporter) {
	b := NewBuffer(1<<20, counter())
	e := StartExporter(b, ExporterOptions{Resource: Resource{Name: "weir"}, Send: r.send, Exported: counter(), Refused: counter(), Unavailable: counter(),
		Failed: func(err error) { r.log = append(r.log, err.Error()) }, Recovered: func() { r.log = append(r.log, "again") }})
	return NewTracer(1, nil, b), e
}

func (e *Exporter) wantCounts(t *testing.T, exported, refused, unavailable float64) {
	t.Helper()
	if a, b, c := testutil.ToFloat64(e.Exported), testutil.ToFloat64(e.Refused), testutil.ToFloat64(e.Unavailable); a != exported || b != refused || c != unavailable {
		t.Errorf("%v were exported, %v refused, %v unavailable", a, b, c)
	}
}

// Spans wait a moment for others, and go out together.
func TestExporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(receiver)
		tracer, e := exporting(t, r)
		for range 3 {
			tracer.Begin(Parent{}, false).Finish(full(), nil)
		}
		time.Sleep(gather + time.Millisecond)
		synctest.Wait()
		if len(r.bodies) != 1 {
			t.Fatalf("%d requests", len(r.bodies))
		}
		if all, _ := spansOf(t, r.bodies[0]); len(all) != 3 {
			t.Errorf("%d spans", len(all))
		}
		tracer.Begin(Parent{}, false).Finish(full(), nil)
		e.Close()
		if len(r.bodies) != 2 {
			t.Errorf("%d requests after the end", len(r.bodies))
		}
		e.wantCounts(t, 4, 0, 0)
	})
}

// A receiver that is not there is asked again, for a minute. One that refuses spans is not.
func TestExporterRetries(t *testing.T) {
	down := &RetryError{Err: errors.New("down")}
	f := func(answer func(n int) error, after time.Duration, tries int, log string, exported, refused, unavailable float64) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			r := &receiver{answer: answer}
			tracer, e := exporting(t, r)
			tracer.Begin(Parent{}, false).Finish(full(), nil)
			time.Sleep(after)
			synctest.Wait()
			if r.tries != tries || strings.Join(r.log, ",") != log {
				t.Errorf("%d requests, and the log has %q", r.tries, r.log)
			}
			e.wantCounts(t, exported, refused, unavailable)
			e.Close()
		})
	}
	f(func(n int) error {
		if n < 4 {
			return down
		}
		return nil
	}, 10*time.Second, 4, "down,again", 1, 0, 0) // after 1, 2 and 4 seconds
	f(func(int) error { return down }, 3*time.Minute, 7, "down", 0, 0, 1) // 1, 2, 4, 8, 16, 30
	f(func(int) error { return errors.New("refused") }, time.Minute, 1, "refused", 0, 1, 0)
	f(func(n int) error {
		if n == 1 {
			return &RetryError{Err: errors.New("busy"), After: 20 * time.Second}
		}
		return nil
	}, 22*time.Second, 2, "busy,again", 1, 0, 0)
	some := Refused([]byte("\x0a\x0b\x08\x01\x12\x07too big"))
	f(func(int) error { return some }, time.Minute, 1, "the receiver refused 1 spans of a request: too big", 0, 1, 0)
}

// The end waits two seconds at most.
func TestExporterEnds(t *testing.T) {
	for _, late := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			r := new(receiver)
			tracer, e := exporting(t, r)
			e.Send = func(ctx context.Context, _ []byte) error {
				<-ctx.Done()
				return &RetryError{Err: ctx.Err()}
			}
			tracer.Begin(Parent{}, false).Finish(full(), nil)
			time.Sleep(late)
			begun := time.Now()
			e.Close()
			if took := time.Since(begun); took > farewell {
				t.Errorf("the end took %v", took)
			}
			if n := testutil.ToFloat64(e.Unavailable); n != 1 {
				t.Errorf("%v spans are counted", n)
			}
		})
	}
}

func BenchmarkTrace(b *testing.B) {
	buffer := NewBuffer(1<<20, counter())
	tracer, r := NewTracer(1, nil, buffer), full()
	h := head("Host: a")
	for b.Loop() {
		x := tracer.Begin(Parent{}, false)
		h.Reset()
		x.Inject(h)
		x.Try(time.Time{}, "10.0.0.1:80", 0)
		x.Answered(200)
		x.Tried(0, "")
		x.Finish(r, nil)
		buffer.take()
	}
}

// A receiver may refuse some spans of a request. Responses of another form mean nothing.
func TestRefused(t *testing.T) {
	for response, want := range map[string]string{
		"":                           "",
		"\x0a\x00":                   "",
		"\x0a\x04\x12\x02hm":         "", // a warning
		"\x0a\x02\x08\x05":           "refused 5 spans of a request: ",
		"\x0a\x06\x12\x02hm\x08\x05": "refused 5 spans of a request: hm",
		"\x12\x01x\x2d....\x11........\x18\x07\x0a\x02\x08\x05": "refused 5 spans",
		"\x0a\x06\x08\x05\x12\x02\xff\xfe":                      "refused 5 spans of a request: \ufffd\ufffd",
		"{}":                                                    "",
		"\x0a\xff":                                              "",
		"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01": "",
		"\x0a\x02\x08\xff": "",
		"\x0b\x0c":         "",
		"\x11abc":          "",
	} {
		err := Refused([]byte(response))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", response, err, want)
		}
	}
	long := append([]byte("\x0a\xd0\x0f\x08\x05\x12\xcb\x0f"), make([]byte, 5000)...)
	if err := Refused(long); err == nil || len(err.Error()) > 2*mostMessage {
		t.Errorf("the message has %d bytes", len(fmt.Sprint(err)))
	}
}

func FuzzRefused(f *testing.F) {
	f.Add([]byte("\x0a\x06\x12\x02hm\x08\x05"))
	f.Fuzz(func(t *testing.T, response []byte) {
		if err := Refused(response); err != nil && !utf8.ValidString(err.Error()) {
			t.Errorf("%q", err)
		}
	})
}
