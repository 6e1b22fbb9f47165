package http1

import (
	"bytes"

	"github.com/weirproxy/weir/proxy/message"
)

var (
	errRequestLine   = refusal(400, "bad_request_line", "the request line is malformed: it must have a method, a target and an HTTP version")
	errVersion       = refusal(505, "version", "the version is not one of HTTP/1")
	errUpgradeBody   = refusal(400, "upgrade_with_body", "an upgrade request has a body in chunks")
	errTargetTooLong = &message.Refusal{Status: 414, Reason: "target_too_long", Detail: "the request line is too long", Hint: "limits.head_size"}
)

// parseRequest reads a whole head, with its empty line, into req.
func parseRequest(req *message.Request, head []byte, limits Limits, rules Lenient) error {
	block, offset := req.Load(head)
	line := bytes.IndexByte(block, '\r')
	if err := parseRequestLine(req, block[:line], offset); err != nil {
		if message.IsPath(err) && block[line+1] == '\n' && parseFields(&req.Head, block[line+2:], offset+line+2, limits.Fields, rules) == nil {
			noteHost(req)
		}
		return err
	}
	if block[line+1] != '\n' {
		return errRequestLine
	}
	if err := parseFields(&req.Head, block[line+2:], offset+line+2, limits.Fields, rules); err != nil {
		return err
	}
	return interpretRequest(req, rules)
}

// noteHost sets the host of a refused request for the log, if the host is valid.
func noteHost(req *message.Request) {
	if req.ReadHost(false) != nil {
		req.Host = message.Span{}
	}
}

func parseRequestLine(req *message.Request, line []byte, offset int) error {
	method := bytes.IndexByte(line, ' ')
	version := bytes.LastIndexByte(line, ' ')
	if method <= 0 || version <= method+1 {
		return errRequestLine
	}
	target, end := method+1, version
	for target < end && line[target] == ' ' { // accept several spaces (RFC 9112, section 3)
		target++
	}
	for target < end && line[end-1] == ' ' {
		end--
	}
	if target == end {
		return errRequestLine
	}
	if !message.ValidToken(line[:method]) {
		return errRequestLine
	}
	if err := parseVersion(req, line[version+1:]); err != nil {
		return err
	}
	if err := req.SetMethod(req.Range(offset, offset+method)); err != nil {
		return err
	}
	return parseTarget(req, line[target:end], offset+target)
}

// parseVersion parses the version. It treats later versions of HTTP/1 as HTTP/1.1 (RFC 9110,
// section 6.2).
func parseVersion(req *message.Request, v []byte) error {
	if len(v) != 8 || string(v[:5]) != "HTTP/" || v[6] != '.' || v[5] < '0' || v[5] > '9' || v[7] < '0' || v[7] > '9' {
		return errRequestLine
	}
	if v[5] != '1' {
		return errVersion
	}
	req.Minor = min(int(v[7]-'0'), 1)
	return nil
}

// parseTarget accepts the origin form, the absolute form, and "*" of OPTIONS (RFC 9112,
// section 3.2).
func parseTarget(req *message.Request, t []byte, offset int) error {
	if t[0] != '/' && string(t) != "*" {
		if err := req.CheckTarget(t); err != nil {
			return err
		}
		n, err := parseAuthority(req, t, offset)
		if err != nil {
			return err
		}
		t, offset = t[n:], offset+n
		if len(t) == 0 || t[0] == '?' {
			return message.ErrTarget // no path: endpoints interpret this differently
		}
	}
	return req.SetTarget(req.Range(offset, offset+len(t)))
}

// parseAuthority parses the scheme and authority of a target in absolute form. It returns
// their length.
func parseAuthority(req *message.Request, t []byte, offset int) (int, error) {
	start := 0
	switch {
	case len(t) > 7 && bytes.EqualFold(t[:7], []byte("http://")):
		start, req.DefaultPort = 7, ":80"
	case len(t) > 8 && bytes.EqualFold(t[:8], []byte("https://")):
		start, req.DefaultPort = 8, ":443"
	default:
		return 0, message.ErrTarget
	}
	end := start
	for end < len(t) && t[end] != '/' && t[end] != '?' {
		end++
	}
	if end == start {
		return 0, message.ErrTarget
	}
	req.Host = req.Range(offset+start, offset+end)
	return end, nil
}

// interpretRequest interprets the fields: host, body, connection.
func interpretRequest(req *message.Request, rules Lenient) error {
	f, err := readFraming(&req.Head, req.Minor, rules)
	if err != nil {
		noteHost(req)
		return err
	}
	req.Length = f.length
	if f.chunked {
		req.Length = message.Unknown
	}
	req.Close = f.close || req.Minor == 0 && !f.keep
	req.AcceptsTrailers = f.trailers
	if err := req.ReadHost(req.Minor == 1); err != nil {
		return err
	}
	upgrades := 0
	for i := range req.Fields {
		switch req.Fields[i].ID {
		case message.Expect:
			if err := req.ReadExpect(i); err != nil {
				return err
			}
		case message.Upgrade:
			if upgrades++; f.upgrade && req.Minor == 1 {
				setUpgrade(req, i)
			}
		case message.Misspelt:
			req.Fields[i].Dropped = true
		}
	}
	if upgrades > 1 {
		req.Upgrade = message.Span{} // endpoints would choose different ones
	}
	if req.Upgrade.Len() > 0 && req.Length == message.Unknown {
		return errUpgradeBody
	}
	req.DropHopByHop()
	return nil
}

// setUpgrade sets the protocol to which the client wants to upgrade, from field i. It ignores
// protocols that hide requests: the guards of routes could not refuse them.
func setUpgrade(req *message.Request, i int) {
	v := req.Value(i)
	if message.ValidProtocol(v) && !message.HidesRequests(v) {
		req.Upgrade = req.ValueSpan(i)
	}
}
