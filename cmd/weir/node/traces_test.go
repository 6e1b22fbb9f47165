package node

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	rpc "google.golang.org/grpc/status"
)

// collector plays a receiver of spans, by OTLP over HTTP and over gRPC.
type collector struct {
	mu     sync.Mutex
	bodies []string
	token  string // of the last request
	refuse bool
	answer string // the body of a response
}

func (c *collector) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (c *collector) answered() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []byte(c.answer)
}

func (c *collector) take(body []byte, token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token = token; c.refuse {
		return false
	}
	c.bodies = append(c.bodies, string(body))
	return true
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch {
	case r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf":
		w.WriteHeader(404)
	case !c.take(body, r.Header.Get("Authorization")):
		w.WriteHeader(400)
	default:
		w.Write(c.answered())
	}
}

// raw is a codec of gRPC that leaves messages as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "proto" }

var _ encoding.Codec = raw{}

func (c *collector) serveGRPC(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var body []byte
	if err := stream.RecvMsg(&body); err != nil {
		return err
	}
	about, _ := metadata.FromIncomingContext(stream.Context())
	if method != "/opentelemetry.proto.collector.trace.v1.TraceService/Export" {
		return rpc.Error(codes.Unimplemented, method)
	}
	if !c.take(body, strings.Join(about.Get("authorization"), "")) {
		return rpc.Error(codes.InvalidArgument, "no thanks")
	}
	answer := c.answered()
	return stream.SendMsg(&answer)
}

// Traces go to a receiver over HTTP and over gRPC, and follow a reload.
func TestTraces(t *testing.T) {
	byHTTP, byGRPC := new(collector), new(collector)
	hs := httptest.NewServer(byHTTP)
	defer hs.Close()
	gs := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(byGRPC.serveGRPC))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go gs.Serve(ln)
	defer gs.Stop()

	r, app := newWeb(t, web)
	web := strings.ReplaceAll(web, "@app", app.address)
	spans := func(result string) float64 {
		return testutil.ToFloat64(r.metrics.spans.WithLabelValues(result))
	}
	log := filepath.Join(t.TempDir(), "log")
	var exported float64
	f := func(c *collector, url string) {
		t.Helper()
		r.load(web + "traces: {otlp: {url: '" + url + "', headers: {Authorization: Bearer x}}, sample: 1, service: edge}\naccess_log: {path: " + log + "}\n")
		r.want("web", 200, "app")
		eventually(t, "the spans arrive", func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.bodies) == 0 {
				return io.EOF
			}
			return nil
		})
		body := c.bodies[0]
		for _, want := range []string{"service.name", "edge", "http.response.status_code"} {
			if !strings.Contains(body, want) {
				t.Errorf("%s: the spans do not have %s", url, want)
			}
		}
		if c.token != "Bearer x" {
			t.Errorf("%s: the token is %q", url, c.token)
		}
		exported += 2
		eventually(t, "the spans are counted", func() error {
			if n := spans("exported"); n != exported {
				return fmt.Errorf("%v are", n)
			}
			return nil
		})
	}
	f(byHTTP, hs.URL)
	f(byGRPC, "grpc://"+ln.Addr().String())

	byGRPC.set(func() { byGRPC.refuse = true })
	r.want("web", 200, "app")
	eventually(t, "refused spans are counted", func() error {
		if n := spans("refused"); n != 2 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	warned := r.lines.FilterMessage("spans cannot be sent to the receiver of traces (traces.otlp)").All()
	if len(warned) != 1 || !strings.Contains(fmt.Sprint(warned[0].ContextMap()["error"]), "no thanks") {
		t.Errorf("the log has %v", warned)
	}
	// Both protocols count the spans of which the receiver refuses a part.
	byGRPC.set(func() { byGRPC.refuse, byGRPC.answer = false, "\x0a\x02\x08\x01" })
	r.want("web", 200, "app")
	counted := func(want float64) {
		t.Helper()
		eventually(t, "a part of the spans is refused", func() error {
			if refused, ok := spans("refused"), spans("exported"); refused != want || ok != exported {
				return fmt.Errorf("%v are refused, %v exported", refused, ok)
			}
			return nil
		})
	}
	exported++
	counted(3)
	byHTTP.set(func() { byHTTP.answer = "\x0a\x02\x08\x02" })
	r.load(web + "traces: {otlp: {url: '" + hs.URL + "'}, sample: 1}\n")
	r.want("web", 200, "app")
	counted(5)
	r.load(web)
	if r.server.tracing != nil {
		t.Error("there are traces after a reload without them")
	}
	r.want("web", 200, "app")
}

// Prometheus gets exemplars if it asks for OpenMetrics.
func TestOpenMetrics(t *testing.T) {
	c := new(collector)
	hs := httptest.NewServer(c)
	defer hs.Close()
	r, _ := newWeb(t, web+"traces: {otlp: {url: '"+hs.URL+"'}, sample: 1}\n")
	r.want("web", 200, "app")
	eventually(t, "the histogram has an exemplar", func() error {
		q := httptest.NewRequest("GET", "http://127.0.0.1/metrics", nil)
		q.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		w := httptest.NewRecorder()
		r.server.exposition().ServeHTTP(w, q)
		text := w.Body.String()
		if !strings.Contains(text, `# {trace_id="`) || !strings.HasSuffix(text, "# EOF\n") {
			return fmt.Errorf("%d bytes", len(text))
		}
		return nil
	})
}
