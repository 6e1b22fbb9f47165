package e2e

import (
	"strings"
	"testing"
)

func TestFromNginx(t *testing.T) {
	compare(t, "from-nginx.md", "nginx", fromNginx, startListed)
}

var fromNginx = []fromPair{
	{heading: "One application", asked: []string{"X-Forwarded-For", "X-Real-IP", "X-Forwarded-Proto"}, tries: []try{
		{url: "http://app.example.org/a?b=c%20d", want: "200 " + app1 + " app.example.org/a?b=c%20d X-Forwarded-For=198.51.100.9 X-Real-IP=198.51.100.9 X-Forwarded-Proto=http"},
		{url: "http://app.example.org/", lines: []string{"X-Forwarded-For: 1.2.3.4", "X-Real-IP: 1.2.3.4", "X-Forwarded-Proto: https"},
			want: "200 " + app1 + " app.example.org/ X-Forwarded-For=198.51.100.9 X-Real-IP=198.51.100.9 X-Forwarded-Proto=http",
			peer: "200 " + app1 + " app.example.org/ X-Forwarded-For=1.2.3.4, 198.51.100.9 X-Real-IP=198.51.100.9 X-Forwarded-Proto=http"},
		{url: "http://app.example.org/a/../b", want: "400", peer: "200 " + app1 + " app.example.org/a/../b X-Forwarded-For=198.51.100.9 X-Real-IP=198.51.100.9 X-Forwarded-Proto=http"},
		{url: "http://app.example.org/status/404", want: "404"},
	}},
	{heading: "Two sites", tries: []try{
		{url: "http://shop.example.org/", want: "200 " + app1 + " shop.example.org/"},
		{url: "http://a.b.shop.example.org/", want: "200 " + app1 + " a.b.shop.example.org/"},
		{url: "http://blog.example.org/x", want: "200 " + app2 + " blog.example.org/x"},
		{url: "http://other.example.org/", want: "404"},
	}},
	{heading: "HTTPS, and a redirect from HTTP", asked: []string{"X-Forwarded-Proto"}, answered: []string{"Location", "Strict-Transport-Security"}, tries: []try{
		{url: "http://app.example.org/a?b", want: "301 Location=https://app.example.org/a?b"},
		{url: "https://app.example.org/a?b", want: "200 " + app1 + " app.example.org/a?b X-Forwarded-Proto=https Strict-Transport-Security=max-age=31536000"},
	}},
	{heading: "A path prefix", tries: []try{
		{url: "http://app.example.org/api", want: "200 " + app1 + " app.example.org/", peer: "301"},
		{url: "http://app.example.org/api/users?a", want: "200 " + app1 + " app.example.org/users?a"},
		{url: "http://app.example.org/apis", want: "200 " + app2 + " app.example.org/apis"},
		{url: "http://app.example.org/", want: "200 " + app2 + " app.example.org/"},
		{url: "http://app.example.org/api/a%2Fb", want: "200 " + app1 + " app.example.org/a%2Fb", peer: "200 " + app1 + " app.example.org/a/b"},
	}},
	{heading: "WebSockets", tries: []try{
		{do: echoes("ws://app.example.org/ws"), want: "hello <nil>"},
	}},
	{heading: "Load balancing", down: app3, tries: []try{
		{url: "http://app.example.org/", times: 12, want: "200 " + app1 + " app.example.org/, 200 " + app2 + " app.example.org/"},
	}},
	{heading: "The client's address behind a load balancer", asked: []string{"X-Real-IP", "X-Forwarded-Proto"}, tries: []try{
		{from: "192.0.2.10", url: "http://app.example.org/", lines: []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.7, 192.0.2.11", "X-Forwarded-Proto: https"},
			want: "200 " + app1 + " app.example.org/ X-Real-IP=203.0.113.7 X-Forwarded-Proto=https",
			peer: "200 " + app1 + " app.example.org/ X-Real-IP=203.0.113.7 X-Forwarded-Proto=http"},
		{url: "http://app.example.org/", lines: []string{"X-Forwarded-For: 203.0.113.7", "X-Forwarded-Proto: https"},
			want: "200 " + app1 + " app.example.org/ X-Real-IP=198.51.100.9 X-Forwarded-Proto=http"},
	}},
	{heading: "A password, and an allow list", asked: []string{"X-Forwarded-User"}, answered: []string{"WWW-Authenticate"}, tries: []try{
		{url: "http://app.example.org/", want: "200 " + app1 + " app.example.org/ X-Forwarded-User="},
		{url: "http://app.example.org/admin", want: `401 WWW-Authenticate=Basic realm="Staff", charset="UTF-8"`, peer: `401 WWW-Authenticate=Basic realm="Staff"`},
		{url: "http://ada:wrong@app.example.org/admin/x", want: `401 WWW-Authenticate=Basic realm="Staff", charset="UTF-8"`, peer: `401 WWW-Authenticate=Basic realm="Staff"`},
		{url: "http://bob:builder@app.example.org/admin/x", want: "200 " + app1 + " app.example.org/admin/x X-Forwarded-User=bob", peer: "200 " + app1 + " app.example.org/admin/x X-Forwarded-User="},
		{url: "http://app.example.org/Admin", want: "400", peer: "200 " + app1 + " app.example.org/Admin X-Forwarded-User="},
		{url: "http://app.example.org/internal", want: "403"},
		{from: "203.0.113.7", url: "http://app.example.org/internal", want: "200 " + app1 + " app.example.org/internal X-Forwarded-User="},
	}},
	{heading: "Limits: rate, uploads and time", replaced: map[string]string{"30s": "2s"}, answered: []string{"Retry-After"}, tries: []try{
		{url: "http://app.example.org/login", times: 5, want: "200 " + app1 + " app.example.org/login"},
		{url: "http://app.example.org/login", want: "429 Retry-After=N", peer: "429"},
		{from: "203.0.113.7", url: "http://app.example.org/login", want: "200 " + app1 + " app.example.org/login"},
		{url: "http://app.example.org/", body: 10 << 20, want: "200 " + app1 + " app.example.org/"},
		{url: "http://app.example.org/", body: 10<<20 + 1, lines: []string{"Expect: 100-continue"}, want: "413"},
		{url: "http://app.example.org/hold", want: "504"},
	}},
	{heading: "HTTP headers and compression", asked: []string{"X-Tenant", "X-Debug"}, answered: []string{"X-Frame-Options", "Content-Encoding", "Vary", "X-Powered-By"}, tries: []try{
		{url: "http://app.example.org/", lines: []string{"Accept-Encoding: gzip", "X-Debug: 1", "X-Tenant: red"}, want: "200 " + app1 + " app.example.org/ X-Tenant=blue X-Debug= X-Frame-Options=DENY"},
		{url: "http://app.example.org/", lines: []string{"Accept-Encoding: gzip", "X-Pad: " + strings.Repeat("a", 2000)},
			want: "200 " + app1 + " app.example.org/ X-Tenant=blue X-Debug= X-Frame-Options=DENY Content-Encoding=gzip Vary=Accept-Encoding"},
		{url: "http://app.example.org/status/404", want: "404 X-Frame-Options=DENY"},
	}},
}
