package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const webConfig = `
listeners:
  web: {address: '@web', protocol: http}
  secure: {address: '@secure', protocol: tls}
  edge: {address: '@edge', protocol: tls, proxy_protocol: edge}
proxy_protocol:
  edge:
    header_timeout: 5s
    rules: [{from: [127.0.0.0/8], header: require}]
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [web, secure, edge], backend: app}
  - {listeners: [web], paths: [/small], max_body: 1KiB, backend: app}
backends:
  app: {endpoints: ['@app']}
`

func startWeb(t *testing.T) (*weir, *webBackend) {
	t.Helper()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	return w.start(webConfig), app
}

// curl runs curl, with HTTP/1.1 unless args say otherwise, and returns its output. If curl
// fails, the test fails with curl's report about the connection.
func curl(t *testing.T, args ...string) []byte {
	t.Helper()
	var out, complaints bytes.Buffer
	cmd := exec.Command(need(t, "curl"), append([]string{"--silent", "--show-error", "--verbose", "--insecure", "--max-time", "30", "--http1.1"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		said := complaints.String()
		t.Fatalf("curl %s: %v: %s", strings.Join(args, " "), err, said[max(0, len(said)-4<<10):])
	}
	return out.Bytes()
}

func curlSeen(t *testing.T, args ...string) seen {
	t.Helper()
	var s seen
	if out := curl(t, args...); json.Unmarshal(out, &s) != nil {
		t.Fatalf("curl %s: %q", strings.Join(args, " "), out)
	}
	return s
}

func TestCurl(t *testing.T) {
	t.Parallel()
	need(t, "curl")
	w, _ := startWeb(t)
	payload := pattern(5 << 20)
	file := filepath.Join(w.dir, "payload")
	if err := os.WriteFile(file, payload, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"http://" + w.at("web"), "https://" + w.at("secure")} {
		scheme, _, _ := strings.Cut(base, ":")
		t.Run(scheme, func(t *testing.T) {
			t.Run("get", func(t *testing.T) {
				s := curlSeen(t, base+"/a%2fb?q=1;2&bad=%zz")
				if s.URI != "/a%2fb?q=1;2&bad=%zz" || s.Header.Get("X-Forwarded-Proto") != scheme || s.Header.Get("X-Forwarded-For") != "127.0.0.1" {
					t.Errorf("%+v", s)
				}
			})
			t.Run("forged-fields", func(t *testing.T) {
				s := curlSeen(t, base+"/", "-H", "X-Forwarded-For: 6.6.6.6", "-H", "X_Forwarded_For: 6.6.6.6",
					"-H", "X.Real.Ip: 6.6.6.6", "-H", "x-real-ip: 6.6.6.6", "-H", "Forwarded: for=6.6.6.6", "-H", "Connection: X-Forwarded-For, Cookie")
				if strings.Contains(fmt.Sprint(s.Header), "6.6.6.6") || s.Header.Get("X-Forwarded-For") != "127.0.0.1" || s.Header.Get("X-Real-Ip") != "127.0.0.1" {
					t.Errorf("%v", s.Header)
				}
			})
			t.Run("http-1.0", func(t *testing.T) {
				// No ALPN, as with HTTP/1.0 clients: curl would offer only http/1.0.
				if s := curlSeen(t, "--http1.0", "--no-alpn", base+"/"); s.Proto != "HTTP/1.1" {
					t.Errorf("%+v", s)
				}
				if got := curl(t, "--http1.0", "--no-alpn", base+"/chunked/100000"); !bytes.Equal(got, pattern(100000)) {
					t.Errorf("%d bytes of a chunked answer came through", len(got))
				}
			})
			t.Run("expect-100-continue", func(t *testing.T) {
				s := curlSeen(t, "-H", "Expect: 100-continue", "--expect100-timeout", "20", "-T", file, base+"/up")
				if s.Sum != sum256(payload) || s.Method != "PUT" {
					t.Errorf("%d bytes", s.Length)
				}
			})
			t.Run("chunked-upload", func(t *testing.T) {
				s := curlSeen(t, "-H", "Transfer-Encoding: chunked", "-T", file, base+"/up")
				if s.Sum != sum256(payload) {
					t.Errorf("%d bytes", s.Length)
				}
			})
			t.Run("upload-refused-early", func(t *testing.T) {
				out := curl(t, "-o", "/dev/null", "-w", "%{http_code}", "-H", "Expect:", "-T", file, base+"/early")
				if string(out) != "403" {
					t.Errorf("curl saw %s", out)
				}
			})
			t.Run("head", func(t *testing.T) {
				out := string(curl(t, "--head", base+"/bytes/12345", "--next", "--silent", "--insecure", "--http1.1", base+"/bytes/3"))
				if !strings.Contains(out, "Content-Length: 12345") {
					t.Errorf("%q", out)
				}
			})
			t.Run("big-download", func(t *testing.T) {
				if got := curl(t, base+"/bytes/50000000"); sum256(got) != sum256(pattern(50_000_000)) {
					t.Errorf("%d bytes came through", len(got))
				}
			})
			t.Run("chunked-download", func(t *testing.T) {
				if got := curl(t, base+"/chunked/1000000"); !bytes.Equal(got, pattern(1_000_000)) {
					t.Errorf("%d bytes came through", len(got))
				}
			})
			t.Run("statuses", func(t *testing.T) {
				for _, status := range []string{"204", "304", "404", "500", "503"} {
					out := curl(t, "-o", "/dev/null", "-w", "%{http_code} %{num_connects}", base+"/status/"+status,
						"--next", "--silent", "--insecure", "--http1.1", "-o", "/dev/null", "-w", " %{http_code} %{num_connects}", base+"/")
					if string(out) != status+" 1 200 0" {
						t.Errorf("%s, then another on the same connection: %q", status, out)
					}
				}
			})
		})
	}
	t.Run("max-body", func(t *testing.T) {
		f := func(want string, args ...string) {
			t.Helper()
			if out := curl(t, append(args, "-o", "/dev/null", "-w", "%{http_code}", "http://"+w.at("web")+"/small/x")...); string(out) != want {
				t.Errorf("%v: %s, not %s", args, out, want)
			}
		}
		f("200", "-d", "little")
		f("413", "-H", "Expect:", "-T", file)
		f("413", "-H", "Expect:", "-H", "Transfer-Encoding: chunked", "-T", file)
		f("413", "-H", "Expect: 100-continue", "-T", file)
	})
	t.Run("haproxy-protocol", func(t *testing.T) {
		s := curlSeen(t, "--haproxy-protocol", "https://"+w.at("edge")+"/")
		if s.Header.Get("X-Forwarded-For") != "127.0.0.1" {
			t.Errorf("%+v", s)
		}
		out, err := exec.Command(need(t, "curl"), "-sk", "--max-time", "10", "https://"+w.at("edge")+"/").CombinedOutput()
		if err == nil {
			t.Errorf("without a header curl got %q", out)
		}
	})
}

// If the backend answers before it has read the body, the response reaches the client while the client is
// still sending. A reset must not destroy the response.
func TestAnswerBeforeTheBodyIsRead(t *testing.T) {
	t.Parallel()
	w, _ := startWeb(t)
	for range 20 {
		c := dial(t, w.at("web"))
		fmt.Fprintf(c, "PUT /small/x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
		go c.Write(make([]byte, 8<<20))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 413 {
			t.Fatalf("%v, %v", resp, err)
		}
	}
}

func TestPipeliningInOrder(t *testing.T) {
	t.Parallel()
	w, _ := startWeb(t)
	c := dial(t, w.at("web"))
	var requests strings.Builder
	const n = 50
	for i := range n {
		if i%3 == 0 {
			fmt.Fprintf(&requests, "POST /bytes/%d HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", i)
		} else {
			fmt.Fprintf(&requests, "GET /bytes/%d HTTP/1.1\r\nHost: a\r\n\r\n", i)
		}
	}
	c.Write([]byte(requests.String()))
	r := bufio.NewReader(c)
	for i := range n {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		body := new(bytes.Buffer)
		body.ReadFrom(resp.Body)
		if !bytes.Equal(body.Bytes(), pattern(i)) {
			t.Fatalf("answer %d has %d bytes", i, body.Len())
		}
	}
}

func TestTrailersGoThrough(t *testing.T) {
	t.Parallel()
	w, _ := startWeb(t)
	c := dial(t, w.at("web"))
	c.Write([]byte("POST /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n" +
		"5\r\nhello\r\n0\r\nX-Sum: 12\r\n\r\n"))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	var s seen
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil || s.Length != 5 || s.Trailer.Get("X-Sum") != "12" {
		t.Errorf("%+v, %v", s, err)
	}
}

// weir drops trailers that are valid only in a head, such as Content-Length, Host and the client's address.
func TestTrailersThatAreForbidden(t *testing.T) {
	t.Parallel()
	backend := newRawBackend(t)
	w := newWeir(t)
	w.address["app"] = backend.address
	w.start(webConfig)
	for _, trailer := range []string{"Content-Length: 3", "Transfer-Encoding: chunked", "Host: b", "Connection: close",
		"X-Forwarded-For: 6.6.6.6", "x_forwarded_for: 6.6.6.6", "Forwarded: for=6.6.6.6", "X-Real-Ip: 6.6.6.6"} {
		c := dial(t, w.at("web"))
		fmt.Fprintf(c, "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n%s\r\n\r\n", trailer)
		if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
			t.Errorf("%s: %v", trailer, err)
		}
	}
	if got := backend.trailers(); strings.Trim(strings.ReplaceAll(got, "X-Sum: 1", ""), "\r\n") != "" {
		t.Errorf("the backend got %q", got)
	}
}

// If a client leaves during an upload, the backend does not see a complete request. weir keeps nothing of a
// client that has left.
func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	w, app := startWeb(t)
	for _, body := range []string{"Content-Length: 100\r\n\r\nonly a part", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"} {
		c := dial(t, w.at("web"))
		c.Write([]byte("POST /up HTTP/1.1\r\nHost: a\r\n" + body))
		c.Close()
	}
	c := dial(t, w.at("web"))
	c.Write([]byte("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"))
	app.arrived(t)
	c.Close()
	w.wantMetric(0, "weir_backend_requests_in_flight", "backend", "app")
	w.wantMetric(0, "weir_connections_open", "listener", "web")
}

// smuggle lists requests that two parsers could read in two ways. Each is followed by a request for /second,
// which must never reach the backend.
var smuggle = map[string]string{
	"CL and TE":                  "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"TE and CL":                  "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
	"two CL that differ":         "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\n",
	"two CL in a list":           "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 5\r\n\r\n",
	"CL with a sign":             "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\n",
	"CL negative":                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
	"CL empty":                   "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
	"CL hexadecimal":             "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x0\r\n\r\n",
	"CL too large":               "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
	"TE xchunked":                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
	"TE identity":                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
	"TE twice":                   "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"TE chunked, identity":       "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
	"TE with a tab":              "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
	"TE on HTTP/1.0":             "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"folded line":                "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n Y: 2\r\n\r\n",
	"folded TE":                  "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
	"bare LF":                    "GET / HTTP/1.1\nHost: a\n\n",
	"bare LF in a field":         "GET / HTTP/1.1\r\nHost: a\r\nX: 1\nY: 2\r\n\r\n",
	"bare CR in a value":         "GET / HTTP/1.1\r\nHost: a\r\nX: 1\rY: 2\r\n\r\n",
	"NUL in a value":             "GET / HTTP/1.1\r\nHost: a\r\nX: 1\x002\r\n\r\n",
	"space before the colon":     "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\n",
	"space before the name":      "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
	"name empty":                 "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n",
	"name not a token":           "GET / HTTP/1.1\r\nHost: a\r\nX(Y): x\r\n\r\n",
	"line without a colon":       "GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n",
	"no Host":                    "GET / HTTP/1.1\r\n\r\n",
	"two Hosts":                  "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	"Host malformed":             "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
	"Host with a path":           "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
	"target of another host":     "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
	"version 2.1":                "GET / HTTP/2.1\r\nHost: a\r\n\r\n",
	"version 0.9":                "GET /\r\n",
	"version lower case":         "GET / http/1.1\r\nHost: a\r\n\r\n",
	"spaces before the method":   "  GET / HTTP/1.1\r\nHost: a\r\n\r\n",
	"spaces and two targets":     "GET  /  / HTTP/1.1\r\nHost: a\r\n\r\n",
	"five empty lines":           "\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
	"empty line, bare LF":        "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
	"target of another port":     "GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n",
	"tab in the request line":    "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
	"method not a token":         "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
	"target with a control byte": "GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
	"dot segments":               "GET /a/../b HTTP/1.1\r\nHost: a\r\n\r\n",
	"encoded dot segments":       "GET /a/%2e%2E/b HTTP/1.1\r\nHost: a\r\n\r\n",
	"backslash":                  "GET /a\\b HTTP/1.1\r\nHost: a\r\n\r\n",
	"encoded backslash":          "GET /a%5cb HTTP/1.1\r\nHost: a\r\n\r\n",
	"CONNECT":                    "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
	"TRACE":                      "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n",
	"PRI":                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"ambiguous expectation":      "POST / HTTP/1.1\r\nHost: a\r\nExpect: y 100-continue\r\nContent-Length: 0\r\n\r\n",
	"too many fields":            "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X: y\r\n", 300) + "\r\n",
	"head too large":             "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("y", 70<<10) + "\r\n\r\n",
}

