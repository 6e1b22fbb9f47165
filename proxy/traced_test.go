package proxy

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/trace"
)

// tracedSpan has what the tests read of a span.
type tracedSpan struct{ name, id, parent, trace string }

// tracer traces a share of the requests of a rig. end returns their spans.
type tracer struct {
	buffer *trace.Buffer
	spans  []tracedSpan
}

func (r *rig) traces(share float64) *tracer {
	x := &tracer{buffer: trace.NewBuffer(1<<20, prometheus.NewCounter(prometheus.CounterOpts{Name: "x"}))}
	r.adjust(func(p *Proxy) { p.SetTracer(trace.NewTracer(share, nil, x.buffer)) })
	return x
}

func (x *tracer) end(t *testing.T) []tracedSpan {
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
	trace.StartExporter(x.buffer, trace.ExporterOptions{Exported: counter, Refused: counter, Unavailable: counter,
		Send: func(_ context.Context, body []byte) error {
			for _, b := range field(t, 2, field(t, 2, field(t, 1, body)[0])[0]) {
				x.spans = append(x.spans, tracedSpan{name: string(field(t, 5, b)[0]), id: hex.EncodeToString(field(t, 2, b)[0]), trace: hex.EncodeToString(field(t, 1, b)[0])})
				if parent := field(t, 4, b); parent != nil {
					x.spans[len(x.spans)-1].parent = hex.EncodeToString(parent[0])
				}
			}
			return nil
		}}).Close()
	return x.spans
}

// field returns the values of a field in a protocol buffer.
func field(t *testing.T, want protowire.Number, b []byte) (all [][]byte) {
	t.Helper()
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		m := protowire.ConsumeFieldValue(number, kind, b[max(n, 0):])
		if n < 0 || m < 0 {
			t.Fatalf("not a protocol buffer: %x", b)
		}
		if number == want {
			value, _ := protowire.ConsumeBytes(b[n:])
			all = append(all, value)
		}
		b = b[n+m:]
	}
	return all
}

const (
	clientTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan  = "00f067aa0ba902b7"
	parentLine  = "traceparent: 00-" + clientTrace + "-" + clientSpan + "-"
)

// The span of the attempt is the parent of the endpoint's. The log has the trace.
func TestTracedRequest(t *testing.T) {
	const text = `
listeners: {web: {address: '@0', protocol: tls}}
certificates: [{self_signed: {hosts: [a]}}]
routes:
- {name: shop, listeners: [web], backend: app}
- {listeners: [web], paths: [/quiet], traces: false, backend: app}
- {name: own, listeners: [web], paths: [/own], respond: {body: x}}
backends: {app: {endpoints: ['@app'], max_connections: 5}}
`
	seen := make(chan http.Header, 10)
	app := newHandler(t, func(w http.ResponseWriter, r *http.Request) { seen <- r.Header; io.WriteString(w, "x") })
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2: ", h2), func(t *testing.T) {
			r := newRig(t, text, nil, "@app", app)
			x := r.traces(1)
			c := http.Client{Transport: r.transport(h2)}
			defer c.CloseIdleConnections()
			ask := func(path, parent string) (http.Header, entry) {
				t.Helper()
				q, _ := http.NewRequest("GET", "https://a"+path, nil)
				if parent != "" {
					q.Header.Set("traceparent", parent)
				}
				res, err := c.Do(q)
				if err != nil {
					t.Fatal(err)
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
				var h http.Header
				if path != "/own" {
					h = <-seen
				}
				return h, r.record()
			}
			h, first := ask("/", "")
			_, known := ask("/", "00-"+clientTrace+"-"+clientSpan+"-00")
			h2nd, quiet := ask("/quiet", "00-"+clientTrace+"-"+clientSpan+"-01")
			_, own := ask("/own", "")
			if quiet["trace_id"] != nil || h2nd.Get("traceparent") != "00-"+clientTrace+"-"+clientSpan+"-01" {
				t.Errorf("a route without traces: the endpoint got %v, the log has %v", h2nd, quiet)
			}
			spans := x.end(t)
			var names []string
			for _, s := range spans {
				names = append(names, s.name)
			}
			if got := strings.Join(names, ", "); got != "GET shop, TLS handshake, queue, GET, GET shop, queue, GET, GET own" {
				t.Fatalf("the spans are %s", got)
			}
			root, attempt := spans[0], spans[3]
			if got := h.Get("traceparent"); got != "00-"+root.trace+"-"+attempt.id+"-01" || attempt.parent != root.id || root.parent != "" {
				t.Errorf("the endpoint got %s, and the spans are %+v", got, spans)
			}
			first.want(t, "trace_id", root.trace, "route", "shop")
			if spans[4].trace != clientTrace || spans[4].parent != clientSpan {
				t.Errorf("the request within a trace has the span %+v", spans[4])
			}
			known.want(t, "trace_id", clientTrace)
			own.want(t, "trace_id", spans[7].trace)
			found := false
			for _, b := range histogramOf(t, r.registry, "weir_http_request_duration_seconds", "route", "shop").GetBucket() {
				found = found || b.GetExemplar() != nil && b.GetExemplar().GetLabel()[0].GetName() == "trace_id"
			}
			if !found {
				t.Error("the histogram has no exemplar")
			}
		})
	}
}

