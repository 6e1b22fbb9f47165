package http1

import (
	"io"

	"github.com/weirproxy/weir/proxy/message"
)

// Client is the codec of one connection to an endpoint: it writes requests and
// reads responses, in turn. It does not close the connection. The zero value
// needs Init.
type Client struct {
	in     reader
	out    writer
	body   body
	limits Limits

	infos    int  // 1xx responses to the current request
	sent     bool // the current request was written to its end
	finished bool // the current response was read to its end, and may be followed by another
}

// Init makes c the codec of rw, which stays the caller's.
func (c *Client) Init(rw io.ReadWriter, limits Limits) {
	*c = Client{in: reader{src: rw}, out: writer{dst: rw}, limits: limits.OrDefault(), finished: true, sent: true}
}

// Quiet says whether the connection is as an idle one should be: alive, and
// with nothing to read. What an endpoint says unasked (a 408, say) would be
// taken for the answer to the next request. The connection must be within
// conn.Await, so that reading does not wait; wouldBlock recognises the error.
func (c *Client) Quiet(wouldBlock error) bool {
	return c.in.empty() && c.in.fill(0) == wouldBlock && c.in.empty()
}

// WriteHead gathers a request's head, to be sent by Flush.
func (c *Client) WriteHead(req *message.Request) {
	c.infos, c.sent, c.finished = 0, false, false
	b := append(c.out.room(), req.Bytes(req.Method)...)
	b = append(b, ' ')
	b = append(b, req.Bytes(req.Target)...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = appendFields(b, &req.Head)
	c.out.chunked = req.Length == message.Unknown
	switch {
	case c.out.chunked:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case req.Length == 0 && meansBody(req) && req.Find(message.ContentLength) < 0:
		b = append(b, "Content-Length: 0\r\n"...)
	}
	if req.Upgrade.Len() > 0 {
		b = append(b, "Connection: Upgrade\r\nUpgrade: "...)
		b = append(b, req.Bytes(req.Upgrade)...)
		b = append(b, '\r', '\n')
	} else if req.AcceptsTrailers {
		b = append(b, "Connection: TE\r\nTE: trailers\r\n"...)
	}
	c.out.buf = append(b, '\r', '\n')
}

// meansBody says whether the method is one whose request is expected to say
// that it has no body (RFC 9110, section 8.6). HTTP/2 needs no field for that.
func meansBody(req *message.Request) bool {
	switch string(req.Bytes(req.Method)) {
	case "POST", "PUT", "PATCH":
		return true
	}
	return false
}

// WriteBody gathers or sends a piece of the request's body.
func (c *Client) WriteBody(p []byte) error { return c.out.body(p) }

// WriteEnd gathers the end of the request.
func (c *Client) WriteEnd(req *message.Request) {
	c.out.end(&req.Trailers)
	c.sent = true
}

// Flush sends what was gathered.
func (c *Client) Flush() error { return c.out.flush() }

// ReadHead reads the next response head to req, a 1xx too. The errors: io.EOF
// where the endpoint closed without a byte, io.ErrUnexpectedEOF within a head,
// a *message.Refusal where the head is not a response, conn.ErrWouldBlock
// (call again), or the connection's own.
func (c *Client) ReadHead(req *message.Request, res *message.Response) error {
	head, err := c.in.head(c.limits.HeadBytes)
	if err != nil {
		return err
	}
	res.Reset()
	f, err := parseResponse(res, req, head, c.limits)
	if err != nil {
		return err
	}
	c.in.consume(len(head))
	if res.Informational() {
		if c.infos++; c.infos > message.MaxInfos {
			return message.ErrTooManyInfo
		}
		return nil
	}
	c.body.start(res.Length, f.chunked && res.Length != 0, res.Length == message.Unknown && !f.chunked)
	c.endIfEnded(res)
	return nil
}

// Started says whether a byte of the response is there, unread.
func (c *Client) Started() bool { return !c.in.empty() }

// Answered says whether any byte of the response came, a 1xx's too: the
// endpoint has seen the request then, and may have acted on it.
func (c *Client) Answered() bool { return c.infos > 0 || !c.in.empty() }

// ReadBody returns the next piece of the response's body, valid until the next
// call, or io.EOF at its end; the trailers are then in res.
func (c *Client) ReadBody(res *message.Response) ([]byte, error) {
	p, err := c.body.next(&c.in, &res.Head, &res.Trailers, c.limits)
	if err == nil || err == io.EOF {
		c.endIfEnded(res)
	}
	return p, err
}

// BodyEnded says whether the response was read to its end.
func (c *Client) BodyEnded() bool { return c.body.ended() }

func (c *Client) endIfEnded(res *message.Response) {
	if c.body.ended() && !res.Close && res.Status != 101 && !res.Informational() {
		c.finished = true
	}
}

// Reusable says whether another request may be sent: the last exchange ended
// on both sides as its framing says, and nothing came after it.
func (c *Client) Reusable() bool { return c.sent && c.finished && c.in.empty() }

// TakeBuffered returns a copy of the bytes behind a 101.
func (c *Client) TakeBuffered() []byte {
	return c.in.take()
}

// Release gives memory back that an idle connection does not need.
func (c *Client) Release() { c.in.release() }

// Close gives all memory back. The connection stays open. Closing twice is fine.
func (c *Client) Close() {
	c.in.discard()
	c.out.discard()
}
