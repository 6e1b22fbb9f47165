package filter

import (
	"bytes"
	"net/http"

	"github.com/weirproxy/weir/proxy/compress"
	"github.com/weirproxy/weir/proxy/message"
)

// leastCompressed is the least length of a body for compression, in bytes. A shorter one fits into
// one packet anyway.
const leastCompressed = 1 << 10

// Compressible reports whether weir may compress the body of an endpoint's response (compress of a
// route). The coding is the client's choice.
func Compressible(req *message.Request, res *message.Response) bool {
	if res.Status < 200 || message.BodyForbidden(res.Status) || res.Status == http.StatusPartialContent || res.Status == http.StatusResetContent {
		return false
	}
	length := res.Length
	if req.IsHead { // the response has the headers of the response to GET
		length = message.Unknown
		if i := res.Find(message.ContentLength); i >= 0 {
			length, _ = message.ParseLength(res.Value(i))
		}
	}
	if length != message.Unknown && length < leastCompressed {
		return false
	}
	compressible := false
	for i := range res.Fields {
		if res.Fields[i].Dropped {
			continue
		}
		value := res.Value(i)
		switch name := res.Name(i); {
		case message.EqualFold(name, "content-type"):
			compressible = compressibleType(value)
		case message.EqualFold(name, "content-encoding"):
			if !message.EqualFold(value, "identity") {
				return false
			}
		case message.EqualFold(name, "cache-control"):
			if message.HasToken(value, "no-transform") {
				return false
			}
		case message.EqualFold(name, "content-range"),
			message.EqualFold(name, "set-cookie"),                                             // BREACH: such a response is often about one user
			message.EqualFold(name, "content-digest"), message.EqualFold(name, "repr-digest"), // RFC 9530: of the encoded bytes
			message.EqualFold(name, "digest"), message.EqualFold(name, "content-md5"):
			return false
		}
	}
	return compressible
}

// compressibleType reports whether bodies of a media type get smaller: text, JSON, JavaScript, XML,
// SVG and wasm.
func compressibleType(value []byte) bool {
	mediaType, _, _ := bytes.Cut(value, []byte{';'})
	mediaType = message.TrimSpace(mediaType)
	if len(mediaType) > 128 {
		return false
	}
	var buf [128]byte
	lowered := buf[:len(mediaType)]
	for i, c := range mediaType {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		lowered[i] = c
	}
	if bytes.HasPrefix(lowered, []byte("application/grpc")) {
		return false // its messages have their own compression, and are flushed one by one
	}
	switch string(lowered) {
	case "application/json", "application/javascript", "application/x-javascript", "application/ecmascript", "application/x-ndjson",
		"application/xml", "application/wasm":
		return true
	}
	return bytes.HasPrefix(lowered, []byte("text/")) || bytes.HasSuffix(lowered, []byte("+json")) || bytes.HasSuffix(lowered, []byte("+xml"))
}

// Coding returns the coding that the client of a request likes best. HTTP/1.0 gets Identity: it has
// no framing for a body of unknown length, so each response would end the connection.
func Coding(req *message.Request) compress.Coding {
	if req.Minor == 0 {
		return compress.Identity
	}
	// The client's header counts, also if the route removes or sets it for the endpoint: then the
	// client's fields are dropped.
	var theirs, forwarded compress.Preference
	changed := false
	for i := range req.Fields {
		switch name := req.Name(i); {
		case message.EqualFold(name, "accept-encoding"):
			if req.Fields[i].Dropped {
				theirs.Add(req.Value(i))
				changed = true
			} else {
				forwarded.Add(req.Value(i))
			}
		case message.EqualFold(name, "cache-control"):
			if message.HasToken(req.Value(i), "no-transform") {
				return compress.Identity
			}
		}
	}
	if changed {
		return theirs.Choose()
	}
	return forwarded.Choose()
}

// Vary tells caches that the response depends on Accept-Encoding.
func Vary(res *message.Response) { addVary(res, "Accept-Encoding", "accept-encoding") }

// Encoded changes the head of a response whose body weir encodes: the length is unknown, and an
// ETag is weak, because the bytes differ from those of the endpoint (RFC 9110, section 8.8.1). The
// endpoint cannot send parts of the encoded body.
func Encoded(res *message.Response, coding compress.Coding) {
	res.Drop(message.ContentLength)
	res.Length = message.Unknown
	for i := range res.Fields {
		switch name := res.Name(i); {
		case message.EqualFold(name, "accept-ranges"), message.EqualFold(name, "content-encoding"):
			res.Fields[i].Dropped = true
		}
	}
	WeakenETag(res)
	res.AddField("Content-Encoding", coding.String())
}

// WeakenETag makes a strong ETag weak. The ETag of a 304 has to be the one that the client knows.
func WeakenETag(res *message.Response) {
	for i := range res.Fields {
		if f := &res.Fields[i]; f.Dropped || !message.EqualFold(res.Name(i), "etag") || !bytes.HasPrefix(res.Value(i), []byte{'"'}) {
			continue
		}
		strong := res.Value(i)
		weak := res.Build(func(b []byte) []byte { return append(append(b, "W/"...), strong...) })
		res.SetValueSpan(i, weak)
	}
}
