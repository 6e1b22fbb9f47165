package message

import "bytes"

func refusal(status int, reason, detail string) *Refusal {
	return &Refusal{Status: status, Reason: reason, Detail: detail}
}

// The refusals of messages that are the same on every wire.
var (
	ErrHeadTooLarge  = refusal(431, "head_too_large", "the head is larger than limits.head_size allows")
	ErrTooManyFields = refusal(431, "too_many_fields", "the head has more fields than limits.head_fields allows")
	ErrFieldValue    = refusal(400, "bad_field_value", "a field value contains a control character")
	ErrTarget        = refusal(400, "bad_target", "the request target is neither a path nor an absolute http or https address")
	ErrTargetBytes   = refusal(400, "bad_target", "the request target contains a character that must be encoded")
	ErrPath          = refusal(400, "ambiguous_path", "the path contains a dot segment, a backslash or a null byte, plain or encoded, or a broken escape")
	ErrMethod        = refusal(501, "method", "the method CONNECT or TRACE is not forwarded")
	ErrNoHost        = refusal(400, "no_host", "an HTTP/1.1 request needs a Host")
	ErrTwoHosts      = refusal(400, "two_hosts", "there is more than one Host, or it differs from the target's")
	ErrBadHost       = refusal(400, "bad_host", "Host is not a host name or address with an optional port")
	ErrExpectation   = refusal(417, "expectation", "Expect is something else than 100-continue")
	ErrTwoLengths    = refusal(400, "two_lengths", "there is more than one Content-Length, or one beside a Transfer-Encoding")
	ErrBadLength     = refusal(400, "bad_length", "Content-Length is not a number")
	ErrTrailer       = refusal(400, "bad_trailer", "Trailer announces a field that frames the message")
	ErrTooManyInfo   = refusal(502, "too_many_1xx", "the endpoint sent too many 1xx responses")
)

// MaxInfos bounds the 1xx responses to one request; an endpoint could send them for ever.
const MaxInfos = 16

// Limits bound a head. Zero values mean the defaults.
type Limits struct {
	HeadBytes int // 64 KiB
	Fields    int // 128
}

// OrDefault is l with the defaults in place of zeros.
func (l Limits) OrDefault() Limits {
	if l.HeadBytes == 0 {
		l.HeadBytes = 64 << 10
	}
	if l.Fields == 0 {
		l.Fields = 128
	}
	return l
}

// SetMethod makes a token in r's arena its method, and refuses what is not forwarded.
func (r *Request) SetMethod(method Span) error {
	r.Method = method
	switch string(r.Bytes(method)) {
	case "GET", "OPTIONS", "PUT", "DELETE":
		r.Idempotent = true
	case "HEAD":
		r.Idempotent, r.IsHead = true, true
	case "CONNECT", "TRACE", "PRI":
		return ErrMethod
	}
	return nil
}

// SetTarget makes bytes in r's arena its target: a path with or without a
// query, or the "*" of OPTIONS. What is routed is what is forwarded, so nothing
// is normalised: a path that an endpoint might read differently is refused. The
// method must be set before.
func (r *Request) SetTarget(target Span) error {
	t := r.Bytes(target)
	if !ValidTarget(t) {
		return ErrTargetBytes
	}
	path := target
	if t[0] != '/' {
		if string(t) != "*" || string(r.Bytes(r.Method)) != "OPTIONS" {
			return ErrTarget
		}
		r.Target, r.Path = target, target
		return nil
	}
	if q := bytes.IndexByte(t, '?'); q >= 0 {
		path.end = path.start + uint32(q)
	}
	if AmbiguousPath(r.Bytes(path)) {
		return ErrPath
	}
	r.Target, r.Path = target, path
	return nil
}

// SettleHost makes the Host field r's host, beside one that came with the
// target. needed: a request without the field is refused.
func (r *Request) SettleHost(needed bool) error {
	seen := false
	for i := range r.Fields {
		if r.Fields[i].ID != Host {
			continue
		}
		if seen {
			return ErrTwoHosts
		}
		seen = true
		host := r.Value(i)
		if r.Host.Len() > 0 && !bytes.EqualFold(r.Bytes(r.Host), host) {
			return ErrTwoHosts
		}
		r.Host = r.ValueSpan(i)
	}
	if !seen && needed {
		return ErrNoHost
	}
	if !ValidHost(r.Bytes(r.Host)) {
		return ErrBadHost
	}
	return nil
}

// SettleExpect reads field i, an Expect. The length must be known before. With
// nothing to wait with, or before HTTP/1.1, the field is dropped.
func (r *Request) SettleExpect(i int) error {
	if !EqualFold(r.Value(i), "100-continue") {
		return ErrExpectation
	}
	if r.Minor == 1 && r.Length != 0 {
		r.ExpectContinue = true
	} else {
		r.Fields[i].Dropped = true
	}
	return nil
}