// smuggleBody lists bodies whose fault appears after weir has forwarded the head. weir cuts the first
// request, and the second never reaches the backend.
var smuggleBody = map[string]string{
	"chunk size 0x5":          "0x5\r\nhello\r\n0\r\n\r\n",
	"chunk size negative":     "-5\r\nhello\r\n0\r\n\r\n",
	"chunk size with a sign":  "+5\r\nhello\r\n0\r\n\r\n",
	"chunk size empty":        "\r\nhello\r\n0\r\n\r\n",
	"chunk size too large":    "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
	"chunk size with a space": " 5\r\nhello\r\n0\r\n\r\n",
	"chunk size, bare LF":     "5\nhello\r\n0\r\n\r\n",
	"chunk data too long":     "5\r\nhello!\r\n0\r\n\r\n",
	"chunk data, bare LF":     "5\r\nhello\n0\r\n\r\n",
	"chunk extension, LF":     "5;a\nb\r\nhello\r\n0\r\n\r\n",
	"chunk extension, CR":     "5;a\rb\r\nhello\r\n0\r\n\r\n",
	"last chunk, bare LF":     "5\r\nhello\r\n0\n\r\n",
	"trailer without a colon": "5\r\nhello\r\n0\r\nnonsense\r\n\r\n",
	"trailer, bare LF":        "5\r\nhello\r\n0\r\nX: y\n\r\n",
}

