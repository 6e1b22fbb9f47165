package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const grpcConfig = `
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}}
  secure: {address: '@secure', protocol: tls}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [web, secure], backend: api}
backends:
  api:
    protocol: grpc
    endpoints: ['@api']
    health_check: {grpc: {}, interval: 2s}
`

// grpcBackend is a gRPC server that uses grpc-go.
type grpcBackend struct {
	pb.UnimplementedTestServiceServer
	address   string
	server    *grpc.Server
	health    *health.Server
	asleep    chan struct{} // receives a value when a call begins to sleep
	cancelled chan error    // receives the error of a sleeping call whose client gave up
}

func newGRPCBackend(t *testing.T, options ...grpc.ServerOption) *grpcBackend {
	t.Helper()
	b := &grpcBackend{address: freePort(t), server: grpc.NewServer(options...), health: health.NewServer(), asleep: make(chan struct{}, 10), cancelled: make(chan error, 10)}
	pb.RegisterTestServiceServer(b.server, b)
	grpc_health_v1.RegisterHealthServer(b.server, b.health)
	l, err := net.Listen("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	go b.server.Serve(l)
	t.Cleanup(b.server.Stop)
	return b
}

// UnaryCall returns the requested number of bytes and the metadata of the request, or the requested status. A
// call with the payload "sleep" waits until the client gives up.
func (b *grpcBackend) UnaryCall(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	grpc.SetHeader(ctx, metadata.MD{"x-header": md["x-header"], "x-raw-bin": md["x-raw-bin"], "x-client": md["x-forwarded-for"]})
	grpc.SetTrailer(ctx, metadata.MD{"x-trailer": md["x-trailer"]})
	if s := in.GetResponseStatus(); s != nil {
		return nil, status.Error(codes.Code(s.Code), s.Message)
	}
	if len(in.GetPayload().GetBody()) == len("sleep") && string(in.Payload.Body) == "sleep" {
		deadline, ok := ctx.Deadline()
		b.asleep <- struct{}{}
		<-ctx.Done()
		b.cancelled <- fmt.Errorf("%v %v", ok && time.Until(deadline) < time.Minute, ctx.Err())
		return nil, ctx.Err()
	}
	return &pb.SimpleResponse{Payload: &pb.Payload{Body: make([]byte, in.ResponseSize)}, Username: fmt.Sprint(len(in.GetPayload().GetBody()))}, nil
}

// gaveUp waits until the client of a sleeping call gives up, and returns the error that the server got.
func (b *grpcBackend) gaveUp(t *testing.T) string {
	t.Helper()
	select {
	case err := <-b.cancelled:
		return err.Error()
	case <-time.After(patience):
		t.Fatal("the server does not see that a client gives up")
		return ""
	}
}

func (b *grpcBackend) StreamingOutputCall(in *pb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
	for _, p := range in.ResponseParameters {
		if err := out.Send(&pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: make([]byte, p.Size)}}); err != nil {
			return err
		}
	}
	return nil
}

func (b *grpcBackend) StreamingInputCall(in grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]) error {
	sum := 0
	for {
		m, err := in.Recv()
		if err == io.EOF {
			return in.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: int32(sum)})
		}
		if err != nil {
			return err
		}
		sum += len(m.Payload.Body)
	}
}

func (b *grpcBackend) FullDuplexCall(s grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	for {
		m, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&pb.StreamingOutputCallResponse{Payload: m.Payload}); err != nil {
			return err
		}
	}
}

// grpcClient returns a grpc-go client for a listener. It uses TLS and ALPN if the listener does.
func grpcClient(t *testing.T, w *weir, listener string) pb.TestServiceClient {
	t.Helper()
	transport := insecure.NewCredentials()
	if listener == "secure" {
		transport = credentials.NewTLS(anyCertificate("app.example.org"))
	}
	return grpcClientOf(t, w.at(listener), "app.example.org", transport)
}

// grpcClientFor is a client of a host over TLS that takes any certificate.
func grpcClientFor(t *testing.T, address, host string) pb.TestServiceClient {
	t.Helper()
	return grpcClientOf(t, address, host, credentials.NewTLS(anyCertificate(host)))
}

func grpcClientOf(t *testing.T, address, host string, transport credentials.TransportCredentials) pb.TestServiceClient {
	t.Helper()
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(transport), grpc.WithAuthority(host),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return pb.NewTestServiceClient(c)
}

