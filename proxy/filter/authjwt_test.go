package filter

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// issuer signs tokens.
type issuer struct{ key *ecdsa.PrivateKey }

func newIssuer(t *testing.T) issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{key}
}

func (i issuer) keys(t *testing.T) []byte { return i.keysNamed(t, "") }

func (i issuer) keysNamed(t *testing.T, kid string) []byte {
	t.Helper()
	data, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: kid}}})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// token returns a token for a minute, with further claims.
func (i issuer) token(t *testing.T, more string) string { return i.tokenOf(t, "", more) }

// tokenOf returns a token that names its key.
func (i issuer) tokenOf(t *testing.T, kid, more string) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	one, err := s.Sign(fmt.Appendf(nil, `{"iss":"i","aud":["shop"],"exp":%d%s}`, time.Now().Add(time.Minute).Unix(), more))
	if err != nil {
		t.Fatal(err)
	}
	text, err := one.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func tokenEntry(audience string) *config.Auth {
	return &config.Auth{Name: "token", JWT: &config.JWTAuth{Issuer: "i", Audience: []string{audience}, Keys: "keys",
		Headers: []config.ClaimHeader{{Claim: "sub", Header: "X-User"}, {Claim: "email", Header: "X-Email"}}}}
}

func newTokenChecks() *checks { return newChecks(mostWaitingTokens, mostTokensOfNetwork) }

// Tokens wait for a turn before their signature is checked. A token that no key of the set can have signed
// does not wait.
func TestJunkTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, stranger := newIssuer(t), newIssuer(t)
		b, err := newBearer(tokenEntry("shop"), i.keysNamed(t, "a"), newTokenChecks())
		if err != nil {
			t.Fatal(err)
		}
		f := func(token, want string, wait time.Duration) {
			t.Helper()
			x, began := withAuthorization("Bearer "+token), time.Now()
			got := ""
			if id := b.authenticate(x); id == nil {
				got = strings.Join(strings.Fields(x.answer)[:2], " ")
			}
			if got != want || time.Since(began) != wait {
				t.Errorf("%q after %v, want %q after %v", got, time.Since(began), want, wait)
			}
		}
		known := i.tokenOf(t, "a", `,"n":1`)
		f(known, "", 0)
		b.checks.running = b.checks.most // others are being checked
		f(known, "", 0)
		f("x", "401 auth_failed", 0)
		f(stranger.tokenOf(t, "b", ""), "401 auth_failed", 0)
		f(stranger.tokenOf(t, "a", ""), "503 auth_busy", checkPatience)
		f(i.token(t, ""), "503 auth_busy", checkPatience)
		b.checks.running = 0
		f(stranger.tokenOf(t, "a", ""), "401 auth_failed", 0)
		f(i.token(t, ""), "", 0)
		if b.checks.running != 0 || b.checks.turns.waiting != 0 {
			t.Errorf("left behind: %+v", b.checks)
		}
	})
}

// The subject is the user in the access log, also if no endpoint gets it in an HTTP header.
func TestSubjectOfToken(t *testing.T) {
	i, entry := newIssuer(t), tokenEntry("shop")
	entry.JWT.Headers = nil
	b, err := newBearer(entry, i.keys(t), newTokenChecks())
	if err != nil {
		t.Fatal(err)
	}
	for sub, want := range map[string]string{`"ada"`: "ada", `""`: "", `"a\nb"`: "none", `{"a":1}`: "none"} {
		got := "none"
		if id := b.authenticate(withAuthorization("Bearer " + i.token(t, `,"sub":`+sub))); id != nil {
			got = id.User
		}
		if got != want {
			t.Errorf("%s: %s, want %s", sub, got, want)
		}
	}
}

