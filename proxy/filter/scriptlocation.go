package filter

import (
	"net/netip"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/script"
)

// scriptLocation is a compiled script.Location.
type scriptLocation struct {
	script.Location
	match *script.Expression // nil: the path is text
	steps []scriptStep
	allow []scriptAccess
}

type scriptAccess struct {
	network netip.Prefix
	all     bool
	allow   bool
}

func newScriptLocations(all []script.Location) (locations []scriptLocation) {
	for _, one := range all {
		l := scriptLocation{Location: one, steps: newScriptSteps(one.Steps)}
		if strings.HasPrefix(one.Kind, "~") {
			l.match, _ = script.Compile(one.Path, one.Kind == "~*") // it was checked
		}
		for _, e := range one.Access {
			network, every, _ := e.Prefix()
			l.allow = append(l.allow, scriptAccess{network, every, e.Allow})
		}
		locations = append(locations, l)
	}
	return locations
}

// locate answers the request if nginx would choose a location of the server-snippet.
func (s *snippet) locate(x Exchange, r *scriptRun) bool {
	if len(s.locations) == 0 {
		return false
	}
	l := s.locationOf(r.normalPath(x), r)
	if l == nil {
		return false
	}
	r.conf, r.ended = l.Conf, false
	if s.run(l.steps, x, r) {
		return true
	}
	status := 404 // nginx looks for a file
	switch method := string(x.Request().Bytes(x.Request().Method)); {
	case !l.admits(x.Client().Addr()):
		status = 403
	case method != "GET" && method != "HEAD" && method != "POST":
		status = 405
	}
	s.answer(&scriptStep{Step: script.Step{Kind: script.Return, Status: status}}, x, r)
	return true
}

// locationOf returns the location that nginx chooses for a path: the exact one, the longest prefix with ^~, the first
// expression, or else the longest prefix. nil: nginx chooses a location of ingress-nginx, whose expressions are after those
// of the snippet.
func (s *snippet) locationOf(path []byte, r *scriptRun) *scriptLocation {
	exact, own := place(s.at)
	least := 0
	if strings.HasPrefix(string(path), own) {
		least = len(own)
	}
	for i := range s.locations {
		if l := &s.locations[i]; l.Kind == "=" && string(path) == l.Path {
			return l
		}
	}
	if exact != "" && string(path) == exact {
		return nil
	}
	var prefix *scriptLocation
	for i := range s.locations {
		l := &s.locations[i]
		if l.match == nil && l.Kind != "=" && strings.HasPrefix(string(path), l.Path) && len(l.Path) >= least {
			prefix, least = l, len(l.Path)+1
		}
	}
	if prefix != nil && prefix.Kind == "^~" {
		return prefix
	}
	for i := range s.locations {
		if l := &s.locations[i]; l.match != nil && r.find(l.match, path) {
			return l
		}
	}
	if s.at.Expression {
		return nil
	}
	return prefix
}

// place returns the locations that ingress-nginx writes for a path: the path of an exact one, and a prefix. For the prefix
// /a it writes "= /a" and "/a/", and for an expression neither.
func place(at config.Path) (exact, prefix string) {
	switch {
	case at.Expression:
		return "", ""
	case at.Exact:
		return at.Value, ""
	case at.Value == "/":
		return "", "/"
	}
	return at.Value, strings.TrimSuffix(at.Value, "/") + "/"
}

// admits reports whether the client may use the location: the first entry with its address decides.
func (l *scriptLocation) admits(client netip.Addr) bool {
	for _, e := range l.allow {
		if e.all || e.network.Contains(client) {
			return e.allow
		}
	}
	return true
}

// readAnswers sets the variables of auth_request_set.
func (s *snippet) readAnswers(x Exchange) {
	r := s.begin(x)
	for _, a := range s.answers {
		r.variables[a.Variable] = x.Identity().kept(a.Of)
	}
}

// kept returns the values of a header that id keeps, as nginx joins them. id may be nil.
func (id *Identity) kept(name string) string {
	var all []string
	if id != nil {
		for _, f := range id.Kept {
			if f.Name == name {
				all = append(all, f.Value)
			}
		}
	}
	return strings.Join(all, ", ")
}

// setExpires does what expires of nginx does. It replaces both HTTP headers of the endpoint.
func setExpires(res *message.Response, e *script.Expires) {
	if e.Off {
		return
	}
	for i := range res.Fields {
		if name := res.Name(i); message.EqualFold(name, "expires") || message.EqualFold(name, "cache-control") {
			res.Fields[i].Dropped = true
		}
	}
	at := e.Expires
	if at == "" {
		at = time.Now().Add(time.Duration(e.ForSeconds) * time.Second).UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")
	}
	res.AddField("Expires", at)
	res.AddField("Cache-Control", e.Control)
}
