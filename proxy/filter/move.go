package filter

import (
	"bytes"
	"strconv"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// move answers requests with a redirect to another URL (redirect of a route, with to, host, prefix
// or path).
type move struct {
	status   int
	to       template // no parts: the other fields
	needHost bool     // the URL has the host of the request
	scheme   string   // empty: the request's
	host     []byte   // empty: the request's
	port     int      // 0: the request's, or the default port of scheme
	path     *rewrite
	query    bool // the URL gets the query of the request
}

func newMove(r *config.Route) *move {
	d := r.Redirect
	m := &move{status: d.Status, to: newTemplate(d.To), needHost: d.To == "" && d.Host == "", scheme: d.Scheme, host: []byte(d.Host), port: d.Port, query: !d.DropQuery}
	for _, p := range d.To.Parts() {
		m.needHost = m.needHost || p.Variable == config.VariableHost
	}
	m.path = newRewrite(&config.Route{Paths: r.Paths, Rewrite: &config.Rewrite{Prefix: d.Prefix, Path: d.Path}})
	return m
}

// Answer redirects a request.
func (m *move) Answer(x Exchange) bool {
	if m.needHost && len(hostOf(x.Request().Bytes(x.Request().Host))) == 0 {
		x.Close() // as when the codec finds no host
		x.Refuse(refuseNoHost)
		return true
	}
	if m.to.identifies || m.path.path.identifies {
		x.RequestID()
	}
	res := x.Begin(m.status, "redirect")
	name := res.StoreString("Location")
	location := res.Build(func(b []byte) []byte { return m.appendLocation(b, x) })
	if x.Request().RawTargets {
		location = res.Store(message.AppendURL(nil, res.Bytes(location)))
	}
	if refusal := m.check(res.Bytes(location), x); refusal != nil {
		x.Refuse(refusal)
		return true
	}
	res.AddSpans(name, location)
	x.Send("this has moved\n")
	return true
}

func (m *move) appendLocation(b []byte, x Exchange) []byte {
	if len(m.to.parts) > 0 {
		return m.to.appendPath(b, x, captures{})
	}
	scheme := m.scheme
	if scheme == "" {
		scheme = schemeOf(x)
	}
	b = append(append(b, scheme...), "://"...)
	if len(m.host) > 0 {
		b = append(b, m.host...)
	} else {
		b = append(b, hostOf(x.Request().Bytes(x.Request().Host))...)
	}
	b = m.appendPort(b, scheme, x.Request())
	if req := x.Request(); req.Bytes(req.Path)[0] == '/' { // "*" is not a path: it means the host
		if b = m.path.appendPath(b, x); m.query {
			b = append(b, queryOf(req)...)
		}
	}
	return b
}

// appendPort appends the port, unless it is the default port of the scheme.
func (m *move) appendPort(b []byte, scheme string, req *message.Request) []byte {
	port := m.port
	if port == 0 && m.scheme == "" {
		port, _ = strconv.Atoi(string(portOf(req.Bytes(req.Host))))
	}
	if port == 0 || port == 80 && scheme == "http" || port == 443 && scheme == "https" {
		return b
	}
	return strconv.AppendInt(append(b, ':'), int64(port), 10)
}

// check returns why weir refuses the request instead of redirecting it to the new URL, or nil. Every
// path has to be valid in a request. A path to which this client may return with its next request
// must not be another spelling of a guarded path.
func (m *move) check(location []byte, x Exchange) *message.Refusal {
	url, _, _ := bytes.Cut(location, question)
	scheme, rest, _ := bytes.Cut(url, schemeEnd)
	authority, path := rest, rest[len(rest):]
	if i := bytes.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if !m.valid(location, path, x.Request()) {
		return refuseRewrite
	}
	if len(path) == 0 || !isOrigin(scheme, authority, x) {
		return nil
	}
	return x.RefusePath(path)
}

// valid reports whether the path of a new URL would be valid in a request. Two slashes at its
// beginning may only come from the request's own path.
func (m *move) valid(location, path []byte, req *message.Request) bool {
	theirs := req.Bytes(req.Path)
	if len(m.to.parts) > 0 && theirs[0] != '/' { // "*" would become a part of the host
		return false
	}
	return message.ValidTarget(location) && req.Accepts(path) &&
		(!bytes.HasPrefix(path, twoSlashes) || bytes.HasPrefix(theirs, twoSlashes))
}

// isOrigin reports whether a URL has the scheme, the host and the port of the request. Only such a URL
// is known to lead to the same listener again.
func isOrigin(scheme, authority []byte, x Exchange) bool {
	own := x.Request().Bytes(x.Request().Host)
	return string(scheme) == schemeOf(x) &&
		bytes.EqualFold(bytes.TrimSuffix(hostOf(authority), dot), bytes.TrimSuffix(hostOf(own), dot)) &&
		portIn(authority, scheme) == portIn(own, scheme)
}

// portIn returns the port of an authority, or the default port of the scheme.
func portIn(authority, scheme []byte) int {
	if port, err := strconv.Atoi(string(portOf(authority))); err == nil {
		return port
	}
	if string(scheme) == "https" {
		return 443
	}
	return 80
}

var schemeEnd, twoSlashes = []byte("://"), []byte("//")