const second = "GET /second HTTP/1.1\r\nHost: a\r\n\r\n"

func TestSmuggling(t *testing.T) {
	t.Parallel()
	backend := newRawBackend(t)
	w := newWeir(t)
	w.address["app"] = backend.address
	w.start(webConfig)
	for name, request := range smuggle {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			status, err := smuggled(t, w, request)
			if err != nil {
				t.Fatal(err)
			}
			if want := wantedStatus(name); !strings.Contains(want, status) {
				t.Errorf("the answer is %s, not %s", status, want)
			}
		})
	}
	if heads := backend.seen(); len(heads) > 0 {
		t.Errorf("the backend got %d requests, the first %q", len(heads), heads[0])
	}
}

// wantedStatus returns the accepted statuses of a refusal: 400, or a more precise one.
func wantedStatus(name string) string {
	switch name {
	case "TE xchunked", "TE identity", "TE twice", "TE chunked, identity":
		return "400 501"
	case "TE with a tab", "folded TE":
		return "400 501"
	case "version 2.1", "PRI":
		return "400 505"
	case "CONNECT", "TRACE":
		return "400 405 501"
	case "ambiguous expectation":
		return "417"
	case "too many fields", "head too large":
		return "431"
	case "CL too large":
		return "400 413"
	case "version 0.9", "version lower case":
		return "400 505"
	case "target of another host":
		return "400 421"
	}
	return "400"
}

