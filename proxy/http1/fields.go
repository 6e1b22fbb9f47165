package http1

import (
	"bytes"
	"encoding/binary"

	"github.com/weirproxy/weir/proxy/message"
)

var (
	errFieldName  = refusal(400, "bad_field_name", "a field line does not begin with a name and a colon")
	errFieldValue = refusal(400, "bad_field_value", "a field value contains a control character")
)

// parseFields adds the field lines in head.arena[at:end] to h; they end with
// an empty line. RFC 9112, section 5: no space before the colon, no folded lines.
func parseFields(h *message.Head, block []byte, offset, limit int) error {
	pos, end := 0, len(block)-2
	for pos < end {
		nameEnd := pos
		for isToken[block[nameEnd]] {
			nameEnd++
		}
		if nameEnd == pos || block[nameEnd] != ':' {
			return errFieldName
		}
		lineEnd := nameEnd + bytes.IndexByte(block[nameEnd:], '\r')
		if block[lineEnd+1] != '\n' {
			return errFieldValue
		}
		start, stop := nameEnd+1, lineEnd
		for start < stop && (block[start] == ' ' || block[start] == '\t') {
			start++
		}
		for stop > start && (block[stop-1] == ' ' || block[stop-1] == '\t') {
			stop--
		}
		if !validValue(block[start:stop]) {
			return errFieldValue
		}
		if len(h.Fields) >= limit {
			return errTooManyFields
		}
		h.AddSpans(h.Range(offset+pos, offset+nameEnd), h.Range(offset+start, offset+stop))
		pos = lineEnd + 2
	}
	return nil
}

// isToken are the characters of a token (RFC 9110, section 5.6.2).
var isToken = func() (t [256]bool) {
	for c := range t {
		t[c] = '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' ||
			bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), byte(c)) >= 0
	}
	return t
}()

// validValue says whether b has no control character but the tab (RFC 9110, section 5.5).
func validValue(b []byte) bool {
	for len(b) >= 8 {
		if hasControl(binary.LittleEndian.Uint64(b)) && !validBytes(b[:8]) {
			return false
		}
		b = b[8:]
	}
	return validBytes(b)
}

func validBytes(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// hasControl says whether any of eight bytes is below 0x20 or is 0x7f: the
// subtraction borrows into a byte's top bit only where it was small, and bytes
// that had the bit before are masked out.
func hasControl(v uint64) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	del := v ^ ones*0x7f
	return ((v-ones*0x20)&^v|(del-ones)&^del)&tops != 0
}

// hopByHop drops what was meant for weir and not for the other side: the
// fields of RFC 9110, section 7.6.1, and those that Connection names. What
// messages need of them, the codec writes anew.
func hopByHop(h *message.Head) {
	named := false
	for i := range h.Fields {
		switch h.Fields[i].ID {
		case message.Connection:
			h.Fields[i].Dropped, named = true, true
		case message.TransferEncoding, message.TE, message.Upgrade, message.KeepAlive,
			message.ProxyConnection, message.ProxyAuthenticate, message.ProxyAuthorization, message.HTTP2Settings:
			h.Fields[i].Dropped = true
		}
	}
	if named {
		dropNominated(h, h)
	}
}

// dropNominated drops the fields of h that head's Connection fields list.
func dropNominated(h, head *message.Head) {
	for i := range head.Fields {
		if head.Fields[i].ID == message.Connection {
			message.EachToken(head.Value(i), func(name []byte) { dropNamed(h, name) })
		}
	}
}

// dropNamed drops the fields of a name that Connection lists. The length, the
// host and what the client waits for are no sender's to take away from a message.
func dropNamed(h *message.Head, name []byte) {
	for i := range h.Fields {
		switch f := &h.Fields[i]; f.ID {
		case message.Host, message.ContentLength, message.Expect:
		default:
			f.Dropped = f.Dropped || bytes.EqualFold(h.Name(i), name)
		}
	}
}

// parseLength reads a Content-Length: digits alone, and few enough not to overflow.
func parseLength(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// framing is what a message's fields say about its body.
type framing struct {
	length   int64
	chunked  bool
	lengths  int // how many Content-Length fields
	close    bool
	keep     bool
	options  int  // at most as many does Connection have
	upgrade  bool // Connection names Upgrade
	trailers bool // TE names trailers
}

var (
	errTwoLengths   = refusal(400, "two_lengths", "there is more than one Content-Length, or one beside a Transfer-Encoding")
	errBadLength    = refusal(400, "bad_length", "Content-Length is not a number")
	errBadEncoding  = refusal(501, "transfer_encoding", "Transfer-Encoding is something else than chunked alone")
	errOldEncoding  = refusal(400, "transfer_encoding_1_0", "an HTTP/1.0 message has a Transfer-Encoding")
	errTwoEncodings = refusal(400, "two_transfer_encodings", "there is more than one Transfer-Encoding")
	errTrailer      = refusal(400, "bad_trailer", "Trailer announces a field that frames the message")
	errOptions      = refusal(400, "connection_options", "Connection has too many options")
)

// maxOptions bounds what Connection lists: each option is looked for among all
// fields, so a head full of options would cost a thousand times what another does.
const maxOptions = 64

var comma = []byte{','}

// framesMessage says whether a list of trailers has one that no trailer may be
// (RFC 9110, section 6.5.1). There are parsers that take such a message for none.
func framesMessage(list []byte) bool {
	return message.HasToken(list, "transfer-encoding") || message.HasToken(list, "content-length") ||
		message.HasToken(list, "trailer")
}

// readFraming collects the fields that both roles interpret.
func readFraming(h *message.Head, minor int) (f framing, err error) {
	for i := range h.Fields {
		switch h.Fields[i].ID {
		case message.ContentLength:
			n, ok := parseLength(h.Value(i))
			if !ok {
				return f, errBadLength
			}
			f.length = n
			f.lengths++
		case message.TransferEncoding:
			if f.chunked {
				return f, errTwoEncodings
			}
			if !message.EqualFold(h.Value(i), "chunked") {
				return f, errBadEncoding
			}
			f.chunked = true
		case message.Connection:
			v := h.Value(i)
			if f.options += 1 + bytes.Count(v, comma); f.options > maxOptions {
				return f, errOptions
			}
			f.close = f.close || message.HasToken(v, "close")
			f.keep = f.keep || message.HasToken(v, "keep-alive")
			f.upgrade = f.upgrade || message.HasToken(v, "upgrade")
		case message.TE:
			f.trailers = f.trailers || message.HasToken(h.Value(i), "trailers")
		case message.Trailer:
			if framesMessage(h.Value(i)) {
				return f, errTrailer
			}
		}
	}
	switch {
	case f.lengths > 1, f.lengths == 1 && f.chunked:
		return f, errTwoLengths
	case f.chunked && minor == 0:
		return f, errOldEncoding
	}
	return f, nil
}
