package http1

import (
	"bytes"

	"github.com/weirproxy/weir/proxy/message"
)

var (
	errFieldName = refusal(400, "bad_field_name", "a header line does not begin with a header name and a colon")
)

// parseFields adds the field lines in block to h. block is at offset in h's arena, and ends
// with an empty line. RFC 9112, section 5: no space before the colon, no folded lines.
func parseFields(h *message.Head, block []byte, offset, limit int, rules Lenient) error {
	pos, end := 0, len(block)-2
	for pos < end {
		nameEnd := pos
		for message.TokenByte(block[nameEnd]) {
			nameEnd++
		}
		if nameEnd == pos || block[nameEnd] != ':' {
			if block[pos] == ' ' || block[pos] == '\t' {
				return errFolded
			}
			return errFieldName
		}
		lineEnd := nameEnd + bytes.IndexByte(block[nameEnd:], '\r')
		if block[lineEnd+1] != '\n' {
			return message.ErrFieldValue
		}
		if rules.accepts(ControlCharacters) && message.Lookup(block[pos:nameEnd]).Class() != message.Framing {
			blankControls(block[nameEnd+1 : lineEnd])
		}
		start, stop := nameEnd+1, lineEnd
		for start < stop && (block[start] == ' ' || block[start] == '\t') {
			start++
		}
		for stop > start && (block[stop-1] == ' ' || block[stop-1] == '\t') {
			stop--
		}
		if !message.ValidValue(block[start:stop]) {
			return message.ErrFieldValue
		}
		if len(h.Fields) >= limit {
			return message.ErrTooManyFields
		}
		h.AddSpans(h.Range(offset+pos, offset+nameEnd), h.Range(offset+start, offset+stop))
		pos = lineEnd + 2
	}
	return nil
}

// framing contains the framing of a message and its connection options, from the fields.
type framing struct {
	length   int64
	chunked  bool
	lengths  int // number of Content-Length fields
	close    bool
	keep     bool
	options  int  // an upper limit for the number of options in Connection
	upgrade  bool // Connection lists Upgrade
	trailers bool // TE lists trailers
	odd      bool // weir accepted a fault
}

var (
	errBadEncoding  = refusal(501, "transfer_encoding", "weir supports no Transfer-Encoding other than chunked")
	errOldEncoding  = refusal(400, "transfer_encoding_1_0", "an HTTP/1.0 message has a Transfer-Encoding")
	errTwoEncodings = refusal(400, "two_transfer_encodings", "there is more than one Transfer-Encoding header")
	errOptions      = refusal(400, "connection_options", "the Connection header has too many options")
)

// maxOptions limits the options in Connection. weir searches all fields for each option, so
// a head full of options would cost a thousand times as much as a normal one.
const maxOptions = 64

var comma = []byte{','}

var framingIDs = message.SetOf(message.ContentLength, message.TransferEncoding, message.Connection, message.TE, message.Trailer)

// readFraming reads the fields that both requests and responses use.
func readFraming(h *message.Head, minor int, rules Lenient) (f framing, err error) {
	if !h.HasAny(framingIDs) {
		return f, nil
	}
	first := -1 // Content-Length
	for i := range h.Fields {
		switch h.Fields[i].ID {
		case message.ContentLength:
			if rules.accepts(EqualLengths) && repeatsLength(h, i, first) {
				continue
			}
			n, ok := message.ParseLength(h.Value(i))
			if !ok {
				return f, message.ErrBadLength
			}
			f.length, first = n, i
			f.lengths++
		case message.TransferEncoding:
			if err := f.encoding(h.Value(i), rules); err != nil {
				return f, err
			}
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
			if message.FramesMessage(h.Value(i)) {
				return f, message.ErrTrailer
			}
		}
	}
	switch {
	case f.lengths > 1:
		return f, message.ErrTwoLengths
	case f.lengths == 1 && f.chunked:
		if !rules.accepts(ofResponse) {
			return f, message.ErrTwoLengths
		}
		if !rules.accepts(LengthWithChunked) {
			return f, errLengthChunked
		}
		h.Drop(message.ContentLength)
		f.lengths, f.odd = 0, true
	}
	if f.chunked && minor == 0 {
		if !rules.accepts(ChunkedHTTP10) {
			return f, errOldEncoding
		}
		f.odd = true
	}
	return f, nil
}

// encoding reads a Transfer-Encoding. Some servers add one to that of their library, or list chunked twice. Their bodies
// are chunked once.
func (f *framing) encoding(v []byte, rules Lenient) error {
	once, _ := sameElement(v)
	twice := len(once) < len(v)
	if rules.accepts(ofResponse) && message.EqualFold(v, "identity") {
		if f.odd = true; !rules.accepts(IdentityEncoding) {
			return errIdentity
		}
		return nil
	}
	switch {
	case f.chunked && !rules.accepts(ofResponse):
		return errTwoEncodings
	case !message.EqualFold(once, "chunked"), twice && !rules.accepts(ofResponse):
		return errBadEncoding
	case (f.chunked || twice) && !rules.accepts(TwiceChunked):
		return errTwoEncodings
	}
	f.odd, f.chunked = f.odd || f.chunked || twice, true
	return nil
}

// blankControls replaces control characters in a value by spaces, except those that end a line or a text for some parsers.
func blankControls(value []byte) {
	for i, c := range value {
		if isControl(c) {
			value[i] = ' '
		}
	}
}

func isControl(c byte) bool {
	return c < ' ' && c != 0 && c != '\n' && c != '\r' && c != '\t' || c == 0x7f
}
