package config

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/weirproxy/weir/proxy/message"
)

// Respond is a fixed response to all requests of a route.
type Respond struct {
	Status  int    // 200 to 599
	Body    string // sent as it is, without variables
	Type    string // of the body; weir sends it as Content-Type
	Headers []HeaderValue
}

// maxRespondBody limits the body of a fixed response, in bytes. Each response copies the body.
const maxRespondBody = 64 << 10

func (r *Route) respondKey() value {
	fresh := func() *Respond { return &Respond{Status: 200, Type: "text/plain; charset=utf-8"} }
	return optional(&r.Respond, fresh, func(f *Respond) section {
		return section{object: &r.Respond, check: f.check, keys: []key{
			{"status", number(&f.Status, 200, 599), "The status of the response."},
			{"body", bodyText(&f.Body), "The body, without variables: weir sends it as it is. At most 64KiB."},
			{"type", mediaType.at(&f.Type), "The Content-Type of the response."},
			{"headers", headerValues(&f.Headers, &ofResponses.written), "Further HTTP headers of the response. Values may have variables such as {host}."},
		}}
	})
}

func (f *Respond) check(v *draft, there keySet, n *Tree, p path) {
	if f.Body != "" && (message.BodyForbidden(f.Status) || f.Status == 205) {
		v.fail(n, p, "a response with the status %d has no body; take body out, or give another status", f.Status)
	}
	if len(there) == 0 && n.Shape == ShapeMapping && len(n.Parts) == 0 {
		v.fail(n, p, "is empty; give it a status or a body")
	}
}

// bodyText is text of any number of lines.
func bodyText(dst *string) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			s, ok := v.scalar(dst, n, p, "text", ShapeText)
			switch {
			case !ok:
			case len(s) > maxRespondBody:
				v.fail(n, p, "is longer than %s; let a backend send it", formatSize(maxRespondBody))
			case !utf8.ValidString(s):
				v.fail(n, p, "is broken UTF-8; write plain text")
			default:
				*dst = s
			}
		},
		print:  func(*shower) *Tree { return textUnlessEmpty(*dst) },
		schema: func() *schema { return &schema{Type: "string"} },
	}
}

const mediaTypePattern = `[!#$&^_.+0-9A-Za-z-]+/[!#$&^_.+0-9A-Za-z-]+( *; *[!#$&^_.+0-9A-Za-z-]+=[!-z|~]+)*`

var wholeMediaType = regexp.MustCompile("^" + mediaTypePattern + "$")

// mediaType is a value of Content-Type (RFC 9110, section 8.3).
var mediaType = kind[string]{what: "a media type such as text/html", format: same[string], pattern: mediaTypePattern,
	parse: func(s string) (string, error) {
		if !wholeMediaType.MatchString(s) {
			return "", fmt.Errorf(`is not a media type; write one such as "text/html; charset=utf-8"`)
		}
		return s, nil
	}}

// checkRespond reports settings that contradict a fixed response.
func (v *draft) checkRespond(r *Route) {
	if r.Respond == nil {
		return
	}
	for _, dst := range []any{&r.Backend, &r.Backends, &r.Redirect, &r.MaxLifetime, &r.TunnelIdle} {
		if v.given(dst) {
			v.failAt(v.places[dst], "weir itself answers all requests of this route (respond), so this has no effect; take it or respond out")
		}
	}
	for i := range r.Respond.Headers {
		if h := &r.Respond.Headers[i]; strings.EqualFold(h.Name, "Content-Type") {
			v.failAt(v.places[&r.Respond.Headers], "the Content-Type comes from type; write it there")
		}
	}
}
