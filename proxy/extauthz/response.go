package extauthz

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Response is the decision of a server. Its texts may have any bytes.
type Response struct {
	Code    int64  // of google.rpc; 0: OK
	Message string // of the Status; for logs
	Denied  bool   // there is a DeniedHttpResponse. Then the request may not pass, also if Code is 0
	// Status is the status of the HTTP response of a server that denies a request; 0: it has none.
	Status int64
	// Headers are for the request if it may pass, and otherwise for the response to the client.
	Headers []Change
	// Remove has the names of headers that are removed from a request that may pass.
	Remove []string
	// ResponseHeaders are for the response to the client if the request may pass.
	ResponseHeaders []Change
	Body            string // of the response to the client, if the server denies the request
	// Query means that the server wants to change the query of the request.
	Query bool
}

// Change is a header that the server sets.
type Change struct {
	Header
	Action Action
}

// Action is what happens to a header that a message has already.
type Action uint8

// The actions. The field append_action replaced the field append, and its first value means to append.
// This value is also the default, though external_auth.proto says that the server replaces headers by
// default. So weir appends only if the field append says so. Otherwise a client could put its own
// value before that of the server.
const (
	Overwrite         Action = iota // the values of the message go
	Append                          // they stay
	AddIfAbsent                     // they stay, and without one the header is added
	OverwriteIfExists               // they go, and without one the header is not added
)

// mostHeaders limits the headers of each kind in a response.
const mostHeaders = 256

var (
	errForm     = errors.New("the response of the server is no CheckResponse of envoy.service.auth.v3")
	errNoStatus = errors.New("the response of the server has neither a status nor ok_response or denied_response")
	errHeaders  = fmt.Errorf("the response of the server has more than %d headers", mostHeaders)
	errAction   = errors.New("the response of the server has an append_action that weir does not know")
)

// ParseResponse reads a CheckResponse. The caller limits its length. An empty message is an error: it
// could come from a server of another kind, and would let every request pass.
func ParseResponse(b []byte) (*Response, error) {
	r := new(Response)
	decided := false
	err := visit(b, nil, func(field protowire.Number, part []byte) error {
		switch field {
		case 1:
			decided = true
			return r.status(part)
		case 2, 3: // denied_response or ok_response: of several the last one counts
			decided = true
			*r = Response{Code: r.Code, Message: r.Message, Denied: field == 2}
			if r.Denied {
				return r.deny(part)
			}
			return r.allow(part)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case !decided:
		return nil, errNoStatus
	}
	return r, nil
}

// Allows reports whether the request may pass.
func (r *Response) Allows() bool { return r.Code == 0 && !r.Denied }

// status reads a google.rpc.Status.
func (r *Response) status(b []byte) error {
	return visit(b, numberAt(1, &r.Code), func(field protowire.Number, part []byte) error {
		if field == 2 {
			r.Message = string(part)
		}
		return nil
	})
}

// deny reads a DeniedHttpResponse.
func (r *Response) deny(b []byte) error {
	return visit(b, nil, func(field protowire.Number, part []byte) error {
		switch field {
		case 1:
			return visit(part, numberAt(1, &r.Status), nil) // HttpStatus
		case 2:
			return addChange(&r.Headers, part)
		case 3:
			r.Body = string(part)
		}
		return nil
	})
}

// allow reads an OkHttpResponse.
func (r *Response) allow(b []byte) error {
	return visit(b, nil, func(field protowire.Number, part []byte) error {
		switch field {
		case 2:
			return addChange(&r.Headers, part)
		case 5:
			if len(r.Remove) == mostHeaders {
				return errHeaders
			}
			r.Remove = append(r.Remove, string(part))
		case 6:
			return addChange(&r.ResponseHeaders, part)
		case 7, 8: // query_parameters_to_set, query_parameters_to_remove
			r.Query = true
		}
		return nil
	})
}

// addChange reads a HeaderValueOption.
func addChange(to *[]Change, b []byte) error {
	if len(*to) == mostHeaders {
		return errHeaders
	}
	var c Change
	var action, appends int64
	err := visit(b, numberAt(3, &action), func(field protowire.Number, part []byte) error {
		switch field {
		case 1:
			return c.read(part)
		case 2:
			return visit(part, numberAt(1, &appends), nil) // BoolValue
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case appends != 0:
		c.Action = Append
	case action < 0 || action >= int64(len(actions)):
		return errAction
	default:
		c.Action = actions[action]
	}
	*to = append(*to, c)
	return nil
}

// actions are the values of HeaderAppendAction; see Action for the first one.
var actions = [...]Action{Overwrite, AddIfAbsent, Overwrite, OverwriteIfExists}

// read reads a HeaderValue.
func (c *Change) read(b []byte) error {
	return visit(b, nil, func(field protowire.Number, part []byte) error {
		switch field {
		case 1:
			c.Name = string(part)
		case 2, 3: // value, or raw_value
			c.Value = string(part)
		}
		return nil
	})
}

// numberAt returns a function for visit that reads one field.
func numberAt(want protowire.Number, to *int64) func(protowire.Number, int64) {
	return func(field protowire.Number, n int64) {
		if field == want {
			*to = n
		}
	}
}

// visit calls number for each varint of a message, and part for each field that has a length, such as
// a string or a message. Both may be nil. It skips fields of other types.
func visit(b []byte, number func(protowire.Number, int64), part func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		field, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return errForm
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(field, kind, b); size < 0 {
			return errForm
		}
		switch {
		case kind == protowire.VarintType && number != nil:
			n, _ := protowire.ConsumeVarint(b)
			number(field, int64(n))
		case kind == protowire.BytesType && part != nil:
			p, _ := protowire.ConsumeBytes(b)
			if err := part(field, p); err != nil {
				return err
			}
		}
		b = b[size:]
	}
	return nil
}
