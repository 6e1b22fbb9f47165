package e2e

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// grpcGuards has a route for each kind of refusal.
const grpcGuards = `
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}}
  secure: {address: '@secure', protocol: tls}
certificates: [{self_signed: {hosts: ["*.test"]}}]
rate_limits:
  usual: {rate: 1/h, burst: 1, per: "header:x-key"}
  odd: {rate: 1/h, burst: 1, per: "header:x-key", status: 420}
auth:
  staff: {basic: {file: '@@dir/users.htpasswd', realm: Staff}}
  token: {jwt: {issuer: "https://issuer.test", audience: [shop], keys: '@@dir/jwks.json'}}
  sso: {forward: {url: "http://@auth/check", sign_in: "https://login.test/?rd={url}"}}
routes:
  - {listeners: [web, secure], hosts: [open.test], backend: api}
  - {listeners: [web, secure], hosts: [rate.test], rate_limit: usual, backend: api}
  - {listeners: [web, secure], hosts: [odd.test], rate_limit: odd, backend: api}
  - {name: full, listeners: [web, secure], hosts: [full.test], in_flight: {most: 1, per: route, status: 429}, backend: api}
  - {listeners: [web, secure], hosts: [staff.test], auth: staff, backend: api}
  - {listeners: [web, secure], hosts: [token.test], auth: token, backend: api}
  - {listeners: [web, secure], hosts: [sso.test], auth: sso, errors: [{status: ["400-599"], backend: down, path: /x}], backend: api}
  - {listeners: [web, secure], hosts: [lan.test], clients: {deny: [127.0.0.0/8]}, backend: api}
  - {listeners: [web, secure], hosts: [small.test], max_body: 100B, backend: api}
  - {listeners: [web, secure], hosts: [closed.test], respond: {status: 503, body: "back soon\n", headers: {Retry-After: "120"}}}
  - {listeners: [web, secure], hosts: [slow.test], timeouts: {request: 1s}, backend: api}
  - {listeners: [web, secure], hosts: [down.test], backend: down}
backends:
  api: {protocol: grpc, endpoints: ['@api']}
  down: {endpoints: ['@down']}
`

// A gRPC client gets the status that gRPC has for each refusal, with the headers of the refusal.
func TestGRPCRefusalsOfRoutes(t *testing.T) {
	t.Parallel()
	b, w := newGRPCBackend(t), newWeir(t)
	w.address["api"] = b.address
	writeUsers(t, w, staffUsers)
	writeKeys(t, w, tokenKey)
	newAuthServer(w, "auth", "first")
	w.start(grpcGuards)
	for _, listener := range []string{"web", "secure"} {
		client := func(host string) pb.TestServiceClient {
			if listener == "secure" {
				return grpcClientFor(t, w.at(listener), host)
			}
			return grpcClientOf(t, w.at(listener), host, insecure.NewCredentials())
		}
		f := func(host string, size int, code codes.Code, text string, lines ...string) metadata.MD {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ctx = metadata.AppendToOutgoingContext(ctx, append(lines, "x-key", listener)...)
			var trailer metadata.MD
			body := make([]byte, size)
			if host == "slow.test" {
				body = []byte("sleep")
			}
			_, err := client(host).UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: body}}, grpc.Trailer(&trailer))
			if got := status.Convert(err); got.Code() != code || got.Message() != text {
				t.Errorf("%s on %s: %v %q, not %v %q", host, listener, got.Code(), got.Message(), code, text)
			}
			return trailer
		}
		f("open.test", 1, codes.OK, "")
		for _, host := range []string{"rate.test", "odd.test"} {
			f(host, 1, codes.OK, "")
			if md := f(host, 1, codes.Unavailable, "too many requests; see Retry-After"); len(md["retry-after"]) != 1 {
				t.Errorf("%s: the trailers are %v", host, md)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		go client("full.test").UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("sleep")}})
		w.wantMetric(1, "weir_in_flight_open", "route", "full") // not b.asleep: a try of slow.test may wake it late
		f("full.test", 1, codes.Unavailable, "too many requests at the same time")
		cancel()
		w.wantMetric(0, "weir_in_flight_open", "route", "full")
		f("full.test", 1, codes.OK, "")
		for host, text := range map[string]string{"staff.test": "this needs a user and a password", "token.test": "this needs a valid token"} {
			if md := f(host, 1, codes.Unauthenticated, text); len(md["www-authenticate"]) != 1 {
				t.Errorf("%s: the trailers are %v", host, md)
			}
		}
		f("staff.test", 1, codes.OK, "", "authorization", "Basic YWRhOmxvdmVsYWNl")
		f("sso.test", 1, codes.OK, "", "cookie", "user=ada")
		f("sso.test", 1, codes.Unauthenticated, "")
		f("sso.test", 1, codes.PermissionDenied, "of the server", "cookie", "status=403")
		f("sso.test", 1, codes.Unavailable, "the server that decides about this request failed or did not answer", "cookie", "status=500")
		f("lan.test", 1, codes.PermissionDenied, "access from this address is denied")
		f("small.test", 1000, codes.ResourceExhausted, "the request's body is too large")
		f("closed.test", 1, codes.Unavailable, "back soon")
		f("slow.test", 1, codes.DeadlineExceeded, "the endpoint did not answer in time")
		f("down.test", 1, codes.Unavailable, "no connection to an endpoint")
		f("none.test", 1, codes.Unimplemented, "no route matches the host and path")
	}
	w.logged("a refusal", func(e entry) bool {
		return e.text("host") == "staff.test" && e.text("status") == "401" && e.text("reason") == "auth_required"
	})
}
