package filter

import (
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// respond answers all requests with a fixed response (respond of a route).
type respond struct {
	status  int
	body    string
	headers *responseEdits // they set the headers, Content-Type included
}

func newRespond(c *config.Respond) *respond {
	edits := config.HeaderEdits{Set: c.Headers}
	if c.Body == "" && (message.BodyForbidden(c.Status) || c.Status == 205) {
		edits.Remove = []string{"Content-Type", "X-Content-Type-Options"}
	} else {
		edits.Set = append([]config.HeaderValue{{Name: "Content-Type", Value: config.Template(c.Type)}}, c.Headers...)
	}
	return &respond{c.Status, c.Body, newResponseEdits(&edits)}
}

// Answer sends the response.
func (r *respond) Answer(x Exchange) bool {
	res := x.Begin(r.status, "respond")
	r.headers.EditResponse(x, res)
	x.Send(r.body)
	return true
}
