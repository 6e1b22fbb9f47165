package http1

import (
	"io"

	"github.com/weirproxy/weir/listener/memory"
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

	rules Lenient

	announced uint32 // seconds; see AnnouncedIdle

	infos    int  // 1xx responses to the current request
	sent     bool // the current request was written to its end
	finished bool // the current response was read to its end, and may be followed by another
	odd      bool // a fault of a response was accepted: no other may follow
}

// Init makes c the codec of rw, which stays the caller's.
func (c *Client) Init(rw io.ReadWriter, limits Limits) {
	*c = Client{in: reader{src: rw}, out: writer{dst: rw}, limits: limits.OrDefault(), rules: ofResponse, finished: true, sent: true}
}

// ChargeTo charges a for the memory of a large head, until it is given back. Call it while
// the codec holds none. nil: nothing is charged.
func (c *Client) ChargeTo(a *memory.Account) { c.in.account, c.out.account = a, a }

// Quiet reports whether the connection is as an idle one should be: alive, and
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
	c.out.gathered(append(b, '\r', '\n'))
}

// meansBody reports whether the method is one whose request is expected to say
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
	head, n, err := c.in.headBy(c.rules, c.limits.HeadBytes)
	if err != nil {
		return c.rules.advised(err)
	}
	res.Reset()
	f, err := parseResponse(res, req, head, c.limits, c.rules)
	if err != nil {
		if bareLF(head, 0) {
			err = errBareLF // a line is two, or half of one
		}
		if err == errFolded && !c.helped(req, res, head) {
			return err
		}
		return c.rules.advised(err)
	}
	c.in.consume(n)
	c.in.skipped = 0
	c.odd = c.odd || f.odd || n != len(head) || c.in.loose
	c.announced = announcedIdle(&res.Head)
	res.Close = res.Close || c.odd
	if res.Informational() {
		if c.infos++; c.infos > message.MaxInfos {
			return message.ErrTooManyInfo
		}
		return nil
	}
	c.body.start(res.Length, f.chunked && res.Length != 0, res.Length == message.Unknown && !f.chunked, c.rules)
	c.endIfEnded(res)
	return nil
}

// helped reports whether settings would accept a head that was refused. The content of res is lost.
func (c *Client) helped(req *message.Request, res *message.Response, head []byte) bool {
	res.Reset()
	_, err := parseResponse(res, req, head, c.limits, ^Lenient(0))
	return err == nil
}

// AnnouncedIdle returns the time in seconds after which the endpoint closes the connection
// if it is idle, as its last response says; 0 if the response does not say it.
func (c *Client) AnnouncedIdle() uint32 { return c.announced }

// Started reports whether a byte of the response is there, unread.
func (c *Client) Started() bool { return !c.in.empty() }

// Answered reports whether any byte of the response came, a 1xx's too: the
// endpoint has seen the request then, and may have acted on it.
func (c *Client) Answered() bool { return c.infos > 0 || c.Started() || c.in.skipped > 0 }

// ReadBody returns the next piece of the response's body, valid until the next
// call, or io.EOF at its end; the trailers are then in res.
func (c *Client) ReadBody(res *message.Response) ([]byte, error) {
	p, err := c.body.next(&c.in, &res.Head, &res.Trailers, c.limits)
	if err == nil || err == io.EOF {
		c.odd = c.odd || c.body.odd
		c.endIfEnded(res)
		return p, err
	}
	if err == errFolded {
		return p, err // in a trailer, where no setting accepts it
	}
	return p, c.rules.advised(err)
}

// BodyEnded reports whether the response was read to its end.
func (c *Client) BodyEnded() bool { return c.body.ended() }

func (c *Client) endIfEnded(res *message.Response) {
	if c.body.ended() && !res.Close && !c.odd && res.Status != 101 && !res.Informational() {
		c.finished = true
	}
}

// Reusable reports whether another request may be sent: the last exchange ended
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
