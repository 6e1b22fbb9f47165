package kube

import (
	"cmp"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// This file has sticky sessions by annotations of ingress-nginx.

// stick gives b, a backend of an Ingress, sticky sessions if the Ingress asks for them. Then the
// backend is one of its own, because other Ingresses with the Service may not ask for them.
func (b *Backend) stick(a annotation.Affinity) {
	if !a.Cookie {
		return
	}
	b.Name += "/sticky"
	b.Sticky = &config.Sticky{Cookie: annotation.CookieName, Key: stickyKey(b)}
}

// stickyKey is the key of the cookies. All replicas know the UID of the Service, and clients do not,
// so the cookies are the same everywhere, and reveal no address.
func stickyKey(b *Backend) config.Secret {
	return config.Secret("sticky sessions of the Service " + b.Source.String() + " " + string(b.UID))
}

// cookieOf is the cookie for sticky sessions of a claim; nil: it has none.
func cookieOf(c *claim.Claim, a annotation.Affinity) *config.StickyCookie {
	if !a.Cookie {
		return nil
	}
	return &config.StickyCookie{Name: cmp.Or(a.Name, annotation.CookieName), Path: cmp.Or(a.Path, cookiePath(c)), Domain: a.Domain, SameSite: a.SameSite, NoneIfKnown: a.NoneIfKnown,
		Secure: a.Secure, Moves: a.Moves, MaxAge: config.Lifetime(a.MaxAge), Expires: config.Lifetime(a.Expires)}
}

// cookiePath is the path of the cookie of a claim: that of the Ingress, as with ingress-nginx. For
// an expression it is the longest path above all that match: the expression itself is no path.
func cookiePath(c *claim.Claim) string {
	path := c.Written
	if c.Path.Expression {
		path = "/"
		if all := beginnings(c.Written); len(all) == 1 && !all[0].Begins {
			path = all[0].Value
		}
	}
	if path == "" || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == ';' || r > 0x7e }) {
		return "/"
	}
	return path
}
