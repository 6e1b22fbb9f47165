package trace

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
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
func fieldOf(message []byte, field protowire.Number) (number uint64, value []byte, ok bool) {
	for len(message) > 0 {
		found, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return 0, nil, false
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(found, kind, message); n < 0 {
			return 0, nil, false
		}
		switch {
		case found == field && kind == protowire.VarintType:
			number, _ = protowire.ConsumeVarint(message)
			return number, nil, true
		case found == field && kind == protowire.BytesType:
			value, _ = protowire.ConsumeBytes(message)
			return 0, value, true
		}
		message = message[n:]
	}
	return 0, nil, false
}
