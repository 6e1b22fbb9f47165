package filter

import (
	"bytes"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// reverse changes names in the responses of endpoints (proxy-redirect-from, proxy-cookie-domain and
// proxy-cookie-path of an Ingress). weir's own responses have the right names already.
type reverse struct {
	config.Reverse
	location, cookies bool // there is something to replace
}

func newReverse(c *config.Reverse) *reverse {
	return &reverse{*c, c.Location.From != "", c.CookieDomain.From+c.CookiePath.From != ""}
}

// EditResponse changes Location, Refresh and Set-Cookie.
func (r *reverse) EditResponse(x Exchange, res *message.Response) {
	if x.Generated() {
		return
	}
	for i := range res.Fields {
		if res.Fields[i].Dropped {
			continue
		}
		switch name := res.Name(i); {
		case r.location && message.EqualFold(name, "location"):
			r.redirect(x, res, i, 0)
		case r.location && message.EqualFold(name, "refresh"):
			if at := indexFold(res.Value(i), "url="); at >= 0 {
				r.redirect(x, res, i, at+len("url="))
			}
		case r.cookies && message.EqualFold(name, "set-cookie"):
			r.cookie(res, i)
		}
	}
}

// redirect changes the URL in the header i, which begins at the given byte of its value.
func (r *reverse) redirect(x Exchange, res *message.Response, i, at int) {
	value := res.Value(i)
	url, found := bytes.CutPrefix(value[at:], []byte(r.Location.From))
	if !found {
		return
	}
	res.SetValueSpan(i, res.Build(func(b []byte) []byte {
		b = append(b, value[:at]...)
		if at == 0 && !r.Relative && strings.HasPrefix(r.Location.To, "/") {
			b = appendHost(append(append(b, schemeOf(x)...), "://"...), x)
		}
		return append(append(b, r.Location.To...), url...)
	}))
}

// cookie changes the attributes of the cookie in the header i.
func (r *reverse) cookie(res *message.Response, i int) {
	value := res.Value(i)
	parts := bytes.Split(value, []byte{';'})
	changed := false
	for n, part := range parts[1:] {
		key, text, found := bytes.Cut(part, []byte{'='})
		if !found {
			continue
		}
		var to []byte
		switch text = bytes.TrimSpace(text); {
		case message.EqualFold(bytes.TrimSpace(key), "domain"):
			to, found = r.domain(text)
		case message.EqualFold(bytes.TrimSpace(key), "path"):
			to, found = r.path(text)
		default:
			found = false
		}
		if found {
			parts[1+n] = append(append(bytes.Clone(key), '='), to...)
			changed = true
		}
	}
	if changed {
		res.SetValue(i, bytes.Join(parts, []byte{';'}))
	}
}

// domain returns the new Domain of a cookie. A dot at its beginning stays.
func (r *reverse) domain(text []byte) (to []byte, found bool) {
	name := bytes.TrimPrefix(text, []byte{'.'})
	if r.CookieDomain.From == "" || !strings.EqualFold(string(name), r.CookieDomain.From) {
		return nil, false
	}
	return append(bytes.Clone(text[:len(text)-len(name)]), r.CookieDomain.To...), true
}

// path returns the new Path of a cookie.
func (r *reverse) path(text []byte) (to []byte, found bool) {
	rest, found := bytes.CutPrefix(text, []byte(r.CookiePath.From))
	if r.CookiePath.From == "" || !found {
		return nil, false
	}
	return append([]byte(r.CookiePath.To), rest...), true
}

// indexFold returns the place of text, which is in lower case, in b; -1: it is not there.
func indexFold(b []byte, text string) int {
	for at := range max(0, len(b)-len(text)+1) {
		if message.EqualFold(b[at:at+len(text)], text) {
			return at
		}
	}
	return -1
}
