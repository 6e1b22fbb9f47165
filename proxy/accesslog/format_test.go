package accesslog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// full returns a record for the formats of other programs.
func full() *Record {
	r := sampleRecord()
	r.Body, r.Response, r.Secure, r.EndpointSecure = 4096, new(message.Response), true, true
	r.Response.AddField("Content-Type", "text/html; charset=utf-8")
	r.Origin.Local = netip.MustParseAddrPort("203.0.113.7:443")
	r.TLS = &TLS{Version: "TLS 1.3", CipherSuite: "TLS_AES_128_GCM_SHA256"}
	return r
}

func formatted(c *config.AccessLog, r *Record) string {
	f := NewFormat(*c)
	f.count.Store(41)
	return string(f.Append(nil, r))
}

func of(format config.LogFormat) *config.AccessLog {
	c := config.NewAccessLog()
	c.Format, c.Redact = format, []string{"token"}
	return c
}

// Each format has the fields of its program, in that program's form.
func TestFormats(t *testing.T) {
	f := func(format config.LogFormat, want string) {
		t.Helper()
		if got := formatted(of(format), full()); got != want+"\n" {
			t.Errorf("the line of %s is\n%snot\n%s", format, got, want)
		}
	}
	const common = `192.0.2.1 - - [25/Nov/2026:12:30:45 +0000] "GET /cart?id=7 HTTP/1.1" 200 4096`
	f(config.LogCLF, common)
	f(config.LogNginx, common+` "https://a.example/?token=***" "curl/8.5.0"`)
	f(config.LogIngressNginx, common+` "https://a.example/?token=***" "curl/8.5.0" 210 0.001 [app] [] 10.1.0.4:8080 4096 0.001 200 8f14e45fceea167a5a36dedd4bea2543`)
	f(config.LogTraefik, common+` "https://a.example/?token=***" "curl/8.5.0" 42 "shop" "https://10.1.0.4:8080" 1ms`)
	f("at {{}{time_unix} {client} {started} {scheme} {host_name} {host_port} {path} {query} {protocol} {endpoint_status} {duration_ms} {count}{tab}{local} {sni}",
		"at {}1795609845.123 192.0.2.1:4711 2026-11-25T12:30:45.121956789Z https shop.example 443 /cart id=7 HTTP/1.1 200 1 42\t203.0.113.7:443 -")
	f(`"{request_header:x-request-id}" {response_header:content-type} "{response_header:content-type}" {request_header:none}`, `"8f14e45fceea167a5a36dedd4bea2543" text/html;\x20charset=utf-8 "text/html; charset=utf-8" -`)
	f("{time_iso8601} {request_time} {tls_protocol} {endpoint_body_bytes} {endpoint_time} {request_header:none}", "2026-11-25T12:30:45+00:00 0.001 TLSv1.3 4096 0.001 -")
	f("{response_header:content-type}{tab}{request_header:none}", "text/html; charset=utf-8\t-")
	f(`{{"status": {status}, "line": "{request_line}", "of": {{"type": "{response_header:content-type}", "none": "{request_header:none}"}, "no": {request_header:none}}`,
		`{"status": 200, "line": "GET /cart?id=7 HTTP/1.1", "of": {"type": "text/html; charset=utf-8", "none": ""}, "no": null}`)
	f(config.LogECS, `{"ecs.version":"8.11.0","event.kind":"event","event.dataset":"weir.access","@timestamp":"2026-11-25T12:30:45.123456789Z","weir.kind":"http","weir.listener":"web",`+
		`"client.address":"192.0.2.1","client.ip":"192.0.2.1","client.port":4711,"weir.peer":"10.0.0.9:33000","weir.proxy_header":2,"tls.version":"1.3","tls.version_protocol":"tls","tls.cipher":"TLS_AES_128_GCM_SHA256",`+
		`"weir.route":"shop","weir.backend":"app","weir.endpoint":"10.1.0.4:8080","http.request.method":"GET","url.domain":"shop.example","url.port":443,"url.original":"/cart?id=7","url.path":"/cart","url.query":"id=7","url.scheme":"https",`+
		`"http.version":"1.1","user_agent.original":"curl/8.5.0","http.request.referrer":"https://a.example/?token=***","http.request.id":"8f14e45fceea167a5a36dedd4bea2543","http.response.status_code":200,"event.duration":1500000,`+
		`"weir.connect_seconds":0.0003,"weir.response_head_seconds":0.0012,"http.request.bytes":210,"http.response.bytes":5120,"weir.retries":1}`)
	f(config.LogOTel, `{"timestamp":"2026-11-25T12:30:45.123456789Z","weir.kind":"http","weir.listener":"web","client.address":"192.0.2.1","client.port":4711,"network.peer.address":"10.0.0.9","network.peer.port":33000,`+
		`"weir.proxy_header":2,"tls.protocol.version":"1.3","tls.protocol.name":"tls","tls.cipher":"TLS_AES_128_GCM_SHA256","http.route":"shop","weir.backend":"app","weir.endpoint":"10.1.0.4:8080","http.request.method":"GET",`+
		`"server.address":"shop.example","server.port":443,"url.path":"/cart","url.query":"id=7","url.scheme":"https","network.protocol.name":"http","network.protocol.version":"1.1","user_agent.original":"curl/8.5.0",`+
		`"weir.referer":"https://a.example/?token=***","weir.request_id":"8f14e45fceea167a5a36dedd4bea2543","http.response.status_code":200,"http.server.request.duration":0.0015,"weir.connect_seconds":0.0003,`+
		`"weir.response_head_seconds":0.0012,"http.request.size":210,"http.response.size":5120,"weir.retries":1}`)
	f(config.LogTraefikJSON, `{"level":"info","msg":"","StartUTC":"2026-11-25T12:30:45.121956789Z","StartLocal":"2026-11-25T12:30:45.121956789Z","Duration":1500000,"RouterName":"shop","ServiceName":"app",`+
		`"ServiceURL":"https://10.1.0.4:8080","ServiceAddr":"10.1.0.4:8080","ClientAddr":"192.0.2.1:4711","ClientHost":"192.0.2.1","ClientPort":"4711","RequestAddr":"shop.example:443","RequestHost":"shop.example","RequestPort":"443",`+
		`"RequestMethod":"GET","RequestPath":"/cart?id=7","RequestProtocol":"HTTP/1.1","RequestScheme":"https","OriginDuration":1200000,"OriginStatus":200,"DownstreamStatus":200,"DownstreamContentSize":4096,"RequestCount":42,"RetryAttempts":1,`+
		`"TLSVersion":"1.3","TLSCipher":"TLS_AES_128_GCM_SHA256","entryPointName":"web","time":"2026-11-25T12:30:45.123456789Z"}`)
}

