package proxy

import (
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
	value, _ := x.req.Cookie(s.Cookie)
	return value
}

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
	if s == nil || x.kept {
		return
	}
	if value := b.StickyValue(x.attempts.endpoint); value != "" && value != string(x.cookie) {
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
