package main

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// world makes the random things of a round.
type world struct{ *rand.Rand }

func newWorld(seed uint64) *world { return &world{rand.New(rand.NewPCG(seed, 39))} }

func one[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

// some returns each of the given things with a probability.
func some(w *world, p float64, of ...string) []string {
	var all []string
	for _, s := range of {
		if w.Float64() < p {
			all = append(all, s)
		}
	}
	return all
}

var (
	hosts = []string{"a.test", "b.test", "x.c.test", "y.x.d.test", "nobody.test"}
	paths = []string{"/", "/api", "/api/x", "/apis", "/admin", "/admin/users?q=1&token=secret", "/v12/x", "/exact", "/exact/", "/a%20b", "/old/page?beta=1"}
)

// configuration is a random file, in three parts. Addresses are names such as @web.
type configuration struct {
	before string
	routes [][]string // the keys of each
	after  string
}

func (c *configuration) text() string {
	var b strings.Builder
	b.WriteString(c.before)
	for _, r := range c.routes {
		fmt.Fprintf(&b, "  - {%s}\n", strings.Join(r, ", "))
	}
	b.WriteString(c.after)
	return b.String()
}

func (w *world) configuration() *configuration {
	var b strings.Builder
	c := &configuration{}
	b.WriteString(`node: node-a
health: {address: '@health'}
admin: {address: '@admin'}
drain: {lame_duck: 0s, timeout: 5s}
log: {level: error}
`)
	fmt.Fprintf(&b, "access_log: {path: '@@dir/access.log'%s}\n", one(w, "", "", ", redact: [token]", ", fields: [default, \"request_header:X-Canary\"]", ", omit: [user_agent]", ", filter: {status: [400-599]}"))
	fmt.Fprintf(&b, `listeners:
  web: {address: '@web', protocol: http%s}
  secure: {address: '@secure', protocol: tls%s}
  edge: {address: '@edge', protocol: http, proxy_protocol: lb}
  raw: {address: '@raw', protocol: tcp}
proxy_protocol:
  lb: {rules: [{from: [127.0.0.0/8], header: %s}]}
certificates:
  - self_signed: {hosts: [a.test, b.test, "*.c.test", localhost]}
`, one(w, "", "", ", trust_forwarded: [127.0.0.0/8]", ", lenient: [raw_targets]", ", limits: {head_fields: 20}"),
		one(w, "", "", ", trust_forwarded: [127.0.0.1/32]"), one(w, "require", "require", "optional"))
	b.WriteString(`auth:
  staff: {basic: {file: '@@dir/users', realm: Staff}}
  asked: {forward: {url: 'http://@decider/check', headers: [X-User]}}
rate_limits:
  few: {rate: 1/h, burst: 2}
  keys: {rate: 1/h, burst: 1, per: "header:X-Api-Key", status: 503}
routes:
`)
	c.routes = [][]string{{"name: raw", "listeners: [raw]", "backend: stream"},
		append([]string{"name: rest", "listeners: [web, secure, edge]", "backend: app"}, w.features(0.14)...)}
	for n := range 8 + w.IntN(8) {
		c.routes = append(c.routes, w.route(n))
	}
	c.before = b.String()
	c.after = fmt.Sprintf(`backends:
  app: {endpoints: ['@app']%s}
  next: {endpoints: ['@next']%s}
  pages: {endpoints: ['@pages']}
  gone: {endpoints: ['@gone'], timeouts: {connect: 300ms}}
  stream: {protocol: tcp, endpoints: ['@stream']%s}
`, one(w, "", "", ", lenient: [twice_chunked]", ", retries: {attempts: 2}", ", timeouts: {response_head: 2s}"),
		one(w, "", "", ", send_proxy: v1", ", send_proxy: v2", ", max_connections: 4"), one(w, "", ", send_proxy: v1", ", send_proxy: v2"))
	return c
}

var wrongKey = regexp.MustCompile(`: routes\[([0-9]+)\](?:\.([a-z_]+))?`)

// drop takes out the keys of routes that are errors, or the whole route if it is nothing without the key. It
// reports whether there were any.
func (c *configuration) drop(errors []string) bool {
	wrong := map[int]bool{}
	for _, line := range errors {
		m := wrongKey.FindStringSubmatch(line)
		if m == nil || strings.Contains(line, " warning: ") {
			continue
		}
		n, _ := strconv.Atoi(m[1])
		keys := len(c.routes[n])
		switch m[2] {
		case "", "listeners", "hosts", "paths", "backend", "backends":
		default:
			c.routes[n] = slices.DeleteFunc(c.routes[n], func(k string) bool { return strings.HasPrefix(k, m[2]+":") })
		}
		wrong[n] = wrong[n] || len(c.routes[n]) == keys
	}
	kept := c.routes[:0]
	for n, r := range c.routes {
		if !wrong[n] {
			kept = append(kept, r)
		}
	}
	dropped := len(wrong) > 0
	c.routes = kept
	return dropped
}

// route is a random route, as the keys of a mapping.
func (w *world) route(n int) []string {
	keys := []string{"listeners: [" + one(w, "web", "web, secure", "web, secure, edge", "web, secure, edge", "secure", "edge") + "]"}
	if w.Float64() < 0.3 {
		keys = append(keys, fmt.Sprintf("name: route-%d", n))
	}
	keys = append(keys, some(w, 0.8, "hosts: ["+one(w, "a.test", "a.test", "b.test", "a.test, b.test", `"*.c.test"`, `"**.d.test"`)+"]")...)
	keys = append(keys, some(w, 0.7, "paths: ["+one(w, "/", "/api", `"=/exact"`, `"~/v([0-9]+)/(.*)"`, "/admin", "/old", "/api, /old", `"/a%20b"`)+"]")...)
	keys = append(keys, some(w, 0.2, one(w, "match: {methods: [POST, PUT]}", `match: {headers: {X-Canary: always}}`, `match: {query: {beta: "*"}}`, `match: {cookies: {tester: "~y.*"}}`, "match: {clients: [127.0.0.0/8]}"))...)
	switch w.IntN(8) {
	case 0:
		keys = append(keys, one(w, "redirect: https", "redirect: {to: 'https://www.a.test{uri}'}", "redirect: {prefix: /new, status: 301}", "redirect: {scheme: http, host: b.test}", "redirect: {path: /x, status: 302}"))
		if w.Float64() < 0.3 {
			keys = append(keys, "backend: app")
		}
	case 1:
		keys = append(keys, one(w, "respond: {status: 503, body: \"back soon\\n\"}", "respond: {status: 204}", `respond: {body: "<p>", type: text/html, headers: {X-Path: "{path}", Retry-After: "120"}}`))
	case 2:
		keys = append(keys, "backends: [{name: app, weight: 3}, {name: next, weight: 1}]")
	case 3:
		keys = append(keys, "backend: "+one(w, "next", "gone", "gone", "stream", "none"))
	default:
		keys = append(keys, "backend: app")
	}
	return append(keys, w.features(0.14)...)
}

// features are the keys of a route besides what it matches and its backend.
func (w *world) features(p float64) []string {
	return some(w, p,
		one(w, "clients: {allow: [10.0.0.0/8]}", "clients: {deny: [192.0.2.0/24]}", "clients: {allow: [127.0.0.0/8], deny: [127.0.0.2/32]}"),
		one(w, "auth: staff", "auth: asked", "auth: missing"),
		one(w, "satisfy: any", "satisfy: all"),
		one(w, "rate_limit: few", "rate_limit: keys"),
		one(w, "in_flight: {most: 100}", "in_flight: {most: 1, per: route, status: 429}"),
		one(w, "max_body: 10B", "max_body: 1MiB"),
		one(w, `request: {set: {X-Url: "{scheme}://{host}{uri}", X-Client: "{client}"}}`, `request: {remove: [X-Debug, "X-Internal-*"], add: {X-Via: weir}}`, "request: {set: {Host: b.test}}"),
		one(w, "rewrite: {prefix: /}", "rewrite: {path: /fixed}", "rewrite: {host: b.test}", "rewrite: {path: /x/$2/$1}", "rewrite: {prefix: /admin}"),
		one(w, "response: {remove: [Server], set: {X-A: b}}", `response: {add: {Vary: Accept, X-Host: "{host}"}}`),
		one(w, `cors: {origins: ["https://app.test"], methods: [GET, PUT], headers: [X-Token], max_age: 10m}`, `cors: {origins: ["*"]}`, `cors: {origins: ["https://**.test"], credentials: true, expose: [X-A]}`),
		one(w, "hsts: {max_age: 1h}", "hsts: {max_age: 8760h, include_subdomains: true, preload: true}"),
		one(w, `errors: [{status: [404, "500-599"], backend: pages, path: "/{status}.html"}]`, `errors: [{status: [401, 403, 429], backend: pages, path: /denied}]`, `errors: [{status: [503], backend: gone, path: /x}]`),
		"compress: true",
		one(w, "mirror: [{backend: next}]", "mirror: [{backend: gone, percent: 50}]"),
		one(w, "timeouts: {request: 5s}", "timeouts: {try: 400ms}", "timeouts: {response_head: 400ms, connect: 1s}"),
		one(w, "retries: {attempts: 2, when: [connect, timeout, 503]}", "retries: {attempts: 1}", "retries: {attempts: 3, when: [reset, 500-599], non_idempotent: true}"),
		one(w, "access_log: false", "traces: false"),
		one(w, "tls_policy: default", "tls: passthrough", "first_bytes: ssh", "max_lifetime: 1h", "tunnel_idle: 1h", "tunnel_idle: 1h", "tls_policy: default"),
	)
}

// broken is the file with some mistakes.
func (w *world) broken(file string) string {
	lines := strings.Split(strings.TrimSuffix(file, "\n"), "\n")
	for range 1 + w.IntN(2) {
		n := w.IntN(len(lines))
		switch line := lines[n]; w.IntN(7) {
		case 0:
			lines = append(lines[:n], lines[n+1:]...)
		case 1:
			lines = append(lines[:n+1], lines[n:]...)
		case 2: // a typing error
			if len(line) > 4 {
				at := 1 + w.IntN(len(line)-2)
				lines[n] = line[:at] + line[at+1:]
			}
		case 3:
			lines[n] = strings.Replace(line, ": ", ": "+one(w, "-1", "x", "true", "[]", "{}", "0s", "10 ", "null", "\"\"", "/"), 1)
		case 4:
			lines[n] = line + one(w, "}", " {", " x: 1", " # c", "\t", " '")
		case 5:
			if a, b, ok := strings.Cut(line, ", "); ok {
				lines[n] = a + ", " + one(w, "colour: red, ", "root: /srv, ", "backend: app, ", "timeout: 5s, ", "hosts: [a..test], ", "paths: [x], ") + b
			}
		default:
			lines[n] = strings.ReplaceAll(line, one(w, "app", "web", "test", "127", "true", "/"), one(w, "", "other", "*", "999", "é"))
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// request is one request of the round.
type request struct {
	over     string // web, secure, edge: HTTP/1.1; h2: HTTP/2 at secure
	method   string
	host     string
	path     string
	header   [][2]string
	body     string
	chunked  bool
	raw      string // in place of all: the bytes
	preamble string // the PROXY header
}

func (w *world) request(n int) request {
	r := request{over: one(w, "web", "web", "secure", "edge", "h2"), host: one(w, append(hosts, "a.test", "a.test", "a.test", "b.test", "b.test")...), path: one(w, paths...), method: one(w, "GET", "GET", "GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE")}
	separator := "?"
	if strings.Contains(r.path, "?") {
		separator = "&"
	}
	r.path += fmt.Sprintf("%sn=%d%s", separator, n, one(w, "", "", "", "&do=503", "&do=404", "&do=chunked", "&do=large", "&do=close", "&do=cookie", "&do=interim"))
	for _, h := range [][2]string{
		{"User-Agent", "compare"}, {"Accept-Encoding", one(w, "gzip", "br, gzip;q=0.5", "zstd", "identity")}, {"X-Canary", one(w, "always", "never")},
		{"Authorization", one(w, "Basic YWRhOnNlY3JldA==", "Basic YWRhOndyb25n", "Bearer x.y.z")}, {"Cookie", one(w, "tester=yes", "a=b; tester=no")},
		{"Origin", one(w, "https://app.test", "https://evil.example")}, {"Access-Control-Request-Method", one(w, "PUT", "GET")},
		{"X-Forwarded-For", one(w, "203.0.113.7", "10.1.1.1, 203.0.113.9", "junk")}, {"X-Forwarded-Proto", "https"}, {"X-Forwarded-User", "root"},
		{"X-Api-Key", one(w, "one", "two")}, {"X-Internal-Secret", "1"}, {"X_Debug", "1"}, {"X-Debug", "1"}, {"Accept", "text/html"},
		{"Range", "bytes=0-3"}, {"If-None-Match", `"v1"`}, {"X-Request-Id", "given"}, {"Forwarded", "for=1.2.3.4"}, {"Te", one(w, "trailers", "gzip")},
	} {
		if w.Float64() < 0.2 {
			r.header = append(r.header, h)
		}
	}
	if r.method == "POST" || r.method == "PUT" {
		r.body, r.chunked = strings.Repeat("b", w.IntN(40)), w.Float64() < 0.3
	}
	if r.over == "edge" {
		r.preamble = one(w, "PROXY TCP4 192.0.2.7 127.0.0.1 4000 80\r\n", "PROXY TCP6 2001:db8::7 2001:db8::1 4000 80\r\n", "PROXY UNKNOWN\r\n", "",
			"PROXY TCP4 192.0.2.7 127.0.0.1 4000\r\n", "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x0a\x01\x01\x01\x7f\x00\x00\x01\x0f\xa0\x00\x50", "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00")
	}
	if r.over != "h2" && w.Float64() < 0.25 {
		r.raw = w.hostile(r)
	}
	return r
}

// hostile are the bytes of a request that may be refused.
func (w *world) hostile(r request) string {
	target, host := r.path, "Host: "+r.host+"\r\n"
	return one(w,
		"GET "+target+" HTTP/1.1\r\n\r\n",
		"GET "+target+" HTTP/1.1\r\n"+host+host+"\r\n",
		"GET "+target+" HTTP/1.0\r\n"+host+"\r\n",
		"GET "+target+" HTTP/2.0\r\n"+host+"\r\n",
		"GET http://"+r.host+target+" HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"GET /a/../admin"+target+" HTTP/1.1\r\n"+host+"\r\n",
		"GET /a%5c..%5cadmin HTTP/1.1\r\n"+host+"\r\n",
		"GET /%zz HTTP/1.1\r\n"+host+"\r\n",
		"GET /%2e%2e/admin HTTP/1.1\r\n"+host+"\r\n",
		"GET //admin HTTP/1.1\r\n"+host+"\r\n",
		"GET /;x=1/admin HTTP/1.1\r\n"+host+"\r\n",
		"POST "+target+" HTTP/1.1\r\n"+host+"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
		"POST "+target+" HTTP/1.1\r\n"+host+"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST "+target+" HTTP/1.1\r\n"+host+"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
		"POST "+target+" HTTP/1.1\r\n"+host+"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n",
		"POST "+target+" HTTP/1.1\r\n"+host+"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
		"POST "+target+" HTTP/1.1\r\n"+host+"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
		"GET "+target+" HTTP/1.1\r\n"+host+"X Y: 1\r\n\r\n",
		"GET "+target+" HTTP/1.1\r\n"+host+"X:\x01\r\n\r\n",
		"GET "+target+" HTTP/1.1\n"+host+"\r\n",
		"GET "+target+" HTTP/1.1\r\n"+host+" folded: 1\r\n\r\n",
		"GET "+target+" HTTP/1.1\r\n"+host+"Connection: X-Canary, close\r\nX-Canary: always\r\n\r\n",
		"GET "+target+" HTTP/1.1\r\n"+host+"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
		"CONNECT a.test:443 HTTP/1.1\r\n"+host+"\r\n",
		"TRACE "+target+" HTTP/1.1\r\n"+host+"\r\n",
		"OPTIONS * HTTP/1.1\r\n"+host+"\r\n",
		"GET "+target+" HTTP/1.1\r\n"+host+strings.Repeat("X-Many: 1\r\n", 30)+"\r\n",
		"SSH-2.0-compare\r\n\r\n",
		"\x16\x03\x01\x00\x05hello\r\n\r\n",
	)
}
