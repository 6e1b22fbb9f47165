package filter

import (
	"hash/maphash"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/ratelimit"
)

// mostRateKeys limits the keys of one rate limit, and so its memory to 12 MiB.
const mostRateKeys = 1 << 18

// hashSeed is the secret of all keys, so that strangers cannot choose keys with equal hashes.
var hashSeed = maphash.MakeSeed()

// rateLimit is one entry of rate_limits. It is the same object over reloads, and its settings
// change. Routes with the same name share it.
type rateLimit struct {
	settings atomic.Pointer[rateSettings]
}

// rateSettings are the settings of a rate limit, with the counts. They are immutable.
type rateSettings struct {
	config   config.RateLimit
	prefixes conn.Prefixes
	table    *ratelimit.Table
	evicted  int64  // by the tables before
	header   string // whose values count on their own, in lower case; empty: none
	refusal  message.Refusal
	policy   string // the value of RateLimit-Policy
	begin    string // the value of RateLimit begins with it
}

// newRateSettings returns the settings of a rate limit. It keeps the counts of the settings
// before, which may be nil, unless the rate, the burst or the kind of keys has changed.
func newRateSettings(c config.RateLimit, prefixes conn.Prefixes, before *rateSettings) *rateSettings {
	every := c.Rate.Every()
	window := strconv.FormatInt(max(1, seconds(every*time.Duration(c.Burst))), 10)
	s := &rateSettings{config: c, prefixes: prefixes, header: strings.ToLower(c.Per.Header()),
		refusal: message.Refusal{Status: c.Status, Reason: "rate_limited", Detail: "too many requests; see Retry-After"},
		policy:  `"` + c.Name + `";q=` + strconv.Itoa(c.Burst) + ";w=" + window,
		begin:   `"` + c.Name + `";r=`}
	if before != nil {
		s.table, s.evicted = before.table, before.evicted
		if o := before.config; o.Rate == c.Rate && o.Burst == c.Burst && o.Per == c.Per {
			return s
		}
		s.evicted += before.table.Evictions()
	}
	s.table = ratelimit.NewTable(ratelimit.Limit{Every: every, Burst: c.Burst}, mostRateKeys)
	return s
}

// seconds rounds a time up to whole seconds.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// rateVerdict is the answer of a rate limit for one request.
type rateVerdict struct {
	of *rateSettings // nil: no rate limit has decided
	ratelimit.Verdict
}

// rateGuard refuses requests beyond a rate (rate_limit of a route).
type rateGuard struct {
	limit *rateLimit
	route uint64 // the hash of the route's name
}

func newRateGuard(route string, limit *rateLimit) *rateGuard {
	return &rateGuard{limit, maphash.String(hashSeed, route)}
}

// GuardName returns the key of a route with a rate limit.
func (g *rateGuard) GuardName() string { return "rate_limit" }

// Answer counts the request, or refuses it.
func (g *rateGuard) Answer(x Exchange) bool {
	s := g.limit.settings.Load()
	hash := g.route
	switch {
	case s.header != "":
		hash = maphash.Bytes(hashSeed, x.Request().GetName(s.header))
	case s.config.Per == config.PerClient:
		hash = networkHash(x.Client().Addr(), s.prefixes)
	}
	v := &x.State().rate
	v.of, v.Verdict = s, s.table.Admit(hash, x.Started())
	if v.Admitted {
		return false
	}
	x.Refuse(&s.refusal)
	return true
}

// GuardTunnel counts a connection, or refuses it.
func (g *rateGuard) GuardTunnel(client netip.AddrPort, _ *State) *message.Refusal {
	s := g.limit.settings.Load()
	hash := g.route
	if s.config.Per == config.PerClient {
		hash = networkHash(client.Addr(), s.prefixes)
	}
	if s.table.Admit(hash, time.Now()).Admitted {
		return nil
	}
	return &s.refusal
}

// networkHash returns the hash of a client network. All clients without an address count as one.
func networkHash(a netip.Addr, p conn.Prefixes) uint64 {
	n := conn.NetworkOf(a, p).Prefix()
	if !n.IsValid() {
		return 0
	}
	b := n.Addr().As16()
	return maphash.Bytes(hashSeed, b[:])
}

// window returns the time for which the remaining requests have to last (t of RateLimit). Spread over
// it, they keep to the rate. If none remain, it is the time until the next one would be admitted, so
// that it does not end after Retry-After.
func (v *rateVerdict) window() time.Duration {
	every := v.of.config.Rate.Every()
	if v.Left > 0 {
		return every * time.Duration(v.Left)
	}
	return v.Full - every*time.Duration(v.of.config.Burst-1)
}

// EditResponse adds Retry-After to a refusal, and to each response the headers by which clients
// adapt their rate (draft-ietf-httpapi-ratelimit-headers-11): r is the number of requests that the
// limit would admit now, and t the seconds for which they have to last.
func (g *rateGuard) EditResponse(x Exchange, res *message.Response) {
	v := &x.State().rate
	if v.of == nil {
		return // another filter has answered before
	}
	var buf [96]byte
	if !v.Admitted {
		add(res, "Retry-After", strconv.AppendInt(buf[:0], max(1, seconds(v.Retry)), 10))
	}
	res.AddField("RateLimit-Policy", v.of.policy)
	b := strconv.AppendInt(append(buf[:0], v.of.begin...), int64(v.Left), 10)
	add(res, "RateLimit", strconv.AppendInt(append(b, ";t="...), max(1, seconds(v.window())), 10))
}

func add(res *message.Response, name string, value []byte) {
	res.AddSpans(res.StoreString(name), res.Store(value))
}
