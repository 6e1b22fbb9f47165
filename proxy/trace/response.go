package trace

import (
	"encoding/binary"
	"fmt"
)

// PartialError is the error of a request of which the receiver refused some spans.
type PartialError struct {
	Rejected uint64
	Message  string // of the receiver
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("the receiver refused %d spans of a request: %s", e.Rejected, e.Message)
}

// mostMessage limits the message of a receiver, in bytes.
const mostMessage = 200

// Refused reads an ExportTraceServiceResponse. It returns a PartialError if the receiver refused some
// spans, otherwise nil, also if response has another form.
func Refused(response []byte) error {
	_, partial, ok := fieldOf(response, 1) // partial_success
	if !ok {
		return nil
	}
	e := new(PartialError)
	e.Rejected, _, _ = fieldOf(partial, 1) // rejected_spans
	if _, text, ok := fieldOf(partial, 2); ok {
		e.Message = string(appendValid(nil, text[:min(len(text), mostMessage)]))
	}
	if e.Rejected == 0 { // a message alone is a warning
		return nil
	}
	return e
}

// fieldOf returns the value of a field of a message, a number or bytes. ok is false if the message does
// not have it, or has another form.
func fieldOf(message []byte, field uint64) (number uint64, value []byte, ok bool) {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return 0, nil, false
		}
		message, number, value = message[n:], 0, nil
		size := uint64(0)
		switch tag & 7 {
		case varint, bytesOf:
			if number, n = binary.Uvarint(message); n <= 0 {
				return 0, nil, false
			}
			message = message[n:]
			if tag&7 == bytesOf {
				number, size = 0, number
			}
		case fixed64:
			size = 8
		case fixed32:
			size = 4
		default:
			return 0, nil, false
		}
		if size > uint64(len(message)) {
			return 0, nil, false
		}
		value, message = message[:size], message[size:]
		if tag>>3 == field {
			return number, value, true
		}
	}
	return 0, nil, false
}
