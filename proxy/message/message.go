// Package message contains the in-memory form of an HTTP message, the same for every HTTP
// version. A head is stored in one arena with offsets. It never points into a read buffer.
// weir allocates nothing once the arena is large enough for the traffic. Codecs fill and
// encode messages; the code between the codecs changes them.
package message

import (
	"strconv"
	"unsafe"
)

// Head contains the fields of a message and their bytes. The zero value is an empty head.
// The exchange owns its heads.
type Head struct {
	arena  []byte
	Fields []Field
	ids    IDs // the ids of all Fields, and perhaps of fields that were removed
}

// Span is a range of bytes in a head's arena.
type Span struct{ start, end uint32 }

// Len returns the number of bytes.
func (s Span) Len() int { return int(s.end - s.start) }

// Field is one field line. Dropped fields stay in place and are not encoded.
type Field struct {
	name, value Span
	ID          ID
	Dropped     bool
}

// Reset empties the head. It keeps the arena for the next message, unless the arena is
// unusually large.
func (h *Head) Reset() {
	const ordinary = 16 << 10
	if cap(h.arena) > ordinary {
		h.arena = nil
	}
	h.arena = h.arena[:0]
	h.Fields, h.ids = h.Fields[:0], 0
}

// Room returns how many bytes the arena can hold.
func (h *Head) Room() int { return cap(h.arena) }

// Size returns how many bytes the head takes in memory.
func (h *Head) Size() int { return cap(h.arena) + cap(h.Fields)*int(unsafe.Sizeof(Field{})) }

// Spare returns how many bytes fit before the arena must grow.
func (h *Head) Spare() int { return cap(h.arena) - len(h.arena) }

// Grow makes room for n more bytes than the arena can hold now.
func (h *Head) Grow(n int) {
	grown := make([]byte, len(h.arena), cap(h.arena)+n)
	copy(grown, h.arena)
	h.arena = grown
}

// Free releases the arena. The head is empty after that.
func (h *Head) Free() { h.arena, h.Fields, h.ids = nil, h.Fields[:0], 0 }

// Load copies b into the arena and returns the copy and the offset of its first byte.
func (h *Head) Load(b []byte) (in []byte, offset int) {
	offset = len(h.arena)
	h.arena = append(h.arena, b...)
	return h.arena[offset:], offset
}

// Store copies b into the arena.
func (h *Head) Store(b []byte) Span {
	start := len(h.arena)
	h.arena = append(h.arena, b...)
	return Span{uint32(start), uint32(len(h.arena))}
}

// StoreString is Store for a string.
func (h *Head) StoreString(s string) Span {
	start := len(h.arena)
	h.arena = append(h.arena, s...)
	return Span{uint32(start), uint32(len(h.arena))}
}

// Range returns the span from offset start to offset end of the arena.
func (h *Head) Range(start, end int) Span { return Span{uint32(start), uint32(end)} }

// Bytes returns the content of a span. It is valid until the head is reset or grows.
func (h *Head) Bytes(s Span) []byte { return h.arena[s.start:s.end:s.end] }

// Name returns the name of field i as it was sent.
func (h *Head) Name(i int) []byte { return h.Bytes(h.Fields[i].name) }

// Value returns the value of field i without white space around it.
func (h *Head) Value(i int) []byte { return h.Bytes(h.Fields[i].value) }

// ValueSpan returns the value of field i as a span.
func (h *Head) ValueSpan(i int) Span { return h.Fields[i].value }

// AddSpans adds a field whose bytes are already in the arena.
func (h *Head) AddSpans(name, value Span) *Field {
	h.add(Field{name: name, value: value, ID: Lookup(h.Bytes(name))})
	return &h.Fields[len(h.Fields)-1]
}

func (h *Head) add(f Field) {
	h.Fields = append(h.Fields, f)
	h.ids |= 1 << f.ID
}

// Add adds a field whose name has an id.
func (h *Head) Add(id ID, value []byte) {
	h.add(Field{name: h.StoreString(id.String()), value: h.Store(value), ID: id})
}

// AddField adds a field of any name.
func (h *Head) AddField(name, value string) {
	h.add(Field{name: h.StoreString(name), value: h.StoreString(value), ID: Lookup([]byte(name))})
}

// Append adds a field. write appends the value to its argument and returns the result.
func (h *Head) Append(id ID, write func([]byte) []byte) {
	name := h.StoreString(id.String())
	h.add(Field{name: name, value: h.Build(write), ID: id})
}

// Build stores bytes in the arena. write appends the bytes to its argument and returns the
// result. It must not change the head.
func (h *Head) Build(write func([]byte) []byte) Span {
	start := len(h.arena)
	h.arena = write(h.arena)
	return Span{uint32(start), uint32(len(h.arena))}
}

// SetValue replaces the value of field i.
func (h *Head) SetValue(i int, value []byte) { h.Fields[i].value = h.Store(value) }

// SetValueSpan replaces the value of field i by bytes that are already in the arena.
func (h *Head) SetValueSpan(i int, value Span) { h.Fields[i].value = value }

// Extend appends an element to the value of field i, a list.
func (h *Head) Extend(i int, element []byte) {
	start := len(h.arena)
	h.arena = append(h.arena, h.Value(i)...)
	h.arena = append(append(h.arena, ", "...), element...)
	h.Fields[i].value = Span{uint32(start), uint32(len(h.arena))}
}

