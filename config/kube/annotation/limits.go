package annotation

import (
	"net/netip"
	"strconv"
)

// limits is the family of limits for the requests of a client.
var limits = union([]map[string]judge{
	{
		"limit-rps":         {look: rateIn(readLimits, "limit-rps"), set: setLimits},
		"limit-rpm":         {look: rateIn(readLimits, "limit-rpm"), set: setLimits},
		"limit-connections": {look: rateIn(readLimits, "limit-connections"), set: setLimits},
		"limit-rate":        unless("0", No, fullSpeed),
		"limit-rate-after":  always(Exact, ""), // it has an effect only with limit-rate
	},
	ratedBy(readLimits, "limit-burst-multiplier", "limit-allowlist", "limit-whitelist"),
})

// Limits are what limit-rps and the annotations beside it ask for.
type Limits struct {
	PerSecond, PerMinute int // requests; 0: no limit
	Multiplier           int // a burst is a rate times this
	Open                 int // requests at the same time; 0: no limit
	Except               []netip.Prefix
	// RateStatus and OpenStatus are the statuses of refusals.
	RateStatus, OpenStatus int
}

// Any reports whether there is a limit.
func (l *Limits) Any() bool { return l.PerSecond > 0 || l.PerMinute > 0 || l.Open > 0 }

const (
	badLimit      = "ingress-nginx does not serve an Ingress with this value; weir applies no limit; write a number"
	limitNetworks = "weir counts all addresses of an IPv6 network of limits.clients.prefix together"
	limitFew      = "weir has at most 1000000 requests for a rate or a burst, and uses this number"
	badMultiplier = "ingress-nginx ignores the value, and uses 5, as weir does"
	badExcept     = "ingress-nginx does not serve an Ingress with this value; weir counts the requests of all clients; write networks such as 10.0.0.0/8, separated by commas"
	fullSpeed     = "weir sends responses as fast as clients read them; let the application limit its speed"
)

// mostLimit is also the maximum of a rate in weir's configuration.
const mostLimit = 1_000_000

const defaultMultiplier = 5

func setLimits(_ string, c context, s *Settings) (Rating, string) {
	s.Limits, _ = readLimits(c)
	return Exact, ""
}

func readLimits(c context) (l Limits, ratings map[string]because) {
	ratings = map[string]because{}
	number := func(name string) int {
		value := c.value(name)
		n, err := strconv.Atoi(value)
		switch {
		case value == "":
			return 0
		case err != nil:
			ratings[name] = because{No, badLimit}
			return 0
		case n <= 0:
			return 0
		case n > mostLimit:
			ratings[name] = because{Near, limitFew}
			return mostLimit
		}
		ratings[name] = because{Near, limitNetworks}
		return n
	}
	l = Limits{PerSecond: number("limit-rps"), PerMinute: number("limit-rpm"), Open: number("limit-connections"), Multiplier: defaultMultiplier,
		RateStatus: c.status("limit-req-status-code"), OpenStatus: c.status("limit-conn-status-code")}
	if !l.Any() {
		return Limits{}, ratings
	}
	if value := c.value("limit-burst-multiplier"); value != "" {
		if n, err := strconv.Atoi(value); err == nil && n >= 0 {
			l.Multiplier = min(n, mostLimit)
		} else {
			ratings["limit-burst-multiplier"] = because{Near, badMultiplier}
		}
	}
	name := "limit-allowlist"
	if c.value(name) == "" {
		name = "limit-whitelist" // the older name
	}
	if value := c.value(name); value != "" {
		list, ok := networks(value)
		if !ok {
			ratings[name] = because{Near, badExcept}
		}
		l.Except = list
	}
	return l, ratings
}

// status is a status in the ConfigMap of the controller. 503 is its default.
func (c context) status(key string) int {
	if n, err := strconv.Atoi(c.keys[key]); err == nil && n >= 400 && n <= 599 {
		return n
	}
	return 503
}
