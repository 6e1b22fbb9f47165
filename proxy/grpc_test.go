package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/message"
)

// bytesCodec is a codec for messages that consist of bytes.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "bytes" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// calls is a service of grpc-go. The name of the method selects its behaviour.
func calls(_ any, s grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(s)
	md, _ := metadata.FromIncomingContext(s.Context())
	switch method {
	case "/t.T/Fail": // trailers only
		return status.Error(codes.FailedPrecondition, "not today: 100% ä")
	case "/t.T/Hang":
		<-s.Context().Done()
		return status.FromContextError(s.Context().Err()).Err()
	case "/t.T/Deadline":
		at, ok := s.Context().Deadline()
		b := fmt.Appendf(nil, "%v %v", ok, time.Until(at) < time.Minute)
		return s.SendMsg(&b)
	}
	s.SetHeader(metadata.Pairs("got", strings.Join(md.Get("key"), "|"), "bin-bin", "\x00\x01"))
	s.SetTrailer(metadata.Pairs("last", "word"))
	for n := 0; ; n++ {
		var b []byte
		if err := s.RecvMsg(&b); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := s.SendMsg(&b); err != nil {
			return err
		}
		if method == "/t.T/Broken" && n == 2 {
			return status.Error(codes.DataLoss, "lost")
		}
	}
}

func newGRPCServer(t testing.TB, opts ...grpc.ServerOption) (*grpc.Server, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(append(opts, grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(calls))...)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ln) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return s, ln.Addr().String()
}

// grpcClient is grpc-go's client of the listener web.
func (r *rig) grpcClient() *grpc.ClientConn {
	r.Helper()
	c, err := grpc.NewClient("passthrough:///"+r.addrs["web"], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{}), grpc.MaxCallRecvMsgSize(64<<20)), grpc.WithDisableRetry())
	if err != nil {
		r.Fatal(err)
	}
	r.stop = append(r.stop, func() { c.Close() })
	return c
}

const grpcBackend = `
listeners: {web: {address: '@0', protocol: http, http2: {prior_knowledge: true}}}
routes: [{listeners: [web], backend: app}]
backends: {app: {protocol: grpc, endpoints: ['@app']}}
`

func callContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

var bothWays = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

func TestGRPC(t *testing.T) {
	_, addr := newGRPCServer(t)
	r := newRig(t, grpcBackend, nil, "@app", addr)
	c := r.grpcClient()
	ctx := metadata.AppendToOutgoingContext(callContext(t), "key", "a", "key", "b")
	for _, n := range []int{0, 1, 1000, 100_000, 3 << 20} { // unary
		in, out := make([]byte, n), []byte(nil)
		var head, tail metadata.MD
		if err := c.Invoke(ctx, "/t.T/Unary", &in, &out, grpc.Header(&head), grpc.Trailer(&tail)); err != nil || len(out) != n {
			t.Errorf("%d bytes: %d bytes, %v", n, len(out), err)
		}
		if head.Get("got")[0] != "a|b" || head.Get("bin-bin")[0] != "\x00\x01" || tail.Get("last")[0] != "word" {
			t.Error(head, tail)
		}
	}
	s, err := c.NewStream(ctx, bothWays, "/t.T/Both") // messages one by one, in both directions
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		in, out := fmt.Appendf(nil, "message %d", i), []byte(nil)
		if err := s.SendMsg(&in); err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(&out); err != nil || string(out) != string(in) {
			t.Fatalf("%q, %v", out, err)
		}
	}
	s.CloseSend()
	var out []byte
	if err := s.RecvMsg(&out); err != io.EOF || s.Trailer().Get("last")[0] != "word" {
		t.Error(err)
	}
	wantStatus := func(method string, ctx context.Context, code codes.Code, text string) {
		t.Helper()
		in, out := []byte("x"), []byte(nil)
		if got := status.Convert(c.Invoke(ctx, method, &in, &out)); got.Code() != code || !strings.Contains(got.Message(), text) {
			t.Errorf("%s: %v %q, not %v %q", method, got.Code(), got.Message(), code, text)
		}
	}
	wantStatus("/t.T/Fail", ctx, codes.FailedPrecondition, "not today: 100% ä")
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	wantStatus("/t.T/Hang", short, codes.DeadlineExceeded, "")
	in := []byte("x")
	if err := c.Invoke(ctx, "/t.T/Deadline", &in, &out); err != nil || string(out) != "true true" {
		t.Errorf("%q, %v", out, err)
	}
	s, _ = c.NewStream(ctx, bothWays, "/t.T/Broken")
	for range 3 {
		s.SendMsg(&in)
		if err := s.RecvMsg(&out); err != nil {
			t.Error(err)
		}
	}
	if err := s.RecvMsg(&out); status.Code(err) != codes.DataLoss {
		t.Error(err)
	}
}