func TestChosenFields(t *testing.T) {
	f := func(format config.LogFormat, fields, omit []config.LogField, want string) {
		t.Helper()
		c := of(format)
		c.Fields, c.Omit = fields, omit
		if got := formatted(c, full()); got != want+"\n" {
			t.Errorf("the line is\n%snot\n%s", got, want)
		}
	}
	f(config.LogJSON, []config.LogField{"status", "request_header:x-request-id", "response_header:content-type", "status", "request_header:referer"}, nil,
		`{"status":200,"request_header_x_request_id":"8f14e45fceea167a5a36dedd4bea2543","response_header_content_type":"text/html; charset=utf-8","request_header_referer":"https://a.example/?token=***"}`)
	f(config.LogJSON, []config.LogField{"sni"}, nil, `{}`)
	f(config.LogOTel, []config.LogField{"method", "request_header:x-request-id"}, nil, `{"http.request.method":"GET","http.request.header.x-request-id":"8f14e45fceea167a5a36dedd4bea2543"}`)
	f(config.LogECS, []config.LogField{"status"}, nil, `{"ecs.version":"8.11.0","event.kind":"event","event.dataset":"weir.access","http.response.status_code":200}`)
	f(config.LogTraefikJSON, []config.LogField{"host_port", "user_agent", "request_header:x-a"}, nil, `{"level":"info","msg":"","RequestPort":"443","request_User-Agent":"curl/8.5.0"}`)

	c := of(config.LogJSON)
	c.Fields, c.Omit = []config.LogField{config.DefaultFields, "query"}, []config.LogField{"user_agent", "client"}
	got := formatted(c, full())
	if strings.Contains(got, `"user_agent"`) || strings.Contains(got, `"client":`) || !strings.Contains(got, `"retries":1,"query":"id=7"}`) {
		t.Errorf("the line is %s", got)
	}
}

// Every field of package config can be written, and no other one.
func TestFieldsAreThoseOfTheConfiguration(t *testing.T) {
	var here []config.LogField
	for _, x := range fields {
		here = append(here, x.name)
	}
	if want := slices.Concat(config.LogFields, config.MoreLogFields); !slices.Equal(here, want) {
		t.Errorf("the fields are\n%v, and package config has\n%v", here, want)
	}
	for format, d := range dialects {
		for name := range d.names {
			if !slices.Contains(here, name) {
				t.Errorf("%s has a name for the field %s, which does not exist", format, name)
			}
		}
	}
}

