package http1

import (
	"io"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// Client is the codec of one connection to an endpoint. It writes requests and reads their
// responses, one exchange after another. It does not close the connection. The zero value
// needs Init.
type Client struct {
	in     reader
	out    writer
	body   body
	limits Limits

	rules     Lenient
	mostInfos int // limit of infos

	announced uint32 // seconds; see AnnouncedIdle

	infos    int  // 1xx responses to the current request
	sent     bool // the current request was written to its end
	finished bool // the current response was read to its end, and another one may follow
	odd      bool // weir accepted a fault of a response: no other may follow
}

// Init makes c the codec of rw. The caller still owns rw.
func (c *Client) Init(rw io.ReadWriter, limits Limits) {
	*c = Client{in: reader{src: rw}, out: writer{dst: rw}, limits: limits.OrDefault(), rules: ofResponse | EqualLengths, mostInfos: message.MaxInfos, finished: true, sent: true}
}

// ChargeTo charges a for the memory of a large head, until the codec releases it. Call it
// while the codec holds no such memory. nil: nothing is charged.
func (c *Client) ChargeTo(a *memory.Account) { c.in.account, c.out.account = a, a }

// Usable reports whether an idle connection is usable: it is alive, and has nothing to read.
// weir would read bytes that the endpoint sent without a request (such as a 408) as the
// response to the next request. Call Usable within conn.Await, so that the read does not
// wait. wouldBlock is the error of such a read if no bytes are there.
func (c *Client) Usable(wouldBlock error) bool {
	return c.in.empty() && c.in.fill(0) == wouldBlock && c.in.empty()
}

// WriteHead buffers a request's head. Flush sends it.
func (c *Client) WriteHead(req *message.Request) {
	c.infos, c.sent, c.finished = 0, false, false
	b := append(c.out.room(), req.Bytes(req.Method)...)
	b = append(b, ' ')
	b = append(b, req.EndpointTarget()...)
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

// meansBody reports whether a request with this method should have a Content-Length even if
// it has no body (RFC 9110, section 8.6). A request from HTTP/2 may have no such field.
func meansBody(req *message.Request) bool {
	switch string(req.Bytes(req.Method)) {
	case "POST", "PUT", "PATCH":
		return true
	}
	return false
}

// WriteBody buffers or sends a piece of the request's body.
func (c *Client) WriteBody(p []byte) error { return c.out.body(p) }

// WriteEnd buffers the end of the request.
func (c *Client) WriteEnd(req *message.Request) {
	c.out.end(&req.Trailers)
	c.sent = true
}

// Flush sends the buffered bytes.
func (c *Client) Flush() error { return c.out.flush() }

// ReadHead reads the head of the next response to req, which may be a 1xx. Its errors:
//   - io.EOF: the endpoint closed the connection without a byte of a response.
//   - io.ErrUnexpectedEOF: the connection ended within a head.
//   - *message.Refusal: weir does not accept the head.
//   - conn.ErrWouldBlock: call it again.
//   - other errors of the connection.
func (c *Client) ReadHead(req *message.Request, res *message.Response) error {
	head, n, err := c.in.headBy(c.rules, c.limits.HeadBytes)
	if err != nil {
		return c.rules.advised(err)
	}
	res.Reset()
	f, err := parseResponse(res, req, head, c.limits, c.rules)
	if err != nil {
		if bareLF(head, 0) {
			err = errBareLF // the line feed is the cause: it splits or ends a line
		}
		if (err == errFolded || err == message.ErrFieldValue) && !c.helped(req, res, head) {
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
		if c.infos++; c.infos > c.mostInfos {
			return message.ErrTooManyInfo
		}
		return nil
	}
	c.body.start(res.Length, f.chunked && res.Length != 0, res.Length == message.Unknown && !f.chunked, c.rules)
	c.endIfEnded(res)
	return nil
}

// helped reports whether lenient settings would accept a refused head. It overwrites res.
func (c *Client) helped(req *message.Request, res *message.Response, head []byte) bool {
	res.Reset()
	_, err := parseResponse(res, req, head, c.limits, ^Lenient(0))
	return err == nil
}

// AnnouncedIdle returns the time in seconds after which the endpoint closes an idle
// connection, according to its last response; 0 if the response does not announce it.
func (c *Client) AnnouncedIdle() uint32 { return c.announced }

// Started reports whether the codec has unread bytes of the response.
func (c *Client) Started() bool { return !c.in.empty() }

// Answered reports whether any byte of the response has arrived, including a 1xx. Then the
// endpoint has seen the request, and may have processed it.
func (c *Client) Answered() bool { return c.infos > 0 || c.Started() || c.in.skipped > 0 }

// ReadBody returns the next piece of the response's body, valid until the next call. At the
// end of the body it returns io.EOF; then the trailers are in res.
func (c *Client) ReadBody(res *message.Response) ([]byte, error) {
	p, err := c.body.next(&c.in, &res.Head, &res.Trailers, c.limits)
	if err == nil || err == io.EOF {
		c.odd = c.odd || c.body.odd
		c.endIfEnded(res)
		return p, err
	}
	if err == errFolded || err == message.ErrFieldValue {
		return p, err // in a trailer: no setting accepts it
	}
	return p, c.rules.advised(err)
}

// Owes reports whether the endpoint must send more of the body soon, because it has begun a part
// whose length is known.
func (c *Client) Owes() bool { return c.body.owes() }

// BodyEnded reports whether the response was read to its end.
func (c *Client) BodyEnded() bool { return c.body.ended() }

func (c *Client) endIfEnded(res *message.Response) {
	if c.body.ended() && !res.Close && !c.odd && res.Status != 101 && !res.Informational() {
		c.finished = true
	}
}

// Reusable reports whether weir may send another request: request and response of the last
// exchange are complete by their framing, and no bytes follow.
func (c *Client) Reusable() bool { return c.sent && c.finished && c.in.empty() }

// TakeBuffered returns a copy of the unread bytes after a 101, and releases the memory.
func (c *Client) TakeBuffered() []byte {
	return c.in.take()
}

// Release releases the memory that an idle connection does not need.
func (c *Client) Release() { c.in.release() }

// Close releases all memory. The connection stays open. Close may be called twice.
func (c *Client) Close() {
	c.in.discard()
	c.out.discard()
}
