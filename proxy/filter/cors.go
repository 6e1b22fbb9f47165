package filter

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// Preflight returns the method of the request that a preflight asks for (Fetch standard, "CORS
// protocol"); empty: req is no preflight.
func Preflight(req *message.Request) []byte {
	if string(req.Bytes(req.Method)) != "OPTIONS" || len(req.GetName("origin")) == 0 {
		return nil
	}
	return req.GetName("access-control-request-method")
}

// cors is the CORS protocol of a route (cors of a route).
type cors struct {
	every   bool // every origin
	origins map[string]bool
	wild    []wildOrigin

	methods, headers, expose, maxAge string // values of headers; empty: the header is left out
	credentials                      bool
	echo                             bool // replaces "*" in a response by the names in the request
	preflightExposes                 bool
}

// wildOrigin is an origin with a wildcard.
type wildOrigin struct {
	scheme   string // with "://"
	suffix   string // the rest of the origin, with its dot
	anyDepth bool
}

func newCORS(c *config.CORS) *cors {
	f := &cors{origins: map[string]bool{}, methods: strings.Join(c.Methods, ", "), headers: strings.Join(c.Headers, ", "),
		expose: strings.Join(c.Expose, ", "), credentials: c.Credentials, echo: c.Echo && c.Credentials, preflightExposes: c.Echo}
	if c.MaxAge > 0 {
		f.maxAge = strconv.FormatInt(int64(c.MaxAge/time.Second), 10)
	}
	for _, origin := range c.Origins {
		scheme, authority, _ := strings.Cut(origin, "://")
		rest, wild := strings.CutPrefix(authority, "*")
		suffix, deep := strings.CutPrefix(rest, "*")
		switch {
		case origin == "*":
			f.every = true
		case wild:
			f.wild = append(f.wild, wildOrigin{scheme + "://", suffix, deep})
		default:
			f.origins[origin] = true
		}
	}
	return f
}

// preflights answers preflights before all other filters. The exchange looks up the route of a
// preflight by the method that the preflight asks for.
type preflights struct{}

// Answer answers a preflight.
func (preflights) Answer(x Exchange) bool {
	if len(Preflight(x.Request())) == 0 {
		return false
	}
	answerPreflight(x)
	return true
}

// answerPreflight sends an empty response. EditResponse adds the HTTP headers of CORS.
func answerPreflight(x Exchange) {
	res := x.Begin(204, "cors_preflight")
	for i := range res.Fields {
		res.Fields[i].Dropped = true // they describe a text
	}
	x.Send("")
}

func addUnlessEmpty(res *message.Response, name, value string) {
	if value != "" {
		res.AddField(name, value)
	}
}

// allows reports whether the pages of an origin may use the route. Browsers write origins in
// lower case.
func (f *cors) allows(origin []byte) bool {
	return len(origin) > 0 && (f.every || f.origins[string(origin)] ||
		slices.ContainsFunc(f.wild, func(w wildOrigin) bool { return w.matches(origin) }))
}

func (w *wildOrigin) matches(origin []byte) bool {
	labels, ok := bytes.CutPrefix(origin, []byte(w.scheme))
	if !ok {
		return false
	}
	if labels, ok = bytes.CutSuffix(labels, []byte(w.suffix)); !ok || len(labels) == 0 {
		return false
	}
	for i, c := range labels {
		switch {
		case c == '.':
			if !w.anyDepth || i == 0 || labels[i-1] == '.' || i == len(labels)-1 {
				return false
			}
		case !isLabel(c):
			return false
		}
	}
	return true
}

// isLabel reports whether a label of a host name may have the byte. Some names have underscores.
func isLabel(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// originOf returns the origin as the client sent it, also if the route changes the header for
// the endpoint: then the first field is the client's, although it is dropped.
func originOf(req *message.Request) []byte {
	for i := range req.Fields {
		if message.EqualFold(req.Name(i), "origin") {
			return req.Value(i)
		}
	}
	return nil
}

// EditResponse replaces the CORS headers of the endpoint. It comes after other changes of headers.
func (f *cors) EditResponse(x Exchange, res *message.Response) {
	for i := range res.Fields {
		if isCORS(res.Name(i)) {
			res.Fields[i].Dropped = true
		}
	}
	if !f.every || f.echo {
		addVary(res, "Origin", "origin")
	}
	origin := originOf(x.Request())
	if !f.allows(origin) {
		return
	}
	if f.every && !f.echo {
		origin = everyOrigin
	}
	res.AddSpans(res.StoreString("Access-Control-Allow-Origin"), res.Store(origin))
	if f.credentials {
		res.AddField("Access-Control-Allow-Credentials", "true")
	}
	preflight := len(Preflight(x.Request())) > 0
	if !preflight || f.preflightExposes {
		addUnlessEmpty(res, "Access-Control-Expose-Headers", f.expose)
	}
	if !preflight {
		return
	}
	addUnlessEmpty(res, "Access-Control-Allow-Methods", f.echoed(f.methods, x.Request(), "access-control-request-method"))
	addUnlessEmpty(res, "Access-Control-Allow-Headers", f.echoed(f.headers, x.Request(), "access-control-request-headers"))
	addUnlessEmpty(res, "Access-Control-Max-Age", f.maxAge)
}

// echoed returns the value of a header of an answer to a preflight: all, or what the request asks
// for in a header if all is a star that browsers would read literally.
func (f *cors) echoed(all string, req *message.Request, header string) string {
	if f.echo && all == "*" {
		return string(req.GetName(header))
	}
	return all
}

var everyOrigin = []byte{'*'}

// isCORS reports whether a name is that of a response header of the CORS protocol.
func isCORS(name []byte) bool {
	const begins = "access-control-"
	return len(name) > len(begins) && message.EqualFold(name[:len(begins)], begins)
}

// addVary adds a name to Vary, unless Vary has it. lowered is the name in lower case.
func addVary(res *message.Response, name, lowered string) {
	for i := range res.Fields {
		if !res.Fields[i].Dropped && message.EqualFold(res.Name(i), "vary") {
			if v := res.Value(i); message.HasToken(v, lowered) || message.HasToken(v, "*") {
				return
			}
		}
	}
	res.AddField("Vary", name)
}
