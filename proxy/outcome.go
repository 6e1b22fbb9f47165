package proxy

import "net/http"

// outcome is the result of an attempt; nil: a complete response. It is a pointer, because the
// goroutine of a new connection has a small stack.
type outcome struct {
	failure failure
	status  int    // for a client that has no response yet; 0: the client gets no response
	reason  string // for the log and the metrics
	err     error  // the cause of the reason
}

// ofEndpoint returns true if the endpoint failed, and neither the client nor weir.
func (o *outcome) ofEndpoint() bool {
	switch o.failure {
	case clientGone, outOfMemory:
		return false
	case cutShort:
		return true
	}
	return o.status >= http.StatusBadGateway && o.status <= http.StatusGatewayTimeout
}

// Outcomes that have no cause. They are never changed.
var (
	// tunnelOpened: the connection to the endpoint is a tunnel now, which releases the endpoint.
	tunnelOpened = new(outcome)
	linkWasStale = &outcome{failure: stale}
)

// failure is the way in which an attempt failed.
type failure uint8

const (
	_           failure = iota
	noEndpoint          // there was no endpoint to try
	stale               // the idle connection had ended; weir sent nothing
	unsent              // there was no connection
	needsHTTP1          // the endpoint requires HTTP/1.1
	refused             // the endpoint reported that it did not process the request
	unanswered          // a reused connection ended before any byte of the response
	dropped             // a new connection ended before any byte of the response
	failed              // the endpoint sent no valid response head
	late                // the endpoint sent no response head in time
	discarded           // the endpoint answered with a status after which weir repeats the request
	cutShort            // the response ended too early, after its head
	outOfMemory         // there is no memory for the response
	clientGone          // the client closed the connection, or sent an invalid body
)
