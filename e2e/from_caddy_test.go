package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestFromCaddy(t *testing.T) {
	compare(t, "from-caddy.md", "caddyfile", fromCaddy, startCaddy)
}

var caddyPort = regexp.MustCompile(`(?m)^:(\d+) `)

// startCaddy starts Caddy with the ports of the test, and with an authority in the process in place of a public one.
func startCaddy(s *side, dir, config string) {
	options := "{\n\tadmin off\n\tpersist_config off\n\tlocal_certs\n\tskip_install_trust\n\tdefault_bind 127.0.0.1\n\thttp_port " + port(s.at("80")) + "\n\thttps_port " + port(s.at("443")) + "\n"
	if rest, ok := strings.CutPrefix(config, "{\n"); ok {
		config = options + rest
	} else {
		config = options + "}\n" + config
	}
	config = caddyPort.ReplaceAllStringFunc(config, func(line string) string { return ":" + port(s.at(line[1:len(line)-1])) + " " })
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		s.t.Fatal(err)
	}
	env := []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}
	runPeerWith(s.t, env, need(s.t, "caddy"), "run", "--config", file, "--adapter", "caddyfile").listening(s.at("80"))
}

var fromCaddy = []fromPair{
	{heading: "One application", asked: []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host"}, answered: []string{"Location"},
		replaced: map[string]string{"acme: {email: ops@example.org}": "self_signed: {hosts: [app.example.org]}"}, tries: []try{
			{url: "http://app.example.org/a?b", want: "308 Location=https://app.example.org/a?b"},
			{url: "https://app.example.org/a?b=c%20d", lines: []string{"X-Forwarded-For: 1.2.3.4"}, settles: true,
				want: "200 " + app1 + " app.example.org/a?b=c%20d X-Forwarded-For=198.51.100.9 X-Forwarded-Proto=https X-Forwarded-Host=app.example.org"},
			{url: "https://app.example.org/a/../b", want: "400", peer: "200 " + app1 + " app.example.org/a/../b X-Forwarded-For=198.51.100.9 X-Forwarded-Proto=https X-Forwarded-Host=app.example.org"},
			{do: echoes("wss://app.example.org/ws"), want: "hello <nil>"},
		}},
	{heading: "Two sites", tries: []try{
		{url: "https://shop.example.org/", settles: true, want: "200 " + app1 + " shop.example.org/"},
		{url: "https://a.shop.example.org/", settles: true, want: "200 " + app1 + " a.shop.example.org/"},
		{url: "https://blog.example.org/x", settles: true, want: "200 " + app2 + " blog.example.org/x"},
	}},
	{heading: "A certificate of your own", asked: []string{"X-Forwarded-Proto"}, answered: []string{"Location", "Strict-Transport-Security"}, tries: []try{
		{url: "http://app.example.org/a?b", want: "308 Location=https://app.example.org/a?b"},
		{url: "https://app.example.org/a?b", want: "200 " + app1 + " app.example.org/a?b X-Forwarded-Proto=https Strict-Transport-Security=max-age=31536000"},
	}},
	{heading: "A path prefix", tries: []try{
		{url: "http://app.example.org/api/users?a", want: "200 " + app1 + " app.example.org/users?a"},
		{url: "http://app.example.org/api/a%2Fb", want: "200 " + app1 + " app.example.org/a%2Fb"},
		{url: "http://app.example.org/api", want: "200 " + app1 + " app.example.org/", peer: "200 " + app2 + " app.example.org/api"},
		{url: "http://app.example.org/apis", want: "200 " + app2 + " app.example.org/apis"},
		{url: "http://other.example.org/", want: "404", peer: "200"},
	}},
	{heading: "Redirects", answered: []string{"Location"}, tries: []try{
		{url: "http://www.example.org/a?b", want: "301 Location=http://example.org/a?b"},
		{url: "http://example.org/old", want: "302 Location=http://example.org/new", peer: "302 Location=/new"},
		{url: "http://example.org/old/x", want: "200 " + app1 + " example.org/old/x"},
	}},
	{heading: "Load balancing with health checks", down: app3, sick: app2, replaced: map[string]string{"interval: 2s": "interval: 200ms", "interval 2s": "interval 200ms"}, tries: []try{
		{url: "http://app.example.org/", times: 12, settles: true, want: "200 " + app1 + " app.example.org/"},
	}},
	{heading: "Behind a load balancer", asked: []string{"X-Forwarded-For", "X-Forwarded-Proto"}, tries: []try{
		{from: "192.0.2.10", url: "http://app.example.org/", lines: []string{"X-Forwarded-For: 203.0.113.7", "X-Forwarded-Proto: https"},
			want: "200 " + app1 + " app.example.org/ X-Forwarded-For=203.0.113.7, 192.0.2.10 X-Forwarded-Proto=https"},
		{url: "http://app.example.org/", lines: []string{"X-Forwarded-For: 203.0.113.7", "X-Forwarded-Proto: https"},
			want: "200 " + app1 + " app.example.org/ X-Forwarded-For=198.51.100.9 X-Forwarded-Proto=http"},
		{from: "192.0.2.10", url: "http://app.example.org/internal", lines: []string{"X-Forwarded-For: 1.2.3.4, 203.0.113.7"},
			want: "200 " + app1 + " app.example.org/internal X-Forwarded-For=1.2.3.4, 203.0.113.7, 192.0.2.10 X-Forwarded-Proto=http"},
		{from: "192.0.2.10", url: "http://app.example.org/internal", lines: []string{"X-Forwarded-For: 203.0.113.7, 1.2.3.4"}, want: "403"},
	}},
	{heading: "A password, and an allow list", asked: []string{"X-Forwarded-User"}, tries: []try{
		{url: "http://app.example.org/", want: "200 " + app1 + " app.example.org/ X-Forwarded-User="},
		{url: "http://app.example.org/admin", want: "401"},
		{url: "http://ada:wrong@app.example.org/admin/x", want: "401"},
		{url: "http://ada:lovelace@app.example.org/admin/x", want: "200 " + app1 + " app.example.org/admin/x X-Forwarded-User=ada", peer: "200 " + app1 + " app.example.org/admin/x X-Forwarded-User="},
		{url: "http://app.example.org/Admin", want: "400", peer: "401"},
		{url: "http://app.example.org/internal", want: "403"},
		{from: "203.0.113.7", url: "http://app.example.org/internal", want: "200 " + app1 + " app.example.org/internal X-Forwarded-User="},
	}},
	{heading: "Uploads and timeouts", replaced: map[string]string{"30s": "2s"}, tries: []try{
		{url: "http://app.example.org/", body: 10 << 20, want: "200 " + app1 + " app.example.org/"},
		{url: "http://app.example.org/", body: 10<<20 + 1, lines: []string{"Expect: 100-continue"}, want: "413"},
		{url: "http://app.example.org/hold", want: "504"},
	}},
	{heading: "HTTP headers and compression", asked: []string{"X-Tenant", "X-Debug"}, answered: []string{"X-Frame-Options", "Content-Encoding", "Vary", "Server"}, tries: []try{
		{url: "http://app.example.org/", lines: []string{"Accept-Encoding: gzip", "X-Debug: 1", "X-Tenant: red", "X-Pad: " + strings.Repeat("a", 2000)},
			want: "200 " + app1 + " app.example.org/ X-Tenant=blue X-Debug= X-Frame-Options=DENY Content-Encoding=gzip Vary=Accept-Encoding"},
		{url: "http://app.example.org/status/404", want: "404 X-Frame-Options=DENY"},
	}},
}
