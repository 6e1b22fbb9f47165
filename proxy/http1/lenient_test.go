package http1

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

const everyFault = BareLF | ChunkedHTTP10 | FoldedLines | LengthWithChunked | TwiceChunked | IdentityEncoding | ControlCharacters

// tolerated is like returned, for a Client that accepts the faults in l.
func tolerated(w *wire, request string, l Lenient) (out, end string, client *Client) {
	return returnedBy(w, request, func(c *Client) { c.Tolerate(l) })
}

func TestFaultsOfResponses(t *testing.T) {
	f := func(fault Lenient, in, strictly, want string) {
		t.Helper()
		_, end, _ := returned(newWire(in), getRequest)
		equal(t, "strictly: "+in, end, strictly)
		_, end, _ = tolerated(newWire(in), getRequest, everyFault&^fault)
		equal(t, "by the others: "+in, end, strictly)
		for name, w := range map[string]*wire{"in one piece": newWire(in), "in bytes": inBytes(in)} {
			w.blocked, w.final = false, nil
			out, end, client := tolerated(w, getRequest, fault)
			if equal(t, name+": end of "+in, end, ""); name == "in one piece" || !strings.Contains(want, "chunked") {
				equal(t, name+": "+in, out, want)
			}
			if client.Reusable() || !client.BodyEnded() {
				t.Errorf("%s: %q: reusable %v, ended %v", name, in, client.Reusable(), client.BodyEnded())
			}
		}
	}
	hello := lines("HTTP/1.1 200 OK", "Content-Length: 5", "") + "hello"
	chunked := lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "")
	whole := chunked + "5\r\nhello\r\n0\r\n\r\n"

	f(BareLF, "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "400 bare_line_feed", hello)
	f(BareLF, "HTTP/1.1 200 OK\r\nContent-Length: 5\n\r\nhello", "400 bare_line_feed", hello)
	f(BareLF, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\nhello", "400 bare_line_feed", hello)
	f(BareLF, "HTTP/1.1 200 OK\nContent-Length: 5\r\n\r\nhello", "400 bare_line_feed", hello)
	f(BareLF, "HTTP/1.1 200 OK\nContent-Length: 9\n\na\r\n\r\nb\n\nc", "400 bare_line_feed", lines("HTTP/1.1 200 OK", "Content-Length: 9", "")+"a\r\n\r\nb\n\nc")
	f(BareLF, "\r\nHTTP/1.1 103 x\nA: b\n\nHTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "400 bare_line_feed", lines("HTTP/1.1 103 x", "A: b", "")+hello)
	for _, empty := range []string{"\n", "\n\n\n\n", "\r\n\n", "\n\r\n"} {
		f(BareLF, empty+"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "400 bare_line_feed", hello)
		f(BareLF, empty+hello, "400 bare_line_feed", hello)
		f(BareLF, "HTTP/1.1 103 x\r\nA: b\r\n\r\n"+empty+hello, "400 bare_line_feed", lines("HTTP/1.1 103 x", "A: b", "")+hello)
	}
	for _, body := range []string{"5\nhello\n0\n\n", "5\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\n\r\n", "5\r\nhello\r\n0\r\n\n", "5;x\nhello\r\n0 \n\n"} {
		f(BareLF, chunked+body, "400 bare_line_feed", whole)
	}
	f(BareLF, chunked+"5\r\nhello\n0\r\n\r\n", "400 bad_chunk", whole)
	f(BareLF, chunked+"5\r\nhello\r\n0\r\nT: u\n\n", "400 bare_line_feed", chunked+"5\r\nhello\r\n0\r\nT: u\r\n\r\n")

	f(ChunkedHTTP10, lines("HTTP/1.0 200 OK", "Transfer-Encoding: chunked", "")+"5\r\nhello\r\n0\r\n\r\n", "400 transfer_encoding_1_0", whole)
	f(ChunkedHTTP10, lines("HTTP/1.0 200 OK", "Transfer-Encoding: chunked", "Connection: keep-alive", "")+"0\r\n\r\n", "400 transfer_encoding_1_0", chunked+"0\r\n\r\n")

	f(FoldedLines, lines("HTTP/1.1 200 OK", "A: b", " c", "Content-Length: 5", "")+"hello", "400 bad_field_name",
		lines("HTTP/1.1 200 OK", "A: b   c", "Content-Length: 5", "")+"hello")
	f(FoldedLines, lines("HTTP/1.1 200 OK", "Content-Length: 5", "Set-Cookie:", "\tx=y;", " \t Path=/", "")+"hello", "400 bad_field_name",
		lines("HTTP/1.1 200 OK", "Content-Length: 5", "Set-Cookie: x=y;   \t Path=/", "")+"hello")

	f(LengthWithChunked, lines("HTTP/1.1 200 OK", "Content-Length: 7", "Transfer-Encoding: chunked", "")+"5\r\nhello\r\n0\r\n\r\n", "400 two_lengths", whole)
	f(LengthWithChunked, lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "Content-Length: 5", "Content-Length: 5, 5", "")+"5\r\nhello\r\n0\r\n\r\n", "400 two_lengths", whole)

	for _, twice := range []string{"Transfer-Encoding: chunked\r\nTransfer-Encoding: Chunked", "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: chunked,Chunked ,chunked"} {
		f(TwiceChunked, lines("HTTP/1.1 200 OK", twice, "")+"5\r\nhello\r\n0\r\n\r\n", "400 two_transfer_encodings", whole)
	}

	f(IdentityEncoding, lines("HTTP/1.1 200 OK", "Transfer-Encoding: Identity", "Content-Length: 5", "")+"hello", "501 transfer_encoding", hello)

	out, end, client := tolerated(newWire("HTTP/1.0 200 OK\nA: b\n c\nContent-Length: 5\nTransfer-Encoding: chunked\n\n5 \nhello\n0\n\n"), getRequest, everyFault)
	equal(t, "all at once", out, lines("HTTP/1.1 200 OK", "A: b   c", "Transfer-Encoding: chunked", "")+"5\r\nhello\r\n0\r\n\r\n")
	if equal(t, "all at once", end, ""); client.Reusable() {
		t.Error("all at once: the connection is used again")
	}
}

// weir refuses ambiguous responses with every setting.
func TestFaultsThatNobodyMeans(t *testing.T) {
	f := func(want, in string) {
		t.Helper()
		for name, w := range map[string]*wire{"in one piece": newWire(in), "in bytes": inBytes(in)} {
			_, end, client := tolerated(w, getRequest, everyFault)
			if equal(t, name+": "+in, end, want); client.Reusable() {
				t.Errorf("%s: %q: the connection is used again", name, in)
			}
		}
	}
	ok := func(fields ...string) string {
		return lines(append(append([]string{"HTTP/1.1 200 OK"}, fields...), "")...)
	}
	f("400 bad_field_name", ok(" A: b", "Content-Length: 0"))
	f("400 bad_field_name", ok("Content-Length:", " 5")+"hello")
	f("400 bad_field_name", ok("Content-Length: 5", " 5")+"hello")
	f("400 bad_field_name", ok("transfer-encoding:", "\tchunked")+"0\r\n\r\n")
	f("400 bad_field_name", ok("Connection: keep-alive,", " close", "Content-Length: 0"))
	f("400 bad_field_name", ok("A: b", " ", "Content-Length: 0"))
	f("400 bad_field_name", ok("A: b", " c", "\t", "Content-Length: 0"))
	f("400 bad_field_name", ok("A: b", " \t", ""))
	f("400 bad_field_name", ok("A : b", "Content-Length: 0"))
	f("400 bad_field_name", ok("Transfer-Encoding: chunked")+"0\r\nT: u\r\n v\r\n\r\n")
	f("400 two_lengths", ok("Content-Length: 5", "Content-Length: 6", "Transfer-Encoding: chunked")+"0\r\n\r\n")
	f("501 transfer_encoding", ok("Transfer-Encoding: identity, chunked")+"0\r\n\r\n")
	f("501 transfer_encoding", ok("Transfer-Encoding: gzip, chunked")+"0\r\n\r\n")
	f("501 transfer_encoding", ok("Transfer-Encoding: chunked", "Transfer-Encoding: gzip")+"0\r\n\r\n")
	f("501 transfer_encoding", ok("Transfer-Encoding: chunked, gzip")+"0\r\n\r\n")
	f("501 transfer_encoding", ok("Transfer-Encoding: chunked,")+"0\r\n\r\n")
	f("400 bad_field_value", ok("A: b\rC: d", "Content-Length: 0"))
	f("400 bad_field_value", ok("A: b\r\r", "Content-Length: 0"))
	f("400 bad_field_value", ok("A: \x00", "Content-Length: 0"))
	f("502 bad_status_line", "\r\r\n"+ok("Content-Length: 0"))
	f("502 bad_status_line", " \n"+ok("Content-Length: 0"))
	f("400 empty_lines", strings.Repeat("\r\n", 5)+ok("Content-Length: 0"))
	f("400 empty_lines", "\n\n\r\n\n\n"+ok("Content-Length: 0"))
	f("431 head_too_large", "HTTP/1.1 200 OK\nA: "+strings.Repeat("x", 64<<10)+"\n\n")
	f("431 head_too_large", "HTTP/1.1 200 OK\nA: "+strings.Repeat("x", 70<<10))
	for _, chunk := range []string{"5\rhello\n0\n\n", "5\r\r\nhello\r\n0\r\n\r\n", "5\n\nhello\n0\n\n", "5\nhello\r0\n\n", "5\nhello!\n0\n\n", "\n5\nhello\n0\n\n"} {
		f("400 bad_chunk", ok("Transfer-Encoding: chunked")+chunk)
	}
	whole := "HTTP/1.1 200 OK\nContent-Length: 5\n\n"
	for i := 1; i < len(whole); i++ {
		f("unexpected EOF", whole[:i])
	}
}

// The log names the setting that accepts a fault, unless it is set.
func TestFaultsNameTheirSetting(t *testing.T) {
	for in, word := range map[string]string{
		"HTTP/1.1 200 OK\nContent-Length: 0\n\n": "bare_lf", lines("HTTP/1.1 200 OK", "A: b\nC: d", ""): "bare_lf",
		lines("HTTP/1.0 200 OK", "Transfer-Encoding: chunked", ""):                      "chunked_http10",
		lines("HTTP/1.1 200 OK", "A: b", " c", ""):                                      "folded_lines",
		lines("HTTP/1.1 200 OK", "Content-Length: 0", "Transfer-Encoding: chunked", ""): "length_with_chunked",
		lines("HTTP/1.0 200 OK", "A: b", " c", "Transfer-Encoding: chunked", ""):        "folded_lines",
		lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked, chunked", ""):             "twice_chunked",
		lines("HTTP/1.1 200 OK", "Transfer-Encoding: identity", ""):                     "identity_encoding",
		lines("HTTP/1.1 200 OK", "Server: a\x1b", ""):                                   "control_characters",
	} {
		var c Client
		var req message.Request
		var res message.Response
		parseInto(&req, getRequest)
		c.Init(newWire(in), Limits{})
		if err := c.ReadHead(&req, &res); err == nil || !strings.HasSuffix(Explain(err, "app").Error(), " (backends.app.lenient: ["+word+"] accepts it)") {
			t.Errorf("%q: %v", in, err)
		}
	}
	var c Client
	var req message.Request
	var res message.Response
	parseInto(&req, getRequest)
	c.Init(newWire(lines("HTTP/1.1 200 OK", " A: b", "")), Limits{})
	c.Tolerate(everyFault)
	if err := c.ReadHead(&req, &res); err == nil || strings.Contains(Explain(err, "app").Error(), "lenient") {
		t.Errorf("with the setting: %v", err)
	}
}

// The log names no setting with which weir would still refuse the response.
func TestFaultsWithoutASetting(t *testing.T) {
	f := func(in string) {
		t.Helper()
		for _, l := range []Lenient{0, everyFault &^ FoldedLines, everyFault} {
			var c Client
			var req message.Request
			var res message.Response
			parseInto(&req, getRequest)
			c.Init(newWire(in), Limits{})
			c.Tolerate(l)
			err := c.ReadHead(&req, &res)
			for err == nil {
				_, err = c.ReadBody(&res)
			}
			if _, refused := err.(*message.Refusal); !refused || strings.Contains(err.Error(), "lenient") {
				t.Errorf("%q with %b: %v", in, l, err)
			}
		}
	}
	for _, in := range unhelped {
		f(in)
	}
	f(lines("HTTP/1.1 200 OK", "A: b", " c", "D : e", ""))
	f(lines("HTTP/1.1 200 OK", "A: b", " c", "Transfer-Encoding: gzip", ""))
}

// unhelped are responses with folded lines that FoldedLines does not accept.
var unhelped = []string{
	lines("HTTP/1.1 200 OK", " A: b", "Content-Length: 0", ""), lines("HTTP/1.1 200 OK", "Content-Length:", " 5", "") + "hello",
	lines("HTTP/1.1 200 OK", "A: b", " c", "Content-Length: 5", "\t", "") + "hello", lines("HTTP/1.1 200 OK", "A: b", " ", "Content-Length: 5", "") + "hello",
	lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "") + "5\r\nhello\r\n0\r\nT: u\r\n v\r\n\r\n",
	lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "") + "5\r\nhello\r\n0\r\n T: u\r\n\r\n",
}

