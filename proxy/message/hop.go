package message

import "bytes"

var hopByHop = SetOf(Connection, TransferEncoding, TE, Upgrade, KeepAlive, ProxyConnection, ProxyAuthenticate, ProxyAuthorization, HTTP2Settings)

// IsHopByHop reports whether a header applies only to one connection. weir forwards no message with such
// a header.
func (id ID) IsHopByHop() bool { return hopByHop&SetOf(id) != 0 }

// DropHopByHop drops the fields that are for weir only: the fields of RFC 9110, section
// 7.6.1, and the fields that Connection lists. The codecs write new ones if the message
// needs them.
func (h *Head) DropHopByHop() {
	if !h.HasAny(hopByHop) {
		return
	}
	named := false
	for i := range h.Fields {
		switch h.Fields[i].ID {
		case Connection:
			h.Fields[i].Dropped, named = true, true
		case TransferEncoding, TE, Upgrade, KeepAlive, ProxyConnection, ProxyAuthenticate, ProxyAuthorization, HTTP2Settings:
			h.Fields[i].Dropped = true
		}
	}
	if named {
		h.dropNominated(h)
	}
}

// dropNominated drops the fields of h that head's Connection fields list.
func (h *Head) dropNominated(head *Head) {
	for i := range head.Fields {
		if head.Fields[i].ID == Connection {
			EachToken(head.Value(i), func(name []byte) { h.dropNamed(name) })
		}
	}
}

// dropNamed drops the fields with a name that Connection lists. It keeps Content-Length,
// Host, Expect, Date and CDN-Loop: no sender may remove these from a message (for CDN-Loop
// see RFC 8586, section 2).
func (h *Head) dropNamed(name []byte) {
	for i := range h.Fields {
		switch f := &h.Fields[i]; f.ID {
		case Host, ContentLength, Expect, Date, CDNLoop:
		default:
			f.Dropped = f.Dropped || bytes.EqualFold(h.Name(i), name)
		}
	}
}

// RestoreAsserted keeps the fields about the client that Connection dropped. A proxy may pass on
// its client's Connection; without RestoreAsserted, that client could remove what the proxy itself
// wrote (CVE-2022-31813).
func (h *Head) RestoreAsserted() {
	for i := range h.Fields {
		if c := h.Fields[i].ID.Class(); c == Written || c == Asserted {
			h.Fields[i].Dropped = false
		}
	}
}

// KeepTrailers drops the fields that must not be trailers, and the fields that head's
// Connection lists. Fields for routing, framing and authentication must be in the head or
// nowhere (RFC 9110, section 6.5.1; CVE-2026-88004).
func KeepTrailers(trailers, head *Head) {
	trailers.dropNominated(head)
	for i := range trailers.Fields {
		if trailers.Fields[i].ID != Other {
			trailers.Fields[i].Dropped = true
		}
	}
}

// FramesMessage reports whether a Trailer header lists a header that controls framing,
// which must not be a trailer (RFC 9110, section 6.5.1). Some parsers misread such messages.
func FramesMessage(list []byte) bool {
	return HasToken(list, "transfer-encoding") || HasToken(list, "content-length") || HasToken(list, "trailer")
}
