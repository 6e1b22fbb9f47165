package filter

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/jwt"
	"github.com/weirproxy/weir/proxy/message"
)

// bearer authenticates requests by signed tokens (auth.jwt, RFC 6750). It belongs to one revision
// of the keys.
type bearer struct {
	realm    string // the name of the entry
	settings config.JWTAuth
	sum      [sha256.Size]byte // of the file of keys
	keys     *jwt.Keys
	known    *knownCredentials
	checks   *checks
	missing  func() // called for a token that names a key which the set does not have; nil: nothing
}

func newBearer(c *config.Auth, data []byte, checks *checks) (*bearer, error) {
	keys, err := jwt.ParseKeys(data)
	if err != nil {
		return nil, err
	}
	return makeBearer(c.Name, *c.JWT, sha256.Sum256(data), keys, checks), nil
}

// makeBearer makes an authenticator that remembers no token.
func makeBearer(realm string, settings config.JWTAuth, sum [sha256.Size]byte, keys *jwt.Keys, checks *checks) *bearer {
	b := &bearer{realm: realm, settings: settings, sum: sum, keys: keys, known: new(knownCredentials), checks: checks}
	rand.Read(b.known.key[:])
	return b
}

// hidesCredentials returns false: endpoints often read further claims of the token.
func (b *bearer) hidesCredentials() bool { return false }

func (b *bearer) file() string { return b.settings.Keys }

func (b *bearer) reread(data []byte) (authenticator, error) {
	sum := sha256.Sum256(data)
	if sum == b.sum {
		return b, nil
	}
	keys, err := jwt.ParseKeys(data)
	if err != nil {
		return nil, err
	}
	return makeBearer(b.realm, b.settings, sum, keys, b.checks), nil
}

func (b *bearer) with(c *config.Auth) authenticator {
	switch {
	case c.JWT == nil:
		return nil
	case reflect.DeepEqual(b.settings, *c.JWT):
		return b
	}
	return makeBearer(b.realm, *c.JWT, b.sum, b.keys, b.checks) // tokens that were valid may not be valid any more
}

// authenticate finds the claims of the request's token.
func (b *bearer) authenticate(x Exchange) *Identity {
	token, given := credentials(x.Request(), "bearer", jwt.MaxToken)
	if !given {
		b.challengeClient(x, "auth_required", "", errNoCredentials)
		return nil
	}
	sum := b.known.digest(token)
	if id := b.known.get(sum); id != nil {
		return id
	}
	id, busy, err := b.check(x, sum, token)
	switch {
	case busy:
		answerBusy(x, err)
	case id == nil:
		b.challengeClient(x, "auth_failed", `, error="invalid_token"`, err)
	}
	return id
}

// challengeClient answers 401. Only the access log says what is wrong with a token, because that would
// help to forge one.
func (b *bearer) challengeClient(x Exchange, reason, more string, why error) {
	x.SetCause(why)
	res := x.Begin(http.StatusUnauthorized, reason)
	res.AddField("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s"%s`, b.realm, more))
	x.Send("this needs a valid token\n")
}

// check verifies a token when it is its client's turn. A token that no key can have signed needs no
// turn.
func (b *bearer) check(x Exchange, sum credentialSum, token []byte) (id *Identity, busy bool, err error) {
	read, err := b.keys.Read(string(token))
	if err != nil {
		b.noteMissing(err)
		return nil, false, err
	}
	return b.checks.do(x, sum, func() (*Identity, error) {
		if id := b.known.get(sum); id != nil { // another request was first
			return id, nil
		}
		id, until, err := b.verify(read)
		if err != nil {
			return nil, err
		}
		b.known.add(sum, id, until)
		return id, nil
	})
}

// noteMissing asks for newer keys if the error says that the set does not have the key of a token.
func (b *bearer) noteMissing(err error) {
	if b.missing != nil && errors.Is(err, jwt.ErrUnknownKey) {
		b.missing()
	}
}

// verify returns an error for a token that is not valid, or whose claims do not fit into an HTTP header
// for the endpoint.
func (b *bearer) verify(token *jwt.Token) (id *Identity, until time.Time, err error) {
	claims, err := token.Verify(jwt.Requirements{Issuer: b.settings.Issuer, Audience: b.settings.Audience}, time.Now())
	if err != nil {
		b.noteMissing(err)
		return nil, until, err
	}
	id = new(Identity)
	if id.User, _, err = claims.Value("sub"); err != nil {
		return nil, until, err
	}
	for _, h := range b.settings.Headers {
		value, has, err := claims.Value(h.Claim)
		if err != nil {
			return nil, until, err
		}
		if has {
			id.Fields = append(id.Fields, IdentityField{h.Header, value})
		}
	}
	return id, claims.Until, nil
}

// credentials returns the credentials of a request for a scheme of authentication. Requests with
// several Authorization headers have none, because programs disagree about which one counts.
func credentials(req *message.Request, scheme string, most int) (found []byte, given bool) {
	i := req.Find(message.Authorization)
	if i < 0 {
		return nil, false
	}
	for j := i + 1; j < len(req.Fields); j++ {
		if req.Fields[j].ID == message.Authorization && !req.Fields[j].Dropped {
			return nil, false
		}
	}
	v := req.Value(i)
	if len(v) <= len(scheme) || len(v) > len(scheme)+1+most || !message.EqualFold(v[:len(scheme)], scheme) || v[len(scheme)] != ' ' {
		return nil, false
	}
	return bytes.TrimLeft(v[len(scheme):], " "), true
}
