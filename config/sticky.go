package config

import (
	"errors"
	"time"

	"github.com/weirproxy/weir/proxy/message"
)

// Sticky keeps each client with one endpoint, which weir names in a cookie.
type Sticky struct {
	Cookie string        // its name
	MaxAge time.Duration // how long clients keep the cookie, in whole seconds; 0: until the browser ends
	// Key is the key of the cookies. Empty: the key is in the storage, or there is no storage and
	// the process makes one.
	Key Secret
}

func (b *Backend) stickyKey() value {
	fresh := func() *Sticky { return &Sticky{Cookie: "weir"} }
	return optional(&b.Sticky, fresh, func(s *Sticky) section {
		return section{object: &b.Sticky, keys: []key{
			{"cookie", cookieName.at(&s.Cookie), "The name of the cookie."},
			{"max_age", duration(&s.MaxAge, 0, 400*day).shownIf(s.MaxAge != 0).byDefault("until the browser ends"), "How long clients keep the cookie, in whole seconds."},
			{"key", secret(&s.Key, parseStickyKey, `[!-~]{32,}`).byDefault("the key in storage, or one of the process"), "A secret of 32 to 1024 characters with which weir makes the cookies, the same for all replicas. Take it from the environment. Not needed with storage."},
		}}
	})
}

// cookieName accepts the names of cookies (RFC 6265, section 4.1.1).
var cookieName = kind[string]{what: "the name of a cookie such as weir", format: same[string], pattern: token, parse: func(s string) (string, error) {
	return s, CheckCookieName(s)
}}

// CheckCookieName returns why a text cannot be the name of a cookie. The error follows the name.
func CheckCookieName(s string) error {
	if !message.ValidToken([]byte(s)) {
		return errors.New("is not the name of a cookie; use letters, digits, - and _, such as weir")
	}
	return nil
}

func parseStickyKey(s string) (string, error) {
	if len(s) < 32 || len(s) > 1024 {
		return "", errors.New("has to have 32 to 1024 characters (it is not shown); make one with: openssl rand -base64 32")
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return "", errors.New("has a character that is not visible ASCII (it is not shown); make one with: openssl rand -base64 32")
		}
	}
	return s, nil
}

// checkSticky reports sticky sessions of raw bytes. A key in the storage replaces that of the
// backend.
func (v *draft) checkSticky(b *Backend) {
	if b.Sticky == nil {
		return
	}
	if v.shared != "" {
		b.Sticky.Key = ""
	}
	if b.Protocol == ProtocolTCP {
		v.failAt(v.places[&b.Sticky], "sticky needs HTTP, because it uses a cookie, but the protocol is tcp; use balance: hash, which keeps a client address with an endpoint")
	}
}

// warnSticky warns of sessions that end with the process.
func (v *draft) warnSticky(b *Backend) {
	sticky := v.places[&b.Sticky]
	key := sticky.path.key("key")
	switch {
	case b.Sticky == nil:
	case v.shared != "" && v.given(&b.Sticky.Key):
		v.warnAt(v.places[&b.Sticky.Key], "this key is not used, because the replicas share a key in storage; take it out")
	case v.shared == "" && !v.given(&b.Sticky.Key) && !v.broken[key.shown()]: // an invalid key has an error of its own
		v.warnAt(sticky, "there is no key, so a restart of weir moves all clients, and replicas do not know the cookies of each other; set key, or storage at the top level")
	}
}
