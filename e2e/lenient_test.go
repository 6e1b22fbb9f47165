package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const lenientConfig = `
listeners:
  web: {address: '@web', protocol: http, lenient: [raw_targets, equal_lengths, bare_lf], http2: {prior_knowledge: true}}
  strict: {address: '@strict', protocol: http}
routes:
  - {listeners: [web, strict], hosts: [a], backend: app}
  - {listeners: [web, strict], hosts: [a], paths: [/admin/x], clients: {deny: [127.0.0.0/8]}, backend: app}
  - {listeners: [web, strict], hosts: [a], paths: [/two], backend: two}
  - {listeners: [web, strict], hosts: [a], paths: [/old], redirect: {host: b, prefix: /new}}
  - {listeners: [web, strict], hosts: [a], paths: [/api], rewrite: {prefix: /v1}, backend: app}
  - {listeners: [web, strict], hosts: [tls], redirect: https}
  - {listeners: [web, strict], hosts: [busy], backend: busy}
  - {listeners: [web, strict], hosts: [patient], backend: patient}
backends:
  app: {endpoints: ['@app']}
  two: {endpoints: ['@two'], protocol: h2c}
  busy: {endpoints: ['@busy']}
  patient: {endpoints: ['@busy'], max_interim_responses: 40, lenient: [twice_chunked]}
`

