package config

import (
	"fmt"
	"strings"

	"github.com/weirproxy/weir/proxy/message"
)

// RateLimit is one entry of rate_limits. Routes name it.
type RateLimit struct {
	Name     string
	Position Position
	Rate     Rate
	Burst    int     // requests that are admitted at once from rest; at least 1
	Per      PerWhat // what counts on its own
	Status   int     // of the refusal, 400 to 599
}

// PerWhat is what a rate limit counts on its own: PerClient, PerRoute, or "header:" and the name
// of an HTTP header.
type PerWhat string

// What limits count on its own, besides HTTP headers.
const (
	PerClient PerWhat = "client" // each client network
	PerRoute  PerWhat = "route"  // each route
)

// Header returns the name of the HTTP header whose values count on their own; empty: none.
func (p PerWhat) Header() string {
	name, _ := strings.CutPrefix(string(p), perHeader)
	if name == string(p) {
		return ""
	}
	return name
}

const perHeader = "header:"

var perWhat = kind[PerWhat]{what: `client, route or "header:" and a name`, format: same[PerWhat], pattern: `client|route|header:.+`,
	parse: func(s string) (PerWhat, error) {
		name, isHeader := strings.CutPrefix(s, perHeader)
		switch {
		case s == string(PerClient) || s == string(PerRoute):
			return PerWhat(s), nil
		case !isHeader && strings.Contains(s, "-") && message.ValidToken([]byte(s)):
			return "", fmt.Errorf(`is not known here; did you mean "header:%s"?`, s)
		case !isHeader:
			return "", fmt.Errorf(`is not known here; write client, route, or "header:" and the name of an HTTP header`)
		}
		_, err := countedHeader.parse(name)
		return PerWhat(s), err
	}}

var countedHeader = headerName(func(id message.ID) string {
	if id == message.Host || id.Class() == message.Framing {
		return "describes the connection or the framing of the request; count by another HTTP header"
	}
	return ""
})

func newRateLimit(name string) *RateLimit {
	return &RateLimit{Name: name, Per: PerClient, Status: 429}
}

func (l *RateLimit) name() string { return l.Name }

func (l *RateLimit) section() section {
	return section{object: l, position: &l.Position, check: l.check, keys: []key{
		{"rate", rateKind.at(&l.Rate).required("10/s"), "How many requests weir admits per s, m or h."},
		{"burst", number(&l.Burst, 1, maxRate).shownIf(l.Burst != 0).byDefault("the number in rate"), "How many requests weir admits at once from rest."},
		{"per", perWhat.at(&l.Per), "What counts on its own: each client (a client network, see limits.clients.prefix), each route, or each value of an HTTP header, such as header:X-Api-Key. Requests without the header count together."},
		{"status", number(&l.Status, 400, 599), "The status of the response to further requests."},
	}}
}

func (l *RateLimit) check(_ *draft, there keySet, _ *Tree, _ path) {
	if !there.has("burst") {
		l.Burst = max(1, l.Rate.Number)
	}
}

// checkRateLimit reports a rate limit that does not exist, or that counts by HTTP headers, which
// tunnels do not have.
func (v *draft) checkRateLimit(r *Route) {
	checkName(v, &r.RateLimit, "rate limit", v.rateLimits, (*RateLimit).name)
	for _, l := range v.rateLimits {
		if l.Name == r.RateLimit && l.Per.Header() != "" && v.carriesTunnels(r) {
			v.failAt(v.places[&r.RateLimit], "the rate limit counts by an HTTP header, and the route carries tunnels, which weir does not read; name a rate limit per client or per route")
		}
	}
}

// carriesTunnels reports whether connections of r become tunnels, for one of its listeners and
// hosts or for all of them.
func (v *draft) carriesTunnels(r *Route) bool {
	for _, l := range v.listenersOf(r) {
		for _, h := range v.hostsOf(r) {
			if v.isTunnel(r, l, h) != "" || v.opensTunnel(r, l, h) {
				return true
			}
		}
	}
	return false
}
