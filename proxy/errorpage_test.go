package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirproxy/weir/config"
)

const withPages = `
listeners: {web: {address: '@0', protocol: http, http2: {prior_knowledge: true}}}
routes:
- name: app
  listeners: [web]
  backend: app
  errors: [{status: [404], backend: pages, path: /missing}, {status: ["404-499", "500-599"], backend: pages, path: "/{status}.html"}]
  response: {set: {X-Frame-Options: DENY}}
- {name: refused, listeners: [web], paths: [/refused], backend: app, max_body: 1B, errors: [{status: [413], backend: pages, path: "/{status}"}]}
- {name: gone, listeners: [web], paths: [/gone], backend: gone, errors: [{status: ["500-599"], backend: pages, path: "/{status}"}]}
- {name: circle, listeners: [web], paths: [/circle], backend: gone, errors: [{status: ["500-599"], backend: gone, path: /circle}]}
backends:
  app: {endpoints: ['@app']}
  pages: {endpoints: ['@pages']}
  gone: {endpoints: ['@gone']}
`

func TestErrorPages(t *testing.T) {
	var asked atomic.Pointer[http.Request]
	pages := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r)
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Language", "en")
		w.Header().Set("Set-Cookie", "page=1")
		w.Header().Set("ETag", `"page"`)
		switch {
		case r.URL.Path == "/502.html":
			w.WriteHeader(404)
		case r.URL.Path == "/503.html":
			w.Write(make([]byte, mostPage+1))
		default:
			fmt.Fprintf(w, "page %s", r.RequestURI)
		}
	})
	app := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		status, size := 0, 8
		fmt.Sscanf(r.URL.Path, "/%d/%d", &status, &size)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("ETag", `"app"`)
		w.Header().Set("Retry-After", "7")
		w.Header().Set("Content-Length", fmt.Sprint(size))
		w.WriteHeader(status)
		if r.Method != "HEAD" {
			w.Write([]byte(strings.Repeat("o", size)))
		}
	})
	r := newRig(t, withPages, nil, "@app", app, "@pages", pages, "@gone", "127.0.0.1:1")
	c := r.dial("web")
	original := strings.Repeat("o", 8)
	for _, test := range []struct {
		method, target string
		headers        string
		status         int
		body           string
		asked          string // the request for the page
		result         string
	}{
		{"GET", "/200", "", 200, original, "", ""},
		{"GET", "/403", "", 403, original, "", ""},
		{"GET", "/404", "", 404, "page /missing", "GET /missing", "sent"},
		{"GET", "/410", "", 410, "page /410.html", "GET /410.html", "sent"},
		{"POST", "/500", "Content-Length: 2\r\n", 500, "page /500.html", "GET /500.html", "sent"},
		{"HEAD", "/500", "", 500, "", "GET /500.html", "sent"},
		{"GET", "/502", "", 502, original, "GET /502.html", "failed"},
		{"GET", "/503", "", 503, original, "GET /503.html", "failed"},
		{"GET", "/504/300000", "", 504, "page /504.html", "GET /504.html", "sent"},
		{"POST", "/500", "Content-Type: application/grpc\r\nContent-Length: 2\r\n", 500, original, "", ""},
	} {
		asked.Store(nil)
		sent, failed := r.counter("weir_error_pages_total", "route", "app", "backend", "pages", "result", "sent"), r.counter("weir_error_pages_total", "route", "app", "backend", "pages", "result", "failed")
		body := ""
		if test.method == "POST" {
			body = "xy"
		}
		c.write("%s", test.method+" "+test.target+" HTTP/1.1\r\nHost: a.example\r\nAccept: text/html\r\nCookie: secret=1\r\nAuthorization: Basic YTpi\r\nRange: bytes=0-1\r\nX-Forwarded-For: 1.2.3.4\r\n"+test.headers+"\r\n"+body)
		resp, got := c.response(test.method)
		if resp.StatusCode != test.status || got != test.body || resp.Header.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s %s: %d %q %v", test.method, test.target, resp.StatusCode, got, resp.Header)
		}
		replaced := test.result == "sent"
		if h := resp.Header; replaced && (h.Get("Content-Type") != "text/html" || h.Get("Content-Language") != "en" || h.Get("ETag") != "" || h.Get("Set-Cookie") != "") ||
			!replaced && (h.Get("Content-Type") != "application/json" || h.Get("ETag") != `"app"`) || h.Get("Retry-After") != "7" || len(h["Content-Type"]) != 1 {
			t.Errorf("%s %s: the headers are %v", test.method, test.target, h)
		}
		q := asked.Load()
		if q == nil != (test.asked == "") {
			t.Errorf("%s %s: a page was requested: %t", test.method, test.target, q != nil)
		}
		if q != nil && (q.Method+" "+q.RequestURI != test.asked || q.Host != "a.example" || q.Header.Get("Accept") != "text/html" || q.ContentLength != 0 ||
			len(q.Header["Cookie"])+len(q.Header["Authorization"])+len(q.Header["Range"])+len(q.Header["X-Forwarded-For"])+len(q.Header["Content-Type"]) != 0) {
			t.Errorf("%s %s: the request for the page is %s %s to %q with %v", test.method, test.target, q.Method, q.RequestURI, q.Host, q.Header)
		}
		sent, failed = r.counter("weir_error_pages_total", "route", "app", "backend", "pages", "result", "sent")-sent, r.counter("weir_error_pages_total", "route", "app", "backend", "pages", "result", "failed")-failed
		if fmt.Sprint(sent, failed) != map[string]string{"": "0 0", "sent": "1 0", "failed": "0 1"}[test.result] {
			t.Errorf("%s %s: %v sent and %v failed", test.method, test.target, sent, failed)
		}
		r.record().want(t, "status", test.status)
	}
	if n := r.set.Backend("pages").InFlight() + r.set.Backend("app").InFlight(); n != 0 {
		t.Errorf("%d requests are in flight", n)
	}
}