// startGRPC runs a test on both listeners.
func startGRPC(t *testing.T, test func(t *testing.T, w *weir, b *grpcBackend, c pb.TestServiceClient, ctx context.Context)) {
	b := newGRPCBackend(t)
	w := newWeir(t)
	w.address["api"] = b.address
	w.start(grpcConfig)
	w.wantMetric(1, "weir_backend_endpoints_ready", "backend", "api")
	for _, listener := range []string{"web", "secure"} {
		t.Run(listener, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
			defer cancel()
			test(t, w, b, grpcClient(t, w, listener), ctx)
		})
	}
}

func TestGRPCUnary(t *testing.T) {
	t.Parallel()
	startGRPC(t, func(t *testing.T, w *weir, b *grpcBackend, c pb.TestServiceClient, ctx context.Context) {
		out := metadata.AppendToOutgoingContext(ctx, "x-header", "one", "x-header", "two", "x-trailer", "three", "x-raw-bin", "\x00\xff")
		var header, trailer metadata.MD
		res, err := c.UnaryCall(out, &pb.SimpleRequest{ResponseSize: 3 << 20, Payload: &pb.Payload{Body: make([]byte, 3<<20)}}, grpc.Header(&header), grpc.Trailer(&trailer))
		if err != nil || len(res.Payload.Body) != 3<<20 || res.Username != fmt.Sprint(3<<20) {
			t.Fatalf("%v", err)
		}
		if fmt.Sprint(header["x-header"], header["x-raw-bin"], trailer["x-trailer"], header["x-client"]) != "[one two] [\x00\xff] [three] [127.0.0.1]" {
			t.Errorf("%v, %v", header, trailer)
		}
		for range 500 {
			if _, err := c.UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: 5}); err != nil {
				t.Fatal(err)
			}
		}
		e := w.logged("a call", func(e entry) bool { return e.text("target") == "/grpc.testing.TestService/UnaryCall" })
		if e.text("http_version") != "2" || e.text("status") != "200" || e.text("method") != "POST" {
			t.Errorf("%v", e)
		}
	})
}

// weir forwards every status unchanged, also in responses that consist only of trailers.
func TestGRPCStatuses(t *testing.T) {
	t.Parallel()
	startGRPC(t, func(t *testing.T, w *weir, b *grpcBackend, c pb.TestServiceClient, ctx context.Context) {
		for _, code := range []codes.Code{codes.NotFound, codes.ResourceExhausted, codes.Unauthenticated, 77} {
			const text = "tab\tline\nunicode \u2713 percent %41"
			_, err := c.UnaryCall(ctx, &pb.SimpleRequest{ResponseStatus: &pb.EchoStatus{Code: int32(code), Message: text}})
			if s := status.Convert(err); s.Code() != code || s.Message() != text {
				t.Errorf("%v: %v", code, err)
			}
		}
		if _, err := c.EmptyCall(ctx, &pb.Empty{}); status.Code(err) != codes.Unimplemented {
			t.Error(err)
		}
	})
}

func TestGRPCStreams(t *testing.T) {
	t.Parallel()
	startGRPC(t, func(t *testing.T, w *weir, b *grpcBackend, c pb.TestServiceClient, ctx context.Context) {
		// Many small messages in each direction: weir does not count the PINGs by which grpc-go measures the
		// path as a flood.
		const messages = 20000
		params := make([]*pb.ResponseParameters, messages)
		for i := range params {
			params[i] = &pb.ResponseParameters{Size: int32(i % 100)}
		}
		down, err := c.StreamingOutputCall(ctx, &pb.StreamingOutputCallRequest{ResponseParameters: params})
		if err != nil {
			t.Fatal(err)
		}
		for i := range messages {
			m, err := down.Recv()
			if err != nil || len(m.Payload.Body) != i%100 {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		if _, err := down.Recv(); err != io.EOF {
			t.Error(err)
		}
		up, err := c.StreamingInputCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range messages {
			if err := up.Send(&pb.StreamingInputCallRequest{Payload: &pb.Payload{Body: make([]byte, i%100)}}); err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		if sum, err := up.CloseAndRecv(); err != nil || sum.AggregatedPayloadSize != messages/100*4950 {
			t.Errorf("%v, %v", sum, err)
		}
		both, err := c.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			sent := pattern(i)
			if err := both.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: sent}}); err != nil {
				t.Fatal(err)
			}
			if m, err := both.Recv(); err != nil || !bytes.Equal(m.Payload.GetBody(), sent) {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		both.CloseSend()
		if _, err := both.Recv(); err != io.EOF {
			t.Error(err)
		}
	})
}

// Deadlines reach the server. If a client gives up, the server notices.
func TestGRPCDeadlinesAndCancels(t *testing.T) {
	t.Parallel()
	startGRPC(t, func(t *testing.T, w *weir, b *grpcBackend, c pb.TestServiceClient, ctx context.Context) {
		sleep := &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("sleep")}}
		for d := time.Second; len(b.asleep) == 0; d *= 2 { // repeat until a call reaches the server within its deadline
			if d > patience {
				t.Fatal("no call reaches the server")
			}
			short, cancel := context.WithTimeout(ctx, d)
			if _, err := c.UnaryCall(short, sleep); status.Code(err) != codes.DeadlineExceeded {
				t.Error(err)
			}
			cancel()
		}
		<-b.asleep
		if how := b.gaveUp(t); !strings.HasPrefix(how, "true ") {
			t.Errorf("the server saw %s", how)
		}
		given, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() {
			_, err := c.UnaryCall(given, sleep)
			done <- err
		}()
		w.wantMetric(1, "weir_backend_requests_in_flight", "backend", "api")
		select {
		case <-b.asleep:
		case <-time.After(patience):
			t.Error("the call does not reach the server")
		}
		cancel()
		if err := <-done; status.Code(err) != codes.Canceled {
			t.Error(err)
		}
		if how := b.gaveUp(t); !strings.HasSuffix(how, " context canceled") {
			t.Errorf("the server saw %s", how)
		}
		w.wantMetric(0, "weir_backend_requests_in_flight", "backend", "api")
	})
}

