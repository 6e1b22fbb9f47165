package core

import (
	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// headKind is the kind of a head that the core decodes.
type headKind uint8

const (
	discard headKind = iota
	request
	response
	trailers
)

// The pseudo-fields (RFC 9113, sections 8.3.1 and 8.3.2; RFC 8441, section 4).
const (
	pseudoMethod uint8 = 1 << iota
	pseudoScheme
	pseudoAuthority
	pseudoPath
	pseudoProtocol
	pseudoStatus
)

// head collects the fields of a head while it is decoded.
type head struct {
	h      *message.Head
	kind   headKind
	limits message.Limits

	size    int   // the size that the head would have in HTTP/1.1, in bytes
	seen    uint8 // the pseudo-fields that have come
	regular bool  // other fields have come: pseudo-fields must not follow

	method, scheme, authority, path, protocol, status message.Span

	cookie   []byte // the crumbs (pieces of the cookie), joined (RFC 9113, section 8.2.3)
	cookies  int
	teTrails bool // te: trailers
	lengths  int
	hosts    int
	length   int64

	account *memory.Account // nil: nothing is charged
	charged int             // bytes that the account was charged for the head
	packed  *packed         // values that are already stored; nil: no large ones

	malformed string           // how the head violates RFC 9113; "": not
	refusal   *message.Refusal // why weir does not forward a correct head; nil: it does
}

func (d *head) begin(h *message.Head, kind headKind, limits message.Limits, account *memory.Account) {
	*d = head{h: h, kind: kind, limits: limits, cookie: d.cookie[:0], account: account}
	if h != nil {
		d.chargeRoom()
	}
	if kind == request {
		d.size = len("  HTTP/1.1\r\n\r\n")
	}
}

// over reports whether the message is already known to be malformed or refused.
func (d *head) over() bool { return d.malformed != "" || d.refusal != nil }

func (d *head) bad(why string) {
	if !d.over() {
		d.malformed = why
	}
}

func (d *head) refuse(r *message.Refusal) {
	if !d.over() {
		d.refusal = r
	}
}

// lowerToken has the characters of a field name: those of a token, except upper-case
// letters (RFC 9113, section 8.2.1).
var lowerToken = func() (t [256]bool) {
	for c := range t {
		t[c] = message.TokenByte(byte(c)) && (c < 'A' || c > 'Z')
	}
	return t
}()

func validName(name string) bool {
	for i := range len(name) {
		if !lowerToken[name[i]] {
			return false
		}
	}
	return name != ""
}

// field takes the next field.
func (d *head) field(f hpack.HeaderField) {
	if f.Name != "" && f.Name[0] == ':' {
		d.pseudo(f)
		return
	}
	d.regular = true
	if d.size += len(f.Name) + len(f.Value) + len(": \r\n"); d.size > d.limits.HeadBytes {
		d.refuse(message.ErrHeadTooLarge)
		return
	}
	if !validName(f.Name) {
		d.bad("a header name is empty, or contains an upper-case letter or a character that is not allowed")
		return
	}
	if f.Name == "cookie" && d.kind == request {
		d.crumb(f.Value)
		return
	}
	if len(d.h.Fields) >= d.limits.Fields {
		d.refuse(message.ErrTooManyFields)
		return
	}
	name, value := d.store(f.Name), d.store(f.Value)
	if d.over() {
		return
	}
	if !properValue(d.h.Bytes(value)) {
		d.bad(badValue)
		return
	}
	d.interpret(d.h.AddSpans(name, value), value)
}

const badValue = "a header value contains a control character, or begins or ends with white space"

// properValue reports whether a value has neither control characters nor white
// space around it (RFC 9113, section 8.2.1).
func properValue(v []byte) bool {
	return message.ValidValue(v) && (len(v) == 0 || !space(v[0]) && !space(v[len(v)-1]))
}

func space(c byte) bool { return c == ' ' || c == '\t' }

// interpret checks a field that has a meaning for the connection or for the body.
func (d *head) interpret(f *message.Field, value message.Span) {
	v := d.h.Bytes(value)
	switch f.ID {
	case message.Connection, message.TransferEncoding, message.KeepAlive, message.ProxyConnection, message.Upgrade:
		d.bad("a header that is only for HTTP/1.1, such as Connection, is not allowed in HTTP/2")
	case message.TE:
		if string(v) != "trailers" {
			d.bad("the header TE has another value than trailers")
		}
		d.teTrails = true
	case message.ContentLength:
		if d.kind == trailers {
			return // it is dropped
		}
		n, ok := message.ParseLength(v)
		if !ok {
			d.refuse(message.ErrBadLength)
		}
		if d.lengths++; d.lengths > 1 {
			d.refuse(message.ErrTwoLengths)
		}
		d.length = n
	case message.Trailer:
		if d.kind != trailers && message.FramesMessage(v) {
			d.refuse(message.ErrTrailer)
		}
	case message.Misspelt:
		if d.kind == request {
			f.Dropped = true
		}
	}
}

// crumb takes one piece of a cookie. A client may send a cookie in several fields.
func (d *head) crumb(value string) {
	if d.cookies++; d.cookies > 1 {
		d.cookie = append(d.cookie, "; "...)
	}
	at := len(d.cookie)
	d.cookie = append(d.cookie, value...)
	if !properValue(d.cookie[at:]) {
		d.bad(badValue)
	}
}

// joinCookie adds the cookie as one field.
func (d *head) joinCookie() {
	if d.cookies == 0 {
		return
	}
	if len(d.h.Fields) >= d.limits.Fields {
		d.refuse(message.ErrTooManyFields)
		return
	}
	if d.makeRoom(len("cookie") + len(d.cookie)); d.over() {
		return
	}
	d.h.AddSpans(d.h.StoreString("cookie"), d.h.Store(d.cookie))
	if cap(d.cookie) > 4<<10 {
		d.cookie = nil
	}
}

// pseudo takes a pseudo-field. It also adds the :authority as the field Host.
func (d *head) pseudo(f hpack.HeaderField) {
	var bit uint8
	var into *message.Span
	switch {
	case d.kind == response && f.Name == ":status":
		bit, into = pseudoStatus, &d.status
	case d.kind != request:
	case f.Name == ":method":
		bit, into = pseudoMethod, &d.method
	case f.Name == ":scheme":
		bit, into = pseudoScheme, &d.scheme
	case f.Name == ":authority":
		bit, into = pseudoAuthority, &d.authority
	case f.Name == ":path":
		bit, into = pseudoPath, &d.path
	case f.Name == ":protocol":
		bit, into = pseudoProtocol, &d.protocol
	}
	switch {
	case bit == 0:
		d.bad("a pseudo-header is unknown, or not allowed here")
	case d.regular:
		d.bad("a pseudo-header comes after other headers")
	case d.seen&bit != 0:
		d.bad("a pseudo-header is repeated")
	}
	if d.over() {
		return
	}
	d.seen |= bit
	if d.measure(bit, len(f.Value)); d.over() {
		return
	}
	if *into = d.store(f.Value); d.over() {
		return
	}
	if !properValue(d.h.Bytes(*into)) {
		d.bad(badValue)
	}
	if bit == pseudoAuthority {
		d.h.AddSpans(d.h.StoreString("host"), *into)
	}
}

// measure counts the size that a pseudo-field would have in a head of HTTP/1.1.
func (d *head) measure(bit uint8, n int) {
	switch bit {
	case pseudoScheme:
		return
	case pseudoAuthority:
		n += len("Host: \r\n")
	case pseudoProtocol:
		n += len("Connection: Upgrade\r\nUpgrade: \r\n")
	}
	if d.size += n; d.size <= d.limits.HeadBytes {
		return
	}
	if bit == pseudoPath {
		d.refuse(errTargetTooLong)
	} else {
		d.refuse(message.ErrHeadTooLarge)
	}
}
