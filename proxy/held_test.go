package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/weirproxy/weir/config"
)

const asked = `
listeners: {web: {address: '@0', protocol: http, http2: {prior_knowledge: true}}}
routes: [{name: app, listeners: [web], backend: app, retries: {attempts: 2, when: [503]}, mirror: [{backend: copy}]}]
backends: {app: {endpoints: ['@app']}, copy: {endpoints: ['@copy']}, auth: {endpoints: ['@auth']}, grpc: {protocol: grpc, endpoints: ['@grpc']}}
`

// askedRig is a rig with a server that decides on each request, and gets bodies of up to 20,000 bytes.
// The servers tell what they got: the server that decides, the endpoint, and the mirror.
type askedRig struct {
	*rig
	auth, app, copy chan string
	denies          bool
}

// tell describes a request.
func tell(r *http.Request) string {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("%s %s %d %q", r.Method, r.RequestURI, r.ContentLength, lengthOf(body))
	for _, name := range []string{"Expect", "Content-Type", "X-User"} {
		if value := r.Header.Get(name); value != "" {
			text += " " + name + ":" + value
		}
	}
	for name, values := range r.Trailer {
		text += fmt.Sprint(" trailer ", name, values)
	}
	return text
}

// lengthOf is a body, or its length.
func lengthOf(body []byte) string {
	if len(body) > 20 {
		return fmt.Sprint(len(body), " bytes")
	}
	return string(body)
}

func newAskedRig(t *testing.T, byGRPC bool, tune ...func(*config.Config)) *askedRig {
	a := &askedRig{auth: make(chan string, 10), app: make(chan string, 10), copy: make(chan string, 10)}
	auth := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		a.auth <- tell(r)
		w.Header().Set("X-User", "ada")
		if a.denies {
			w.WriteHeader(http.StatusForbidden)
		}
	})
	busy := true
	app := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		text := tell(r)
		if strings.Contains(text, "/again") && busy {
			busy = false
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		a.app <- text
	})
	copies := newHandler(t, func(w http.ResponseWriter, r *http.Request) { a.copy <- tell(r) })
	a.rig = newRig(t, asked, func(cfg *config.Config) {
		e := &config.ExternalAuth{Backend: "auth", Prefix: "/check", Timeout: patience, MaxBody: 20000, Request: []string{"Content-Type"}, Response: []string{"X-User"}}
		if byGRPC {
			e = &config.ExternalAuth{Backend: "grpc", GRPC: true, Host: "auth", Timeout: patience, MaxBody: 20000}
		}
		cfg.Auth = append(cfg.Auth, config.Auth{Name: "objects", External: e})
		cfg.Routes[0].Auth = "objects"
		for _, f := range tune {
			f(cfg)
		}
	}, "@app", app, "@auth", auth, "@copy", copies, "@grpc", newAuthorizer(t, a.auth, &a.denies))
	return a
}

// newAuthorizer is a server of ext_authz by grpc-go. It tells what it got in the places that this test
// knows of the message, and sets X-User.
func newAuthorizer(t *testing.T, got chan<- string, denies *bool) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	check := func(_ any, s grpc.ServerStream) error {
		var in, out []byte
		method, _ := grpc.MethodFromServerStream(s)
		if err := s.RecvMsg(&in); err != nil {
			return err
		}
		got <- method + " " + string(in)
		// A Status, and an OkHttpResponse with the header x-user: ada.
		out = append([]byte{1<<3 | 2, 0, 3<<3 | 2, 17, 2<<3 | 2, 15, 1<<3 | 2, 13, 1<<3 | 2, 6}, "x-user"...)
		out = append(append(out, 2<<3|2, 3), "ada"...)
		if *denies {
			out = []byte{1<<3 | 2, 2, 1 << 3, 7} // PERMISSION_DENIED
		}
		return s.SendMsg(&out)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(check))
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ln) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return ln.Addr().String()
}

// wantTold checks what each server got of a request. auth is what the server that decides gets by HTTP.
func (a *askedRig) wantTold(auth, app, copied string) {
	a.Helper()
	told := next(a, a.auth, "question")
	if !strings.HasPrefix(told, "/envoy.service.auth.v3.Authorization/Check ") && told != auth {
		a.Errorf("the server that decides got %s, want %s", told, auth)
	}
	if got := next(a, a.app, "request"); got != app {
		a.Errorf("the endpoint got %s, want %s", got, app)
	}
	if got := next(a, a.copy, "copy"); got != copied {
		a.Errorf("the mirror got %s, want %s", got, copied)
	}
}

