package backend

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weirproxy/weir/config"
	weirhealth "github.com/weirproxy/weir/health"
)

// grpcHealthServer is a server of grpc-go with a health service.
func grpcHealthServer(t *testing.T, certs []tls.Certificate) (*health.Server, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var opts []grpc.ServerOption
	if certs != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: certs})))
	}
	s, h := grpc.NewServer(opts...), health.NewServer()
	healthpb.RegisterHealthServer(s, h)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ln) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return h, ln.Addr().String()
}

// verdicts checks an endpoint until the verdict is the expected one.
type verdicts struct {
	t   *testing.T
	set *Set
}

func watch(t *testing.T, cfg config.Backend) *verdicts {
	t.Helper()
	checker := weirhealth.NewChecker()
	set := NewSet(Options{StartCheck: func(c *Check) func() { return checker.Start(c, c.Settings, c.WasReady) }})
	t.Cleanup(func() { set.Close(); checker.Close() })
	if _, err := set.Update(listOf(cfg), NodeInfo{}); err != nil {
		t.Fatal(err)
	}
	return &verdicts{t, set}
}

func (v *verdicts) want(up bool, why string) {
	v.t.Helper()
	var got EndpointStatus
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got = v.set.Status()[0].Endpoints[0]
		if got.Up == up && strings.Contains(got.LastError, why) && (got.LastError == "") == (why == "") {
			return
		}
	}
	v.t.Fatalf("up %t, %q; want %t, %q", got.Up, got.LastError, up, why)
}

func checkedBy(b config.Backend, c config.HealthCheck) config.Backend {
	c.Interval, c.Timeout, c.Rise, c.Fall = 5*time.Millisecond, 5*time.Second, 1, 1
	b.HealthCheck = &c
	return b
}

func TestGRPCChecks(t *testing.T) {
	certs := httptest.NewUnstartedServer(nil)
	certs.StartTLS()
	defer certs.Close()
	f := func(protocol config.Protocol, secure []tls.Certificate) {
		t.Helper()
		h, addr := grpcHealthServer(t, secure)
		cfg := checkedBy(settings("app", addr), config.HealthCheck{GRPC: &config.GRPCCheck{Service: "shop"}})
		cfg.Protocol, cfg.Secure, cfg.TLS.InsecureSkipVerify = protocol, secure != nil, true
		v := watch(t, cfg)
		v.want(false, `the call ended with grpc-status "5"`)
		h.SetServingStatus("shop", healthpb.HealthCheckResponse_SERVING)
		v.want(true, "")
		h.SetServingStatus("shop", healthpb.HealthCheckResponse_NOT_SERVING)
		v.want(false, `service "shop" is NOT_SERVING`)
		h.Resume()
		v.want(true, "")
		h.Shutdown()
		v.want(false, "NOT_SERVING")
	}
	f(config.ProtocolGRPC, nil)
	f(config.ProtocolGRPC, certs.TLS.Certificates)
	f(config.ProtocolH2C, nil)
	f(config.ProtocolHTTPS, certs.TLS.Certificates)
	f(config.ProtocolTCP, nil)
}

// A check by HTTP uses the same HTTP version as exchanges.
func TestHTTPChecksByVersion(t *testing.T) {
	f := func(protocol config.Protocol, two bool, want string, prepare func(*httptest.Server)) {
		t.Helper()
		var mu sync.Mutex
		status, seen := 200, ""
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			seen = r.Proto + " " + r.Host + r.URL.Path
			w.WriteHeader(status)
			w.Write(make([]byte, 100<<10)) // more bytes than a check keeps
		}))
		prepare(server)
		defer server.Close()
		cfg := checkedBy(settings("app", server.Listener.Addr().String()), config.HealthCheck{
			HTTP: &config.HTTPCheck{Path: "/healthz", Host: "a.example", StatusMin: 200, StatusMax: 299}})
		cfg.Protocol, cfg.HTTP2, cfg.TLS.InsecureSkipVerify = protocol, two, true
		v := watch(t, cfg)
		v.want(true, "")
		mu.Lock()
		status = 500
		if want += " a.example/healthz"; seen != want {
			t.Errorf("the check came by %s, not %s", seen, want)
		}
		mu.Unlock()
		v.want(false, "status 500 is not within health_check.http.status (200-299)")
	}
	protocols := func(s *httptest.Server, set func(*http.Protocols)) {
		s.Config.Protocols = new(http.Protocols)
		set(s.Config.Protocols)
	}
	f(config.ProtocolH2C, false, "HTTP/2.0", func(s *httptest.Server) {
		protocols(s, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })
		s.Start()
	})
	f(config.ProtocolHTTPS, true, "HTTP/2.0", func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() })
	f(config.ProtocolHTTPS, false, "HTTP/1.1", func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() })
	f(config.ProtocolHTTPS, true, "HTTP/1.1", func(s *httptest.Server) { s.StartTLS() })
	f(config.ProtocolHTTP, false, "HTTP/1.1", func(s *httptest.Server) { s.Start() })
}

// A check ends when its time is over.
func TestGRPCCheckHangs(t *testing.T) {
	for _, greets := range []bool{false, true} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { c.Close() })
				if greets {
					c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
				}
			}
		}()
		cfg := checkedBy(settings("app", ln.Addr().String()), config.HealthCheck{GRPC: new(config.GRPCCheck)})
		cfg.HealthCheck.Timeout = 50 * time.Millisecond
		watch(t, cfg).want(false, ln.Addr().String()+" took longer than 50ms (health_check.timeout)")
	}
}