// HasAny returns true if a field with one of these ids was added, even if it was dropped
// since. For most messages this saves a search through all fields.
func (h *Head) HasAny(ids IDs) bool { return h.ids&ids != 0 }

// Find returns the index of the first field with this id that is not dropped, or -1.
func (h *Head) Find(id ID) int {
	if h.ids&(1<<id) == 0 {
		return -1
	}
	for i := range h.Fields {
		if h.Fields[i].ID == id && !h.Fields[i].Dropped {
			return i
		}
	}
	return -1
}

// Get returns the value of the first field with this id that is not dropped, or nil.
func (h *Head) Get(id ID) []byte {
	if i := h.Find(id); i >= 0 {
		return h.Value(i)
	}
	return nil
}

// GetName is Get for a name in lower case, which needs no id. It searches all fields.
func (h *Head) GetName(lower string) []byte {
	for i := range h.Fields {
		if !h.Fields[i].Dropped && EqualFold(h.Name(i), lower) {
			return h.Value(i)
		}
	}
	return nil
}

// Drop drops every field with this id.
func (h *Head) Drop(id ID) {
	if h.ids&(1<<id) == 0 {
		return
	}
	for i := range h.Fields {
		if h.Fields[i].ID == id {
			h.Fields[i].Dropped = true
		}
	}
}

// Unknown is the length of a body if only its framing marks the end.
const Unknown int64 = -1

// Request is a request: its parts, its fields and the length of its body. It is valid until
// weir has written the access log line of the exchange.
type Request struct {
	Head
	Method Span
	// Target is the target that the client sent: path and query, or "*". weir routes and logs
	// by it, and sends it to the endpoint byte for byte, unless there is a Rewritten.
	Target Span
	// Rewritten is the target for the endpoint if the route changes it; empty: Target.
	Rewritten Span
	// Path is the part of Target before the query.
	Path Span
	// Host is the host and port of the Host header, as the client sent it; without the header,
	// of a target in absolute form or of :authority.
	Host Span
	// DefaultPort is the default port of the scheme of a target in absolute form, such as
	// ":80"; empty: the target has no scheme.
	DefaultPort string
	// Minor is the minor version of HTTP/1; 1 for every later version.
	Minor int
	// Length is the length of the body in bytes, or Unknown.
	Length int64
	// Idempotent means that weir may repeat the method (RFC 9110, section 9.2.2).
	Idempotent bool
	IsHead     bool // the method is HEAD
	// Close means that the client's connection ends with this exchange.
	Close bool
	// ExpectContinue means that the client waits for a 100 before it sends the body.
	ExpectContinue bool
	// Upgrade is the protocol to which the client wants to change, or empty.
	Upgrade Span
	// RawTargets means that the target may be one that the client did not percent-encode (raw_targets of lenient).
	RawTargets bool
	// AcceptsTrailers means that the client's TE contains "trailers".
	AcceptsTrailers bool
	// Trailers are the fields after the body; they are complete when the body has ended.
	Trailers Head
}

// Reset makes r empty for the next request.
func (r *Request) Reset() {
	head, trailers := r.Head, r.Trailers
	head.Reset()
	trailers.Reset()
	*r = Request{Head: head, Trailers: trailers, Minor: 1}
}

// EndpointTarget returns the target for the endpoint.
func (r *Request) EndpointTarget() []byte {
	if r.Rewritten.Len() > 0 {
		return r.Bytes(r.Rewritten)
	}
	return r.Bytes(r.Target)
}

// HasBody reports whether a body follows the head.
func (r *Request) HasBody() bool { return r.Length != 0 }

// Response is a response: its status, its fields and the length of its body.
type Response struct {
	Head
	Status int
	Reason Span
	// Length is the length of the body in bytes, or Unknown. It is 0 for responses that never
	// have a body, whatever their fields contain (to HEAD, 1xx, 204, 304).
	Length int64
	// Close means that the endpoint's connection ends with this exchange.
	Close bool
	// Trails means that trailers may follow even if Length is known, as over HTTP/2.
	Trails bool
	// Upgrade is the protocol of a 101.
	Upgrade Span
	// Trailers are the fields after the body.
	Trailers Head
}

// Reset makes r empty for the next response. It makes no copy of r, because the stack of an
// exchange is small.
func (r *Response) Reset() {
	r.Head.Reset()
	r.Trailers.Reset()
	r.Status, r.Reason, r.Length, r.Upgrade = 0, Span{}, 0, Span{}
	r.Close, r.Trails = false, false
}

// Informational reports whether another head follows this one.
func (r *Response) Informational() bool {
	return r.Status >= 100 && r.Status < 200 && r.Status != 101
}

// BodyForbidden reports whether a response with this status never has a body (RFC 9110,
// section 6.4.1).
func BodyForbidden(status int) bool { return status < 200 || status == 204 || status == 304 }

// Refusal is the reason why weir does not forward a message, and its answer to the client.
type Refusal struct {
	// Status is the status code of weir's response.
	Status int
	// Reason is a word for metrics and the access log, such as "head_too_large".
	Reason string
	// Detail describes the error in a sentence, which the client gets. It says nothing about the configuration.
	Detail string
	// Hint names the setting to change, for the log only; empty: there is none.
	Hint string
}

func (r *Refusal) Error() string { return strconv.Itoa(r.Status) + ": " + r.ForLog() }

// ForLog returns Detail with the hint.
func (r *Refusal) ForLog() string {
	if r.Hint == "" {
		return r.Detail
	}
	return r.Detail + " (" + r.Hint + ")"
}
