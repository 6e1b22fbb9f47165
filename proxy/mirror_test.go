package proxy

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/backend"
)

func TestMirrorTakesItsShareEvenly(t *testing.T) {
	for _, percent := range []int{1, 33, 50, 99, 100} {
		m := newMirrors([]config.Mirror{{Backend: "next", Percent: percent}}, nil)[0]
		taken, longest, gap := 0, 0, 0
		for range 1000 {
			if gap++; m.takes() {
				taken, gap = taken+1, 0
			}
			longest = max(longest, gap)
		}
		if taken != 10*percent || longest > (100+percent-1)/percent {
			t.Errorf("%d %%: %d of 1000 were taken, and %d in sequence were not", percent, taken, longest)
		}
	}
}

const withMirror = `
listeners: {web: {address: '@0', protocol: http, http2: {prior_knowledge: true}}}
routes: [{name: app, listeners: [web], backend: app, request: {remove: [Authorization], set: {X-Tenant: blue}}, mirror: [{backend: next}]}]
backends: {app: {endpoints: ['@app']}, next: {endpoints: ['@next'], host: next.example}}
`

// copied returns the counter of the copies with a result.
func (r *rig) copied(result string) float64 {
	return r.counter("weir_mirrored_requests_total", "route", "app", "backend", "next", "result", result)
}

func (r *rig) wantCopied(result string, n float64) {
	r.Helper()
	eventually(r, fmt.Sprintf("%v copies are %s", n, result), func() error {
		if got := r.copied(result); got != n {
			return fmt.Errorf("%v are", got)
		}
		return nil
	})
}

func TestMirrorGetsCopies(t *testing.T) {
	got := make(chan string, 100)
	app := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "app")
	})
	next := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- fmt.Sprintf("%s %s %s %q %s%s %d", r.Method, r.Host, r.RequestURI, r.Header.Get("X-Tenant"), r.Header.Get("Authorization"), r.Header.Get("Expect"), len(body))
		w.Write(make([]byte, 1<<20))
	})
	r := newRig(t, withMirror, nil, "@app", app, "@next", next)
	sent := 0.0
	for _, test := range []struct {
		request []string // written one after the other
		want    string   // empty: no copy
	}{
		{[]string{"GET /a?b HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YTpi\r\n\r\n"}, `GET next.example /a?b "blue"  0`},
		{[]string{"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"}, `POST next.example /b "blue"  3`},
		{[]string{"POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n", strings.Repeat("x", 50000)}, `POST next.example /c "blue"  50000`},
		{[]string{"POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "3\r\nabc\r\n", "4\r\ndefg\r\n0\r\n\r\n"}, `POST next.example /d "blue"  7`},
		{[]string{"POST /e HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n", strings.Repeat("x", 65537)}, ""},
		{[]string{"POST /f HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10001\r\n", strings.Repeat("x", 65537) + "\r\n0\r\n\r\n"}, ""},
	} {
		c := r.dial("web")
		for _, part := range test.request {
			c.write("%s", part)
		}
		c.wantResponse(200, "app")
		if test.want == "" {
			continue
		}
		if g := next1(t, got); g != test.want {
			t.Errorf("the mirror got %s, not %s", g, test.want)
		}
		sent++
		r.wantCopied("sent", sent)
	}
	r.wantCopied("too_large", 2)
	select {
	case g := <-got:
		t.Errorf("the mirror got %s as well", g)
	default:
	}
	if n := r.proxy.mirrors.Load(); n != 0 {
		t.Errorf("%d copies run", n)
	}
}

// A request that authenticates its connection to the endpoint means nothing on another connection.
func TestMirrorGetsNoConnectionAuthentication(t *testing.T) {
	got := make(chan string, 10)
	app := newHandler(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "app") })
	next := newHandler(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.RequestURI })
	r := newRig(t, strings.Replace(withMirror, "request: {remove: [Authorization], set: {X-Tenant: blue}}, ", "", 1), nil, "@app", app, "@next", next)
	c := r.dial("web")
	c.write("GET /ntlm HTTP/1.1\r\nHost: a\r\nAuthorization: NTLM TlRMTVNTUAABAAAA\r\n\r\n")
	c.wantResponse(200, "app")
	c.write(get)
	c.wantResponse(200, "app")
	if g := next1(t, got); g != "/" {
		t.Errorf("the mirror got %s", g)
	}
}

func next1(t *testing.T, ch chan string) string {
	t.Helper()
	return next(t, ch, "request to the mirror")
}

