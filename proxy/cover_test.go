package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/tunnel"
)

// covered has a route for each thing that weir derives from a request and keeps until the exchange ends. The silent
// server reads nothing and never answers.
const covered = `
listeners: {web: {address: '@0', protocol: http, http2: {prior_knowledge: true}}}
routes:
  - {name: plain, listeners: [web], paths: [/plain], backend: silent}
  - {name: answer, listeners: [web], paths: [/answer], backend: answers}
  - {name: forward, listeners: [web], paths: [/forward], backend: silent, auth: forward}
  - {name: cookie, listeners: [web], paths: [/cookie], backend: silent}
  - {name: external, listeners: [web], paths: [/external], backend: silent}
  - {name: grpc, listeners: [web], paths: [/grpc], backend: silent}
  - {name: subrequest, listeners: [web], paths: [/subrequest], backend: silent}
  - {name: undecided, listeners: [web], paths: [/undecided], backend: silent}
  - {name: page, listeners: [web], paths: [/page], respond: {status: 500}, errors: [{status: [500], backend: silent, path: /}]}
  - {name: nginx, listeners: [web], paths: [/nginx], respond: {status: 500}, errors: [{status: [500], backend: silent, path: /}]}
  - {name: request, listeners: [web], paths: [/request], backend: silent, request: {set: {a: '@uris'}}}
  - {name: response, listeners: [web], paths: [/response], respond: {status: 200, body: hello}, response: {set: {a: '@uris'}}}
  - {name: move, listeners: [web], paths: [/move], redirect: {to: 'https://a/@uris'}}
  - {name: rewrite, listeners: [web], paths: [/rewrite], backend: silent, rewrite: {path: '@paths'}}
  - {name: script, listeners: [web], paths: [/script], backend: silent}
  - {name: variables, listeners: [web], paths: [/variables], backend: silent}
  - {name: mirror, listeners: [web], paths: [/mirror], backend: silent, mirror: [{backend: copies}]}
auth: {forward: {forward: {url: 'http://@silent/'}}}
backends: {silent: {endpoints: ['@silent']}, silent-grpc: {protocol: h2c, endpoints: ['@grpc']}, gone: {endpoints: ['127.0.0.1:1']}, copies: {endpoints: ['@copies']}, answers: {endpoints: ['@answers']}}
`

func tuneCovered(c *config.Config) {
	c.Auth = append(c.Auth,
		config.Auth{Name: "subrequest", Subrequest: &config.Subrequest{Backend: "silent", Path: "/?{uri_encoded}", Timeout: time.Minute}},
		config.Auth{Name: "undecided", Subrequest: &config.Subrequest{Backend: "gone", Path: "/?" + config.Template(strings.Repeat("{uri_encoded}", 12)), Timeout: time.Minute}},
		config.Auth{Name: "external", External: &config.ExternalAuth{Backend: "silent", Request: []string{"X"}, Timeout: time.Minute}},
		config.Auth{Name: "grpc", External: &config.ExternalAuth{Backend: "silent-grpc", GRPC: true, Timeout: time.Minute}})
	for i := range c.Routes {
		switch r := c.Routes[i]; r.Name {
		case "subrequest", "undecided", "external", "grpc":
			r.Auth = r.Name
		case "nginx":
			r.Errors[0].AsNginx = true
		case "script":
			r.Script = &config.Script{Location: "set $a $request_uri$request_uri$request_uri; set $b $a$a$a$a; return 200 $b;", Refuses: true}
		case "variables":
			r.Script = &config.Script{Location: "set $a $request_uri$request_uri$request_uri; set $b $a$a$a$a;"}
		}
	}
}

// newSilent starts a server that reads nothing.
func newSilent(t *testing.T) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln // it accepts nothing: the kernel completes the handshakes
}

// live returns the live memory of the process.
func live() int64 {
	var m runtime.MemStats
	for range 3 { // sync.Pool keeps memory for two collections
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// What weir derives from a request and keeps while the exchange is open is charged to the client's connection. Each
// request is small on the wire: its head refers to one large header, or its texts repeat its path.
func TestDerivedMemoryIsCharged(t *testing.T) {
	const streams = 60
	header := make([]string, 15)
	for i := range header {
		header[i] = "x: " + strings.Repeat("v", 3900)
	}
	query := "?" + strings.Repeat("q", 3000)
	stays := map[string]net.Listener{"grpc": newSilent(t), "mirror": newSilent(t)} // weir's connections to them do not end with the client's
	r := newRig(t, covered, tuneCovered, "@uris", strings.Repeat("{uri}", 12), "@paths", strings.Repeat("{path}", 12), "@silent", newSilent(t).Addr().String(), "@copies", stays["mirror"].Addr().String(), "@grpc", stays["grpc"].Addr().String(),
		"@answers", newHandler(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close") // the server holds no memory
			w.Header().Set("X", strings.Repeat("x", 15_000))
			io.WriteString(w, "hello")
		}))
	for _, kind := range []struct {
		path   string
		fields []string
		window bool // the client opens no window for the response
	}{
		{"/plain", header, false},
		{"/answer", nil, true},
		{"/forward", header, false},
		{"/external", header, false},
		{"/grpc", header, false},
		{"/subrequest" + query, header[2:], false},
		{"/undecided" + query, nil, true},
		{"/page", header, false},
		{"/nginx", header, false},
		{"/request" + query, header[2:], false},
		{"/response" + query, nil, true},
		{"/move" + query, nil, true},
		{"/rewrite" + strings.Repeat("/p", 1500), nil, false},
		{"/script" + query, nil, true},
		{"/variables" + query, nil, false},
		{"/mirror", header, false},
	} {
		name := strings.FieldsFunc(kind.path, func(r rune) bool { return r == 0x3f || r == 0x2f })[0]
		t.Run(name, func(t *testing.T) {
			before := live()
			c := greet2(r.dial("web"))
			defer c.Close() // the next kind begins with nothing charged
			if kind.window {
				c.framer.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 0})
			}
			for range streams {
				c.request(true, kind.path, kind.fields...)
			}
			var held, used int64
			eventually(t, "the requests wait, and their memory is charged", func() error {
				used = r.proxy.Memory.Used()
				if held = live() - before; used < streams*memory.Exchange || held > used+used/2 { // the runtime rounds up, and other goroutines of the process allocate
					return fmt.Errorf("%d KiB are held by %d requests, and %d KiB are charged", held>>10, streams, used>>10)
				}
				return nil
			})
			t.Logf("%d KiB held, %d KiB charged", held>>10, used>>10)
			c.Close()
			if ln := stays[name]; ln != nil {
				ln.Close()
			}
			eventually(t, "nothing is charged", func() error {
				if n := r.proxy.Memory.Used(); n != 0 {
					return fmt.Errorf("%d bytes are", n)
				}
				return nil
			})
		})
	}
}

