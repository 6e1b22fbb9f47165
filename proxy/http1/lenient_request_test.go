package http1

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

const everyRequestFault = BareLF | EqualLengths | RawTargets | ControlCharacters

// refusalOf returns why weir refuses a request.
func refusalOf(in string, l Lenient) *message.Refusal {
	var s Server
	var req message.Request
	s.Init(newWire(in), Limits{})
	s.Tolerate(l)
	defer s.Close()
	r, _ := s.ReadHead(&req).(*message.Refusal)
	return r
}

// Each word accepts its fault, and the log of a refusal names the word.
func TestFaultsOfRequests(t *testing.T) {
	words := map[Lenient]string{BareLF: "bare_lf", EqualLengths: "equal_lengths", RawTargets: "raw_targets", ControlCharacters: "control_characters"}
	f := func(fault Lenient, in, strictly, want string) {
		t.Helper()
		for _, l := range []Lenient{0, everyRequestFault &^ fault} {
			out, end := forwardedBy(newWire(in), Limits{}, l)
			equal(t, "without the word: "+in, out+end, strictly)
			if r := refusalOf(in, l); r == nil || r.Hint != "lenient: ["+words[fault]+"] of the listener accepts it" || strings.Contains(r.Detail, "lenient") {
				t.Errorf("%q: %+v", in, r)
			}
		}
		end := "EOF"
		if fault == BareLF {
			end = errNothingFollows.Error()
		}
		for name, w := range map[string]*wire{"in one piece": newWire(in + get()), "in bytes": inBytes(in + get())} {
			next := get()
			if fault == BareLF {
				next = ""
			}
			out, got := forwardedBy(w, Limits{}, fault)
			equal(t, name+": "+in, out, want+next)
			equal(t, name+": end of "+in, got, end)
		}
	}
	to := func(target string) string { return lines("GET "+target+" HTTP/1.1", "Host: a", "") }
	for _, target := range []string{"/a%5Cb", "/a\\b", "/a%", "/a%4", "/100%/b", "/%zz", "/%%41", "/a%5c..b", "/a;b/%5C"} {
		f(RawTargets, to(target), "400 ambiguous_path", to(target))
		f(RawTargets, to("http://a"+target), "400 ambiguous_path", to(target))
	}
	for _, target := range []string{"/\xc3\xa4", "/\xe4", "/?q=\xc3\xa4", "/\xff%\\x"} {
		f(RawTargets, to(target), "400 bad_target", to(target))
		f(RawTargets, to("http://a"+target), "400 bad_target", to(target))
	}

	five := lines("POST / HTTP/1.1", "Host: a", "Content-Length: 5", "") + "hello"
	f(EqualLengths, lines("POST / HTTP/1.1", "Host: a", "Content-Length: 5", "content-length: 5", "")+"hello", "400 two_lengths", five)
	f(EqualLengths, lines("POST / HTTP/1.1", "Host: a", "Content-Length: 5, 5", "Content-Length:5", "")+"hello", "400 bad_length", five)

	f(ControlCharacters, get("Cookie: a=\x01b\x7f; c=d\x0b", "User-Agent: \x1b"), "400 bad_field_value", get("Cookie: a= b ; c=d", "User-Agent: "))

	f(BareLF, "GET / HTTP/1.1\nHost: a\n\n", "400 bare_line_feed", get())
	f(BareLF, "GET / HTTP/1.1\r\nHost: a\n\r\n", "400 bare_line_feed", get())
	f(BareLF, "GET / HTTP/1.1\nHost: a\r\n\r\n", "400 bad_request_line", get())
	f(BareLF, "GET / HTTP/1.1\r\nHost: a\r\n\n", "400 bare_line_feed", get())
	f(BareLF, "\n"+get(), "400 bad_request_line", get())
	f(BareLF, "GET / HTTP/1.1\r\nHost: a\r\nA: b\nC: d\r\n\r\n", "400 bad_field_value", get("A: b", "C: d"))
	f(BareLF, "POST / HTTP/1.1\nHost: a\nContent-Length: 5\n\nhello", "400 bare_line_feed", five)
}

