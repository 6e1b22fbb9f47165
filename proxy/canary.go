package proxy

import (
	"regexp"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/expression"
	"github.com/weirproxy/weir/proxy/message"
)

// canary chooses between the first and the second destination of a weighted route, as ingress-nginx
// does: by a header, or else by a cookie.
type canary struct {
	header  string // in lower case; empty: none
	value   string
	pattern *regexp.Regexp // nil: none
	broken  bool           // the pattern is invalid: requests with the header go to the first destination
	cookie  string         // empty: none
}

// newCanary compiles a canary; nil: the route has none.
func newCanary(c *config.Canary) *canary {
	if c == nil {
		return nil
	}
	k := &canary{header: strings.ToLower(c.Header), value: c.Value, cookie: c.Cookie}
	if c.Pattern != "" && c.Value == "" {
		compiled, _, err := expression.Compile(c.Pattern, expression.Anywhere)
		k.pattern, k.broken = compiled, err != nil
	}
	return k
}

// The destinations that a canary chooses.
const (
	byWeight = -1
	first    = 0
	second   = 1
)

// choose returns the place of the destination of a request; byWeight: neither the header nor the
// cookie decides.
func (k *canary) choose(req *message.Request) int {
	if k.header != "" {
		if value := req.GetName(k.header); value != nil {
			if d := k.byHeader(value); d != byWeight {
				return d
			}
		}
	}
	if k.cookie == "" {
		return byWeight
	}
	value, _ := req.Cookie(k.cookie)
	return always(value)
}

func (k *canary) byHeader(value []byte) int {
	switch {
	case k.value != "":
		if string(value) == k.value {
			return second
		}
		return byWeight
	case k.broken:
		return first
	case k.pattern != nil:
		if k.pattern.Match(value) {
			return second
		}
		return byWeight
	}
	return always(value)
}

// always reads the values that decide without an expression.
func always(value []byte) int {
	switch string(value) {
	case "always":
		return second
	case "never":
		return first
	}
	return byWeight
}

// canaryDestination returns the destination of a request of a route with a canary. A canary without
// an endpoint gets no requests.
func (x *exchange) canaryDestination(w *weighted) *Route {
	if w.routes[second].backend.Ready() == 0 {
		return w.routes[first]
	}
	if d := x.stickyDestination(w); d != nil {
		return d
	}
	if at := w.canary.choose(&x.req); at != byWeight {
		return w.routes[at]
	}
	return w.next()
}
