package message

import "bytes"

func refusal(status int, reason, detail string) *Refusal {
	return &Refusal{Status: status, Reason: reason, Detail: detail}
}

// hinted returns the refusal with a hint.
func hinted(r *Refusal, hint string) *Refusal {
	return &Refusal{Status: r.Status, Reason: r.Reason, Detail: r.Detail, Hint: hint}
}

// The refusals of messages that are the same for every HTTP version.
var (
	ErrHeadTooLarge  = hinted(refusal(431, "head_too_large", "the headers are too large"), "limits.head_size")
	ErrTooManyFields = hinted(refusal(431, "too_many_fields", "there are too many headers"), "limits.head_fields")
	ErrFieldValue    = refusal(400, "bad_field_value", "a header value contains a control character")
	ErrTarget        = refusal(400, "bad_target", "the request target is neither a path nor an http or https URL")
	ErrTargetBytes   = refusal(400, "bad_target", "the request target contains a character that must be percent-encoded")
	ErrPath          = refusal(400, "ambiguous_path", "the path contains a dot segment, a backslash or a null byte (plain or percent-encoded), or a broken percent-encoding")
	errRawTarget     = hinted(ErrTargetBytes, "lenient: [raw_targets] of the listener accepts it")
	errRawPath       = hinted(ErrPath, errRawTarget.Hint)
	ErrMethod        = refusal(501, "method", "weir does not forward the methods CONNECT and TRACE")
	ErrNoHost        = refusal(400, "no_host", "an HTTP/1.1 request must have a Host header")
	ErrTwoHosts      = refusal(400, "two_hosts", "there is more than one Host header, or it differs from the host in the request target")
	ErrBadHost       = refusal(400, "bad_host", "the Host header is not a host name or IP address with an optional port")
	ErrExpectation   = refusal(417, "expectation", "the Expect header has 100-continue together with another value, or in another spelling")
	ErrTwoLengths    = refusal(400, "two_lengths", "there is more than one Content-Length header, or one together with Transfer-Encoding")
	ErrBadLength     = refusal(400, "bad_length", "Content-Length is not a number")
	ErrTrailer       = refusal(400, "bad_trailer", "the Trailer header lists a header that must not be a trailer, such as Content-Length")
	ErrMemory        = hinted(refusal(503, "memory", "there is not enough memory for this request at the moment"), "the connection, its client network or the whole process has used up its share of limits.memory")
	ErrTooManyInfo   = refusal(502, "too_many_1xx", "the endpoint sent too many 1xx responses")
)

// MaxInfos limits the 1xx responses to one request, unless the backend has a limit. An endpoint could send them
// endlessly.
const MaxInfos = 16

// Limits limit the size of a head. Zero values mean the defaults.
type Limits struct {
	HeadBytes int // 64 KiB
	Fields    int // 256
}

// OrDefault returns l with the defaults in place of zeros.
func (l Limits) OrDefault() Limits {
	if l.HeadBytes == 0 {
		l.HeadBytes = 64 << 10
	}
	if l.Fields == 0 {
		l.Fields = 256
	}
	return l
}

var hundred, goOn = []byte("100"), []byte("continue")

// SetMethod sets the method of r to a token in its arena. It refuses methods that weir does
// not forward.
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

// SetTarget sets the target of r to bytes in its arena: a path with or without a query, or
// the "*" of OPTIONS. weir forwards exactly the path that it routes by, so it normalises
// nothing. SetTarget refuses a path that an endpoint might read differently. The caller must
// set the method before.
func (r *Request) SetTarget(target Span) error {
	t := r.Bytes(target)
	if err := r.CheckTarget(t); err != nil {
		if bytes.HasPrefix(t, []byte{'/'}) {
			r.Target = target // for the log; without a Path the request is never forwarded
		}
		if before, _, _ := bytes.Cut(t, []byte{'?'}); ambiguousRaw(before) {
			return ErrTargetBytes // no setting accepts it
		}
		return err
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
	if r.Target = target; !r.Accepts(r.Bytes(path)) { // the log has the target here too
		if !ambiguousRaw(r.Bytes(path)) {
			return errRawPath
		}
		return ErrPath
	}
	r.Path = path
	return nil
}

// CheckTarget returns why a target contains bytes that weir does not forward, or nil.
func (r *Request) CheckTarget(t []byte) error {
	switch valid := ValidTarget(t); {
	case valid, r.RawTargets && validRaw(t):
		return nil
	case validRaw(t):
		return errRawTarget
	}
	return ErrTargetBytes
}

// Accepts reports whether all endpoints read a path, of the request or derived from it, in ways that weir knows.
func (r *Request) Accepts(path []byte) bool {
	return !AmbiguousPath(path) || r.RawTargets && !ambiguousRaw(path)
}

// IsPath reports whether an error of SetTarget is about the path, or about bytes that a URL must not contain.
func IsPath(err error) bool {
	return err == ErrPath || err == errRawPath || err == ErrTargetBytes || err == errRawTarget
}

// Rewrite sets the target for the endpoint to bytes in r's arena: a path with or without a
// query. They pass the same check as the target of a client. The path does not begin with two
// slashes: an endpoint might read a host there.
func (r *Request) Rewrite(target Span) error {
	t := r.Bytes(target)
	if err := r.CheckTarget(t); err != nil {
		return err
	}
	path, _, _ := bytes.Cut(t, []byte{'?'})
	if len(path) == 0 || path[0] != '/' || len(path) > 1 && (path[1] == '/' || path[1] == '\\') || !r.Accepts(path) {
		return ErrPath
	}
	r.Rewritten = target
	return nil
}

// SetHost sets the Host header for the endpoint. r.Host remains the host of the client.
func (r *Request) SetHost(host []byte) {
	if i := r.Find(Host); i >= 0 {
		r.SetValue(i, host)
		return
	}
	r.Add(Host, host)
}

// ReadHost sets r's host to the Host field. If the target has a host, too, both must be
// the same. needed: a request without the field is refused.
func (r *Request) ReadHost(needed bool) error {
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
		if r.Host.Len() > 0 && !r.sameAuthority(r.Bytes(r.Host), host) {
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

// sameAuthority compares two authorities. Each may omit the default port of the target's
// scheme (RFC 9110, section 4.2.3).
func (r *Request) sameAuthority(a, b []byte) bool {
	if bytes.EqualFold(a, b) {
		return true
	}
	port := []byte(r.DefaultPort)
	a, b = bytes.TrimSuffix(a, port), bytes.TrimSuffix(b, port)
	return len(a) > 0 && bytes.EqualFold(a, b)
}

// ReadExpect reads field i, an Expect. The length of the body must be known. weir drops
// the field if the request has no body, or a version before HTTP/1.1. weir also drops unknown
// expectations (RFC 9110, section 10.1.1). It refuses values in which another parser might
// find 100-continue.
func (r *Request) ReadExpect(i int) error {
	v := r.Value(i)
	for j := range i { // several fields are one list
		if r.Fields[j].ID == Expect {
			if !bytes.EqualFold(r.Value(j), v) {
				return ErrExpectation
			}
			break // later ones were compared with it
		}
	}
	if !EqualFold(v, "100-continue") {
		if lowered := bytes.ToLower(v); bytes.Contains(lowered, hundred) || bytes.Contains(lowered, goOn) {
			return ErrExpectation
		}
		r.Fields[i].Dropped = true
		return nil
	}
	if r.Minor == 1 && r.Length != 0 {
		r.ExpectContinue = true
	} else {
		r.Fields[i].Dropped = true
	}
	return nil
}
