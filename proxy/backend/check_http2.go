package backend

import (
	"context"
	"crypto/tls"
	"io"
	"net"

	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/message"
)

// checkHTTP2 is the HTTP/2 connection of a check.
type checkHTTP2 struct {
	trunk *http2.Trunk
	call  *http2.Call
}

// old is a TLS connection of a check, for which ALPN selected HTTP/1.1.
type old struct {
	net.Conn
	below *conn.Conn
}

// Cut ends all waits.
func (o *old) Cut() { o.below.Cut() }

// newCheckHTTP2 starts HTTP/2 on a connection, after a TLS handshake unless secure is nil.
// If the handshake selects HTTP/1.1, it returns an *old. infos limits
// the 1xx responses.
func newCheckHTTP2(ctx context.Context, nc net.Conn, secure *tls.Config, infos int) (health.Connection, error) {
	w := &connTransport{Conn: conn.New(nc)}
	if secure != nil {
		if err := w.handshake(ctx, secure); err != nil {
			w.Conn.Close()
			return nil, err
		}
		if w.tls.ConnectionState().NegotiatedProtocol != "h2" {
			return &old{Conn: w.tls, below: w.Conn}, nil
		}
	}
	t := http2.NewTrunk(w.Conn, w.tls, message.Limits{}, func() {})
	t.LimitInfos(infos)
	if err := t.Start(ctx); err != nil {
		return nil, err
	}
	return &checkHTTP2{trunk: t, call: t.Call()}, nil
}

// Close ends the connection.
func (a *checkHTTP2) Close() error {
	a.call.End()
	a.trunk.GoAway()
	return nil
}

// Cut ends all waits of Ask.
func (a *checkHTTP2) Cut() { a.call.Cut() }

// mostAnswer limits the bytes of a response body that a check reads.
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

// question writes q into req.
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

// exchange sends req and reads the final response. It returns up to mostAnswer bytes of the
// body. Cut ends its waits.
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
