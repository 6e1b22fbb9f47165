package health

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// Asker is a Connection that can send one request. It reads the response by the rules of the data
// path, so that a check and a request accept the same responses.
type Asker interface {
	Connection
	Ask(ctx context.Context, q *Question) (*Answer, error)
}

// Question is a request of a check.
type Question struct {
	Method, Host, Path string
	Fields             [][2]string // names in lower case
	Body               []byte
}

// Answer is the response. Body has at most 64 KiB, and is empty over HTTP/1.1.
type Answer struct {
	Status int
	Body   []byte
	// Field is a field of the head or of the trailers, by its name in lower case.
	Field func(name string) string
}

// servingStatus is the value SERVING of grpc.health.v1.HealthCheckResponse.
const servingStatus = 1

var servingStatuses = map[uint64]string{0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

// askGRPC asks whether a service is SERVING, by the protocol of
// grpc/health/v1/health.proto.
func askGRPC(ctx context.Context, c Connection, service, address string) error {
	asker, ok := c.(Asker)
	if !ok {
		return errors.New("the endpoint does not speak HTTP/2")
	}
	a, err := asker.Ask(ctx, &Question{Method: http.MethodPost, Host: hostOf("", address), Path: "/grpc.health.v1.Health/Check",
		Fields: [][2]string{{"content-type", "application/grpc"}, {"te", "trailers"}, {"user-agent", "weir-health-check"}},
		Body:   healthRequest(service)})
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK {
		return fmt.Errorf("the response has the HTTP status %d, not 200", a.Status)
	}
	if code := a.Field("grpc-status"); code != "0" {
		return fmt.Errorf("the call ended with grpc-status %s %s", strconv.Quote(code), strconv.Quote(a.Field("grpc-message")))
	}
	status, err := healthStatus(a.Body)
	if err == nil && status != servingStatus {
		err = fmt.Errorf("service %q is %s", service, servingStatuses[status])
	}
	return err
}

const grpcPrefix = 5 // one byte that says whether the message is compressed, and four for its length

// healthRequest returns a HealthCheckRequest; its field 1 is the service.
func healthRequest(service string) []byte {
	var m []byte
	if service != "" {
		m = append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(service))), service...)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
}

var errHealthResponse = errors.New("the response is not a HealthCheckResponse")

// healthStatus returns field 1 of a HealthCheckResponse, or 0 if the field is absent.
func healthStatus(body []byte) (status uint64, err error) {
	if len(body) < grpcPrefix || body[0] != 0 || uint64(binary.BigEndian.Uint32(body[1:])) != uint64(len(body)-grpcPrefix) {
		return 0, errHealthResponse
	}
	for m := body[grpcPrefix:]; len(m) > 0; {
		tag, n := binary.Uvarint(m)
		if n <= 0 {
			return 0, errHealthResponse
		}
		m = m[n:]
		value, n := binary.Uvarint(m)
		if n <= 0 {
			return 0, errHealthResponse
		}
		m = m[n:]
		switch tag & 7 {
		case 0: // a number
			if tag>>3 == 1 {
				status = value
			}
		case 2: // bytes of an unknown field
			if value > uint64(len(m)) {
				return 0, errHealthResponse
			}
			m = m[value:]
		default:
			return 0, errHealthResponse
		}
	}
	return status, nil
}