// faultSeeds are responses with faults, in which further faults are near.
var faultSeeds = []string{
	"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "HTTP/1.1 200 OK\r\nA: b\nContent-Length: 5\r\n\nhello", "\r\nHTTP/1.1 103 x\n\nHTTP/1.1 204 x\n\n",
	"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5 \nhello\n0\nT: u\n\n", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5\t;a\nhello\n0 ;b\n\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\n",
	lines("HTTP/1.0 200 OK", "Transfer-Encoding: chunked", "Content-Length: 5", "") + "5  \r\nhello\r\n0\r\n\r\n",
	lines("HTTP/1.1 200 OK", "A: b", " c", "\td", "Content-Length: 5, 5", "Content-Length: 5", "") + "hello",
	lines("HTTP/1.1 200 OK", "Content-Length:", " 5", "") + "hello", lines("HTTP/1.1 200 OK", "A:", " ", "B: c", "") + "hello",
	lines("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "transfer-encoding: chunked", "") + "5\r\nhello\r\n0\r\n\r\n",
	lines("HTTP/1.1 200 OK", "Transfer-Encoding: identity", "Content-Length: 5", "") + "hello", lines("HTTP/1.1 200 OK", "A: \x01b\x7f", "Content-Length: 5", "") + "hello",
	"HTTP/1.1 101 x\nConnection: Upgrade\nUpgrade: websocket\n\nframe", "HTTP/1.1 200 OK\n\nuntil the end", "\n\r\nHTTP/1.1 103 x\n\n\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 200 OK\nA: \n b\n\n",
}

// compareFaults reads a response strictly, and again with faults accepted. If the strict
// reader accepts the response, the lenient one must read the same. If only the lenient one
// accepts it, the connection must end, and the client must get a response without a fault.
// Reading byte by byte must change nothing.
func compareFaults(t *testing.T, request, in string, l Lenient) {
	t.Helper()
	l &= everyFault
	strict, strictEnd, first := returned(newWire(in), request)
	out, end, client := tolerated(newWire(in), request, l)
	if strictEnd == "" && (out != strict || end != "" || client.Reusable() != first.Reusable()) {
		t.Fatalf("%q\nis strictly\n%q reusable %v\nand with faults %b\n%q %s reusable %v", in, strict, first.Reusable(), l, out, end, client.Reusable())
	}
	if strictEnd != "" && client.Reusable() {
		t.Fatalf("%q\nis refused strictly (%s), and with faults %b the connection is used again", in, strictEnd, l)
	}
	if end == "" && !strings.Contains(out, "HTTP/1.1 101") {
		// The test reads the response as a client does: to its length, to the last chunk, or to the end of
		// the connection.
		w := newWire(out)
		again, againEnd, _ := returned(w, request)
		if againEnd != "" || again != out && !strings.HasPrefix(request, "GET / HTTP/1.0") {
			t.Fatalf("%q\nwith faults %b becomes\n%q\nwhich we read as\n%q %s", in, l, out, again, againEnd)
		}
	}
	trace := func(w *wire) string { return responseTraceBy(w, request, func(c *Client) { c.Tolerate(l) }) }
	if whole, parts := trace(newWire(in)), trace(inBytes(in)); whole != parts {
		t.Fatalf("%q\nwith faults %b is in one piece\n%s\nand in bytes\n%s", in, l, whole, parts)
	}
}

func FuzzFaults(f *testing.F) {
	for _, s := range slices.Concat(faultSeeds, unhelped, responseSeeds) {
		for i := range answered {
			f.Add(byte(i), uint16(everyFault), s)
		}
		for fault := BareLF; fault <= ControlCharacters; fault <<= 1 {
			f.Add(byte(0), uint16(fault), s)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, faults uint16, in string) {
		compareFaults(t, answered[int(kind)%len(answered)], in, Lenient(faults))
	})
}

func TestRandomFaults(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	n := 5000
	if raceEnabled {
		n = 500 // this test is not about races, so fewer cases are enough
	}
	accepted := 0
	for range n {
		in := randomResponses(r)
		if r.IntN(2) == 0 {
			in = strings.ReplaceAll(in, "\r\n", pick(r, []string{"\n", "\r\n\t", "\r\n"}))
		}
		compareFaults(t, pick(r, answered), in, Lenient(r.IntN(128)))
		_, strictly, _ := returned(newWire(in), getRequest)
		if _, end, _ := tolerated(newWire(in), getRequest, everyFault); strictly != "" && end == "" {
			accepted++
		}
	}
	if accepted < n/100 {
		t.Errorf("of %d responses only %d were accepted for their faults: this compares nothing", n, accepted)
	}
}
