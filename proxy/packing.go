package proxy

import (
	"github.com/weirproxy/weir/proxy/compress"
	"github.com/weirproxy/weir/proxy/filter"
)

// This file compresses the bodies of endpoints' responses (compress of a route).

// packing is the running compression of a response. It is zero for all other responses.
type packing struct {
	encoder *compress.Encoder // nil: the body is not compressed
	err     error             // of the end of the body, for the flush after it
}

// pack decides whether weir compresses the body of the response, and changes the head. All other
// changes of the head come before: weir compresses no response with a Set-Cookie, also if the route
// adds it, and no filter may describe the uncompressed body afterwards. weir sends the body
// uncompressed if too many encoders wait for a turn, or if the memory account refuses the encoder.
func (x *exchange) pack() {
	req, res := &x.req, &x.res
	if res.Status == 304 { // a response to GET may have been compressed
		filter.Vary(res)
		if filter.Coding(req) != compress.Identity {
			filter.WeakenETag(res)
		}
		return
	}
	if !filter.Compressible(req, res) {
		return
	}
	filter.Vary(res)
	coding := filter.Coding(req)
	if coding == compress.Identity {
		return
	}
	if req.IsHead {
		filter.Encoded(res, coding)
		res.Length = 0
		return
	}
	if compress.Busy() {
		x.route.metrics.get().notCompressed(coding.String(), "busy").Inc()
		return
	}
	if !x.account.Charge(coding.Memory()) {
		x.route.metrics.get().notCompressed(coding.String(), "memory").Inc()
		return
	}
	filter.Encoded(res, coding)
	x.packing.encoder = compress.Get(coding, x.wire)
}

// unpack ends the compression, if there is one, and counts it. It gives the encoder back, also
// in the middle of a body.
func (x *exchange) unpack() {
	e := x.packing.encoder
	if e == nil {
		return
	}
	x.packing.encoder = nil
	in, out := e.Transferred()
	x.sent = out
	x.route.metrics.get().compressed(e.Coding().String(), in, out)
	e.Release()
	x.account.Release(e.Coding().Memory())
}

// endPacked writes the end of a compressed body.
func (x *exchange) endPacked() {
	if x.packing.err = x.packing.encoder.Close(); x.packing.err == nil {
		x.wire.WriteEnd(&x.res)
	}
}

// flushPacked sends what was compressed so far, so that event streams and slow bodies arrive at
// once.
func (x *exchange) flushPacked() error {
	if x.packing.err != nil {
		return x.packing.err
	}
	if err := x.packing.encoder.Flush(); err != nil {
		return err
	}
	return x.wire.Flush()
}
