package http1

import (
	"bytes"
	"errors"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// Lenient is the set of faults that weir accepts. Other parsers read most of them differently, so a
// connection with such a message carries no further exchange.
type Lenient uint16

// The faults of responses; ControlCharacters, and BareLF in the head, are also faults of requests.
const (
	BareLF            Lenient = 1 << iota // lines end in LF without CR
	ChunkedHTTP10                         // an HTTP/1.0 response has Transfer-Encoding: chunked
	FoldedLines                           // a value continues on the next line, which begins with a space or tab
	LengthWithChunked                     // Content-Length and Transfer-Encoding: chunked, which has priority
	TwiceChunked                          // Transfer-Encoding: chunked twice, for a body in chunks
	IdentityEncoding                      // Transfer-Encoding: identity, for a body without an encoding (RFC 2616, section 3.6)
	ControlCharacters                     // in values of fields that do not frame the message; they become spaces (RFC 9110, section 5.5)

	// The faults of requests. They can be read in only one way, or every reading is checked.
	EqualLengths // several Content-Lengths, or a list, with equal values
	RawTargets   // see message.Request

	// ofResponse is set for every response. It accepts faults that can be read in only one
	// way: a repeated equal Content-Length, and spaces and tabs after a chunk size.
	ofResponse Lenient = 1 << 15
)

// Tolerate makes the client accept faults of responses from now on. Call it after Init.
func (c *Client) Tolerate(l Lenient) { c.rules = ofResponse | EqualLengths | l }

// LimitInfos limits the 1xx responses to a request. Call it after Init.
func (c *Client) LimitInfos(most int) { c.mostInfos = most }

// Tolerate makes the server accept faults of requests from the next one on. Call it after Init.
func (s *Server) Tolerate(l Lenient) { s.rules = l }

// accepts reports whether any of the faults is accepted.
func (l Lenient) accepts(faults Lenient) bool { return l&faults != 0 }

var (
	errFolded        = refusal(400, "bad_field_name", "a header line begins with a space or tab, so it is folded: it continues the line before it")
	errIdentity      = refusal(501, "transfer_encoding", "the Transfer-Encoding is identity, which HTTP/1.1 no longer has")
	errLengthChunked = refusal(400, "two_lengths", "there is a Content-Length header together with Transfer-Encoding")
)

// fault is a fault of responses that a setting accepts.
type fault struct {
	refused *message.Refusal
	advised *message.Refusal // the same error; it also means that the setting would accept the response
	off     Lenient
	word    string // the value of the setting
}

// faults has the reasons to refuse a response that a setting can turn off.
var faults = []fault{
	advise(errBareLF, BareLF, "bare_lf"),
	advise(errOldEncoding, ChunkedHTTP10, "chunked_http10"),
	advise(errFolded, FoldedLines, "folded_lines"),
	advise(errLengthChunked, LengthWithChunked, "length_with_chunked"),
	advise(errTwoEncodings, TwiceChunked, "twice_chunked"),
	advise(errIdentity, IdentityEncoding, "identity_encoding"),
	advise(message.ErrFieldValue, ControlCharacters, "control_characters"),
}

func advise(r *message.Refusal, off Lenient, word string) fault {
	advised := *r
	return fault{r, &advised, off, word}
}

// Explain describes a response that weir refuses. It names the setting of the backend that
// would accept the response, if there is one. It returns other errors unchanged. Responses over HTTP/2 have some of
// these errors, too.
func Explain(err error, backend string) error {
	var r *message.Refusal
	if !errors.As(err, &r) {
		return err
	}
	for i := range faults {
		if r == faults[i].advised {
			return conn.Explain(err, "%s (backends.%s.lenient: [%s] accepts it)", r.Detail, backend, faults[i].word)
		}
	}
	if r.Reason == message.ErrTooManyInfo.Reason {
		return conn.Explain(err, "%s (backends.%s.max_interim_responses)", r.Detail, backend)
	}
	return conn.Explain(err, "%s", r.ForLog()) // the client does not get the refusal's status
}

// advised labels an error if there is a setting that would accept the response. See Explain.
func (l Lenient) advised(err error) error {
	for i := range faults {
		if err == faults[i].refused && !l.accepts(faults[i].off) {
			return faults[i].advised
		}
	}
	return err
}

// hinted returns the refusal of a request with a hint, if there is a setting that would accept the request. head is empty
// if it did not arrive completely.
func (l Lenient) hinted(r *message.Refusal, head []byte, limits Limits) *message.Refusal {
	off, word := EqualLengths, "equal_lengths"
	switch {
	case r == errBareLF, bareLF(head, 0):
		off, word = BareLF, "bare_lf"
	case r == message.ErrFieldValue:
		off, word = ControlCharacters, "control_characters"
	case r != message.ErrTwoLengths && r != message.ErrBadLength:
		return r
	}
	if l.accepts(off) {
		return r
	}
	if len(head) > 0 {
		would := Server{in: reader{src: bytes.NewReader(nil), buf: bytes.Clone(head), w: len(head)}, limits: limits, rules: l | off}
		if would.ReadHead(new(message.Request)) != nil {
			return r
		}
	}
	return &message.Refusal{Status: r.Status, Reason: r.Reason, Detail: r.Detail, Hint: "lenient: [" + word + "] of the listener accepts it"}
}

// headBy reads a head by rules. n is the length of the head as received. In head each line
// ends in CRLF, so head is longer than n if a line ended in LF.
func (r *reader) headBy(rules Lenient, limit int) (head []byte, n int, err error) {
	if !rules.accepts(BareLF) {
		head, err = r.head(limit)
		return head, len(head), err
	}
	for {
		if err := r.skipEmptyLines(rules); err != nil {
			return nil, 0, err
		}
		b := r.buffered()
		if n := looseEnd(b, max(0, r.scanned-2)); n > limit {
			break
		} else if n > 0 {
			r.scanned = 0
			return wholeLines(b[:n]), n, nil
		}
		r.scanned = len(b)
		if len(b) >= limit {
			break
		}
		if err := r.fill(limit); err != nil {
			if len(b) > 0 {
				err = unexpected(err)
			}
			return nil, 0, err
		}
	}
	return nil, 0, message.ErrHeadTooLarge
}

// looseEnd returns the length of the head at the start of b, up to its empty line, or 0 if
// b has no empty line. Lines may end in LF. No empty line ends before from.
func looseEnd(b []byte, from int) int {
	for i := from; ; {
		j := bytes.IndexByte(b[i:], '\n')
		if j < 0 {
			return 0
		}
		i += j + 1
		switch rest := b[i:]; {
		case len(rest) >= 1 && rest[0] == '\n':
			return i + 1
		case len(rest) >= 2 && rest[0] == '\r' && rest[1] == '\n':
			return i + 2
		}
	}
}

// wholeLines returns b with CRLF in place of each LF.
func wholeLines(b []byte) []byte {
	if !bareLF(b, 0) {
		return b
	}
	whole := make([]byte, 0, len(b)+bytes.Count(b, lineFeed))
	for i, c := range b {
		if c == '\n' && (i == 0 || b[i-1] != '\r') {
			whole = append(whole, '\r')
		}
		whole = append(whole, c)
	}
	return whole
}

var (
	lineFeed = []byte{'\n'}
	wholeEnd = []byte("\r\n")
)

// unfold joins the folded lines of a response's head with spaces (RFC 9112, section 5.2). It
// returns true if there were any. It refuses folded headers that frame the message, and lines
// of only spaces, which some recipients read as the end of the head.
func unfold(block []byte) (folded bool, err error) {
	for start, pos := 0, 0; ; {
		end := pos + bytes.Index(block[pos:], wholeEnd)
		next := end + len(wholeEnd)
		if next+len(wholeEnd) >= len(block) { // only the empty line is left
			return folded, nil
		}
		if block[next] != ' ' && block[next] != '\t' {
			start, pos = next, next
			continue
		}
		name, _, _ := bytes.Cut(block[start:end], colon)
		more := block[next : next+bytes.Index(block[next:], wholeEnd)]
		if start == 0 || framingIDs&message.SetOf(message.Lookup(name)) != 0 || len(message.TrimSpace(more)) == 0 {
			return folded, errFolded
		}
		block[end], block[end+1] = ' ', ' '
		folded, pos = true, next
	}
}

var colon = []byte{':'}

// sameElement returns the one element of a list that only repeats it, or false. Case does not matter.
func sameElement(list []byte) (element []byte, ok bool) {
	element, rest, more := bytes.Cut(list, comma)
	for element = message.TrimSpace(element); more; {
		var next []byte
		if next, rest, more = bytes.Cut(rest, comma); !bytes.EqualFold(message.TrimSpace(next), element) {
			return nil, false
		}
	}
	return element, true
}

// repeatsLength replaces a list of equal lengths in field i, a Content-Length, by that one
// length. If the field first has the same length, repeatsLength drops field i and returns
// true. first is -1 if field i is the first Content-Length.
func repeatsLength(h *message.Head, i, first int) bool {
	if length, ok := sameElement(h.Value(i)); ok && len(length) < len(h.Value(i)) {
		h.SetValue(i, length)
	}
	if first < 0 || !bytes.Equal(h.Value(i), h.Value(first)) {
		return false
	}
	h.Fields[i].Dropped = true
	return true
}
