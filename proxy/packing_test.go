package proxy

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/compress"
)

const packed = `
listeners: {web: {address: "@0", protocol: http, http2: {prior_knowledge: true}}}
routes: [{name: packed, listeners: [web], backend: app, compress: true}, {name: plain, listeners: [web], paths: [/plain], backend: app}]
backends: {app: {endpoints: ['@app']}}
`

// words is a text of n bytes.
func words(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of a text, %d\n", i, i*7919%1000)
	}
	return b.String()[:n]
}

// unpacked returns the decoded body.
func unpacked(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	var r io.Reader = resp.Body
	var err error
	switch resp.Header.Get("Content-Encoding") {
	case "gzip":
		r, err = gzip.NewReader(r)
	case "br":
		r = brotli.NewReader(r)
	case "zstd":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1)); err == nil {
			defer z.Close()
			r = z
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Errorf("reading the body: %v", err)
	}
	return string(body)
}

// newPacked serves text of the length in the query.
func newPacked(t *testing.T) *rig {
	t.Helper()
	return newRig(t, packed, nil, "@app", newHandler(t, func(w http.ResponseWriter, req *http.Request) {
		n, _ := strconv.Atoi(req.URL.Query().Get("n"))
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("ETag", `"a"`)
		w.Header().Set("Accept-Ranges", "bytes")
		switch {
		case req.Header.Get("If-None-Match") != "":
			w.WriteHeader(304)
			return
		case req.URL.Query().Get("chunked") == "":
			w.Header().Set("Content-Length", strconv.Itoa(n))
		}
		io.WriteString(w, words(n))
	}))
}

func packedRequest(t *testing.T, r *rig, two bool, method, target, encoding string, fields ...string) *http.Response {
	t.Helper()
	req, _ := http.NewRequest(method, r.url(target), nil)
	req.Header.Set("Accept-Encoding", encoding)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := r.client(two).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestCompresses(t *testing.T) {
	r := newPacked(t)
	f := func(two bool, target, accepted, encoding string, n int) {
		t.Helper()
		resp := packedRequest(t, r, two, "GET", target, accepted)
		h := resp.Header
		if body := unpacked(t, resp); body != words(n) || h.Get("Content-Encoding") != encoding {
			t.Errorf("%s for %q: %q with %d bytes", target, accepted, h.Get("Content-Encoding"), len(body))
		}
		if encoding != "" && (h.Get("Content-Length") != "" || h.Get("Accept-Ranges") != "" || h.Get("ETag") != `W/"a"`) {
			t.Errorf("%s for %q: the headers are %v", target, accepted, h)
		}
		if vary := n >= 1024 && target[:6] != "/plain"; (h.Get("Vary") == "Accept-Encoding") != vary {
			t.Errorf("%s for %q: Vary is %q", target, accepted, h.Get("Vary"))
		}
	}
	for _, two := range []bool{false, true} {
		for _, encoding := range []string{"zstd", "br", "gzip"} {
			for _, n := range []int{1024, 10_000, 1_000_000} {
				f(two, fmt.Sprint("/?n=", n), encoding, encoding, n)
				f(two, fmt.Sprint("/?chunked=1&n=", n), encoding, encoding, n)
			}
		}
		f(two, "/?n=1023", "gzip", "", 1023)
		f(two, "/?n=5000", "deflate", "", 5000)
		f(two, "/?n=5000", "gzip;q=0.1, br;q=0.2", "br", 5000)
		f(two, "/plain?n=5000", "gzip", "", 5000)
	}
	if in, out := r.counter("weir_http_compressed_bytes_total", "route", "packed", "encoding", "gzip", "direction", "in"),
		r.counter("weir_http_compressed_bytes_total", "route", "packed", "encoding", "gzip", "direction", "out"); in != 4*(1024+10_000+1_000_000) || out < 1000 || out > in/2 {
		t.Errorf("%v bytes become %v", in, out)
	}
}

func TestCompressionOfOtherResponses(t *testing.T) {
	r := newPacked(t)
	for _, two := range []bool{false, true} {
		resp := packedRequest(t, r, two, "HEAD", "/?n=5000", "gzip")
		if h := resp.Header; h.Get("Content-Encoding") != "gzip" || h.Get("Content-Length") != "" || h.Get("ETag") != `W/"a"` || h.Get("Vary") != "Accept-Encoding" || len(resp.TransferEncoding) > 0 {
			t.Errorf("HEAD: %v %v", h, resp.TransferEncoding)
		}
		resp = packedRequest(t, r, two, "GET", "/?n=5000", "gzip", "If-None-Match", `W/"a"`)
		if h := resp.Header; resp.StatusCode != 304 || h.Get("Content-Encoding") != "" || h.Get("ETag") != `W/"a"` || h.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: %v", resp.Status, h)
		}
	}
	c := r.dial("web")
	c.write("GET /?n=5000 HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: keep-alive\r\n\r\n")
	if resp, body := c.response("GET"); resp.Header.Get("Content-Encoding") != "" || body != words(5000) || resp.Close {
		t.Errorf("HTTP/1.0: %v", resp.Header)
	}
}

