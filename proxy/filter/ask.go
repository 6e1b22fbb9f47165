package filter

import (
	"time"

	"github.com/weirproxy/weir/proxy/message"
)

// Decider is a server that guards ask. The exchange knows its type; guards only pass it on.
type Decider any

// Question is a request of a guard to a server.
type Question struct {
	Decider  Decider
	Method   string        // empty: GET
	Host     string        // empty: that of the client's request, or of the server
	Path     string        // path and query
	Patience time.Duration // until the whole response has arrived
	Body     []byte        // nil: none
	Most     int           // limit of the response's body, in bytes. The body of a 2xx response is discarded, unless Whole is set
	Whole    bool          // Read gets the body of a 2xx response too
	Discard  bool          // the body of a response of any status is discarded
	// Write adds HTTP headers to the request.
	Write func(req *message.Request)
	// Read gets the response, of any status. It may use the response and its body until it returns.
	Read func(res *message.Response, body []byte)
}