func TestGRPCAtOnce(t *testing.T) {
	_, addr := newGRPCServer(t, grpc.MaxConcurrentStreams(20))
	r := newRig(t, grpcBackend, nil, "@app", addr)
	c := r.grpcClient()
	ctx := callContext(t)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			for j := range 10 {
				in, out := make([]byte, i*j*100), []byte(nil)
				if err := c.Invoke(ctx, "/t.T/Unary", &in, &out); err != nil || len(out) != len(in) {
					t.Errorf("%d of %d bytes, %v", len(out), len(in), err)
				}
			}
		})
	}
	all.Wait()
}

// If servers end their connections from time to time, no call is lost.
func TestGRPCServerEndsConnections(t *testing.T) {
	_, addr := newGRPCServer(t, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 20 * time.Millisecond, MaxConnectionAgeGrace: time.Second}))
	r := newRig(t, grpcBackend, nil, "@app", addr)
	c := r.grpcClient()
	ctx := callContext(t)
	var all sync.WaitGroup
	until := time.Now().Add(500 * time.Millisecond)
	for range 8 {
		all.Go(func() {
			for time.Now().Before(until) {
				in, out := []byte("x"), []byte(nil)
				if err := c.Invoke(ctx, "/t.T/Unary", &in, &out); err != nil {
					t.Error(err)
				}
				<-r.records // the channel has a limited capacity
			}
		})
	}
	all.Wait()
}

// A response that weir generates is a gRPC status.
func TestGRPCRefusals(t *testing.T) {
	server, addr := newGRPCServer(t)
	r := newRig(t, strings.Replace(grpcBackend, "routes: [", "routes: [{listeners: [web], paths: [/small], max_body: 10B, backend: app}, {listeners: [web], hosts: [nowhere.example], backend: app}, ", 1),
		func(c *config.Config) {
			c.Backends[0].Timeouts.ResponseHead = 100 * time.Millisecond
		}, "@app", addr)
	c := r.grpcClient()
	f := func(method string, size int, code codes.Code, text string) {
		t.Helper()
		in, out := make([]byte, size), []byte(nil)
		got := status.Convert(c.Invoke(callContext(t), method, &in, &out))
		if got.Code() != code || !strings.Contains(got.Message(), text) {
			t.Errorf("%s: %v %q, not %v %q", method, got.Code(), got.Message(), code, text)
		}
	}
	f("/small/Unary", 100, codes.ResourceExhausted, "the request's body is too large")
	f("/t.T/Hang", 1, codes.DeadlineExceeded, "the endpoint did not answer in time")
	f("/t.T/../x", 1, codes.Internal, "dot segment")
	server.Stop()
	f("/t.T/Unary", 1, codes.Unavailable, "endpoint") // perhaps over the connection that has just ended
	f("/t.T/Unary", 1, codes.Unavailable, "no connection to an endpoint")
	for range 5 {
		r.record()
	}
	r.load(strings.Replace(grpcBackend, "listeners: [web]", "listeners: [web], hosts: [other.example]", 1), nil, "@app", addr)
	f("/t.T/Unary", 1, codes.Unimplemented, "")
	r.record().want(t, "status", 404)
	if r.counter("weir_http_requests_total", "code", "404") != 1 {
		t.Error("the refusal is not counted")
	}
}

// A call gets a gRPC response, whatever protocol the backend speaks.
func TestGRPCNoEndpointReady(t *testing.T) {
	_, addr := newGRPCServer(t)
	for _, protocol := range []string{"grpc", "h2c", "https", "http"} {
		r := newRig(t, strings.Replace(grpcBackend, "grpc,", protocol+", health_check: {tcp: {}},", 1), nil, "@app", addr)
		in, out := []byte("x"), []byte(nil)
		got := status.Convert(r.grpcClient().Invoke(callContext(t), "/t.T/Unary", &in, &out))
		if got.Code() != codes.Unavailable || got.Message() != "no endpoint is ready" {
			t.Errorf("%s: %v", protocol, got)
		}
		r.record().want(t, "status", 503, "reason", "no_endpoint_ready")
	}
}

