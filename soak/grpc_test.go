package soak

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// serveGRPC is a real gRPC server. Its health check answers with status.
func serveGRPC(t *testing.T, status grpc_health_v1.HealthCheckResponse_ServingStatus, options ...grpc.ServerOption) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	h := health.NewServer()
	h.SetServingStatus("", status)
	grpc_health_v1.RegisterHealthServer(s, h)
	go s.Serve(ln)
	t.Cleanup(s.Stop)
	return ln.Addr().String()
}

func TestGRPC(t *testing.T) {
	noLeaks(t)
	const serving = grpc_health_v1.HealthCheckResponse_SERVING
	plain := "grpc://" + serveGRPC(t, serving)
	secure := "grpcs://" + serveGRPC(t, serving, grpc.Creds(credentials.NewServerTLSFromCert(&[]tls.Certificate{certificate()}[0])))
	f := func(target string, change func(*Options), status int) {
		t.Helper()
		r := soak(t, target, func(o *Options) {
			o.Every = time.Millisecond
			change(o)
		}, exchanges(9))
		wantKinds(t, r)
		if r.Requests < 9 || r.GRPCStatuses[status] < 9 || r.Statuses[200] < 9 {
			t.Errorf("%d requests, statuses %v, %v", r.Requests, r.Statuses, r.GRPCStatuses)
		}
	}
	f(plain, func(*Options) {}, 0)
	f(secure, func(*Options) {}, 0)
	f(secure, func(o *Options) { o.Rate, o.Duration = 100, 100*time.Millisecond }, 0)
	f(plain, func(o *Options) { o.Path, o.GRPCStatus = "/no.Service/Method", []int{0, 12} }, 12) // a response with trailers only
	f(plain, func(o *Options) { o.Faults = []Fault{{Part: Body, Offset: 2, Delay: time.Millisecond}} }, 0)

	wrong := func(target, detail string, change func(*Options)) {
		t.Helper()
		r := soak(t, target, change, anomalies(3))
		wantKinds(t, r, UnexpectedStatus)
		if d := r.Anomalies[0].Examples[0].Detail; !strings.Contains(d, detail) {
			t.Errorf("the example is %q, want %q", d, detail)
		}
		if what := r.Anomalies[0].What; !strings.Contains(what, "--grpc-status") {
			t.Errorf("the kind is explained as %q", what)
		}
	}
	wrong(plain, `grpc-status 12 (UNIMPLEMENTED): "unknown service no.Service"`, func(o *Options) { o.Path = "/no.Service/Method" })
	wrong("grpc://"+serveGRPC(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING), "the health check says NOT_SERVING", func(*Options) {})
	wrong("grpc://"+serveGRPC(t, grpc_health_v1.HealthCheckResponse_UNKNOWN), "the health check says UNKNOWN", func(*Options) {})
}

func TestGRPCAnomalies(t *testing.T) {
	f := func(name string, want Kind, detail string, act func(*scene)) {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			r := soak(t, "grpc://"+serve(t, play(act)), func(*Options) {}, anomalies(3))
			wantKinds(t, r, want)
			if d := r.Anomalies[0].Examples[0].Detail; !strings.Contains(d, detail) {
				t.Errorf("the example is %q, want %q", d, detail)
			}
		})
	}
	head := func(s *scene) { s.respond(1, false, ":status", "200", "content-type", "application/grpc") }
	f("no trailers", MissingTrailers, "after 7 bytes", func(s *scene) {
		head(s)
		s.WriteData(1, true, []byte("\x00\x00\x00\x00\x02\x08\x01"))
	})
	f("trailers without a status", MissingTrailers, "", func(s *scene) {
		head(s)
		s.respond(1, true, "x-other", "1")
	})
	f("half a message", ShortBody, "within a message", func(s *scene) {
		head(s)
		s.WriteData(1, false, []byte("\x00\x00\x00\x00\x05\x08"))
		s.respond(1, true, "grpc-status", "0")
	})
	f("an error", UnexpectedStatus, `grpc-status 14 (UNAVAILABLE): "no endpoint"`, func(s *scene) {
		s.respond(1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "14", "grpc-message", "no%20endpoint")
	})
	f("an error of HTTP", UnexpectedStatus, `the HTTP status is 503: "busy"`, func(s *scene) {
		s.respond(1, false, ":status", "503", "content-type", "text/plain")
		s.WriteData(1, true, []byte("busy"))
	})
	f("no gRPC", Malformed, `"text/html"`, func(s *scene) { s.respond(1, true, ":status", "200", "content-type", "text/html") })
	f("no number", Malformed, `grpc-status is "ok"`, func(s *scene) {
		s.respond(1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "ok")
	})
	f("a reset stream", Reset, "INTERNAL_ERROR", func(s *scene) {
		head(s)
		s.WriteRSTStream(1, http2.ErrCodeInternal)
	})
}

func TestMessages(t *testing.T) {
	f := func(want bool, parts ...string) {
		t.Helper()
		var m messages
		for _, p := range parts {
			m.take([]byte(p))
		}
		if m.whole() != want {
			t.Errorf("%q ends with a whole message: %v, want %v", parts, m.whole(), want)
		}
	}
	f(true)
	f(true, "\x00\x00\x00\x00\x00")
	f(true, "\x00\x00\x00\x00\x02ab\x00\x00\x00\x00\x01c")
	f(true, "\x00\x00", "\x00\x00\x02a", "b\x00", "\x00\x00\x00\x01c")
	f(true, "\x01\x00\x00\x01\x00", strings.Repeat("x", 256))
	f(false, "\x00")
	f(false, "\x00\x00\x00\x00\x02a")
	f(false, "\x00\x00\x00\x00\x00\x00")
}
