package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// oddRequests are requests of old clients, and the responses of weir, HAProxy and nginx: each status on the
// connection. If HAProxy and nginx differ, they do not read the same request. docs/operations.md explains the
// responses of weir.
var oddRequests = []struct {
	name, request                 string
	weir, haproxy, nginx, lenient string
}{
	{"an empty line behind a body", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi\r\n" + lastRequest, "200 200", "200 200", "200 200", "200 200"},
	{"an empty line before the first request", "\r\n" + lastRequest, "200", "200", "200", "200"},
	{"four empty lines", "\r\n\r\n\r\n\r\n" + lastRequest, "200", "200", "200", "200"},
	{"five empty lines", "\r\n\r\n\r\n\r\n\r\n" + lastRequest, "400", "200", "200", "400"},
	{"a bare line feed before a request", "\n" + lastRequest, "400", "200", "200", "200"},
	{"two blanks in the request line", "GET  /  HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "200", "200", "200", "200"},
	{"a blank behind the version", "GET / HTTP/1.1 \r\nHost: a\r\nConnection: close\r\n\r\n", "400", "400", "200", "400"},
	{"HTTP/1.2", "GET / HTTP/1.2\r\nHost: a\r\nConnection: close\r\n\r\n", "200", "200", "200", "200"},
	{"an unknown Expect", "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", "200", "200", "200", "200"},
	{"an empty Expect", "POST / HTTP/1.1\r\nHost: a\r\nExpect:\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", "200", "200", "200", "200"},
	{"an ambiguous Expect", "POST / HTTP/1.1\r\nHost: a\r\nExpect: y 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", "417", "200", "200", "417"},
	{"the default port in the target", "GET http://a:80/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "200", "200", "200", "200"},
	{"the default port in Host", "GET http://a/ HTTP/1.1\r\nHost: a:80\r\nConnection: close\r\n\r\n", "200", "200", "200", "200"},
	{"another port in the target", "GET http://a:81/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "400", "400", "200", "400"},
	{"a control character in a value", "GET / HTTP/1.1\r\nHost: a\r\nX: \x01\r\nConnection: close\r\n\r\n", "400", "200", "200", "200"},
	{"a folded line", "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\nConnection: close\r\n\r\n", "400", "200", "400", "400"},
	{"bare line feeds", "GET / HTTP/1.1\nHost: a\nConnection: close\n\n", "400", "200", "200", "200"},
	{"one length twice", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", "400", "200", "400", "200"},
	{"a padded chunk size", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2 \r\nhi\r\n0\r\n\r\n", "400", "200", "200", "400"},
	{"a backslash in the path", "GET /a%5Cb HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "400", "200", "200", "200"},
	{"UTF-8 in the query", "GET /?q=\xc3\xa4 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "400", "400", "200", "200"},
	{"a percent sign without digits", "GET /100% HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "400", "200", "400", "200"},
	{"a control character in a cookie", "GET / HTTP/1.1\r\nHost: a\r\nCookie: a=\x7f\r\nConnection: close\r\n\r\n", "400", "200", "200", "200"},
}

const lastRequest = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

var anyStatus = regexp.MustCompile(`HTTP/1\.[01] (\d{3}) `)

func TestOddRequestsBesidePeers(t *testing.T) {
	t.Parallel()
	needLinux(t)
	needPeerVersions(t)
	config := strings.NewReplacer("listeners:\n", "listeners:\n  odd: {address: '@odd', protocol: http, lenient: [bare_lf, control_characters, equal_lengths, raw_targets]}\n",
		"routes: [", "routes: [{listeners: [odd], backend: app}, ").Replace(weirAsPeer)
	w, peers := startPeersOf(t, newRawBackend(t).address, config)
	peers = append(peers, peer{web: w.at("odd")})
	for _, c := range oddRequests {
		for i, want := range []string{c.weir, c.haproxy, c.nginx, c.lenient} {
			got, err := readToEnd(dialWith(t, peers[i].web, []byte(c.request)))
			if err != nil {
				t.Errorf("%s: %v after %q", c.name, err, got)
			}
			var statuses []string
			for _, m := range anyStatus.FindAllSubmatch(got, -1) {
				statuses = append(statuses, string(m[1]))
			}
			if got := strings.Join(statuses, " "); got != want {
				t.Errorf("%s: %s answers %q, not %q", c.name, peerNames[i], got, want)
			}
		}
	}
}

var peerNames = []string{"weir", "HAProxy", "nginx", "weir with lenient"}

// oddResponses are responses of old servers. Each has its results: the status and the body. Proxies differ in
// how they read chunks after an HTTP/1.0 head, and two lengths.
var oddResponses = []struct {
	name, response                string
	weir, haproxy, nginx, lenient string
}{
	{"one length twice", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "200 hello", "200 hello", "200 hello", "200 hello"},
	{"one length as a list", "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello", "200 hello", "200 hello", "200 hello", "200 hello"},
	{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "502", "502", "200 hello!", "502"},
	{"padded chunk sizes", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5   \r\nhello\r\n0   \r\n\r\n", "200 hello", "200 hello", "200 hello", "200 hello"},
	{"an empty line before it", "\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "200 hello", "200 hello", "no response", "200 hello"},
	{"bare line feeds", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "502", "200 hello", "200 hello", "200 hello"},
	{"one bare line feed", "HTTP/1.1 200 OK\r\nX: y\nContent-Length: 5\r\n\r\nhello", "502", "200 hello", "200 hello", "200 hello"},
	{"chunks behind HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "502", "200 5\r\nhello\r\n0\r\n\r\n", "200 hello", "200 hello"},
	{"a folded line", "HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 5\r\n\r\nhello", "502", "200 hello", "502", "200 hello"},
	{"a length beside chunks", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "502", "200 hello", "200 hello", "200 hello"},
	{"chunked twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "502", "502", "200 hello", "200 hello"},
	{"the encoding identity", "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello", "502", "502", "200 hello", "200 hello"},
	{"a control character in a value", "HTTP/1.1 200 OK\r\nX: \x1b\r\nContent-Length: 5\r\n\r\nhello", "502", "no response", "no response", "200 hello"},
	{"chunks that end in bare line feeds", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n", "no response", "200 hello", "200 hello", "200 hello"},
}

func TestOddResponsesBesidePeers(t *testing.T) {
	t.Parallel()
	needLinux(t)
	needPeerVersions(t)
	app := serve(t, func(c net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		n := 0
		fmt.Sscanf(req.URL.Path, "/%d", &n)
		io.WriteString(c, oddResponses[n].response)
	})
	config := strings.NewReplacer("listeners:\n", "listeners:\n  odd: {address: '@odd', protocol: http}\n",
		"routes: [", "routes: [{listeners: [odd], backend: odd}, ",
		"backends: {app: {endpoints: ['@app']}}", "backends:\n  app: {endpoints: ['@app']}\n").Replace(weirAsPeer) +
		"  odd: {endpoints: ['@app'], lenient: [bare_lf, chunked_http10, control_characters, folded_lines, identity_encoding, length_with_chunked, twice_chunked]}\n"
	w, peers := startPeersOf(t, app, config)
	peers = append(peers, peer{web: w.at("odd")})
	for n, c := range oddResponses {
		for i, want := range []string{c.weir, c.haproxy, c.nginx, c.lenient} {
			if got := oddOutcome(t, peers[i].web, n); got != want {
				t.Errorf("%s: %s answers %q, not %q", c.name, peerNames[i], got, want)
			}
		}
	}
}

// oddOutcome sends a proxy the request for the n-th of oddResponses, and returns the result.
func oddOutcome(t *testing.T, address string, n int) string {
	c := dialWith(t, address, fmt.Appendf(nil, "GET /%d HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", n))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "no response"
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode != 200:
		return fmt.Sprint(resp.StatusCode)
	case err != nil:
		return "200 cut"
	}
	return "200 " + string(body)
}