// The access log says why a token is refused, and the response does not.
func TestCausesOfRefusedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, stranger := newIssuer(t), newIssuer(t)
		b, err := newBearer(tokenEntry("shop"), i.keysNamed(t, "a"), newTokenChecks())
		if err != nil {
			t.Fatal(err)
		}
		other, err := newBearer(tokenEntry("other"), i.keysNamed(t, "a"), newTokenChecks())
		if err != nil {
			t.Fatal(err)
		}
		f := func(b *bearer, want string, values ...string) {
			t.Helper()
			x := withAuthorization(values...)
			if id := b.authenticate(x); id != nil || x.cause == nil || !strings.Contains(x.cause.Error(), want) {
				t.Errorf("%v, %v, want %q", id, x.cause, want)
			}
			if !strings.HasSuffix(x.answer, "this needs a valid token") {
				t.Errorf("the response is %q", x.answer)
			}
		}
		good := "Bearer " + i.tokenOf(t, "a", "")
		f(b, "no credentials")
		f(b, "more than one Authorization", good, good)
		f(b, "header of the token is malformed", "Bearer x")
		f(b, "a key that the set does not have", "Bearer "+stranger.tokenOf(t, "b", ""))
		f(b, "no key has signed the token", "Bearer "+stranger.tokenOf(t, "a", ""))
		f(b, "the claim email cannot be", "Bearer "+i.tokenOf(t, "a", `,"email":"a\nb"`))
		f(other, `another audience: its aud is ["shop"]`, good)
		time.Sleep(2 * time.Minute)
		f(b, "has expired: its exp is 2000-01-01T00:01:00Z", good)

		b.checks.running = b.checks.most // requests with one token share its check, and its cause
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { f(b, "has expired", good) })
		}
		synctest.Wait()
		b.checks.leave()
		wg.Wait()
	})
}

// A token is verified once, until it expires, or until the keys or the settings change.
func TestBearer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, stranger := newIssuer(t), newIssuer(t)
		b, err := newBearer(tokenEntry("shop"), i.keys(t), newTokenChecks())
		if err != nil {
			t.Fatal(err)
		}
		f := func(a authenticator, want string, values ...string) *Identity {
			t.Helper()
			x := withAuthorization(values...)
			id := a.authenticate(x)
			got := ""
			if id != nil {
				got = fmt.Sprint(id.User, " ", id.Fields)
			} else {
				got = strings.Join(strings.Fields(x.answer)[:2], " ") + " " + string(x.res.Get(message.WWWAuthenticate))
			}
			if got != want {
				t.Errorf("%.60q: %s, want %s", values, got, want)
			}
			return id
		}
		const none, wrong = `401 auth_required Bearer realm="token"`, `401 auth_failed Bearer realm="token", error="invalid_token"`
		good := "bearer " + i.token(t, `,"sub":"ada"`)
		first := f(b, "ada [{X-User ada}]", good)
		if again := f(b, "ada [{X-User ada}]", good); again != first {
			t.Error("the token was verified again")
		}
		f(b, none)
		f(b, none, "Basic YTpi")
		f(b, none, good, good)
		f(b, wrong, "Bearer x")
		f(b, wrong, "Bearer "+stranger.token(t, ""))
		f(b, wrong, "Bearer "+i.token(t, `,"email":"a\r\nX-User: root"`))
		f(b, "ada [{X-User ada}]", "Bearer "+i.token(t, `,"sub":"ada","email":""`))
		f(b, " []", "Bearer "+i.token(t, `,"sub":""`))
		f(b, "5 [{X-User 5} {X-Email a,b}]", "Bearer "+i.token(t, `,"sub":5,"email":["a","b"]`))
		f(b, wrong, "Bearer "+i.token(t, `,"email":[1]`))
		f(b.with(tokenEntry("other")), wrong, good)
		if b.with(tokenEntry("shop")) != authenticator(b) || b.with(new(config.Auth)) != nil {
			t.Error("the same settings make another authenticator")
		}
		next, err := b.reread(stranger.keys(t))
		if err != nil {
			t.Fatal(err)
		}
		f(next, wrong, good)
		time.Sleep(2 * time.Minute)
		f(b, wrong, good)
	})
}