var statusLine = regexp.MustCompile(`HTTP/1\.1 \d{3} `)

// smuggled sends request and a second one, and reads until weir closes the connection.
func smuggled(t *testing.T, w *weir, request string) (status string, err error) {
	c := dial(t, w.at("web"))
	c.Write([]byte(request + second))
	got, err := readToEnd(c)
	if err != nil {
		return "", fmt.Errorf("weir did not close after %q: %w", firstLine(string(got)), err)
	}
	if n := len(statusLine.FindAll(got, -1)); n > 1 {
		return "", fmt.Errorf("weir answered %d times: %q", n, got)
	}
	if _, rest, ok := strings.Cut(string(got), "HTTP/1.1 "); ok {
		status, _, _ = strings.Cut(rest, " ")
	}
	return status, nil
}

func TestSmugglingInTheBody(t *testing.T) {
	t.Parallel()
	backend := newRawBackend(t)
	w := newWeir(t)
	w.address["app"] = backend.address
	w.start(webConfig)
	for name, body := range smuggleBody {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			status, err := smuggled(t, w, "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"+body)
			if err != nil {
				t.Fatal(err)
			}
			if status != "400" {
				t.Errorf("the answer is %q", status)
			}
		})
	}
	for _, head := range backend.seen() {
		if !strings.HasPrefix(head, "POST /first ") {
			t.Errorf("the backend got %q", firstLine(head))
		}
	}
}