// The headers that the route gives to the response decide, and cannot make it unreadable.
func TestCompressionAfterResponseEdits(t *testing.T) {
	const edits = `
listeners: {web: {address: "@0", protocol: http, http2: {prior_knowledge: true}}}
routes:
  - {listeners: [web], paths: [/cookie], backend: app, compress: true, response: {set: {Set-Cookie: a=b}}}
  - {listeners: [web], paths: [/transform], backend: app, compress: true, response: {set: {Cache-Control: no-transform}}}
  - {listeners: [web], paths: [/encoded], backend: app, compress: true, response: {set: {Content-Encoding: x-own}}}
  - {listeners: [web], paths: [/typeless], backend: app, compress: true, response: {remove: ["Content-*"]}}
  - {listeners: [web], paths: [/typed], backend: app, compress: true, response: {set: {Content-Type: text/plain}}}
  - {listeners: [web], paths: [/stripped], backend: app, compress: true, response: {remove: [Content-Encoding, Vary]}}
  - {listeners: [web], paths: [/tagged], backend: app, compress: true, response: {set: {ETag: '"route"', Accept-Ranges: bytes}}}
backends: {app: {endpoints: ['@app']}}
`
	r := newRig(t, edits, nil, "@app", newHandler(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		if strings.HasPrefix(req.URL.Path, "/typed") {
			w.Header().Set("Content-Type", "image/png")
		}
		io.WriteString(w, words(5000))
	}))
	f := func(path, encoding, vary, tag string) {
		t.Helper()
		for _, method := range []string{"GET", "HEAD"} {
			resp := packedRequest(t, r, method == "GET", method, path, "gzip")
			if h := resp.Header; h.Get("Content-Encoding") != encoding || h.Get("Vary") != vary || h.Get("ETag") != tag || encoding == "gzip" && h.Get("Accept-Ranges") != "" {
				t.Errorf("%s %s: %v", method, path, h)
			}
			if method == "HEAD" {
				resp.Body.Close()
			} else if body := unpacked(t, resp); body != words(5000) {
				t.Errorf("%s: %d bytes", path, len(body))
			}
		}
	}
	f("/cookie", "", "", "")
	f("/transform", "", "", "")
	f("/encoded", "x-own", "", "")
	f("/typeless", "", "", "")
	f("/typed", "gzip", "Accept-Encoding", "")
	f("/stripped", "gzip", "Accept-Encoding", "")
	f("/tagged", "gzip", "Accept-Encoding", `W/"route"`)
}

// What has arrived of a slow body is sent at once.
func TestCompressesEventStreams(t *testing.T) {
	for _, two := range []bool{false, true} {
		for _, encoding := range []string{"zstd", "br", "gzip"} {
			next := make(chan string)
			r := newRig(t, packed, nil, "@app", newHandler(t, func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for event := range next {
					io.WriteString(w, event)
					w.(http.Flusher).Flush()
				}
			}))
			go func() { next <- "data: 0\n\n" }()
			resp := packedRequest(t, r, two, "GET", "/", encoding)
			var body io.Reader
			switch encoding {
			case "zstd":
				body, _ = zstd.NewReader(resp.Body, zstd.WithDecoderConcurrency(1))
			case "br":
				body = brotli.NewReader(resp.Body)
			case "gzip":
				body, _ = gzip.NewReader(resp.Body)
			}
			for i := range 3 { // each event arrives before the endpoint has the next one
				want := fmt.Sprintf("data: %d\n\n", i)
				got := make([]byte, len(want))
				if _, err := io.ReadFull(body, got); err != nil || string(got) != want {
					t.Errorf("%s: %q, %v", encoding, got, err)
				}
				if i < 2 {
					next <- fmt.Sprintf("data: %d\n\n", i+1)
				}
			}
			close(next)
			if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
				t.Errorf("%s: the rest is %q, %v", encoding, rest, err)
			}
			resp.Body.Close()
			r.shut()
		}
	}
}

