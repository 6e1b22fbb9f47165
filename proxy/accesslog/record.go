// Package accesslog writes the access log: a line for each request, tunnel and refused
// connection. A Record has the data of a line, a Format makes the line of it, and a Writer
// writes lines in batches. Put never waits for the destination of the lines.
package accesslog

import (
	"net/netip"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// Record is the data of one line. The receiver may use the record until the call returns.
// Received and Sent of a connection's first exchange include the TLS handshake.
type Record struct {
	Kind     string    // "http", "upgrade" (a tunnel that was an exchange), "tunnel", "challenge" or "refused"
	Ended    time.Time // zero: now
	Listener string
	Origin   *conn.Origin   // nil: unknown
	Client   netip.AddrPort // the client that sent the request; zero: the other end of the connection

	SNI       string // the server name in the ClientHello, also of TLS that weir passes through
	TLSPolicy string // of TLS that weir terminates
	TLS       *TLS   // of TLS that weir terminates; nil: none, or the handshake failed
	Offer     *Offer // of a failed handshake; nil: weir read no ClientHello
	Result    string // of a failed handshake, as in the metrics

	Route, Backend, Endpoint string
	EndpointSecure           bool // weir uses TLS to the endpoint
	Attempts                 int

	Started        time.Time
	Duration       time.Duration
	Connect        time.Duration // zero: an idle connection was reused
	ResponseHead   time.Duration // until the endpoint's response head arrived
	Received, Sent int64         // bytes from and to the client: on the wire for http, delivered for tunnels
	Body           int64         // bytes of the response's body to the client
	Request        *message.Request
	Response       *message.Response // to the client; nil: unknown
	Secure         bool              // the client used TLS
	User           string            // the user whom the route authenticated; empty: none
	Version        string            // of HTTP: "1.0", "1.1" or "2"
	Status         int
	Reason         string // why weir generated the response, or how a tunnel ended
	Err            error
	TraceID        [16]byte // zero: the request is not traced
	SpanID         [8]byte
	More           int // connections of kind "refused" for which this record stands; 0: one

	Unlogged bool // the route has no access log
}

// TLS describes the TLS of a client's connection, in words. It is never changed, and all
// records of a connection may share it.
type TLS struct {
	Version, CipherSuite string
	Resumed, ECH         bool
	ClientSubject        string // of the client's certificate; empty: none
}

// Offer describes what the ClientHello of a failed handshake offered, in words. The lists are
// limited.
type Offer struct {
	Versions, Suites, Protocols []string
	OnlySHA1                    bool
	JA4                         string
}

// Good reports whether the record is a request that was served as it should be: its status is
// below 400, and weir has no reason to report.
func (r *Record) Good() bool { return r.Kind == "http" && r.Status < 400 && r.Reason == "" }
