package core

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"
	"net/http"

	"github.com/weirproxy/weir/proxy/message"
)

var (
	errTargetTooLong = &message.Refusal{Status: 414, Reason: "target_too_long", Detail: "the :path is too long", Hint: "limits.head_size"}
	errUpgradeBody   = &message.Refusal{Status: 400, Reason: "upgrade_with_body", Detail: "an extended CONNECT has a Content-Length"}
	errBadUpgrade    = &message.Refusal{Status: 501, Reason: "upgrade", Detail: "weir does not forward an extended CONNECT with this :protocol"}
)

// request makes a request from the collected fields. With end, no body follows. malformed
// is the reason why RFC 9113 forbids the request. With a refusal, req has the part of the
// request that weir understood.
func (d *head) request(req *message.Request, end, extended bool) (refusal *message.Refusal, malformed string) {
	if d.joinCookie(); d.malformed != "" {
		return nil, d.malformed
	}
	req.Minor = 1
	req.Host = d.authority
	if d.refusal != nil { // the head was not read to its end
		if d.seen&pseudoMethod != 0 {
			req.SetMethod(d.method) // an answer to HEAD has no body
		}
		return d.refusal, ""
	}
	if why := d.pseudoMissing(req, extended, end); why != "" {
		return nil, why
	}
	if err := d.interpretRequest(req, end); err != nil {
		return err.(*message.Refusal), ""
	}
	return nil, ""
}

// pseudoMissing checks the pseudo-fields that every request must have (RFC 9113, section
// 8.3.1). It returns the error, or "".
func (d *head) pseudoMissing(req *message.Request, extended, end bool) string {
	connect := string(req.Bytes(d.method)) == "CONNECT"
	switch {
	case d.seen&pseudoMethod == 0 || !message.ValidToken(req.Bytes(d.method)):
		return ":method is missing or invalid"
	case d.seen&pseudoProtocol != 0 && (!extended || !connect || end):
		return ":protocol came without an extended CONNECT"
	case connect && d.seen&pseudoProtocol == 0:
		return "" // weir refuses CONNECT anyway
	case d.seen&pseudoScheme == 0:
		return ":scheme is missing"
	case d.path.Len() == 0:
		return ":path is missing or empty"
	case end && d.length > 0:
		return "a request without a body has a Content-Length"
	}
	return ""
}

// interpretRequest does what http1 does with a request line and its fields.
func (d *head) interpretRequest(req *message.Request, end bool) error {
	tunnel := d.seen&pseudoProtocol != 0
	method := d.method
	if tunnel {
		method = req.StoreString("GET") // the method of an upgrade in HTTP/1.1
	}
	if err := req.SetMethod(method); err != nil {
		return err
	}
	if scheme := req.Bytes(d.scheme); !message.EqualFold(scheme, "https") && !message.EqualFold(scheme, "http") {
		return message.ErrTarget
	}
	if err := req.SetTarget(d.path); err != nil {
		if message.IsPath(err) {
			d.readHost(req) // the log shows the host
		}
		return err
	}
	if err := d.readHost(req); err != nil {
		return err
	}
	switch {
	case tunnel:
		if d.lengths > 0 {
			return errUpgradeBody
		}
		return setUpgrade(req, d.protocol)
	case end:
		req.Length = 0
	case d.lengths > 0:
		req.Length = d.length
	default:
		req.Length = message.Unknown
	}
	req.AcceptsTrailers = d.teTrails
	return readExpects(req)
}

// readExpects runs when the length is known. It reads Expect, and drops
// hop-by-hop fields.
func readExpects(req *message.Request) error {
	for i := range req.Fields {
		if req.Fields[i].ID == message.Expect {
			if err := req.ReadExpect(i); err != nil {
				return err
			}
		}
	}
	req.DropHopByHop()
	return nil
}

// readHost takes the host from :authority or from Host. If a request has both, they
// must be equal (RFC 9113, section 8.3.1).
func (d *head) readHost(req *message.Request) error {
	if d.seen&pseudoAuthority != 0 {
		own := -1
		for i := range req.Fields {
			switch {
			case req.Fields[i].ID != message.Host:
			case own < 0:
				own = i // the field that pseudo added
			case !bytes.EqualFold(req.Value(own), req.Value(i)):
				return message.ErrTwoHosts
			default:
				if d.hosts++; d.hosts > 1 {
					return message.ErrTwoHosts
				}
				req.Fields[i].Dropped = true
			}
		}
		if !message.ValidHost(req.Bytes(d.authority)) {
			return message.ErrBadHost
		}
		return nil
	}
	return req.ReadHost(true)
}

