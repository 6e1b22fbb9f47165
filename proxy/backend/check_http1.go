package backend

import (
	"context"
	"io"

	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/message"
)

// checkHTTP1 is the HTTP/1.1 connection of a check. It reads the response as an exchange
// does, and accepts the faults that the backend's lenient allows.
type checkHTTP1 struct {
	cuttable
	codec   http1.Client
	backend string
}

// cuttable has the methods that a checkHTTP1 needs of its connection, which is a
// checkSocket or an old.
type cuttable interface {
	io.ReadWriteCloser
	Cut()
}

func newCheckHTTP1(c cuttable, backend string, d *dialSettings) *checkHTTP1 {
	a := &checkHTTP1{cuttable: c, backend: backend}
	a.codec.Init(c, message.Limits{})
	a.codec.Tolerate(d.lenient)
	a.codec.LimitInfos(d.infos)
	return a
}

// Close ends the connection.
func (a *checkHTTP1) Close() error {
	a.codec.Close()
	return a.cuttable.Close()
}

// Ask makes the check's request. Only the head of the response counts: the answer is the
// same if the body is truncated, or if the check ends before the body.
func (a *checkHTTP1) Ask(ctx context.Context, q *health.Question) (*health.Answer, error) {
	var req message.Request
	var res message.Response
	req.Reset()
	if err := question(&req, q); err != nil {
		return nil, err
	}
	req.AddField("connection", "close")
	if err := ask(&a.codec, &req, &res, q.Body); err != nil {
		return nil, cause(ctx, http1.Explain(err, a.backend))
	}
	// If the server still sends, closing now would reset the connection.
	for n := 0; !a.codec.BodyEnded() && n < mostAnswer; {
		p, err := a.codec.ReadBody(&res)
		if err != nil {
			break
		}
		n += len(p)
	}
	return &health.Answer{Status: res.Status, Field: func(name string) string { return string(res.GetName(name)) }}, nil
}
