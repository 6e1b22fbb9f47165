package filter

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/compress"
	"github.com/weirproxy/weir/proxy/message"
)

func TestCompressible(t *testing.T) {
	f := func(want bool, status int, length int64, fields ...string) {
		t.Helper()
		x := newExchange("GET", "/")
		x.res.Status, x.res.Length = status, length
		for _, line := range fields {
			name, value, _ := strings.Cut(line, ": ")
			x.res.AddField(name, value)
		}
		if got := Compressible(&x.req, &x.res); got != want {
			t.Errorf("%d with %d bytes and %q: %t", status, length, fields, got)
		}
	}
	const text, long = "Content-Type: text/html; charset=utf-8", 1024
	f(true, 200, long, text)
	f(true, 200, message.Unknown, text)
	f(false, 200, long-1, text)
	f(false, 200, 0, text)
	f(false, 200, long)
	f(true, 404, long, text)
	for _, status := range []int{101, 204, 205, 206, 304} {
		f(false, status, message.Unknown, text)
	}
	for _, yes := range []string{"Text/CSS", "text/event-stream", "application/json", "Application/JSON ;a=b", "application/problem+json", "application/javascript", "text/javascript",
		"application/xml", "application/atom+xml", "image/svg+xml", "application/wasm", "application/manifest+json"} {
		f(true, 200, long, "content-type: "+yes)
	}
	for _, no := range []string{"", "image/png", "application/octet-stream", "video/mp4", "application/zip", "application/jsonx", "textual/a", "application/grpc", "application/grpc+json", "application/grpc-web+json", "font/woff2", strings.Repeat("a", 200) + "+json"} {
		f(false, 200, long, "Content-Type: "+no)
	}
	f(false, 200, long, text, "Content-Encoding: gzip")
	f(true, 200, long, text, "Content-Encoding: Identity")
	f(false, 200, long, text, "Content-Range: bytes 0-1023/5000")
	f(false, 200, long, text, "Set-Cookie: a=b")
	f(false, 200, long, text, "Cache-Control: public, No-Transform")
	f(true, 200, long, text, "Cache-Control: public")
	for _, digest := range []string{"Content-Digest", "Repr-Digest", "Digest", "Content-MD5"} {
		f(false, 200, long, text, digest+": a")
	}
	// A header that the client does not get says nothing.
	x := newExchange("GET", "/")
	x.res.Status, x.res.Length = 200, long
	x.res.AddField("Content-Type", "text/plain")
	x.res.AddField("Set-Cookie", "a=b")
	x.res.Fields[1].Dropped = true
	if !Compressible(&x.req, &x.res) {
		t.Error("a dropped cookie counts")
	}
	// HEAD has the headers of GET.
	x = newExchange("HEAD", "/")
	x.res.Status = 200
	x.res.AddField("Content-Type", "text/plain")
	if !Compressible(&x.req, &x.res) {
		t.Error("the response to HEAD without a length")
	}
	x.res.AddField("Content-Length", "1023")
	if Compressible(&x.req, &x.res) {
		t.Error("the response to HEAD with a small length")
	}
}

func TestCodingOfRequests(t *testing.T) {
	f := func(want compress.Coding, minor int, fields ...string) {
		t.Helper()
		x := newExchange("GET", "/")
		x.req.Minor = minor
		for _, line := range fields {
			dropped := strings.HasPrefix(line, "-")
			name, value, _ := strings.Cut(strings.TrimPrefix(line, "-"), ": ")
			x.req.AddField(name, value)
			x.req.Fields[len(x.req.Fields)-1].Dropped = dropped
		}
		if got := Coding(&x.req); got != want {
			t.Errorf("HTTP/1.%d with %q: %v", minor, fields, got)
		}
	}
	f(compress.Identity, 1)
	f(compress.Gzip, 1, "accept-encoding: deflate", "Accept-Encoding: gzip")
	f(compress.Identity, 0, "Accept-Encoding: gzip")
	f(compress.Identity, 1, "Accept-Encoding: gzip", "Cache-Control: no-transform")
	f(compress.Zstd, 1, "-Accept-Encoding: gzip, zstd", "Accept-Encoding: identity") // the route sets it for the endpoint
}

func TestHeadsOfEncodedBodies(t *testing.T) {
	f := func(etag, want string) {
		t.Helper()
		x := newExchange("GET", "/")
		x.res.Length = 5000
		for _, line := range []string{"Content-Length: 5000", "Accept-Ranges: bytes", "Content-Encoding: identity", "ETag: " + etag, "Vary: Accept"} {
			name, value, _ := strings.Cut(line, ": ")
			x.res.AddField(name, value)
		}
		Vary(&x.res)
		Encoded(&x.res, compress.Brotli)
		got := strings.Join(lines(&x.res.Head), "; ")
		if got != "ETag: "+want+"; Vary: Accept; Vary: Accept-Encoding; Content-Encoding: br" || x.res.Length != message.Unknown {
			t.Errorf("the headers are %s, and the length is %d", got, x.res.Length)
		}
	}
	f(`"a"`, `W/"a"`)
	f(`W/"a"`, `W/"a"`)
	f(`a`, `a`)
}

func TestCompressionAllocatesNothing(t *testing.T) {
	x := newExchange("GET", "/")
	x.req.Minor = 1
	x.req.AddField("Accept-Encoding", "gzip, deflate, br, zstd")
	if n := testing.AllocsPerRun(100, func() {
		x.res.Reset()
		x.res.Status, x.res.Length = 200, 5000
		x.res.AddField("Content-Type", "application/json")
		x.res.AddField("ETag", `"a"`)
		if Compressible(&x.req, &x.res) {
			Vary(&x.res)
			Encoded(&x.res, Coding(&x.req))
		}
	}); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}
