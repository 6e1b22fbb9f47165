// Package extauthz has the messages of Envoy's external authorization, version 3
// (envoy/service/auth/v3/external_auth.proto). It writes a CheckRequest and reads a CheckResponse,
// without generated code, and knows only the fields that weir uses. The numbers of fields are those of
// external_auth.proto and attribute_context.proto, and of address.proto and base.proto in
// envoy/config/core/v3.
package extauthz

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Path is the path of the call by which a proxy asks a server.
const Path = "/envoy.service.auth.v3.Authorization/Check"

// Request is what the server gets to know of a request. Bytes that are not UTF-8 become U+FFFD in
// all texts, because the strings of a message must be UTF-8.
type Request struct {
	ID       string // X-Request-Id
	Method   string
	Path     string // and query
	Host     string
	Scheme   string
	Protocol string // such as HTTP/1.1
	Received time.Time

	Source, Destination netip.AddrPort // not valid: unknown

	Headers []Header // in any order; names in any case
	Size    int64    // of the body in bytes; -1: unknown
	Body    []byte
}

// Header is an HTTP header.
type Header struct{ Name, Value string }

// Append appends the CheckRequest to b.
func (r *Request) Append(b []byte) []byte {
	var attributes, all message
	attributes.part(1, peer(r.Source))
	attributes.part(2, peer(r.Destination))
	attributes.part(4, r.request())
	all.part(1, attributes)
	return append(b, all...)
}

// request returns the AttributeContext.Request.
func (r *Request) request() message {
	var at, http, m message
	at.number(1, r.Received.Unix())
	at.number(2, int64(r.Received.Nanosecond()))
	http.text(1, r.ID)
	http.text(2, r.Method)
	for _, h := range r.merged() {
		http.entry(3, h)
	}
	http.text(4, r.Path)
	http.text(5, r.Host)
	http.text(6, r.Scheme)
	http.number(9, r.Size)
	http.text(10, r.Protocol)
	if utf8.Valid(r.Body) {
		http.part(11, r.Body) // body
	} else {
		http.part(12, r.Body) // raw_body
	}
	m.part(1, at)
	m.part(2, http)
	return m
}

// merged returns the headers as the entries of a map: names in lower case, and the values of equal
// names joined (RFC 9110, section 5.2; RFC 9113, section 8.2.3 for Cookie). The pseudo-headers of
// HTTP/2 are among them, because servers know them from Envoy.
func (r *Request) merged() []Header {
	all := make([]Header, 0, len(r.Headers)+4)
	all = append(all, Header{":authority", r.Host}, Header{":method", r.Method}, Header{":path", r.Path}, Header{":scheme", r.Scheme})
	for _, h := range r.Headers {
		all = append(all, Header{strings.ToLower(h.Name), h.Value})
	}
	slices.SortStableFunc(all, func(a, b Header) int { return cmp.Compare(a.Name, b.Name) })
	joined := all[:1]
	for _, h := range all[1:] {
		last := &joined[len(joined)-1]
		switch {
		case last.Name != h.Name:
			joined = append(joined, h)
		case h.Name == "cookie":
			last.Value += "; " + h.Value
		default:
			last.Value += ", " + h.Value
		}
	}
	return joined
}

// peer returns an AttributeContext.Peer that has only an address, and nothing if it is unknown.
func peer(a netip.AddrPort) (m message) {
	if !a.IsValid() {
		return nil
	}
	var socket, address message
	socket.text(2, a.Addr().Unmap().WithZone("").String())
	socket.number(3, int64(a.Port()))
	address.part(1, socket)
	m.part(1, address)
	return m
}

// message is a message of protocol buffers. Its methods leave out a field with the value zero, as
// proto3 demands.
type message []byte

func (m *message) part(field protowire.Number, part []byte) {
	if len(part) > 0 {
		*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), part)
	}
}

func (m *message) text(field protowire.Number, text string) {
	m.part(field, []byte(strings.ToValidUTF8(text, "\uFFFD")))
}

// entry appends an entry of a map. It has its value also if that is empty.
func (m *message) entry(field protowire.Number, h Header) {
	var e message
	e.text(1, h.Name)
	value := strings.ToValidUTF8(h.Value, "\uFFFD")
	e = protowire.AppendString(protowire.AppendTag(e, 2, protowire.BytesType), value)
	m.part(field, e)
}

func (m *message) number(field protowire.Number, n int64) {
	if n != 0 {
		*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), uint64(n))
	}
}