// The account has the memory of an encoder, and gets it back also if the client leaves.
func TestMemoryOfCompression(t *testing.T) {
	r, e := newRigOf(t, packed)
	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
	p := e.accept()
	p.head()
	p.write("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n" + words(50_000))
	eventually(t, "the encoder is charged", func() error {
		if n := r.proxy.Memory.Used(); n < 1<<20 {
			return fmt.Errorf("%d bytes are", n)
		}
		return nil
	})
	c.Close()
	r.record().want(t, "reason", "client_gone") // the rig finds the account empty at its end
}

// A connection that waits for its next request holds no encoder.
func TestIdleConnectionsHoldNoEncoder(t *testing.T) {
	r := newPacked(t)
	for _, two := range []bool{false, true} {
		for _, encoding := range []string{"zstd", "br", "gzip"} {
			resp := packedRequest(t, r, two, "GET", "/?n=100000", encoding)
			if body := unpacked(t, resp); body != words(100_000) || resp.Header.Get("Content-Encoding") != encoding {
				t.Errorf("%s: %q with %d bytes", encoding, resp.Header.Get("Content-Encoding"), len(body))
			}
			eventually(t, "no encoder is charged", func() error {
				if n := r.proxy.Memory.Used(); n >= int64(compress.Gzip.Memory()) {
					return fmt.Errorf("%d bytes are", n)
				}
				return nil
			})
		}
	}
}

// While others use the cores for compression, the client gets the body as it is.
func TestCompressionOfMany(t *testing.T) {
	r := newPacked(t)
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 10 * runtime.GOMAXPROCS(0) {
		others.Go(func() {
			body := []byte(words(8 << 10))
			for {
				select {
				case <-stop:
					return
				default:
				}
				e := compress.Get(compress.Gzip, nowhere{})
				e.Write(body)
				e.Release()
			}
		})
	}
	skipped := func() float64 {
		return r.counter("weir_http_compression_skipped_total", "route", "packed", "encoding", "gzip", "reason", "busy")
	}
	eventually(t, "a response is not compressed", func() error {
		resp := packedRequest(t, r, false, "GET", "/?n=5000", "gzip")
		h := resp.Header
		if body := unpacked(t, resp); body != words(5000) || h.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%d bytes with %v", len(body), h)
		}
		if skipped() == 0 || h.Get("Content-Encoding") != "" {
			return fmt.Errorf("it has %v", h)
		}
		return nil
	})
	close(stop)
	others.Wait()
	before := skipped()
	resp := packedRequest(t, r, false, "GET", "/?n=5000", "gzip")
	if body := unpacked(t, resp); body != words(5000) || resp.Header.Get("Content-Encoding") != "gzip" || skipped() != before {
		t.Errorf("alone: %d bytes with %v", len(body), resp.Header)
	}
}

type nowhere struct{}

func (nowhere) WriteBody([]byte) error { return nil }

// Without memory for an encoder the client gets the body as it is.
func TestCompressionWithoutMemory(t *testing.T) {
	r := newPacked(t)
	r.hoard(memory.Exchange + 64<<10)
	resp := packedRequest(t, r, false, "GET", "/?n=5000", "gzip")
	h := resp.Header
	if body := unpacked(t, resp); body != words(5000) || h.Get("Content-Encoding") != "" || h.Get("Content-Length") != "5000" || h.Get("Vary") != "Accept-Encoding" {
		t.Errorf("%d bytes with %v", len(body), h)
	}
}

// A client cannot take a part of a body for the whole if the endpoint breaks it off.
func TestCompressedBodiesThatBreakOff(t *testing.T) {
	r, e := newRigOf(t, packed)
	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
	p := e.accept()
	p.head()
	p.write("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n" + words(50_000))
	p.Close()
	data, _ := io.ReadAll(c)
	if strings.HasSuffix(string(data), "0\r\n\r\n") || !strings.Contains(string(data), "Content-Encoding: gzip") {
		t.Errorf("the response is %d bytes: %q", len(data), data[max(0, len(data)-20):])
	}
	r.record().want(t, "reason", "response_cut_short")
}

func newRigOf(t *testing.T, text string) (*rig, *endpoint) {
	e := newEndpoint(t)
	return newRig(t, text, nil, "@app", e.address), e
}