// transport makes requests to the listener web.
func (r *rig) transport(h2 bool) *http.Transport {
	tr := &http.Transport{TLSClientConfig: &tls.Config{ServerName: "a", InsecureSkipVerify: true}, DialContext: func(context.Context, string, string) (net.Conn, error) { return r.dial("web").Conn, nil }}
	tr.Protocols = new(http.Protocols)
	tr.Protocols.SetHTTP2(h2)
	tr.Protocols.SetHTTP1(!h2)
	return tr
}

// Only trusted senders decide by the sampled flag. The flag of others is cleared.
func TestSampledFlag(t *testing.T) {
	const text = `
listeners:
  web: {address: '@0', protocol: http}
  trusting: {address: '@1', protocol: http, trust_forwarded: [127.0.0.0/8]}
routes: [{listeners: [web, trusting], backend: app}]
backends: {app: {endpoints: ['@app']}}
`
	seen := make(chan string, 1)
	r := newRig(t, text, nil, "@app", newHandler(t, func(_ http.ResponseWriter, r *http.Request) {
		seen <- strings.Join(r.Header.Values("Traceparent"), ",")
	}))
	f := func(share float64, listener, flags string, traced bool, wantFlags string) {
		t.Helper()
		x := r.traces(share)
		c := r.dial(listener)
		c.write("GET / HTTP/1.1\r\nHost: a\r\n" + parentLine + flags + "\r\n\r\n")
		c.response("GET")
		got := <-seen
		r.record()
		n := len(x.end(t))
		if (n > 0) != traced || !strings.HasPrefix(got, "00-"+clientTrace+"-") || !strings.HasSuffix(got, "-"+wantFlags) || strings.Contains(got, clientSpan) == traced {
			t.Errorf("share %v, %s, flags %s: the endpoint got %s, and there are %d spans", share, listener, flags, got, n)
		}
	}
	f(0, "web", "01", false, "00")
	f(1, "web", "00", true, "01")
	f(0, "trusting", "01", true, "01")
	f(1, "trusting", "00", false, "00")
	f(0, "trusting", "00", false, "00")

	r.adjust(func(p *Proxy) { p.SetTracer(nil) })
	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHost: a\r\n" + parentLine + "01\r\n\r\n")
	c.response("GET")
	if got := "traceparent: " + <-seen; got != parentLine+"01" {
		t.Errorf("without traces the endpoint got %s", got)
	}
	r.record()
}

// Each attempt has its own span, and the endpoint gets that of its attempt. A PROXY header and an upgrade have
// spans, too.
func TestTracedAttempts(t *testing.T) {
	bad, good := newEndpoint(t), newEndpoint(t)
	r := newRig(t, `
listeners: {web: {address: '@0', protocol: http}}
routes: [{listeners: [web], backend: app, retries: {attempts: 2, when: [503]}}]
backends: {app: {endpoints: ['@bad', '@good'], balance: round_robin}}
`, nil, "@bad", bad.address, "@good", good.address)
	x := r.traces(1)
	r.mu.Lock()
	r.greet = func(c *conn.Conn) { c.NoteHeader(time.Millisecond) }
	r.mu.Unlock()
	c := r.dial("web")
	c.write("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	var parents []string
	for i := range 2 {
		var p *peer
		select {
		case p = <-bad.conns:
		case p = <-good.conns:
		}
		_, parent, _ := strings.Cut(p.head(), "traceparent: ")
		parent, _, _ = strings.Cut(parent, "\r\n")
		parents = append(parents, parent)
		if i == 0 {
			p.write("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
			continue
		}
		p.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
		c.response("GET")
		p.Close()
	}
	c.Close()
	r.record().want(t, "kind", "upgrade", "trace_id", parents[0][3:35])
	spans := x.end(t)
	if len(spans) != 4 || spans[1].name != "PROXY header" || spans[2].id != parents[0][36:52] || spans[3].id != parents[1][36:52] || parents[0][:36] != parents[1][:36] {
		t.Errorf("the endpoints got %q, and the spans are %+v", parents, spans)
	}
}

// Traces do not need the access log, and an exchange that is not traced allocates nothing more.
func TestTracesWithoutLog(t *testing.T) {
	r := newRig(t, plain, nil, "@app", newHandler(t, echo))
	x := r.traces(1)
	r.proxy.SetLog(nil)
	c := r.dial("web")
	c.write(get)
	c.response("GET")
	eventually(t, "the trace ends", func() error {
		if len(x.end(t)) == 0 {
			return io.EOF
		}
		return nil
	})
}
