package filter

import (
	"bytes"
	"net/http"
)

// challengePath begins the paths of HTTP-01 challenges (RFC 8555, section 8.3).
var challengePath = []byte("/.well-known/acme-challenge/")

// maxToken limits a token. The tokens of authorities have about 43 bytes.
const maxToken = 256

// Challenges has the answers to the challenges of certificate authorities.
type Challenges interface {
	// HTTP01 returns the response for a token of a host; false: weir does not know the token.
	HTTP01(host, token string) (string, bool)
	// OrdersHTTP01 reports whether weir obtains a certificate for the host by these challenges.
	OrdersHTTP01(host string) bool
}

// HTTP01 answers the challenges by which a certificate authority checks that a name belongs to
// this weir. It comes before the route, because the name may have no route. It answers only
// known tokens. A request with an unknown token is routed like any other request, perhaps to an
// endpoint that expects the challenge. Authorities send challenges over plain HTTP.
//
// The look-up may wait for the storage that replicas share. Only this client waits, also within
// Await: a cut does not end the look-up, only the wait that follows it.
type HTTP01 struct{ Challenges }

// Answer answers a challenge.
func (h HTTP01) Answer(x Exchange) bool {
	req := x.Request()
	if h.Challenges == nil || !bytes.HasPrefix(req.Bytes(req.Path), challengePath) || x.Terminated() {
		return false
	}
	if method := req.Bytes(req.Method); string(method) != "GET" && !req.IsHead {
		return false
	}
	token := req.Bytes(req.Path)[len(challengePath):]
	if !isChallengeToken(token) {
		return false
	}
	authorization, ok := h.Challenges.HTTP01(x.Host(), string(token))
	if !ok {
		return false
	}
	x.Begin(http.StatusOK, "acme_challenge")
	x.Send(authorization)
	return true
}

// isChallengeToken reports whether b is one path segment in base64url, like a token.
func isChallengeToken(b []byte) bool {
	for _, c := range b {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-' || c == '_') {
			return false
		}
	}
	return len(b) > 0 && len(b) <= maxToken
}
