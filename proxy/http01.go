package proxy

import (
	"bytes"
	"net/http"
)

// challengePath begins the paths of HTTP-01 challenges (RFC 8555, section 8.3).
var challengePath = []byte("/.well-known/acme-challenge/")

// maxToken bounds a token, of which authorities make some 43 bytes.
const maxToken = 256

// answerChallenge answers what a certificate authority asks to see that a name
// is ours. It goes before any route, because the name may have none that leads
// anywhere, and does so for nothing else: a token that is not known here is
// routed as every request is, perhaps to one that asked for it. Authorities ask
// over plain HTTP.
//
// The look-up may wait for the storage that replicas share. That holds up
// nobody but this client, within Await too: a cut only ends the wait that follows.
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

// isChallengeToken reports whether b is one segment in base64url, as tokens are.
func isChallengeToken(b []byte) bool {
	for _, c := range b {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-' || c == '_') {
			return false
		}
	}
	return len(b) > 0 && len(b) <= maxToken
}
