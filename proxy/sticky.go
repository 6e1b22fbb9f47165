package proxy

import (
	"bytes"
	"strconv"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/backend"
)

// This file keeps clients with their endpoints by cookies (sticky of a backend).

// stickyCookie returns the value of the client's cookie for sticky sessions of the backend; nil:
// there is none.
func (x *exchange) stickyCookie(b *backend.Backend) []byte {
	s := b.Settings().Sticky
	if s == nil {
		return nil
	}
	name := s.Cookie
	if c := x.route.config.Sticky; c != nil {
		name = c.Name
	}
	value, _ := x.req.Cookie(name)
	if len(value) > mostSticky {
		return nil // weir made no such cookie
	}
	return bytes.Clone(value) // otherwise it would keep a head that filters have replaced by a larger one
}

// mostSticky is more than the length of any value that weir gives, in bytes.
const mostSticky = 256

// stickyDestination returns the destination of a route with weights that the client's cookie
// names; nil: it names none.
func (x *exchange) stickyDestination(w *weighted) *Route {
	for _, d := range w.routes {
		if cookie := x.stickyCookie(d.backend); cookie != nil && d.backend.KnowsCookie(cookie) {
			return d
		}
	}
	return nil
}

// stick gives the client a cookie that names the endpoint of the response, unless the client has
// that cookie.
func (x *exchange) stick() {
	b := x.attempts.backend
	s := b.Settings().Sticky
	c := x.route.config.Sticky
	if s == nil || x.kept || c != nil && !c.Moves && b.NamesEndpoint(x.cookie) {
		return
	}
	value := b.StickyValue(x.attempts.endpoint)
	switch {
	case value == "" || value == string(x.cookie):
	case c != nil:
		x.res.AddField("Set-Cookie", stickyCookieField(c, value, x.Secure(), x.req.GetName("user-agent"), time.Now()))
	default:
		x.res.AddField("Set-Cookie", stickyField(s, value, x.Secure()))
	}
}

// stickyField returns the value of Set-Cookie.
func stickyField(s *config.Sticky, value string, secure bool) string {
	field := s.Cookie + "=" + value + "; Path=/; HttpOnly; SameSite=Lax"
	if s.MaxAge > 0 {
		field += "; Max-Age=" + strconv.FormatInt(int64(s.MaxAge/time.Second), 10)
	}
	if secure {
		field += "; Secure"
	}
	return field
}

// stickyCookieField returns the value of Set-Cookie for the cookie of a route, as ingress-nginx
// writes it.
func stickyCookieField(c *config.StickyCookie, value string, secure bool, agent []byte, now time.Time) string {
	field := c.Name + "=" + value
	if c.Expires.Given {
		field += "; Expires=" + now.Add(time.Duration(c.Expires.Seconds)*time.Second).UTC().Format(dateFormat)
	}
	if c.MaxAge.Given {
		field += "; Max-Age=" + strconv.FormatInt(c.MaxAge.Seconds, 10)
	}
	if c.Domain != "" {
		field += "; Domain=" + c.Domain
	}
	field += "; Path=" + c.Path
	if secure || c.Secure {
		field += "; Secure"
	}
	field += "; HttpOnly"
	if c.SameSite != "" && !(c.NoneIfKnown && c.SameSite == "None" && refusesNone(agent)) {
		field += "; SameSite=" + c.SameSite
	}
	return field
}

// refusesNone reports whether a browser refuses cookies with SameSite=None, or reads them as
// Strict. The list is that of ingress-nginx (same_site.lua).
func refusesNone(agent []byte) bool {
	has := func(part string) bool { return bytes.Contains(agent, []byte(part)) }
	return has("Chrome/4") || has("Chrome/5") || has("Chrome/6") || has("CPU iPhone OS 12") || has("iPad; CPU OS 12") ||
		has("Macintosh") && has("Intel Mac OS X 10_14") && has("Safari") && !has("Chrome")
}