// The health check is a gRPC call, and the responses that weir makes itself have a gRPC status.
func TestGRPCHealthAndFailures(t *testing.T) {
	t.Parallel()
	b := newGRPCBackend(t)
	w := newWeir(t)
	w.address["api"] = b.address
	w.start(strings.Replace(grpcConfig, "interval: 2s", "interval: 200ms", 1))
	for _, listener := range []string{"web", "secure"} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
		defer cancel()
		c := grpcClient(t, w, listener)
		w.wantMetric(1, "weir_backend_endpoints_ready", "backend", "api") // otherwise 0 could be the value before the first check
		b.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		w.wantMetric(0, "weir_backend_endpoints_ready", "backend", "api")
		_, err := c.UnaryCall(ctx, &pb.SimpleRequest{})
		if s := status.Convert(err); s.Code() != codes.Unavailable || strings.Contains(s.Message(), "unexpected HTTP status") {
			t.Errorf("no endpoint is ready: %v", err)
		}
		b.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
		eventually(t, "calls are answered again", func() error {
			_, err := c.UnaryCall(ctx, &pb.SimpleRequest{})
			return err
		})
	}
}

// An endpoint that shuts down gracefully gets no more calls, and no call fails.
func TestGRPCEndpointGoesAway(t *testing.T) {
	t.Parallel()
	first, second := newGRPCBackend(t), newGRPCBackend(t)
	w := newWeir(t)
	w.address["api"], w.address["other"] = first.address, second.address
	w.start(strings.Replace(grpcConfig, "endpoints: ['@api']", "endpoints: ['@api', '@other']", 1))
	w.wantMetric(2, "weir_backend_endpoints_ready", "backend", "api")
	c := grpcClient(t, w, "web")
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	both, err := c.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ping := func() {
		t.Helper()
		if err := both.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
		if _, err := both.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	ping()
	stopped := make(chan struct{})
	go func() {
		first.server.GracefulStop()
		close(stopped)
	}()
	for range 500 {
		if _, err := c.UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: 5}); err != nil {
			t.Fatalf("a call was lost: %v", err)
		}
	}
	ping()
	both.CloseSend()
	if _, err := both.Recv(); err != io.EOF {
		t.Error(err)
	}
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Error("the endpoint cannot stop: a connection is left")
	}
}

// If the endpoint uses TLS, weir offers HTTP/2 by ALPN, and requires it.
func TestGRPCOverTLSToTheEndpoint(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	made := writeCertificate(t, w.dir, "api", false, "api.internal")
	pair, err := tls.LoadX509KeyPair(made.cert, made.key)
	if err != nil {
		t.Fatal(err)
	}
	w.address["api"] = newGRPCBackend(t, grpc.Creds(credentials.NewServerTLSFromCert(&pair))).address
	w.start(strings.Replace(grpcConfig, "protocol: grpc", "protocol: grpc\n    tls: {server_name: api.internal, ca: "+made.cert+"}", 1))
	w.wantMetric(1, "weir_backend_endpoints_ready", "backend", "api")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if res, err := grpcClient(t, w, "secure").UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: 100}); err != nil || len(res.Payload.Body) != 100 {
		t.Error(err)
	}
}