// Records without a request have a line as well, where the format has lines for them.
func TestLinesWithoutRequest(t *testing.T) {
	for _, format := range []config.LogFormat{config.LogJSON, config.LogECS, config.LogOTel, config.LogTraefikJSON, config.LogCLF, config.LogIngressNginx, config.LogTraefik, "{request_line} {status} {path} {query} {count}"} {
		for _, r := range []*Record{{Kind: "refused", Ended: noon}, {Kind: "tunnel", Ended: noon}, {Kind: "http", Ended: noon, Request: new(message.Request), Status: 400}} {
			line := formatted(of(format), r)
			if of(format).Format.JSON() && !json.Valid([]byte(line)) || strings.Count(line, "\n") != 1 {
				t.Errorf("%s: the line of %s is %q", format, r.Kind, line)
			}
			_, chosen := NewFormat(*of(format)).share(r)
			if want := presets[format] == nil || r.Kind == "http"; chosen != want {
				t.Errorf("%s: %s has a line: %t", format, r.Kind, chosen)
			}
		}
	}
}

func TestFilter(t *testing.T) {
	f := func(x config.LogFilter, want string) {
		t.Helper()
		c := of(config.LogJSON)
		c.Filter = &x
		format, got := NewFormat(*c), ""
		for name, r := range map[string]*Record{"a": {Kind: "http", Status: 200}, "b": {Kind: "http", Status: 503}, "c": {Kind: "http", Status: 200, Duration: time.Second},
			"d": {Kind: "upgrade", Status: 101, Attempts: 2}, "e": {Kind: "tunnel", Duration: time.Minute}, "f": {Kind: "refused"}} {
			if _, chosen := format.share(r); chosen {
				got += name
			}
		}
		letters := []byte(got)
		slices.Sort(letters)
		if string(letters) != want {
			t.Errorf("%+v chooses %s, not %s", x, letters, want)
		}
	}
	f(config.LogFilter{}, "abcdef")
	f(config.LogFilter{Kinds: []config.LogKind{"http"}}, "abc")
	f(config.LogFilter{Status: []config.StatusRange{{Min: 500, Max: 599}}}, "bef")
	f(config.LogFilter{MinDuration: time.Second}, "cef")
	f(config.LogFilter{Retries: true}, "def")
	f(config.LogFilter{Retries: true, Status: []config.StatusRange{{Min: 100, Max: 101}, {Min: 503, Max: 503}}, MinDuration: time.Second, Kinds: []config.LogKind{"http"}}, "bc")
}

func TestSample(t *testing.T) {
	c := of(config.LogJSON)
	c.Sample = 0.25
	f, chosen := NewFormat(*c), 0
	for range 10_000 {
		if share, is := f.share(full()); is {
			chosen++
			if share != 0.25 {
				t.Fatalf("the share is %v", share)
			}
		}
	}
	if chosen < 2000 || chosen > 3000 {
		t.Errorf("%d of 10,000 requests are chosen", chosen)
	}
	failed := full()
	failed.Status = 500
	if share, is := f.share(failed); !is || share != 1 {
		t.Errorf("a failed request has the share %v: %t", share, is)
	}
	w := newWriter(new(events).options("", 1<<20), &target{WriteCloser: new(recorder)})
	for w.stripes[0].chunk == nil && w.stripes[len(w.stripes)-1].chunk == nil {
		w.Put(f, full())
	}
	for i := range w.stripes {
		if c := w.stripes[i].chunk; c != nil && !bytes.Contains(c.b, []byte(`,"sample":0.25,`)) {
			t.Errorf("the line is %s", c.b)
		}
	}
}

// columns matches a line of nginx's combined format. Each value is in its column, whatever the client sends.
var columns = regexp.MustCompile(`^[0-9a-f.:]+ - [!-~]+ \[[^]]+\] "[!#-~ ]*" [0-9]+ [0-9]+ "[ !#-~]*" "[ !#-~]*"\n$`)

// ofObject is a template of JSON.
const ofObject = `{{"time": "{time_iso8601}", "request": {{"line": "{request_line}", "path": "{path}"}, "user": "{user}", "agent": "{user_agent}", "referer": "{referer}", "took": {request_time}, "sni": {sni}}`

// No value that a client chooses breaks a line of text, or moves another value to another column.
func FuzzText(f *testing.F) {
	f.Add("GET", "/?token=a&b", "curl", "https://a/?token=x", "user")
	f.Add("\n", "\" 200 1 \"", "\\\"", "\xff\x00\r", "a b\" c")
	f.Fuzz(func(t *testing.T, method, target, agent, referer, user string) {
		if method == "" {
			return
		}
		r := full()
		r.Request, r.User = request(method, target, "a", "User-Agent: "+agent, "Referer: "+referer), user
		if line := formatted(of(config.LogNginx), r); !columns.MatchString(line) {
			t.Fatalf("the line is %q", line)
		}
		for _, format := range []config.LogFormat{config.LogIngressNginx, config.LogTraefik, "{user} {user_agent} {referer} {path} {query} {request_line}"} {
			if line := formatted(of(format), r); strings.Count(line, "\n") != 1 || strings.ContainsFunc(line[:len(line)-1], func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("the line of %s is %q", format, line)
			}
		}
		for _, format := range []config.LogFormat{config.LogECS, config.LogOTel, config.LogTraefikJSON, ofObject} {
			if line := formatted(of(format), r); !json.Valid([]byte(line)) {
				t.Fatalf("the line of %s is %q", format, line)
			}
		}
	})
}

