package backend

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"time"

	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/message"
)

// checkHTTP2 is a check's connection of HTTP/2.
type checkHTTP2 struct {
	net.Conn // of which nothing is used but Close and SetDeadline
	trunk    *http2.Trunk
	call     *http2.Call
}

// old is a check's connection whose TLS agreed on HTTP/1.1.
type old struct {
	net.Conn
	below *conn.Conn
}

// SetDeadline ends all waits, whatever the deadline: a check sets one that has passed.
func (o *old) SetDeadline(time.Time) error {
	o.below.Cut()
	return nil
}

// newCheckHTTP2 makes a connection one of HTTP/2, behind a TLS handshake unless
// secure is nil, which may also end in HTTP/1.1.
func newCheckHTTP2(ctx context.Context, nc net.Conn, secure *tls.Config) (net.Conn, error) {
	s := &Session{Conn: conn.New(nc)}
	if secure != nil {
		if err := s.handshake(ctx, secure); err != nil {
			s.Conn.Close()
			return nil, err
		}
		if s.TLS.ConnectionState().NegotiatedProtocol != "h2" {
			return &old{Conn: s.TLS, below: s.Conn}, nil
		}
	}
	t := http2.NewTrunk(s.Conn, s.TLS, message.Limits{}, func() {})
	if err := t.Start(ctx); err != nil {
		return nil, err
	}
	return &checkHTTP2{trunk: t, call: t.Call()}, nil
}

// Close ends the connection.
func (a *checkHTTP2) Close() error {
	a.call.End()
	a.trunk.Leave()
	return nil
}

// SetDeadline ends all waits, whatever the deadline: a check sets one that has passed.
func (a *checkHTTP2) SetDeadline(time.Time) error {
	a.call.Cut()
	return nil
}

// mostAnswer bounds how much of an answer is kept.
const mostAnswer = 64 << 10

// Ask makes the check's request.
func (a *checkHTTP2) Ask(ctx context.Context, q *health.Question) (*health.Answer, error) {
	var req message.Request
	req.Reset()
	if err := question(&req, q); err != nil {
		return nil, err
	}
	res := new(message.Response)
	body, err := a.exchange(&req, res, q.Body)
	if err != nil {
		return nil, cause(ctx, err)
	}
	return &health.Answer{Status: res.Status, Body: body, Field: func(name string) string {
		if v := res.Trailers.GetName(name); v != nil {
			return string(v)
		}
		return string(res.GetName(name))
	}}, nil
}

// question makes q a message.
func question(req *message.Request, q *health.Question) error {
	if err := req.SetMethod(req.StoreString(q.Method)); err != nil {
		return err
	}
	req.Target = req.StoreString(q.Path)
	req.Add(message.Host, []byte(q.Host))
	for _, f := range q.Fields {
		if f[0] == "te" {
			req.AcceptsTrailers = true
		} else {
			req.AddField(f[0], f[1])
		}
	}
	req.Length = int64(len(q.Body))
	return nil
}

// exchange sends req and reads the final response, of whose body it returns the
// beginning. SetDeadline ends its waits.
func (a *checkHTTP2) exchange(req *message.Request, res *message.Response, body []byte) ([]byte, error) {
	if err := ask(a.call, req, res, body); err != nil {
		return nil, err
	}
	var answer []byte
	for !a.call.BodyEnded() && len(answer) < mostAnswer {
		p, err := a.call.ReadBody(res)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		answer = append(answer, p[:min(len(p), mostAnswer-len(answer))]...)
	}
	return answer, nil
}