// A request whose derived memory the account refuses gets 503. No guard lets it through, and it gets no part of the
// response for which there is no memory.
func TestDerivedMemoryIsRefused(t *testing.T) {
	r := newRig(t, covered, tuneCovered, "@uris", strings.Repeat("{uri}", 12), "@paths", strings.Repeat("{path}", 12), "@silent", newSilent(t).Addr().String(), "@answers", "127.0.0.1:1", "@copies", "127.0.0.1:1", "@grpc", "127.0.0.1:1")
	r.hoard(memory.Exchange + 28<<10)
	others := r.proxy.Memory.Used()
	header := make([]string, 15)
	for i := range header {
		header[i] = "x: " + strings.Repeat("v", 3900)
	}
	query := "?" + strings.Repeat("q", 3000)
	call := []string{"content-type: application/grpc"}
	for _, kind := range []struct {
		path   string
		fields []string
	}{
		{"/forward", header}, {"/external", header}, {"/grpc", header}, {"/request" + query, nil}, {"/response" + query, nil},
		{"/response" + query, call}, {"/move" + query, nil}, {"/script" + query, nil}, {"/variables" + query, nil}, {"/rewrite" + strings.Repeat("/p", 1500), nil},
	} {
		c := greet2(r.dial("web"))
		id := c.request(true, kind.path, kind.fields...)
		c.until("the response ends", func() bool { return c.on(id).ended })
		if a := c.on(id); len(kind.fields) != 1 && (a.status() != "503" || a.body.String() != message.ErrMemory.Detail+"\n" || len(a.heads[0]) > 500) {
			t.Errorf("%.20s is answered %.200v", kind.path, a)
		} else if len(kind.fields) == 1 && (field2(a.heads[0], "grpc-status") != "14" || len(a.heads[0]) > 500) {
			t.Errorf("a call of %.20s is answered %.200v", kind.path, a)
		}
		r.record().want(t, "status", 503, "reason", "memory")
		c.Close()
		eventually(t, "the connection holds nothing", func() error {
			if n := r.proxy.Memory.Used(); n != others {
				return fmt.Errorf("%d bytes are used, %d by others", n, others)
			}
			return nil
		})
	}
}

// The error of a request does not keep the request's text.
func TestErrorsQuoteLittle(t *testing.T) {
	r := newRig(t, covered, tuneCovered, "@uris", strings.Repeat("{uri}", 12), "@paths", strings.Repeat("{path}", 12), "@silent", "127.0.0.1:1", "@answers", "127.0.0.1:1", "@copies", "127.0.0.1:1", "@grpc", "127.0.0.1:1")
	c := greet2(r.dial("web"))
	c.request(true, "/undecided?"+strings.Repeat("q", 3000))
	if text := fmt.Sprint(r.record()["error"]); len(text) > 600 || !strings.Contains(text, "qqq") || !strings.Contains(text, "bytes)") {
		t.Errorf("the error has %d bytes: %.700s", len(text), text)
	}
}

// Tunnels that copy bytes are charged to their client for what they hold, and parked ones only for the head of their
// request, which the log gets at the end.
func TestTunnelsAreCharged(t *testing.T) {
	const tunnels, head = 40, 30_000
	for _, over := range []string{"web", "tls"} {
		t.Run(over, func(t *testing.T) {
			r, e := newRig2(t, nil)
			before := live()
			var clients []*peer
			begin := strings.Replace(upgrade, "Host: a", "Host: a\r\nX: "+strings.Repeat("x", head), 1)
			for range tunnels {
				c := r.dial("web")
				if over == "tls" {
					c.Close()
					c = r.dialTLS("tls", "a", nil)
				}
				c.write("%s", begin)
				s := e.accept()
				s.head()
				s.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				c.head()
				clients = append(clients, c, s)
			}
			var held, used int64
			measure := func() string {
				held, used = live()-before, r.proxy.Memory.Used()
				return fmt.Sprintf("%d KiB are held by %d tunnels, clients and endpoints, and %d KiB are charged", held>>10, tunnels, used>>10)
			}
			eventually(t, "busy tunnels are charged", func() error {
				for _, c := range clients {
					c.write("some bytes")
				}
				if text := measure(); used < tunnels*(head+2*tunnel.Running) || held > used+used/8 {
					return errors.New(text)
				}
				return nil
			})
			t.Log(measure())
			eventually(t, "parked tunnels are charged for the head", func() error {
				if text := measure(); used > tunnels*(head+tunnel.Running) || used < tunnels*head {
					return errors.New(text)
				}
				return nil
			})
			t.Log(measure())
			for _, c := range clients {
				c.Close()
			}
		})
	}
}
