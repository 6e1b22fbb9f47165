package filter

import (
	"bytes"
	"net/http"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

var refuseRewrite = &message.Refusal{Status: http.StatusBadRequest, Reason: "rewrite",
	Detail: "this path cannot be served",
	Hint:   "the route makes a path of it that begins with two slashes, or that endpoints could read differently"}

// rewrite changes the target and the host of requests for an endpoint (rewrite of a route).
type rewrite struct {
	replaced [][]byte // the prefixes of the route, without a slash at the end
	prefix   []byte   // nil: none; without a slash at the end
	path     template // no parts: none
	groups   *groups  // of path; nil: it has none
	host     []byte   // empty: none
}

func newRewrite(r *config.Route) *rewrite {
	w := &rewrite{path: newPathTemplate(r.Rewrite.Path), host: []byte(r.Rewrite.Host)}
	w.groups = newGroups(&w.path, r.Paths)
	if r.Rewrite.Prefix == "" {
		return w
	}
	w.prefix = bytes.TrimSuffix([]byte(r.Rewrite.Prefix), slash)
	for _, p := range r.Paths {
		w.replaced = append(w.replaced, bytes.TrimSuffix([]byte(p.Value), slash))
	}
	return w
}

var slash = []byte{'/'}

// Answer decides on the target for the endpoint. It refuses the request if that target would not
// be valid in a request. It leaves "*" as it is, which is not a path.
func (w *rewrite) Answer(x Exchange) bool {
	req := x.Request()
	if run := x.State().run; run != nil && run.ended {
		return false // in nginx, break skips rewrite-target
	}
	if w.prefix == nil && len(w.path.parts) == 0 || req.Bytes(req.Path)[0] != '/' {
		return false
	}
	if w.path.identifies {
		x.RequestID()
	}
	target := req.Build(func(b []byte) []byte { return append(w.appendPath(b, x), queryOf(req)...) })
	if req.Rewrite(target) != nil {
		x.Refuse(refuseRewrite)
		return true
	}
	return false
}

func (w *rewrite) appendPath(b []byte, x Exchange) []byte {
	if w.prefix == nil && len(w.path.parts) == 0 {
		return append(b, x.Request().Bytes(x.Request().Path)...)
	}
	if w.prefix == nil {
		return w.path.appendPath(b, x, w.groups.find(x.Request().Bytes(x.Request().Path)))
	}
	rest := w.rest(x.Request().Bytes(x.Request().Path))
	if b = append(b, w.prefix...); len(w.prefix)+len(rest) == 0 {
		b = append(b, '/')
	}
	return append(b, rest...)
}

// rest returns the part of the path after the longest prefix of the route that matches it.
func (w *rewrite) rest(path []byte) []byte {
	longest := 0
	for _, p := range w.replaced {
		if len(p) > longest && bytes.HasPrefix(path, p) && (len(path) == len(p) || path[len(p)] == '/') {
			longest = len(p)
		}
	}
	return path[longest:]
}

// EditRequest sets the host.
func (w *rewrite) EditRequest(x Exchange) {
	if len(w.host) > 0 {
		x.Request().SetHost(w.host)
	}
}
