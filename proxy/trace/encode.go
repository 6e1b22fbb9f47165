package trace

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// This file writes the protocol buffers of OTLP (opentelemetry-proto, v1). The numbers of fields
// are those of trace.proto, common.proto and resource.proto.

// Types on the wire (protobuf.dev/programming-guides/encoding).
const (
	varint  = 0
	fixed64 = 1
	bytesOf = 2
)

func appendTag(b []byte, field, wire int) []byte {
	return binary.AppendUvarint(b, uint64(field)<<3|uint64(wire))
}

func sizeOfVarint(n uint64) int { return (bits.Len64(n|1) + 6) / 7 }

// sizeOfBytes is the size of a field below 16 with n bytes.
func sizeOfBytes(n int) int { return 1 + sizeOfVarint(uint64(n)) + n }

func appendBytes[T string | []byte](b []byte, field int, value T) []byte {
	b = binary.AppendUvarint(appendTag(b, field, bytesOf), uint64(len(value)))
	return append(b, value...)
}

func appendNumber(b []byte, field int, n uint64) []byte {
	return binary.AppendUvarint(appendTag(b, field, varint), n)
}

func appendFixed64(b []byte, field int, n uint64) []byte {
	return binary.LittleEndian.AppendUint64(appendTag(b, field, fixed64), n)
}

// mostText limits the length of an attribute, because clients choose some of them.
const mostText = 1024

// attributes appends attributes as fields with a number (repeated KeyValue).
type attributes struct {
	b     []byte
	field int
	clean []byte // memory for text that is not UTF-8
}

// text appends an attribute unless its value is empty.
func (a *attributes) text(key, value string) {
	if value != "" {
		appendText(a, key, value)
	}
}

func (a *attributes) bytes(key string, value []byte) {
	if len(value) > 0 {
		appendText(a, key, value)
	}
}

func appendText[T string | []byte](a *attributes, key string, value T) {
	cut := value[:min(len(value), mostText)]
	if !utf8.ValidString(string(cut)) {
		a.clean = appendValid(a.clean[:0], cut)
		appendKeyText(a, key, a.clean)
		return
	}
	appendKeyText(a, key, cut)
}

func appendKeyText[T string | []byte](a *attributes, key string, value T) {
	a.begin(key, sizeOfBytes(len(value)))
	a.b = appendBytes(a.b, 1, value) // AnyValue.string_value
}

// begin appends a KeyValue up to its value, an AnyValue of n bytes.
func (a *attributes) begin(key string, n int) {
	a.b = binary.AppendUvarint(appendTag(a.b, a.field, bytesOf), uint64(sizeOfBytes(len(key))+sizeOfBytes(n)))
	a.b = appendBytes(a.b, 1, key)
	a.b = binary.AppendUvarint(appendTag(a.b, 2, bytesOf), uint64(n))
}

func (a *attributes) number(key string, n int64) {
	a.begin(key, 1+sizeOfVarint(uint64(n)))
	a.b = appendNumber(a.b, 3, uint64(n)) // AnyValue.int_value
}

func (a *attributes) yes(key string, is bool) {
	if is {
		a.begin(key, 2)
		a.b = appendNumber(a.b, 2, 1) // AnyValue.bool_value
	}
}

// appendValid appends text with U+FFFD in place of bytes that are not UTF-8.
func appendValid[T string | []byte](b []byte, s T) []byte {
	for _, r := range string(s) {
		b = utf8.AppendRune(b, r)
	}
	return b
}

// Resource describes the process that makes spans.
type Resource struct {
	Name, Version, Node string // the name of the program, its version, and the machine
}

// preamble returns what precedes the spans in a request: the fields of ResourceSpans and of
// ScopeSpans other than the spans.
func (r Resource) preamble() (resource, scope []byte) {
	a := attributes{field: 1}
	a.text("service.name", r.Name)
	a.text("service.version", r.Version)
	a.text("service.instance.id", r.Node)
	a.text("host.name", r.Node)
	a.text("telemetry.sdk.language", "go")
	a.text("telemetry.sdk.name", "weir")
	resource = appendBytes(nil, 1, a.b)
	scope = appendBytes(nil, 1, appendBytes(appendBytes(nil, 1, "github.com/weirproxy/weir"), 2, r.Version))
	return resource, scope
}

// request returns an ExportTraceServiceRequest with spans, each as a field of ScopeSpans.
func request(resource, scope, spans []byte) []byte {
	scoped := len(scope) + len(spans)
	size := len(resource) + 1 + sizeOfVarint(uint64(scoped)) + scoped
	b := make([]byte, 0, size+1+binary.MaxVarintLen64)
	b = binary.AppendUvarint(appendTag(b, 1, bytesOf), uint64(size))
	b = append(b, resource...)
	b = binary.AppendUvarint(appendTag(b, 2, bytesOf), uint64(scoped))
	return append(append(b, scope...), spans...)
}
