package proxy

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/message"
)

// The gRPC status codes that weir sends.
const (
	grpcCancelled         = 1
	grpcUnknown           = 2
	grpcDeadlineExceeded  = 4
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcUnimplemented     = 12
	grpcInternal          = 13
	grpcUnavailable       = 14
	grpcUnauthenticated   = 16
)

// grpcStatus returns the gRPC status for a refusal. A gRPC client may repeat a call that is
// UNAVAILABLE. The mapping is that of gRPC for HTTP status codes
// (doc/http-grpc-status-mapping.md), except where weir knows more.
func grpcStatus(r *message.Refusal) int {
	if r.Reason == "rate_limited" || r.Reason == "in_flight" { // whatever status the configuration gives them
		return grpcUnavailable
	}
	switch r.Status {
	case http.StatusBadRequest, http.StatusLoopDetected: // clients must not retry a loop
		return grpcInternal
	case http.StatusUnauthorized:
		return grpcUnauthenticated
	case http.StatusForbidden:
		return grpcPermissionDenied
	case http.StatusNotFound, http.StatusNotImplemented:
		return grpcUnimplemented
	case http.StatusRequestEntityTooLarge, http.StatusRequestHeaderFieldsTooLarge, http.StatusRequestURITooLong:
		return grpcResourceExhausted
	case http.StatusRequestTimeout:
		return grpcDeadlineExceeded
	case http.StatusGatewayTimeout:
		if r.Reason == "response_timeout" || r.Reason == "request_timeout" || r.Reason == "try_timeout" { // the endpoint has the call, and may have acted on it
			return grpcDeadlineExceeded
		}
		return grpcUnavailable
	case http.StatusInternalServerError:
		if r.Reason == reasonMissing { // it may exist soon
			return grpcUnavailable
		}
	case http.StatusMisdirectedRequest, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable:
		return grpcUnavailable
	}
	return grpcUnknown
}

// grpcResetStatus returns the gRPC status for the code with which an endpoint reset its stream,
// as gRPC maps the codes of HTTP/2 (gRPC over HTTP/2, "Errors"). expired: the deadline of the
// call has passed, and servers end such calls with CANCEL.
func grpcResetStatus(code core.Code, expired bool) int {
	switch code {
	case core.Cancel:
		if expired {
			return grpcDeadlineExceeded
		}
		return grpcCancelled
	case core.RefusedStream:
		return grpcUnavailable
	case core.EnhanceYourCalm:
		return grpcResourceExhausted
	case core.InadequateSecurity:
		return grpcPermissionDenied
	}
	return grpcInternal
}

// grpcStatusOf returns the gRPC status of the response to x, which r refuses.
func (x *exchange) grpcStatusOf(r *message.Refusal) int {
	var over *http2.OverError
	if r.Reason == "endpoint_closed" && errors.As(x.err, &over) {
		timeout, limited := grpcTimeout(x.req.GetName("grpc-timeout"))
		return grpcResetStatus(over.Code, limited && time.Since(x.started) >= timeout-grpcSlack)
	}
	return grpcStatus(r)
}

// grpcSlack is the time by which the endpoint's clock may be ahead of weir's clock for the
// exchange, which starts when weir has read the request.
const grpcSlack = 5 * time.Millisecond

// grpcTimeout parses a grpc-timeout (gRPC over HTTP/2, "Requests"). limited is true if the value
// is valid.
func grpcTimeout(value []byte) (timeout time.Duration, limited bool) {
	n := len(value) - 1
	if n < 1 || n > 8 {
		return 0, false
	}
	count, err := strconv.ParseUint(string(value[:n]), 10, 32)
	unit := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second,
		'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}[value[n]]
	if err != nil || unit == 0 {
		return 0, false
	}
	return time.Duration(min(count, uint64(24*365*time.Hour/unit))) * unit, true
}

// isGRPC reports whether a request is a gRPC call. A gRPC-Web call is not: its clients read the
// HTTP status.
func isGRPC(req *message.Request) bool {
	rest, ok := bytes.CutPrefix(req.GetName("content-type"), []byte("application/grpc"))
	return ok && (len(rest) == 0 || rest[0] == '+' || rest[0] == ';')
}

// replyGRPC is reply for a gRPC call: the response consists only of trailers. Weir logs and
// counts the status that the response would have over HTTP without gRPC.
func (x *exchange) replyGRPC(r *message.Refusal) {
	x.status, x.reason = r.Status, r.Reason
	x.generate(r.Reason)
	x.res.Reset()
	x.sendGRPC(r)
}

// endReplyGRPC is endReply for a gRPC call that is refused. Further HTTP headers of the response, such as
// WWW-Authenticate, stay. A long body is a page for people, and no message.
func (x *exchange) endReplyGRPC(body string) {
	for i := range x.res.Fields {
		if f := &x.res.Fields[i]; notInGRPC.Has(x.res.Name(i)) {
			f.Dropped = true
		}
	}
	if len(body) > mostGRPCMessage {
		body = http.StatusText(x.status)
	}
	x.sendGRPC(&message.Refusal{Status: x.status, Reason: x.reason, Detail: strings.TrimSpace(body)})
}

// mostGRPCMessage limits the grpc-message that comes from the body of a response, in bytes.
const mostGRPCMessage = 256

// notInGRPC are HTTP headers about a body, which responses to gRPC calls do not have.
var notInGRPC = message.NewNames([]string{"Content-Type", "X-Content-Type-Options", "Content-Length", "Content-Language", "Content-Encoding"})

// sendGRPC sends the refusal of a gRPC call. The response may have further HTTP headers.
func (x *exchange) sendGRPC(r *message.Refusal) {
	x.beginGRPC(r)
	x.completeHead(&x.res)
	if !x.cover(0) {
		x.starve()
		return
	}
	x.writeGRPC()
}

// writeGRPC writes the response that refuses a gRPC call, whose head is complete.
func (x *exchange) writeGRPC() {
	x.answered = true
	x.wire.WriteHead(&x.req, &x.res)
	x.wire.WriteEnd(&x.res)
	if err := x.wire.Flush(); err != nil {
		x.ended, x.err = true, err
	}
}

// beginGRPC writes the head of a response that refuses a gRPC call.
func (x *exchange) beginGRPC(r *message.Refusal) {
	res := &x.res
	res.Status = http.StatusOK
	res.Reason = res.StoreString(http.StatusText(http.StatusOK))
	res.AddField("Content-Type", "application/grpc")
	res.AddField("Grpc-Status", strconv.Itoa(x.grpcStatusOf(r)))
	res.AddField("Grpc-Message", grpcMessage(r.Detail))
	if x.wire.Version() != "2" {
		res.Add(message.ContentLength, []byte("0"))
	}
}

// grpcMessage encodes a text as the value of grpc-message (gRPC over HTTP/2, "Responses").
func grpcMessage(s string) string {
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}
