package soak

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// gRPC uses HTTP/2, messages with a length prefix, and a status in the trailers. A call
// sends one empty message.

// emptyMessage is an uncompressed message without content.
var emptyMessage = make([]byte, 5)

var grpcNames = []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL",
	"UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}

func grpcName(code int) string {
	if code >= 0 && code < len(grpcNames) {
		return grpcNames[code]
	}
	return "unknown"
}

// A grpcResponse has the gRPC part of an HTTP/2 response.
type grpcResponse struct {
	contentType, status, message string
	messages                     messages
}

// note evaluates a header or trailer.
func (g *grpcResponse) note(name, value string) {
	switch name {
	case "content-type":
		g.contentType = value
	case "grpc-status":
		g.status = value
	case "grpc-message":
		g.message = value
	}
}

// messages counts messages by their length prefixes.
type messages struct {
	have int // received bytes of the prefix
	size uint32
	left uint32 // bytes of the message that are still to come
}

func (m *messages) take(b []byte) {
	for len(b) > 0 {
		if m.left > 0 {
			n := min(len(b), int(m.left))
			m.left -= uint32(n)
			b = b[n:]
			continue
		}
		if m.have > 0 { // after the compression flag
			m.size = m.size<<8 | uint32(b[0])
		}
		b = b[1:]
		if m.have++; m.have == 5 {
			m.left, m.have, m.size = m.size, 0, 0
		}
	}
}

// whole returns true if the last message is complete.
func (m *messages) whole() bool { return m.have == 0 && m.left == 0 }

// checkGRPC checks a complete response.
func (s *http2Speaker) checkGRPC() error {
	c := &s.current
	g := &c.grpc
	switch {
	case c.status != 200:
		return problemf(UnexpectedStatus, "the HTTP status is %d: %.64q", c.status, c.seen)
	case !strings.HasPrefix(g.contentType, "application/grpc"):
		return problemf(Malformed, "the Content-Type of a gRPC response is %q", g.contentType)
	case g.status == "":
		return problemf(MissingTrailers, "the response ended after %d bytes without grpc-status", c.came)
	}
	code, err := strconv.Atoi(g.status)
	if err != nil || code < 0 {
		return problemf(Malformed, "grpc-status is %q", g.status)
	}
	s.run.grpcStatus(code)
	switch {
	case !slices.Contains(s.run.GRPCStatus, code):
		return problemf(UnexpectedStatus, "grpc-status %s: %.200q", grpcText(code), unescapeMessage(g.message))
	case code == 0 && !g.messages.whole():
		return problemf(ShortBody, "the response ended within a message, after %d bytes", c.came)
	case code == 0 && s.run.Path == healthCheck:
		if state := servingStatus(c.seen); state != "SERVING" {
			return problemf(UnexpectedStatus, "the health check says %s", state)
		}
	}
	return s.checkAddress(c.field, nil)
}

func grpcText(code int) string { return fmt.Sprintf("%d (%s)", code, grpcName(code)) }

func unescapeMessage(s string) string {
	if text, err := url.PathUnescape(s); err == nil {
		return text
	}
	return s
}

// servingStatus returns the content of a grpc.health.v1.HealthCheckResponse: one field, an
// enum.
func servingStatus(message []byte) string {
	names := []string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}
	if len(message) == 5 {
		return names[0] // the default value is not sent
	}
	if len(message) < 7 || message[5] != 1<<3 || int(message[6]) >= len(names) {
		return fmt.Sprintf("%.64q", message)
	}
	return names[message[6]]
}