// weir's own responses get pages too: refusals of guards, and failures of the backend.
func TestErrorPagesOfOwnResponses(t *testing.T) {
	pages := newHandler(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "page %s", r.URL.Path) })
	r := newRig(t, withPages, func(cfg *config.Config) { cfg.Backends[0].Retries.Attempts = 1 }, "@app", "127.0.0.1:1", "@pages", pages, "@gone", "127.0.0.1:1")
	for _, test := range []struct {
		request string
		status  int
		body    string
		reason  string
	}{
		{"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nxy", 413, "page /413", "body_too_large"},
		{"GET /gone HTTP/1.1\r\nHost: a\r\n\r\n", 502, "page /502", "connect"},
		{"GET /circle HTTP/1.1\r\nHost: a\r\n\r\n", 502, "502: no connection to an endpoint\n", "connect"},
	} {
		c := r.dial("web")
		c.write("%s", test.request)
		resp, body := c.response("GET")
		if resp.StatusCode != test.status || strings.TrimPrefix(body, "502: ") != strings.TrimPrefix(test.body, "502: ") {
			t.Errorf("%q: %d %q", test.request, resp.StatusCode, body)
		}
		r.record().want(t, "status", test.status, "reason", test.reason)
	}
}

// While the page is late, the original response waits. A client that leaves ends the wait.
func TestErrorPageIsSlow(t *testing.T) {
	pages := newEndpoint(t)
	app := newHandler(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "original", 500) })
	r := newRig(t, withPages, nil, "@app", app, "@pages", pages.address, "@gone", "127.0.0.1:1")
	c := r.dial("web")
	c.write(get)
	p := pages.accept()
	p.head()
	p.write("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf")
	p.Close()
	c.wantResponse(500, "original\n")
	r.record().want(t, "status", 500)

	c.write(get)
	pages.accept().head()
	r.only().Cut()
	if e := r.record(); e["duration_seconds"].(float64) >= pagePatience.Seconds() {
		t.Errorf("the exchange waited for the page though its client was cut: %v", e)
	}
}

// The request for a page has one visit more than the client's request and an id of weir, whether an
// endpoint or weir itself wrote the response that the page replaces. limits.loop applies to the
// visits before this one.
func TestErrorPageOfVisit(t *testing.T) {
	var asked atomic.Pointer[http.Request]
	pages := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r)
		fmt.Fprint(w, "page")
	})
	app := newHandler(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "original", 500) })
	r := newRig(t, withPages, nil, "@app", app, "@pages", pages, "@gone", "127.0.0.1:1")
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n",
		"GET /gone HTTP/1.1\r\nHost: a\r\n",
		"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n",
	} {
		for _, test := range []struct {
			loop   int
			before string // visits
			want   string
		}{
			{1, "", string(visitor)},
			{3, "", string(visitor)},
			{3, "CDN-Loop: other, " + string(visitor) + "\r\n", "other, " + string(visitor) + ", " + string(visitor)},
			{1, "CDN-Loop: " + string(visitor) + "\r\n", ""},
		} {
			r.proxy.SetLoop(test.loop)
			asked.Store(nil)
			c := r.dial("web")
			body := ""
			if strings.HasPrefix(request, "POST") {
				body = "xy"
			}
			c.write("%s", request+test.before+"X-Request-Id: made-up\r\n\r\n"+body)
			c.response("GET")
			got, id := "", "no request"
			if q := asked.Load(); q != nil {
				got, id = strings.Join(q.Header["Cdn-Loop"], ", "), q.Header.Get("X-Request-Id")
			}
			if got != test.want || id == "made-up" || id == "" {
				t.Errorf("%q with %q, loop %d: the request for the page has CDN-Loop %q and X-Request-Id %q, want %q", request, test.before, test.loop, got, id, test.want)
			}
			r.record()
		}
	}
}