// setUpgrade turns an extended CONNECT into the equivalent upgrade of HTTP/1.1. A
// WebSocket needs a key there (RFC 6455, section 4.1). The key only proves that the other
// side has understood the request.
func setUpgrade(req *message.Request, protocol message.Span) error {
	p := req.Bytes(protocol)
	if !message.ValidProtocol(p) || message.HidesRequests(p) {
		return errBadUpgrade
	}
	req.Upgrade = protocol
	if message.EqualFold(p, "websocket") && req.GetName(webSocketKey) == nil {
		var key [16]byte
		binary.LittleEndian.PutUint64(key[:], rand.Uint64())
		binary.LittleEndian.PutUint64(key[8:], rand.Uint64())
		req.AddField("Sec-WebSocket-Key", base64.StdEncoding.EncodeToString(key[:]))
	}
	return readExpects(req)
}

const (
	webSocketKey    = "sec-websocket-key"
	webSocketAccept = "sec-websocket-accept"
)

// acceptKey returns the answer to a WebSocket's key (RFC 6455, section 4.2.2).
func acceptKey(key []byte) string {
	sum := sha1.Sum(append(append(make([]byte, 0, 64), key...), "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"...))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// Accepts reports whether weir may answer req with res. For an extended CONNECT, the client
// takes any 2xx as the start of a tunnel. So only a 101 may become a 2xx. weir also checks
// the accept key of a WebSocket, because the client has no key and cannot check it (RFC
// 8441, section 5.1).
func Accepts(req *message.Request, res *message.Response) bool {
	if req.Upgrade.Len() == 0 {
		return true
	}
	if res.Status != http.StatusSwitchingProtocols {
		return res.Status >= 300
	}
	key := req.GetName(webSocketKey)
	return key == nil || !message.EqualFold(req.Bytes(req.Upgrade), "websocket") || string(res.GetName(webSocketAccept)) == acceptKey(key)
}

// response makes the next response on s from the collected fields. If they are no valid
// response, it returns the reason, or else "". The acceptance of an extended CONNECT
// becomes the equivalent 101 of HTTP/1.1.
func (d *head) response(res *message.Response, s *Stream, end bool) (malformed string) {
	if d.malformed != "" {
		return d.malformed
	}
	if d.refusal != nil {
		return d.refusal.Detail
	}
	status, ok := message.ParseLength(res.Bytes(d.status))
	if !ok || d.status.Len() != 3 || status < 100 || status == 101 {
		return ":status is missing or invalid"
	}
	res.Status = int(status)
	res.Reason = res.StoreString(http.StatusText(res.Status))
	res.DropHopByHop()
	switch {
	case res.Informational():
		if end {
			return "a 1xx response ends its stream"
		}
		res.Drop(message.ContentLength)
	case s.tunnel && status < 300:
		return d.accepted(res, s, end)
	case message.BodyForbidden(res.Status):
		s.noBody = true
		if status != 304 {
			res.Drop(message.ContentLength) // RFC 9110, section 8.6
		}
	case s.isHead:
		s.noBody = true
	case end && d.length > 0:
		return "a response without a body has a Content-Length"
	case end:
	case d.lengths > 0:
		res.Length, s.left, res.Trails = d.length, d.length, true
	default:
		res.Length = message.Unknown
	}
	return ""
}

// accepted is response for a stream that becomes a tunnel.
func (d *head) accepted(res *message.Response, s *Stream, end bool) string {
	if end {
		return "the response to an extended CONNECT ends its stream"
	}
	res.Status = http.StatusSwitchingProtocols
	res.Reason = res.StoreString(http.StatusText(res.Status))
	res.Drop(message.ContentLength)
	res.Upgrade = res.Store(s.protocol)
	if len(s.key) > 0 && res.GetName(webSocketAccept) == nil {
		res.AddField("Sec-WebSocket-Accept", acceptKey(s.key))
	}
	return ""
}

// trailers returns why the collected fields are no trailers, or "".
func (d *head) trailers() (malformed string) {
	if d.refusal != nil {
		return d.refusal.Detail
	}
	return d.malformed
}