// No format needs memory for a line.
func TestFormatsAllocateNothing(t *testing.T) {
	for _, format := range []config.LogFormat{config.LogJSON, config.LogECS, config.LogOTel, config.LogTraefikJSON, config.LogCLF, config.LogNginx, config.LogIngressNginx, config.LogTraefik, ofObject} {
		f, r, l := NewFormat(*of(format)), full(), line{share: 1, b: make([]byte, 0, 8192)}
		f.append(&l, r)
		if n := testing.AllocsPerRun(100, func() { l.b = l.b[:0]; f.append(&l, r) }); n != 0 {
			t.Errorf("a line of %s takes %v allocations", format, n)
		}
	}
}

func BenchmarkFormats(b *testing.B) {
	for _, format := range []config.LogFormat{config.LogJSON, config.LogECS, config.LogOTel, config.LogTraefikJSON, config.LogNginx, config.LogIngressNginx} {
		b.Run(string(format), func(b *testing.B) {
			f, r, l := NewFormat(*of(format)), full(), line{share: 1, b: make([]byte, 0, 8192)}
			for b.Loop() {
				l.b = l.b[:0]
				f.append(&l, r)
			}
		})
	}
}

// A long line is cut where its values are longest. It says how long they are, and stays a line of its format.
func TestLongLinesAreCut(t *testing.T) {
	r := full()
	r.Request = new(message.Request)
	r.Request.SetMethod(r.Request.StoreString("GET"))
	if err := r.Request.SetTarget(r.Request.StoreString("/" + strings.Repeat("t", 60_000))); err != nil {
		t.Fatal(err)
	}
	r.Request.AddField("User-Agent", strings.Repeat("\"\xff", 30_000))
	r.Err, r.User = errors.New(strings.Repeat("e\u00e9", 40_000)), "ada"
	for _, format := range []config.LogFormat{config.LogJSON, config.LogECS, config.LogOTel, config.LogTraefikJSON, config.LogCLF, config.LogNginx, config.LogIngressNginx, config.LogTraefik,
		`{{"line": "{request_line}", "agent": "{request_header:user-agent}", "n": {count}}`, "{target} {user_agent} {error} {count}"} {
		for _, most := range []int{0, 1 << 10} {
			c := of(format)
			c.MaxLine = most
			line := formatted(c, r)
			if want := cmp.Or(most, config.DefaultMaxLine); len(line) > want || len(line) < want/8 {
				t.Errorf("a line of %s has %d bytes, want %d at most", format, len(line), want)
			}
			if !strings.Contains(line, "[cut:600") || strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
				t.Errorf("a line of %s is %s", format, line)
			}
			if (format.JSON() || format.IsObject()) && !json.Valid([]byte(line)) {
				t.Errorf("a line of %s is no JSON: %s", format, line)
			}
			if strings.Contains(string(format), "{count}") && !strings.Contains(line, "42") {
				t.Errorf("a line of %s has another number: %s", format, line)
			}
		}
	}
	short := full()
	if line := formatted(of(config.LogJSON), short); strings.Contains(line, "cut:") {
		t.Errorf("a short line is cut: %s", line)
	}
}

// A long list loses its last elements. The values that say what happened are never cut for it.
func TestLongListsAreCut(t *testing.T) {
	r := &Record{Kind: "refused", Listener: "websecure", SNI: "app.example.org", Reason: "handshake", Result: "client_certificate",
		Offer: &Offer{Suites: slices.Repeat([]string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, 80), Protocols: slices.Repeat([]string{"\"\x01"}, 80), JA4: "t13d311000_e8f1e7e78f70_d41ae481755e"},
		Err:   errors.New("tls: client didn't provide a certificate")}
	for _, format := range []config.LogFormat{config.LogJSON, "{tls_offered_suites} {tls_offered_alpn} {ja4} {tls_result} {error}"} {
		c := of(format)
		c.MaxLine = 1 << 10
		line := formatted(c, r)
		if len(line) > 1<<10 || strings.Count(line, "...[cut:80]") != 2 || strings.Count(line, "cut:") != 2 || !strings.Contains(line, "SHA384") || format.JSON() && !json.Valid([]byte(line)) {
			t.Errorf("a line of %s has %d bytes: %s", format, len(line), line)
		}
	}
}