// The client does not wait for the mirror, whose request is never repeated.
func TestMirrorIsNotWaitedFor(t *testing.T) {
	app := newHandler(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "app") })
	e := newEndpoint(t)
	r := newRig(t, withMirror, nil, "@app", app, "@next", e.address)
	c := r.dial("web")
	c.write(get)
	c.wantResponse(200, "app")
	p := e.accept()
	p.head()
	if n := r.proxy.mirrors.Load(); n != 1 {
		t.Errorf("%d copies run", n)
	}
	p.write(ok("kept"))
	r.wantCopied("sent", 1)
	c.write(get) // over the same connection, which ends
	c.wantResponse(200, "app")
	p.head()
	p.Close()
	r.wantCopied("failed", 1)
	e.untouched()
}

// A slow mirror leaves room for others, and all together have a limit.
func TestMirrorsShareTheLimit(t *testing.T) {
	r := newRig(t, strings.Replace(withMirror, "backends: {", "backends: {third: {endpoints: ['@app']}, ", 1), nil, "@app", "127.0.0.1:1", "@next", "127.0.0.1:1")
	taken := map[*backend.Backend]int{}
	defer func() {
		for b, n := range taken {
			for range n {
				r.proxy.endMirror(b)
			}
			if b.Copies().Load() != 0 {
				t.Errorf("%s: %d copies are left", b.Name(), b.Copies().Load())
			}
		}
		if n := r.proxy.mirrors.Load(); n != 0 {
			t.Errorf("%d copies are left", n)
		}
	}()
	f := func(name string, want int) {
		t.Helper()
		b := r.set.Backend(name)
		for r.proxy.beginMirror(b) {
			taken[b]++
		}
		if taken[b] != want {
			t.Errorf("%s has %d copies, want %d", name, taken[b], want)
		}
	}
	f("next", mostMirrors/2)
	f("app", mostMirrors/4)
	f("third", mostMirrors/8)
	next := r.set.Backend("next")
	r.proxy.endMirror(next)
	taken[next]--
	f("next", mostMirrors/2-1) // it has more than are free
	f("third", mostMirrors/8+1)
}

// Beyond the limit of copies weir drops further ones.
func TestMirrorsAreLimited(t *testing.T) {
	app := newHandler(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "app") })
	e := newEndpoint(t)
	r := newRig(t, withMirror, nil, "@app", app, "@next", e.address)
	r.proxy.mirrors.Add(mostMirrors)
	defer r.proxy.mirrors.Add(-mostMirrors)
	c := r.dial("web")
	c.write(get)
	c.wantResponse(200, "app")
	r.wantCopied("dropped", 1)
	e.untouched()
}

// A mirror of an Ingress may have its own path and host, and get no bodies.
func TestMirrorOfObjects(t *testing.T) {
	got := make(chan string, 100)
	app := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "app")
	})
	next := newHandler(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- fmt.Sprintf("%s %s %s %d", r.Method, r.Host, r.RequestURI, len(body))
	})
	r := newRig(t, withMirror, func(c *config.Config) {
		c.Routes[0].Mirror = []config.Mirror{{Backend: c.Routes[0].Mirror[0].Backend, Percent: 100, Path: "/copy", KeepQuery: true, Host: "mirror.test"},
			{Backend: c.Routes[0].Mirror[0].Backend, Percent: 100, Path: "/x{uri}", NoBody: true}}
	}, "@app", app, "@next", next)
	f := func(request string, want ...string) {
		t.Helper()
		c := r.dial("web")
		c.write("%s", request)
		c.wantResponse(200, "app")
		var all []string
		for range want {
			all = append(all, next1(t, got))
		}
		slices.Sort(all)
		if !slices.Equal(all, want) {
			t.Errorf("the mirrors got %q, not %q", all, want)
		}
	}
	f("GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n", "GET mirror.test /copy?b 0", "GET next.example /x/a?b 0")
	f("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "POST mirror.test /copy 3", "POST next.example /x/a 0")
	f("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "POST mirror.test /copy 3", "POST next.example /x/a 0")
}

// Bodies that weir does not copy may have any size.
func TestMirrorWithoutBodies(t *testing.T) {
	got := make(chan string, 10)
	app := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "app")
	})
	next := newHandler(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.RequestURI })
	r := newRig(t, withMirror, func(c *config.Config) { c.Routes[0].Mirror[0].NoBody = true }, "@app", app, "@next", next)
	c := r.dial("web")
	c.write("POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n%s", strings.Repeat("x", 100000))
	c.wantResponse(200, "app")
	if g := next1(t, got); g != "/large" {
		t.Errorf("the mirror got %s", g)
	}
}
