package filter

import (
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// headerEdits are changes of HTTP headers.
type headerEdits struct {
	names    *message.Names // removed, or replaced by set
	begins   []string       // the beginnings of removed names, in lower case
	set, add []headerValue
}

type headerValue struct {
	name  []byte
	value template
}

func newHeaderEdits(c *config.HeaderEdits) (e headerEdits) {
	var names []string
	for _, name := range c.Remove {
		if begins, star := strings.CutSuffix(name, "*"); star {
			e.begins = append(e.begins, strings.ToLower(begins))
		} else {
			names = append(names, name)
		}
	}
	for _, s := range c.Set {
		names = append(names, s.Name)
		e.set = append(e.set, headerValue{[]byte(s.Name), newTemplate(s.Value)})
	}
	for _, a := range c.Add {
		e.add = append(e.add, headerValue{[]byte(a.Name), newTemplate(a.Value)})
	}
	e.names = message.NewNames(names)
	return e
}

// write sets and adds headers.
func (e *headerEdits) write(h *message.Head, x Exchange) {
	for _, all := range [...][]headerValue{e.set, e.add} {
		for i := range all {
			h.AddSpans(h.Store(all[i].name), all[i].value.store(h, x))
		}
	}
}

// requestEdits changes the HTTP headers of requests for an endpoint (request of a route). It
// removes headers in every spelling that a program behind a server may read as the same name,
// because an endpoint may trust a header that only weir sets.
type requestEdits struct{ headerEdits }

func newRequestEdits(c *config.HeaderEdits) *requestEdits { return &requestEdits{newHeaderEdits(c)} }

// EditRequest changes the headers.
func (e *requestEdits) EditRequest(x Exchange) {
	req := x.Request()
	e.EditTrailers(&req.Head)
	e.write(&req.Head, x)
}

// EditTrailers removes headers. An endpoint may add trailers to the headers (RFC 9110, section
// 6.5.1).
func (e *requestEdits) EditTrailers(h *message.Head) {
	for i := range h.Fields {
		if f := &h.Fields[i]; !f.Dropped && (e.names.HasAlike(h.Name(i)) || e.removes(h.Name(i), f.ID)) {
			f.Dropped = true
		}
	}
}

// removes reports whether a name with a star stands for the header. A star stands neither for the
// framing of the request nor for a header that weir has written.
func (e *requestEdits) removes(name []byte, id message.ID) bool {
	if class := id.Class(); class == message.Framing || class == message.Written {
		return false
	}
	for _, begins := range e.begins {
		if message.BeginsAlike(name, begins) {
			return true
		}
	}
	return false
}

// responseEdits changes the HTTP headers of all final responses (response of a route).
type responseEdits struct{ headerEdits }

func newResponseEdits(c *config.HeaderEdits) *responseEdits {
	return &responseEdits{newHeaderEdits(c)}
}

// EditResponse changes the headers.
func (e *responseEdits) EditResponse(x Exchange, res *message.Response) {
	for i := range res.Fields {
		if f := &res.Fields[i]; !f.Dropped && (e.names.Has(res.Name(i)) || e.removes(res.Name(i), f.ID)) {
			f.Dropped = true
		}
	}
	e.write(&res.Head, x)
}

// removes reports whether a name with a star stands for the header. A star does not stand for
// the framing of the response.
func (e *responseEdits) removes(name []byte, id message.ID) bool {
	if id.Class() == message.Framing {
		return false
	}
	for _, begins := range e.begins {
		if len(name) >= len(begins) && message.EqualFold(name[:len(begins)], begins) {
			return true
		}
	}
	return false
}
