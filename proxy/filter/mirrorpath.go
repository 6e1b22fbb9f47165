package filter

import (
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// MirrorPath is the path, and the query, of copies of requests.
type MirrorPath struct {
	path  template
	query bool // the query of the client's request follows the path
}

// NewMirrorPath compiles a path; nil: path is empty.
func NewMirrorPath(path config.Template, query bool) *MirrorPath {
	if path == "" {
		return nil
	}
	return &MirrorPath{newTemplate(path), query}
}

// Store stores the path for the request of x in h. The path may be invalid.
func (t *MirrorPath) Store(h *message.Head, x Exchange) message.Span {
	if t.path.identifies {
		x.RequestID()
	}
	return h.Build(func(b []byte) []byte {
		if b = t.path.appendPath(b, x, captures{}); t.query {
			b = append(b, queryOf(x.Request())...)
		}
		return b
	})
}