// A client's cancellation reaches the server, and a server's end of the call reaches the client.
func TestGRPCEnds(t *testing.T) {
	server, addr := newGRPCServer(t)
	r := newRig(t, grpcBackend, nil, "@app", addr)
	ctx, cancel := context.WithCancel(callContext(t))
	s, err := r.grpcClient().NewStream(ctx, bothWays, "/t.T/Both")
	if err != nil {
		t.Fatal(err)
	}
	in, out := []byte("x"), []byte(nil)
	s.SendMsg(&in)
	if err := s.RecvMsg(&out); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := s.RecvMsg(&out); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	r.record().want(t, "reason", "client_gone")
	s, _ = r.grpcClient().NewStream(callContext(t), bothWays, "/t.T/Both")
	s.SendMsg(&in)
	if err := s.RecvMsg(&out); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	if err := s.RecvMsg(&out); err == nil || errors.Is(err, io.EOF) {
		t.Error("a stream that was cut short looks whole")
	}
	r.record().want(t, "reason", "response_cut_short")
}

func TestGRPCStatus(t *testing.T) {
	f := func(status int, reason string, want int) {
		t.Helper()
		if got := grpcStatus(&message.Refusal{Status: status, Reason: reason}); got != want {
			t.Errorf("%d %s is %d, not %d", status, reason, got, want)
		}
	}
	f(400, "ambiguous_path", grpcInternal)
	f(404, "no_route", grpcUnimplemented)
	f(408, "slow_body", grpcDeadlineExceeded)
	f(413, "body_too_large", grpcResourceExhausted)
	f(421, "misdirected", grpcUnavailable)
	f(431, "head_too_large", grpcResourceExhausted)
	f(501, "upgrade", grpcUnimplemented)
	f(502, "endpoint_closed", grpcUnavailable)
	f(503, "no_endpoint_ready", grpcUnavailable)
	f(504, "connect", grpcUnavailable)
	f(504, "response_timeout", grpcDeadlineExceeded)
	f(504, "request_timeout", grpcDeadlineExceeded)
	f(504, "try_timeout", grpcDeadlineExceeded)
	f(417, "expectation", grpcUnknown)
	for text, want := range map[string]string{"a b": "a b", "100%": "100%25", "ä\n": "%C3%A4%0A", "": ""} {
		if got := grpcMessage(text); got != want {
			t.Errorf("%q is %q, not %q", text, got, want)
		}
	}
	g := func(value string, want time.Duration, limited bool) {
		t.Helper()
		if got, ok := grpcTimeout([]byte(value)); got != want || ok != limited {
			t.Errorf("%q is %v %t, not %v %t", value, got, ok, want, limited)
		}
	}
	g("1S", time.Second, true)
	g("150m", 150*time.Millisecond, true)
	g("99999999n", 99999999, true)
	g("99999999H", 24*365*time.Hour, true)
	g("2M", 2*time.Minute, true)
	g("3u", 3*time.Microsecond, true)
	for _, bad := range []string{"", "S", "1", "1x", "-1S", "999999999S", "+1S", " 1S"} {
		g(bad, 0, false)
	}
	for code, want := range map[core.Code]int{core.Cancel: grpcCancelled, core.RefusedStream: grpcUnavailable,
		core.EnhanceYourCalm: grpcResourceExhausted, core.NoError: grpcInternal, core.InadequateSecurity: grpcPermissionDenied} {
		if got := grpcResetStatus(code, false); got != want {
			t.Errorf("%v is %d, not %d", code, got, want)
		}
	}
	is := func(contentType string, want bool) {
		t.Helper()
		var req message.Request
		req.AddField("Content-Type", contentType)
		if isGRPC(&req) != want {
			t.Errorf("%q: %v", contentType, !want)
		}
	}
	is("application/grpc", true)
	is("application/grpc+proto", true)
	is("application/grpc;x=y", true)
	is("application/grpc-web", false)
	is("application/json", false)
}

// The status follows doc/http-grpc-status-mapping.md of gRPC: a call beyond a rate limit may be repeated
// later, so it is UNAVAILABLE like one of an overloaded server.
func TestStatusOfGuards(t *testing.T) {
	f := func(status int, reason string, want int) {
		t.Helper()
		if got := grpcStatus(&message.Refusal{Status: status, Reason: reason}); got != want {
			t.Errorf("%d %s is grpc-status %d, not %d", status, reason, got, want)
		}
	}
	f(401, "auth", grpcUnauthenticated)
	f(403, "clients", grpcPermissionDenied)
	f(413, "max_body", grpcResourceExhausted)
	f(429, "rate_limit", grpcUnavailable)
	f(429, "in_flight", grpcUnavailable)
	f(503, "auth_failure", grpcUnavailable)
	f(504, "connect_timeout", grpcUnavailable)
	f(504, "response_timeout", grpcDeadlineExceeded)
	f(504, "try_timeout", grpcDeadlineExceeded)
}