// The server that decides gets the body, and so do the endpoint and its mirrors, however it arrives.
func TestHeldBodies(t *testing.T) {
	for _, byGRPC := range []bool{false, true} {
		t.Run(fmt.Sprint("gRPC=", byGRPC), func(t *testing.T) {
			a := newAskedRig(t, byGRPC)
			c := a.dial("web")
			f := func(head, body, auth, app string) {
				t.Helper()
				c.write("%s HTTP/1.1\r\nHost: a\r\nX-User: me\r\nContent-Type: text/x\r\n%s\r\n\r\n%s", strings.Fields(auth)[0]+" "+strings.TrimPrefix(strings.Fields(auth)[1], "/check"), head, body)
				c.wantResponse(200, "")
				end, copied, announced := "1", app, strings.Contains(head, "Trailer")
				if byGRPC {
					end = "" // the server may set any header, so clients set none
				}
				if announced {
					app, copied = app+" trailer X-End["+end+"]", copied+" trailer X-End[]" // mirrors get no trailers
				}
				a.wantTold(auth, app, copied)
				a.record().want(t, "status", 200)
			}
			large := strings.Repeat("0123456789", 1999)
			f("X: y", "", `GET /check/a 0 "" Content-Type:text/x`, `GET /a 0 "" Content-Type:text/x X-User:ada`)
			f("Content-Length: 4", "body", `PUT /check/b 4 "body" Content-Type:text/x`, `PUT /b 4 "body" Content-Type:text/x X-User:ada`)
			f("Transfer-Encoding: chunked\r\nTrailer: X-End", "2\r\nbo\r\n2\r\ndy\r\n0\r\nX-End: 1\r\n\r\n", `PUT /check/c 4 "body" Content-Type:text/x`, `PUT /c -1 "body" Content-Type:text/x X-User:ada`)
			f("Content-Length: 19990", large, `POST /check/d 19990 "19990 bytes" Content-Type:text/x`, `POST /d 19990 "19990 bytes" Content-Type:text/x X-User:ada`)
			f("Content-Length: 4", "body", `PUT /check/again 4 "body" Content-Type:text/x`, `PUT /again 4 "body" Content-Type:text/x X-User:ada`)

			// A client that waits for weir before it sends the body.
			c.write("PUT /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
			if head := c.head(); !strings.HasPrefix(head, "HTTP/1.1 100 Continue\r\n") {
				t.Fatalf("the client got %q", head)
			}
			c.write("body")
			c.wantResponse(200, "")
			a.wantTold(`PUT /check/e 4 "body"`, `PUT /e 4 "body" X-User:ada`, `PUT /e 4 "body" X-User:ada`)
			a.record().want(t, "status", 200, "reason", nil)

			// Pieces that arrive one after the other, also over HTTP/2.
			c.write("PUT /f HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo")
			c.write("dy")
			c.wantResponse(200, "")
			a.wantTold(`PUT /check/f 4 "body"`, `PUT /f 4 "body" X-User:ada`, `PUT /f 4 "body" X-User:ada`)
			a.record().want(t, "status", 200)
			two := a.dial2("web")
			id := two.request(false, "/g", ":method: POST")
			two.data(id, false, large)
			two.data(id, true, "")
			if got := two.answer(id); got.status() != "200" {
				t.Errorf("over HTTP/2 the client got %+v", got)
			}
			a.wantTold(`POST /check/g 19990 "19990 bytes"`, `POST /g -1 "19990 bytes" X-User:ada`, `POST /g -1 "19990 bytes" X-User:ada`)
			a.record().want(t, "status", 200)

			a.denies = true
			c.write("PUT /h HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo")
			c.write("dy")
			c.wantResponse(403, "*")
			next(t, a.auth, "question")
			a.record().want(t, "status", 403, "reason", "auth_denied")
		})
	}
}

// A body that is too large, or that does not arrive, ends the request before anybody is asked.
func TestBodiesThatCannotBeHeld(t *testing.T) {
	a := newAskedRig(t, false)
	f := func(head, body string, status int, reason string) {
		t.Helper()
		c := a.dial("web")
		c.write("PUT / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n%s", head, body)
		if status == 0 {
			c.Close()
			a.record().want(t, "reason", reason)
			return
		}
		c.wantResponse(status, "*")
		a.record().want(t, "status", status, "reason", reason)
		c.Close()
	}
	f("Content-Length: 20001", "", 413, "body_too_large")
	f("Expect: 100-continue\r\nContent-Length: 20001", "", 413, "body_too_large")
	f("Transfer-Encoding: chunked", "4e21\r\n"+strings.Repeat("x", 20001), 413, "body_too_large")
	f("Transfer-Encoding: chunked", "2\r\nbo\r\nx\r\n", 400, "bad_chunk")
	f("Content-Length: 4", "bo", 0, "client_gone")
	select {
	case got := <-a.auth:
		t.Errorf("the server that decides got %s", got)
	case got := <-a.app:
		t.Errorf("the endpoint got %s", got)
	default:
	}
}

// The bytes after an upgrade are no body.
func TestUpgradeIsNotHeld(t *testing.T) {
	a := newAskedRig(t, false)
	c := a.dial("web")
	c.write("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	c.wantResponse(200, "")
	if got := next(t, a.auth, "question"); got != `GET /check/chat 0 ""` {
		t.Errorf("the server that decides got %s", got)
	}
}

// A body that arrives too slowly ends with 408.
func TestHeldBodyIsSlow(t *testing.T) {
	a := newAskedRig(t, false, func(cfg *config.Config) { cfg.Listeners[0].Timeouts.BodyIdle = 50 * time.Millisecond })
	c := a.dial("web")
	c.write("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo")
	c.wantResponse(408, "*")
	a.record().want(t, "status", 408, "reason", "slow_body")
}

// A connection gives back the memory of each held body: one after the other they are more than it may hold.
func TestHeldBodiesAreReleased(t *testing.T) {
	a := newAskedRig(t, false, func(cfg *config.Config) { cfg.Routes[0].Mirror = nil })
	a.rig.proxy.Memory.SetLimit(32 << 20) // 4 MiB for each connection
	c := a.dial("web")
	body := strings.Repeat("x", 20000)
	for range 250 {
		c.write("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n%s", body)
		c.wantResponse(200, "")
		next(t, a.auth, "question")
		next(t, a.app, "request")
		a.record().want(t, "status", 200)
	}
}
