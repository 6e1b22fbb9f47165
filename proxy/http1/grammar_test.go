package http1

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// The parts of random messages: mostly valid ones, and some near the limits of valid syntax.
// Fuzzers that change bytes rarely produce such messages.
var (
	someMethods  = []string{"GET", "POST", "HEAD", "PUT", "OPTIONS", "get", "PROPFIND"}
	someTargets  = []string{"/", "/a?b=c", "//x", "/%2F/", "http://a/", "http://A/x?y", "*", "/a;b=c", "/?%", "/%", "/..;", "https://a:80/", "http://a", "http://a:80/", "https://A:443/?x"}
	someVersions = []string{"1.1", "1.1", "1.1", "1.0", "1.2", "01.1"}
	someFields   = []string{"Host: a", "Host: a", "Host: a", "Host: A", "Host: a:80", "host:a ", "Host:", "Content-Length: 5", "Content-Length: 5", "content-length:05",
		"Content-Length: 0", "Content-Length: 5,5", "Content-Length: 5 ,\t5, 5", "Content-Length: 6 ", "Content-Length: +5", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked",
		"transfer-encoding:\tChunked ", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding : chunked", "Transfer_Encoding: chunked",
		"X: y\r\n z", "X: y\nContent-Length: 5", "X: y\r", " X: y", "\tX: y", "X", "X:", ":", "X\x00: y", "X: \x00", "X: \x80\xff", "X: \"a\", b",
		"Connection: close", "Connection: keep-alive", "Connection: X, upgrade", "Connection: Transfer-Encoding, Content-Length, Host",
		"Connection: TE, T", "Upgrade: websocket", "Upgrade: h2c", "TE: trailers", "Trailer: T", "Trailer: Host, T, ,", "Trailer: Content-Length",
		"Trailer: transfer-encoding ,X", "Expect: 100-continue", "Expect: x", "Expect:", "Expect: x, 100-continue", "Pragma: no-cache", "Cache-Control: x", "X-Forwarded-For: 1",
		"Keep-Alive: 5", "Proxy-Connection: close", "Content_Length: 5"}
	someEnds   = []string{"\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\r\n", " \r\n", "\r\n\r\n"}
	someChunks = []string{"5\r\nhello\r\n", "5;x=\"y\"\r\nhello\r\n", "05\r\nhello\r\n", "5 \r\nhello\r\n", "5 \t\r\nhello\r\n", "5 ;x\r\nhello\r\n", "5\nhello\r\n", "5\r\nhello\n", "5\r\nhello!\r\n",
		"0x5\r\nhello\r\n", "a\r\n\r\n\r\n0\r\n\r\n\r\n", ";\r\n", "1\r\n\r\r\n", "00000000000000005\r\nhello\r\n", "5;\r\r\nhello\r\n", "5;\x00\r\nhello\r\n"}
	someLasts = []string{"0\r\n\r\n", "0\r\n\r\n", "0;x\r\n\r\n", "000\r\n\r\n", "0\r\nT: u\r\n\r\n", "0\r\nHost: b\r\nT: u\r\nT: v\r\n\r\n", "0\r\n\n", "0\n\r\n", "0\r\n",
		"0\r\nT : u\r\n\r\n", "0\r\n T: u\r\n\r\n", "0\r\nT: u\n\r\n", "0\r\n\rT: u\r\n\r\n", "0\r\nT: u\r\n v\r\n\r\n"}
	someStatuses = []string{"200 OK", "200 OK", "200 ", "200", "204 No Content", "304 x", "100 Continue", "103 x", "101 x", "404 \xff", "2000", "20", "600 x"}
)

func pick(r *rand.Rand, from []string) string { return from[r.IntN(len(from))] }

// lineEnd returns CRLF, and in one of fifty cases another line end.
func lineEnd(r *rand.Rand) string {
	if r.IntN(50) > 0 {
		return "\r\n"
	}
	return pick(r, someEnds)
}

// someBlanks returns one space, and in one of thirty cases several.
func someBlanks(r *rand.Rand) string { return strings.Repeat(" ", 1+max(0, r.IntN(60)-57)) }

// someEmptyLines writes empty lines in one of ten cases.
func someEmptyLines(r *rand.Rand, b *strings.Builder) {
	if r.IntN(10) == 0 {
		b.WriteString(strings.Repeat("\r\n", r.IntN(maxEmptyLines+2)))
	}
}

func randomFields(r *rand.Rand, b *strings.Builder) {
	for range r.IntN(6) {
		b.WriteString(pick(r, someFields))
		b.WriteString(lineEnd(r))
	}
	b.WriteString(lineEnd(r))
	switch r.IntN(4) {
	case 0:
		b.WriteString("hello")
	case 1, 2:
		for range r.IntN(3) {
			b.WriteString(someChunks[r.IntN(len(someChunks))*r.IntN(2)])
		}
		b.WriteString(pick(r, someLasts))
	}
}

func randomRequests(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(3) {
		someEmptyLines(r, &b)
		fmt.Fprintf(&b, "%s%s%s%sHTTP/%s%s", pick(r, someMethods), someBlanks(r), pick(r, someTargets), someBlanks(r), pick(r, someVersions), lineEnd(r))
		if r.IntN(4) > 0 {
			b.WriteString("Host: a\r\n")
		}
		randomFields(r, &b)
	}
	return b.String()
}

func randomResponses(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(3) {
		someEmptyLines(r, &b)
		fmt.Fprintf(&b, "HTTP/%s %s%s", pick(r, someVersions), pick(r, someStatuses), lineEnd(r))
		randomFields(r, &b)
	}
	return b.String()
}

func TestRandomMessagesAgainstNetHTTP(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	accepted, n := 0, 20000
	if raceEnabled {
		n = 2000 // this test is not about races, so fewer messages are enough
	}
	for range n {
		in := randomRequests(r)
		compareRequests(t, in)
		if out, _ := forwarded(newWire(in), Limits{}); out != "" {
			accepted++
		}
		compareResponses(t, answered[r.IntN(len(answered))], randomResponses(r))
	}
	if accepted < n/20 {
		t.Errorf("of %d streams only %d began with a request that was accepted: this compares nothing", n, accepted)
	}
}

func TestRandomMessagesInPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	n := 5000
	if raceEnabled {
		n = 500 // with the race detector, buffers do not come back from the pool
	}
	for range n {
		in := randomRequests(r)
		if whole, parts := requestTrace(newWire(in)), requestTrace(inBytes(in)); whole != parts {
			t.Fatalf("%q\nis in one piece\n%s\nand in bytes\n%s", in, whole, parts)
		}
		in = randomResponses(r)
		request := answered[r.IntN(len(answered))]
		if whole, parts := responseTrace(newWire(in), request), responseTrace(inBytes(in), request); whole != parts {
			t.Fatalf("%q\nis in one piece\n%s\nand in bytes\n%s", in, whole, parts)
		}
	}
}