// Clients send backslashes, UTF-8 and lone percent signs in URLs, and get 400. With lenient they are forwarded as they
// came, but not around the guard of another route.
func TestURLsWithBackslashesOrUTF8Get400(t *testing.T) {
	t.Parallel()
	app := newRawBackend(t)
	w := newWeir(t)
	w.address["app"], w.address["two"] = app.address, serveTargets2(t)
	w.address["busy"] = serve(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 30)+
				"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
		}
	})
	w.start(lenientConfig)
	ask := func(listener, request string) (*http.Response, string) {
		t.Helper()
		r := bufio.NewReader(dialWith(t, w.at(listener), []byte(request)))
		for {
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("%q: %v", request, err)
			}
			if resp.StatusCode >= 200 {
				body, _ := io.ReadAll(resp.Body)
				if strings.Contains(string(body), "lenient") {
					t.Errorf("%q: the client is told %q", request, body)
				}
				return resp, string(body)
			}
		}
	}
	get := func(host, target string) string {
		return "GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	}
	for target, to := range map[string]string{"/a%5Cb": "", "/a\\b": "", "/100%": "", "/\xc3\xa4?q=\xe4%": "", "/api/x%5C\xc3\xa4": "/v1/x%5C\xc3\xa4"} {
		if resp, _ := ask("strict", get("a", target)); resp.StatusCode != 400 {
			t.Errorf("without the key, %q is answered %d", target, resp.StatusCode)
		}
		resp, _ := ask("web", get("a", target))
		if to == "" {
			to = target
		}
		heads := app.seen()
		if resp.StatusCode != 200 || !strings.HasPrefix(heads[len(heads)-1], "GET "+to+" HTTP/1.1\r\n") {
			t.Errorf("%q is answered %d, and forwarded as %q", target, resp.StatusCode, heads)
		}
		if to == target {
			if resp, body := ask("web", get("a", "/two"+target)); body != "/two"+target {
				t.Errorf("over HTTP/2, %q is answered %d and forwarded as %q", target, resp.StatusCode, body)
			}
			client := dialH2(t, w, "web")
			client.head(1, true, ":method: GET", ":scheme: http", ":authority: a", ":path: /two"+target)
			if status, body, err := client.answer(1); status != "200" || body != "/two"+target {
				t.Errorf("from an HTTP/2 client, %q is answered %s %q: %v", target, status, body, err)
			}
		}
	}
	w.logged("the word that accepts the request", func(e entry) bool {
		return e.text("listener") == "strict" && strings.HasSuffix(e.text("error"), "(lenient: [raw_targets] of the listener accepts it)")
	})
	w.logged("a target with raw bytes", func(e entry) bool { return e.text("listener") == "web" && e.text("target") == "/a\\b" })
	for _, target := range []string{"/a%5C..%5Cadmin", "/a\\..\\admin", "/%2e%2e%5cadmin", "/admin%5Cx", "/admin\\x", "/\\h/admin/x", "/ad%min/x", "/.%/x", "/%00", "/a\x01"} {
		if resp, _ := ask("web", get("a", target)); resp.StatusCode != 400 {
			t.Errorf("%q is answered %d", target, resp.StatusCode)
		}
	}
	for request, want := range map[string]string{get("a", "/old/\\x\xc3\xa4%?\xe4"): "http://b/new/%5Cx%C3%A4%25?%E4", get("tls", "/\\x%5C%"): "https://tls/%5Cx%5C%25"} {
		if resp, _ := ask("web", request); resp.Header.Get("Location") != want {
			t.Errorf("%q is redirected to %q", request, resp.Header.Get("Location"))
		}
	}

	// Equal lengths are one, and after a line feed alone no other request follows.
	twice := "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2, 2\r\n\r\nhi"
	bare := "GET /bare HTTP/1.1\nHost: a\n\n"
	for listener, want := range map[string][]string{"strict": {"400", "400"}, "web": {"200 200", "200"}} {
		for i, request := range []string{twice + lastRequest, bare + lastRequest} {
			got, err := readToEnd(dialWith(t, w.at(listener), []byte(request)))
			var statuses []string
			for _, m := range anyStatus.FindAllSubmatch(got, -1) {
				statuses = append(statuses, string(m[1]))
			}
			if strings.Join(statuses, " ") != want[i] || err != nil {
				t.Errorf("%s answers %q with %q %v", listener, request, got, err)
			}
		}
	}
	for _, head := range app.seen() {
		if strings.Count(strings.ToLower(head), "content-length") > 1 || strings.Contains(strings.ReplaceAll(head, "\r\n", ""), "\n") {
			t.Errorf("the endpoint got %q", head)
		}
	}
	w.logged("the word for lengths", func(e entry) bool {
		return strings.Contains(e.text("error"), "lenient: [equal_lengths] of the listener")
	})
	w.logged("the word for line feeds", func(e entry) bool { return strings.Contains(e.text("error"), "lenient: [bare_lf] of the listener") })

	// An endpoint may send more interim responses, and chunked twice.
	if resp, body := ask("web", get("busy", "/")); resp.StatusCode != 502 || strings.Contains(body, "busy") {
		t.Errorf("30 interim responses: %d %q", resp.StatusCode, body)
	}
	w.logged("the key for interim responses", func(e entry) bool { return strings.Contains(e.text("error"), "backends.busy.max_interim_responses") })
	if resp, body := ask("web", get("patient", "/")); resp.StatusCode != 200 || body != "ok" {
		t.Errorf("with the keys of the backend: %d %q", resp.StatusCode, body)
	}
}

// serveTargets2 serves HTTP/2 without TLS. It answers with the :path as it came, which servers of libraries refuse.
func serveTargets2(t *testing.T) string {
	return serve(t, func(c net.Conn) {
		io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
		framer := http2.NewFramer(c, c)
		framer.WriteSettings()
		decoder := hpack.NewDecoder(4096, nil)
		var head strings.Builder
		encoder := hpack.NewEncoder(&head)
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if !f.IsAck() {
					framer.WriteSettingsAck()
				}
			case *http2.HeadersFrame:
				fields, _ := decoder.DecodeFull(f.HeaderBlockFragment())
				path := ""
				for _, field := range fields {
					if field.Name == ":path" {
						path = field.Value
					}
				}
				head.Reset()
				encoder.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
				encoder.WriteField(hpack.HeaderField{Name: "content-length", Value: fmt.Sprint(len(path))})
				framer.WriteHeaders(http2.HeadersFrameParam{StreamID: f.StreamID, BlockFragment: []byte(head.String()), EndHeaders: true})
				framer.WriteData(f.StreamID, true, []byte(path))
			}
		}
	})
}