// weir refuses these with every word, and its log names none.
func TestFaultsOfRequestsThatNobodyMeans(t *testing.T) {
	f := func(want, in string) {
		t.Helper()
		_, end := forwardedBy(newWire(in), Limits{}, everyRequestFault)
		equal(t, in, end, want)
		for _, l := range []Lenient{0, everyRequestFault} {
			if r := refusalOf(in, l); r != nil && r.Hint != "" && !strings.Contains(in, "\n\n") {
				t.Errorf("%q with %b: %+v", in, l, r)
			}
		}
	}
	for _, path := range []string{"/a%5C..%5Cadmin", `/a\..\admin`, "/%2e%2e%5cadmin", `/a\.`, "/a%5C%2E", "/..%5c", `/.\`, "/%00", "/a%00%5C", "/.%", "/%..", "/.%./a", "/%zz/../a",
		"/%u002e", "/%U005C", "/a;b%5Cc", `/a;\`, "/a;b%2fc%5C", "/a%3bb%5C", "/..%;", "/\xc3\xa4/.."} {
		f("400 ambiguous_path", lines("GET "+path+" HTTP/1.1", "Host: a", ""))
	}
	f("400 ambiguous_path", lines("GET /%5C"+strings.Repeat("x", 8<<10)+" HTTP/1.1", "Host: a", ""))
	for _, target := range []string{"/a\x00", "/a\x7f", "/a\tb", "/a\x01", "/a#b", "/\xe4#", "/a b", "http://a\\b/"} {
		reason := "400 bad_target"
		if target == "http://a\\b/" {
			reason = "400 two_hosts"
		}
		f(reason, lines("GET "+target+" HTTP/1.1", "Host: a", ""))
	}
	f("400 two_lengths", get("Content-Length: 5", "Content-Length: 6"))
	f("400 bad_length", get("Content-Length: 5, 6"))
	f("400 bad_length", get("Content-Length: +5, +5"))
	f("400 bad_length", get("Content-Length: 5,"))
	f("400 two_lengths", get("Content-Length: 5", "Content-Length: 5", "Transfer-Encoding: chunked"))
	f("400 two_transfer_encodings", get("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"))
	f("501 transfer_encoding", get("Transfer-Encoding: chunked, chunked"))
	f("400 bad_field_name", "GET / HTTP/1.1\nHost: a\nA: b\n c\n\n")
	f("400 bad_field_value", "GET / HTTP/1.1\nHost: a\nA: b\rC: d\n\n")
	f("400 bad_field_value", "GET / HTTP/1.1\nHost: a\nA: b\r\r\n\n")
	for _, field := range []string{"A: b\x00", "Host: a\x01", "Content-Length: 5\x0b", "Transfer-Encoding: \x0bchunked", "Connection: \x7fclose", "Expect: \x01", "A: b\rc"} {
		f("400 bad_field_value", get(field))
	}
	f("400 bad_field_name", get("A\x01: b"))
	f("400 bad_field_value", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: \x01\r\n\r\n")
	f("400 empty_lines", "\n\n\n\n\n"+get())
	chunked := "POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n"
	for _, body := range []string{"5\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\n\r\n", "0\r\n\n", "0\r\nT: u\n\r\n"} {
		f("400 bare_line_feed", chunked+body)
	}
	f("400 bad_chunk", chunked+"5\r\nhello\n0\r\n\r\n")
	f("400 bad_chunk", chunked+"5 \r\nhello\r\n0\r\n\r\n")
}

// refused returns true for an outcome with a status. Bytes that come later may change the reason.
func refused(outcome string) bool { return outcome[0] == '4' || outcome[0] == '5' }

// FuzzFaultsOfRequests compares a server that accepts faults with one that accepts none. What both accept must be the
// same. What only the first accepts must be a correct request when it is sent on, apart from its target, and nothing
// may follow on the connection if a line ended in a line feed alone.
func FuzzFaultsOfRequests(f *testing.F) {
	for _, s := range requestSeeds {
		f.Add(uint16(everyRequestFault), s)
		f.Add(uint16(BareLF), strings.ReplaceAll(s, "\r\n", "\n"))
	}
	for _, s := range []string{lines("GET /a%5Cb?\xc3\xa4 HTTP/1.1", "Host: a", ""), get("Content-Length: 1, 1", "Content-Length: 1") + "x" + get(),
		"GET /\xff%\\ HTTP/1.1\nHost: a\n\n" + get(), "\n" + get() + get(), get("A: b\nC: d")} {
		f.Add(uint16(everyRequestFault), s)
	}
	f.Fuzz(func(t *testing.T, faults uint16, in string) {
		l := Lenient(faults) & everyRequestFault
		strict, strictEnd := forwarded(newWire(in), Limits{})
		out, end := forwardedBy(newWire(in), Limits{}, l)
		if strictEnd == "EOF" && (out != strict || end != strictEnd) {
			t.Fatalf("%q\nis strictly\n%q\nand with faults %b\n%q %s", in, strict, l, out, end)
		}
		if !strings.HasPrefix(out, strict) && !strings.HasPrefix(strict, out) {
			t.Fatalf("%q\nis strictly\n%q\nand with faults %b\n%q", in, strict, l, out)
		}
		if pieces, piecesEnd := forwardedBy(inBytes(in), Limits{}, l); pieces != out && !strings.Contains(out, "chunked") || piecesEnd != end && !(refused(end) && refused(piecesEnd)) {
			t.Fatalf("%q\nwith faults %b is in one piece\n%q %s\nand in bytes\n%q %s", in, l, out, end, pieces, piecesEnd)
		}
		if end != "EOF" && end != errNothingFollows.Error() || strings.Contains(in, "HTTP/1.0") || !strings.Contains(in, "Host: a") {
			return
		}
		if again, againEnd := forwardedBy(newWire(out), Limits{}, l&RawTargets); againEnd != "EOF" || again != out && strictEnd != "EOF" && !strings.Contains(out, "chunked") {
			t.Fatalf("%q\nwith faults %b is sent on as\n%q\nwhich is read as\n%q %s", in, l, out, again, againEnd)
		}
	})
}
