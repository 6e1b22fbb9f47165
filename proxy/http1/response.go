package http1

import (
	"bytes"
	"slices"

	"github.com/weirproxy/weir/proxy/message"
)

var (
	errStatusLine = refusal(502, "bad_status_line", "the endpoint's response does not begin with an HTTP/1.1 status line; the endpoint may speak another protocol")
	errBadSwitch  = refusal(502, "bad_upgrade", "the endpoint switched to a protocol (101) that the client did not request")
)

// parseResponse parses a whole head into res, the response to req.
func parseResponse(res *message.Response, req *message.Request, head []byte, limits Limits, rules Lenient) (f framing, err error) {
	block, offset := res.Load(head)
	folded := false
	if rules.accepts(FoldedLines) {
		if folded, err = unfold(block); err != nil {
			return f, err
		}
	}
	line := bytes.IndexByte(block, '\r')
	if block[line+1] != '\n' {
		return f, errStatusLine
	}
	minor, err := parseStatusLine(res, block[:line], offset)
	if err != nil {
		return f, err
	}
	if err := parseFields(&res.Head, block[line+2:], offset+line+2, limits.Fields, rules); err != nil {
		return f, err
	}
	if f, err = readFraming(&res.Head, minor, rules); err != nil {
		return f, err
	}
	f.odd = f.odd || folded || rules.accepts(ControlCharacters) && slices.ContainsFunc(head, isControl)
	return f, interpretResponse(res, req, f, minor)
}

func parseStatusLine(res *message.Response, line []byte, offset int) (minor int, err error) {
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' {
		return 0, errStatusLine
	}
	status, ok := message.ParseLength(line[9:12])
	if !ok || status < 100 || len(line) > 12 && line[12] != ' ' {
		return 0, errStatusLine
	}
	res.Status = int(status)
	if len(line) > 13 {
		if !message.ValidValue(line[13:]) {
			return 0, errStatusLine
		}
		res.Reason = res.Range(offset+13, offset+len(line))
	}
	return int(line[7] - '0'), nil
}

// interpretResponse determines the length of the body (RFC 9112, section 6.3), and whether
// the connection ends.
func interpretResponse(res *message.Response, req *message.Request, f framing, minor int) error {
	res.Close = f.close || minor == 0 && !f.keep
	switch {
	case res.Status == 101:
		i := res.Find(message.Upgrade)
		if req.Upgrade.Len() == 0 || i < 0 || !bytes.EqualFold(res.Value(i), req.Bytes(req.Upgrade)) {
			return errBadSwitch
		}
		res.Upgrade = res.ValueSpan(i)
		res.Drop(message.ContentLength)
	case message.BodyForbidden(res.Status):
		if res.Status != 304 {
			res.Drop(message.ContentLength) // RFC 9110, section 8.6
			// The endpoint may send a body in spite of the status. weir does not wait for it.
			res.Close = res.Close || f.chunked || f.length > 0
		}
	case req.IsHead:
	case f.chunked:
		res.Length = message.Unknown
	case f.lengths == 1:
		res.Length = f.length
	default:
		res.Length, res.Close = message.Unknown, true
	}
	res.DropHopByHop()
	return nil
}
