package filter

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/htpasswd"
)

// basic authenticates requests by user and password (auth.basic, RFC 7617). It belongs to one
// revision of the file of users.
type basic struct {
	settings  config.BasicAuth
	challenge string
	*revision
	checks *checks
}

// revision is what weir knows by one content of a file of users.
type revision struct {
	sum   [sha256.Size]byte
	users *htpasswd.File
	known knownCredentials
}

func newBasic(c config.BasicAuth, data []byte, checks *checks) (*basic, error) {
	users, err := htpasswd.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("is no file of users: %w", err)
	}
	return newRevision(c, data, users, checks), nil
}

func newRevision(c config.BasicAuth, data []byte, users *htpasswd.File, checks *checks) *basic {
	r := &revision{sum: sha256.Sum256(data), users: users}
	rand.Read(r.known.key[:])
	return (&basic{revision: r, checks: checks}).set(c)
}

// newBasicOfObject makes the authenticator of an entry whose users come from an object. It takes
// over what before knows about the same users. before is the authenticator in effect, or nil. Users
// whose passwords weir cannot check cannot log in: an event has told the author of the object.
func newBasicOfObject(c config.BasicAuth, before authenticator, checks *checks) *basic {
	if b, is := before.(*basic); is && b.settings.Object != "" && b.settings.Users == c.Users {
		return b.set(c)
	}
	users, _ := htpasswd.ParseSome([]byte(c.Users))
	return newRevision(c, []byte(c.Users), users, checks)
}

func (b *basic) with(c *config.Auth) authenticator {
	if c.Basic == nil {
		return nil
	}
	return b.set(*c.Basic)
}

// set returns b with other settings.
func (b *basic) set(c config.BasicAuth) *basic {
	if b.settings == c {
		return b
	}
	challenge := fmt.Sprintf(`Basic realm="%s"`, c.Realm)
	if c.Object == "" { // nginx does not name the charset
		challenge += `, charset="UTF-8"`
	}
	return &basic{settings: c, challenge: challenge, revision: b.revision, checks: b.checks}
}

func (b *basic) hidesCredentials() bool { return true }

func (b *basic) file() string { return b.settings.File }

// reread returns an authenticator for the present content of the file: b, if it is the same.
func (b *basic) reread(data []byte) (authenticator, error) {
	if sha256.Sum256(data) == b.sum {
		return b, nil
	}
	next, err := newBasic(b.settings, data, b.checks)
	if err != nil {
		return nil, err
	}
	return next, nil
}

// authenticate finds the user of the request's credentials.
func (b *basic) authenticate(x Exchange) *Identity {
	req := x.Request()
	given, found := credentials(req, "basic", mostCredentials)
	if !found {
		b.challengeClient(x, "auth_required", errNoCredentials)
		return nil
	}
	sum := b.known.digest(given)
	if id := b.known.get(sum); id != nil {
		return id
	}
	id, busy, err := b.check(x, sum, given)
	switch {
	case busy:
		answerBusy(x, err)
	case id == nil:
		b.challengeClient(x, "auth_failed", err)
	}
	return id
}

// Why a request is refused, for the access log.
var (
	errNoCredentials = errors.New("the request has no credentials for this route, or more than one Authorization header")
	errNoPair        = errors.New("the Authorization header has no user and password in Base64")
	errWrongPair     = errors.New("the user or the password is wrong")
)

// challengeClient answers 401 and asks for credentials.
func (b *basic) challengeClient(x Exchange, reason string, why error) {
	x.SetCause(why)
	res := x.Begin(http.StatusUnauthorized, reason)
	res.AddField("WWW-Authenticate", b.challenge)
	x.Send("this needs a user and a password\n")
}

// check compares a password with its hash. It does not compute a hash for malformed credentials.
func (b *basic) check(x Exchange, sum credentialSum, credentials []byte) (id *Identity, busy bool, err error) {
	pair, err := base64.StdEncoding.Strict().AppendDecode(nil, credentials)
	if err != nil {
		return nil, false, errNoPair
	}
	user, password, found := bytes.Cut(pair, []byte(":"))
	if !found || len(user) == 0 || bytes.ContainsFunc(pair, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return nil, false, errNoPair
	}
	return b.checks.do(x, sum, func() (*Identity, error) {
		if id := b.known.get(sum); id != nil { // another request was first
			return id, nil
		}
		if !b.users.Check(user, password) {
			return nil, errWrongPair
		}
		id := &Identity{User: string(user)}
		if b.settings.Object == "" {
			id.Fields = []IdentityField{{config.BasicUserHeader, id.User}}
		}
		b.known.add(sum, id, time.Time{})
		return id, nil
	})
}

// mostCredentials limits credentials, in bytes: the longest user and password, encoded.
const mostCredentials = 2048

// credentialSum is a keyed hash of credentials.
type credentialSum [sha256.Size]byte

// knownCredentials remembers credentials that were correct, by their keyed hashes. Lookups take no
// lock and no memory. Its size is fixed: new credentials replace old ones.
type knownCredentials struct {
	key   [32]byte
	sets  atomic.Pointer[[knownSets]knownSet] // nil: no credentials were correct so far
	turns atomic.Uint32
}

type knownSet [knownWays]atomic.Pointer[knownCredential]

const knownSets, knownWays = 512, 4

type knownCredential struct {
	sum   credentialSum
	id    *Identity
	until time.Time // zero: for ever
}

// digester computes keyed hashes without allocations.
type digester struct {
	hash.Hash
	sum credentialSum
}

var digesters = sync.Pool{New: func() any { return &digester{Hash: sha256.New()} }}

func (k *knownCredentials) digest(credentials []byte) credentialSum {
	d := digesters.Get().(*digester)
	defer digesters.Put(d)
	d.Reset()
	d.Write(k.key[:])
	d.Write(credentials)
	d.Sum(d.sum[:0])
	return d.sum
}

func (k *knownCredentials) set(sum credentialSum) *knownSet {
	sets := k.sets.Load()
	if sets == nil {
		return nil
	}
	return &sets[(int(sum[0])|int(sum[1])<<8)%knownSets]
}

func (k *knownCredentials) get(sum credentialSum) *Identity {
	set := k.set(sum)
	if set == nil {
		return nil
	}
	for i := range set {
		if c := set[i].Load(); c != nil && c.sum == sum && (c.until.IsZero() || time.Now().Before(c.until)) {
			return c.id
		}
	}
	return nil
}

func (k *knownCredentials) add(sum credentialSum, id *Identity, until time.Time) {
	if k.sets.Load() == nil {
		k.sets.CompareAndSwap(nil, new([knownSets]knownSet))
	}
	set, c := k.set(sum), &knownCredential{sum, id, until}
	for i := range set {
		if set[i].CompareAndSwap(nil, c) {
			return
		}
	}
	set[k.turns.Add(1)%knownWays].Store(c)
}
