package proxy

import (
	"bytes"
	"net/http"
)

// challengePath begins the paths of HTTP-01 challenges (RFC 8555, section 8.3).
var challengePath = []byte("/.well-known/acme-challenge/")

// maxToken limits a token. The tokens of authorities have about 43 bytes.
const maxToken = 256

// answerChallenge answers the challenge by which a certificate authority checks that a name
// belongs to this weir. Weir looks for challenges before it looks for a route, because the name
// may have no route. It answers only known tokens. It routes a request with an unknown token
// like any other request, perhaps to an endpoint that expects the challenge. Authorities send
// challenges over plain HTTP.
//
// The look-up may wait for the storage that replicas share. Only this client waits, also within
// Await: a cut does not end the look-up, only the wait that follows it.
func (x *exchange) answerChallenge() bool {
	req := &x.req
	if x.security.Terminated() || x.proxy.Challenges == nil || !bytes.HasPrefix(req.Bytes(req.Path), challengePath) {
		return false
	}
	if method := req.Bytes(req.Method); string(method) != "GET" && !req.IsHead {
		return false
	}
	token := req.Bytes(req.Path)[len(challengePath):]
	if !isChallengeToken(token) {
		return false
	}
	var buf [maxHost]byte
	host := normalHost(buf[:0], req.Bytes(req.Host))
	authorization, ok := x.proxy.Challenges.HTTP01(string(host), string(token))
	if !ok {
		return false
	}
	x.beginReply(http.StatusOK, "acme_challenge")
	x.endReply(authorization)
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