// weir drops all bytes that a backend sends after its response.
func TestBackendThatSaysTooMuch(t *testing.T) {
	t.Parallel()
	backend := newRawBackend(t)
	backend.answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nrawHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
	w := newWeir(t)
	w.address["app"] = backend.address
	w.start(webConfig)
	for range 20 {
		c := dial(t, w.at("web"))
		resp, body, err := ask(c, bufio.NewReader(c), "GET", "a", "/")
		if err != nil || resp.StatusCode != 200 || string(body) != "raw" {
			t.Fatalf("%v, %q, %v", resp, body, err)
		}
		c.Close()
	}
}

// The order and case of fields, the target, and unknown fields reach the backend byte for byte.
func TestRequestGoesThroughUnchanged(t *testing.T) {
	t.Parallel()
	backend := newRawBackend(t)
	w := newWeir(t)
	w.address["app"] = backend.address
	w.start(webConfig)
	c := dial(t, w.at("web"))
	c.Write([]byte("GET //a/%2F/%2f;x=1/?q=%zz;&%00 HTTP/1.1\r\nhost: A.example.org:81\r\nx-B: 1\r\nX-a:   2  \r\ncookie: a=b\r\nx-B: 3\r\n\r\n"))
	if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
		t.Fatal(err)
	}
	heads := backend.seen()
	if len(heads) != 1 {
		t.Fatalf("%d requests", len(heads))
	}
	head := heads[0]
	if !strings.HasPrefix(head, "GET //a/%2F/%2f;x=1/?q=%zz;&%00 HTTP/1.1\r\n") {
		t.Errorf("the target was changed: %q", firstLine(head))
	}
	at := 0
	for _, line := range []string{"x-B: 1\r\n", "X-a: 2\r\n", "cookie: a=b\r\n", "x-B: 3\r\n"} {
		i := strings.Index(head[at:], line)
		if i < 0 {
			t.Fatalf("%q is missing or out of order in %q", line, head)
		}
		at += i
	}
	if !strings.Contains(head, "ost: A.example.org:81\r\n") {
		t.Errorf("Host was changed: %q", head)
	}
}

// If the only endpoint refuses connections, weir answers 502 or 503 at once, with a reason in the log.
func TestBackendIsDown(t *testing.T) {
	w := newWeir(t)
	w.start(webConfig)
	c := dial(t, w.at("web"))
	resp, body, err := ask(c, bufio.NewReader(c), "GET", "a", "/gone")
	if err != nil || resp.StatusCode != 502 && resp.StatusCode != 503 || len(body) > 500 {
		t.Errorf("%v, %q, %v", resp, body, err)
	}
	e := w.logged("the request", func(e entry) bool { return e.text("target") == "/gone" })
	if e.text("reason") == "" {
		t.Errorf("the line has no reason: %v", e)
	}
}

// A backend may close an idle connection at the moment when weir reuses it. Clients must not notice.
func TestBackendClosesIdleConnections(t *testing.T) {
	t.Parallel()
	address := serve(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		if _, err := http.ReadRequest(r); err == nil {
			c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")) // announces keep-alive, and then closes
		}
	})
	w := newWeir(t)
	w.address["app"] = address
	w.start(webConfig)
	c := dial(t, w.at("web"))
	r := bufio.NewReader(c)
	for i := range 200 {
		resp, _, err := ask(c, r, "GET", "a", "/")
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("request %d: %v, %v", i, resp, err)
		}
	}
}
