package filter

import (
	"bytes"
	"strconv"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// nginxCORS is CORS as ingress-nginx does it, for the routes of Ingresses with enable-cors.
type nginxCORS struct {
	*cors
	values []corsValue    // the HTTP headers of every response to an allowed origin, without Access-Control-Allow-Origin
	names  *message.Names // the names of values, and Access-Control-Allow-Origin
}

type corsValue struct{ name, value string }

func newNginxCORS(c *config.CORS) *nginxCORS {
	f := &nginxCORS{cors: newCORS(c)}
	add := func(name, value string) {
		if value != "" {
			f.values = append(f.values, corsValue{name, value})
		}
	}
	if c.Credentials {
		add("Access-Control-Allow-Credentials", "true")
	}
	add("Access-Control-Allow-Methods", f.methods)
	add("Access-Control-Allow-Headers", f.headers)
	add("Access-Control-Expose-Headers", f.expose)
	add("Access-Control-Max-Age", strconv.FormatInt(int64(c.MaxAge/time.Second), 10))
	names := []string{"Access-Control-Allow-Origin"}
	for _, v := range f.values {
		names = append(names, v.name)
	}
	f.names = message.NewNames(names)
	return f
}

// FilterName returns the key of a route.
func (f *nginxCORS) FilterName() string { return "cors" }

// allows reports whether the origin of the request is allowed. If all origins are allowed, a request
// needs no Origin. nginx ignores the case of letters.
func (f *nginxCORS) allows(origin []byte) bool {
	return f.every || f.cors.allows(origin) || bytes.ContainsFunc(origin, isUpper) && f.cors.allows(bytes.ToLower(origin))
}

func isUpper(r rune) bool { return 'A' <= r && r <= 'Z' }

// Answer answers an OPTIONS of an allowed origin.
func (f *nginxCORS) Answer(x Exchange) bool {
	req := x.Request()
	if string(req.Bytes(req.Method)) != "OPTIONS" || !f.allows(originOf(req)) {
		return false
	}
	answerPreflight(x)
	return true
}

// EditResponse sets the headers.
func (f *nginxCORS) EditResponse(x Exchange, res *message.Response) {
	if !f.every {
		addVary(res, "Origin", "origin")
	}
	origin := originOf(x.Request())
	if !f.allows(origin) {
		return
	}
	for i := range res.Fields {
		if f.names.Has(res.Name(i)) {
			res.Fields[i].Dropped = true
		}
	}
	if f.every {
		origin = everyOrigin
	}
	res.AddSpans(res.StoreString("Access-Control-Allow-Origin"), res.Store(origin))
	for _, v := range f.values {
		res.AddField(v.name, v.value)
	}
}
