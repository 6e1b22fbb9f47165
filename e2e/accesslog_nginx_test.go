package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// upstreamInfo is the default format of ingress-nginx. ingress-nginx sets the last three variables itself.
const upstreamInfo = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" ` +
	`$request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length ` +
	`$upstream_response_time $upstream_status $req_id`

// nginx and weir get the same requests, and write the same lines in nginx's and ingress-nginx's formats. Only times
// and request IDs differ.
func TestAccessLogIsThatOfNginx(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/missing" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, "hello")
	}))
	t.Cleanup(app.Close)
	endpoint := app.Listener.Addr().String()
	requests := []string{
		"GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: curl/8.5.0\r\nReferer: https://b.example/?q=1\r\nConnection: close\r\n\r\n",
		"GET /a%20b?x=1&y=%22 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n",
		"GET /missing HTTP/1.1\r\nHost: a.example\r\nUser-Agent: -\r\nConnection: close\r\n\r\n",
		"POST /form HTTP/1.1\r\nHost: a.example\r\nContent-Length: 7\r\nConnection: close\r\n\r\na=1&b=2",
		"HEAD /head HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n",
		"GET /old HTTP/1.0\r\nHost: a.example\r\n\r\n",
		"GET /quoted HTTP/1.1\r\nHost: a.example\r\nUser-Agent: \"a\\b\" é\r\nConnection: close\r\n\r\n",
	}
	dir := t.TempDir()
	front := freePort(t)
	runProxy(t, "nginx", dir, fmt.Sprintf(`
log_format upstreaminfo '%s';
upstream app { server %s; }
server {
    listen %s;
    access_log %s/combined combined;
    access_log %s/upstreaminfo upstreaminfo;
    set $proxy_upstream_name app;
    set $proxy_alternative_upstream_name "";
    set $req_id $request_id;
    location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; }
}`, upstreamInfo, endpoint, front, dir, dir)).listening(front)
	for _, format := range []struct{ of, as string }{{"combined", "nginx"}, {"upstreaminfo", "ingress-nginx"}} {
		w := newWeir(t).start(`
listeners: {web: {address: "@web", protocol: http}}
backends: {app: {endpoints: ["` + endpoint + `"]}}
routes: [{listeners: [web], backend: app}]
access_log: {path: '@@access', format: ` + format.as + `}
`)
		if err := os.Truncate(filepath.Join(dir, format.of), 0); err != nil {
			t.Fatal(err)
		}
		for _, r := range requests {
			exchangeRaw(t, front, r)
			exchangeRaw(t, w.at("web"), r)
		}
		var want, got []string
		eventually(t, "both have written all lines", func() error {
			want, got = maskedLines(t, filepath.Join(dir, format.of)), maskedLines(t, w.access)
			if len(want) != len(requests) || len(got) != len(requests) {
				return fmt.Errorf("nginx wrote %d lines, and weir %d", len(want), len(got))
			}
			return nil
		})
		if !slices.Equal(got, want) {
			t.Errorf("%s: weir writes\n%s\nand nginx\n%s", format.as, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// exchangeRaw sends a request, and reads the response to its end.
func exchangeRaw(t *testing.T, address, request string) {
	t.Helper()
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, bufio.NewReader(c)); err != nil {
		t.Fatal(err)
	}
}

// varying matches the parts of a line that differ between two requests: the time, durations in seconds, and the
// request ID.
var varying = regexp.MustCompile(`\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}| \d+\.\d{3} | [0-9a-f]{32}$`)

// maskedLines returns the lines of a file with "~" in place of the varying parts. It sorts the lines, because a
// line may be written after the line of the next request.
func maskedLines(t *testing.T, file string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		lines = append(lines, varying.ReplaceAllString(strings.TrimSuffix(line, "\n"), " ~ "))
	}
	slices.Sort(lines)
	return lines
}
