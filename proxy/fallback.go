package proxy

import (
	"strconv"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// orFallback returns the fallback of the route if the backend of its destination d has no endpoint,
// and otherwise d.
func (x *exchange) orFallback(d *Route) *Route {
	if f := x.route.fallback; f != nil && !d.backend.HasEndpoint() && f.backend.HasEndpoint() {
		return f
	}
	return d
}

// newFallback returns the route with its fallback as its only backend; nil: it has none.
func (parts *Parts) newFallback(r *Route) *Route {
	f := r.config.Fallback
	if f == nil {
		return nil
	}
	d := *r
	d.whole, d.backend, d.weighted, d.report = r, parts.backend(f.Backend), nil, newErrorReport(&f.Report)
	d.metrics = parts.metrics(r.config, f.Backend)
	return &d
}

// errorReport are the HTTP headers that tell a default backend of ingress-nginx what failed.
type errorReport struct{ namespace, ingress, source, port string }

func newErrorReport(c *config.ErrorReport) *errorReport {
	return &errorReport{c.Namespace, c.Ingress, c.Source, c.Port}
}

// reportNames has the names of these headers. Those of the client are removed.
var reportNames = message.NewNames([]string{"X-Code", "X-Format", "X-Original-URI", "X-Namespace", "X-Ingress-Name", "X-Service-Name", "X-Service-Port"})

// write sets the headers of a request, of which req has Accept and X-Request-Id.
func (e *errorReport) write(req *message.Head, status int) {
	for i := range req.Fields {
		if f := &req.Fields[i]; !f.Dropped && reportNames.HasAlike(req.Name(i)) {
			f.Dropped = true
		}
	}
	req.AddField("X-Code", strconv.Itoa(status))
	if format := req.GetName("accept"); len(format) > 0 {
		req.AddSpans(req.StoreString("X-Format"), req.Store(format))
	}
	req.AddField("X-Namespace", e.namespace)
	req.AddField("X-Ingress-Name", e.ingress)
	req.AddField("X-Service-Name", e.source)
	req.AddField("X-Service-Port", e.port)
}
