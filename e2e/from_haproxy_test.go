package e2e

import (
	"strings"
	"testing"
)

func TestFromHAProxy(t *testing.T) {
	compare(t, "from-haproxy.md", "haproxy", fromHAProxy, startListed)
}

var fromHAProxy = []fromPair{
	{heading: "One application", asked: []string{"X-Forwarded-For", "X-Forwarded-Proto"}, tries: []try{
		{url: "http://app.example.org/a?b=c%20d", want: "200 " + app1 + " app.example.org/a?b=c%20d X-Forwarded-For=198.51.100.9 X-Forwarded-Proto=http"},
		{url: "http://app.example.org/", lines: []string{"X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: https"},
			want: "200 " + app1 + " app.example.org/ X-Forwarded-For=198.51.100.9 X-Forwarded-Proto=http",
			peer: "200 " + app1 + " app.example.org/ X-Forwarded-For=1.2.3.4,198.51.100.9 X-Forwarded-Proto=http"},
		{url: "http://app.example.org/a/../b", want: "400", peer: "200 " + app1 + " app.example.org/a/../b X-Forwarded-For=198.51.100.9 X-Forwarded-Proto=http"},
		{url: "http://app.example.org/status/404", want: "404"},
		{do: echoes("ws://app.example.org/ws"), want: "hello <nil>"},
	}},
	{heading: "Two sites", tries: []try{
		{url: "http://Shop.example.org/", want: "200 " + app1 + " Shop.example.org/"},
		{url: "http://a.b.shop.example.org/", want: "200 " + app1 + " a.b.shop.example.org/"},
		{url: "http://blog.example.org/x", want: "200 " + app2 + " blog.example.org/x"},
		{url: "http://other.example.org/", want: "404"},
	}},
	{heading: "HTTPS, and a redirect from HTTP", asked: []string{"X-Forwarded-Proto"}, answered: []string{"Location", "Strict-Transport-Security"}, tries: []try{
		{url: "http://app.example.org/a?b", want: "301 Location=https://app.example.org/a?b"},
		{url: "https://app.example.org/a?b", want: "200 " + app1 + " app.example.org/a?b X-Forwarded-Proto=https Strict-Transport-Security=max-age=31536000"},
	}},
	{heading: "A path prefix", tries: []try{
		{url: "http://app.example.org/api", want: "200 " + app1 + " app.example.org/"},
		{url: "http://app.example.org/api/users?a", want: "200 " + app1 + " app.example.org/users?a"},
		{url: "http://app.example.org/api/a%2Fb", want: "200 " + app1 + " app.example.org/a%2Fb"},
		{url: "http://app.example.org/apis", want: "200 " + app2 + " app.example.org/apis"},
	}},
	{heading: "Load balancing with health checks", down: app3, sick: app2, replaced: map[string]string{" 2s": " 200ms"}, tries: []try{
		{url: "http://app.example.org/", times: 12, settles: true, want: "200 " + app1 + " app.example.org/"},
	}},
	{heading: "Sticky sessions", tries: []try{
		{url: "http://app.example.org/", times: 4, want: "200 " + app1 + " app.example.org/, 200 " + app2 + " app.example.org/"},
		{do: sticks("http://app.example.org/", "NODE"), want: "sticks"},
	}},
	{heading: "PROXY headers", asked: []string{"X-Forwarded-For"}, tries: []try{
		{from: "192.0.2.10", proxy: "203.0.113.7", url: "http://app.example.org/", want: "200 " + app1 + " app.example.org/ X-Forwarded-For=203.0.113.7"},
		{url: "http://app.example.org/", want: "200 " + app1 + " app.example.org/ X-Forwarded-For=198.51.100.9"},
		{proxy: "203.0.113.7", url: "http://app.example.org/", want: "400"},
	}},
	{heading: "TCP, and TLS by SNI", tries: []try{
		{url: "https://one.example.org/", want: "200 10.0.0.11:8443 one.example.org/"},
		{url: "https://a.b.two.example.org/", want: "200 10.0.0.12:8443 a.b.two.example.org/"},
		{do: tunnels("5432"), want: "hello <nil>"},
	}},
	{heading: "Limits: rate, uploads and time", replaced: map[string]string{"30s": "2s"}, answered: []string{"Retry-After"}, tries: []try{
		{url: "http://app.example.org/login", times: 5, want: "200 " + app1 + " app.example.org/login"},
		{url: "http://app.example.org/login", want: "429 Retry-After=N", peer: "429"},
		{from: "203.0.113.7", url: "http://app.example.org/login", want: "200 " + app1 + " app.example.org/login"},
		{url: "http://app.example.org/", body: 10 << 20, want: "200 " + app1 + " app.example.org/"},
		{url: "http://app.example.org/", body: 10<<20 + 1, lines: []string{"Expect: 100-continue"}, want: "413"},
		{url: "http://app.example.org/hold", want: "504"},
	}},
	{heading: "Access, HTTP headers and compression", asked: []string{"X-Tenant", "X-Debug"}, answered: []string{"X-Frame-Options", "Content-Encoding"}, tries: []try{
		{url: "http://app.example.org/", lines: []string{"Accept-Encoding: gzip", "X-Debug: 1", "X-Tenant: red", "X-Pad: " + strings.Repeat("a", 2000)},
			want: "200 " + app1 + " app.example.org/ X-Tenant=blue X-Debug= X-Frame-Options=DENY Content-Encoding=gzip"},
		{url: "http://app.example.org/admin", want: "401 X-Frame-Options=DENY", peer: "401"},
		{url: "http://bob:builder@app.example.org/admin/x", want: "200 " + app1 + " app.example.org/admin/x X-Tenant=blue X-Debug= X-Frame-Options=DENY"},
		{url: "http://app.example.org/Admin", want: "400", peer: "200 " + app1 + " app.example.org/Admin X-Tenant=blue X-Debug= X-Frame-Options=DENY"},
		{url: "http://app.example.org/internal", want: "403 X-Frame-Options=DENY", peer: "403"},
		{from: "203.0.113.7", url: "http://app.example.org/internal", want: "200 " + app1 + " app.example.org/internal X-Tenant=blue X-Debug= X-Frame-Options=DENY"},
	}},
}
