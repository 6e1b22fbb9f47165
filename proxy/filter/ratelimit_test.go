package filter

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// perMinute is a limit of one request a minute, with a burst of three.
func perMinute(per config.PerWhat) config.RateLimit {
	return config.RateLimit{Name: "keys", Rate: config.Rate{Number: 1, Per: time.Minute}, Burst: 3, Per: per, Status: 429}
}

// commit puts rate limits into effect.
func commit(t *testing.T, s *Shared, limits ...config.RateLimit) *SharedPlan {
	t.Helper()
	c := &config.Config{RateLimits: limits}
	c.Limits.Clients = config.ClientLimits{PrefixIPv4: 32, PrefixIPv6: 64}
	p, err := s.Plan(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	return p
}

var begun = time.Now()

// ask sends a request of a client through the filters, and returns the answer and the headers.
func ask(c *Chain, client string, after time.Duration, fields ...string) string {
	x := newExchange("GET", "/")
	addLines(&x.req.Head, fields...)
	x.client, x.started = netip.AddrPortFrom(netip.MustParseAddr(client), 1), begun.Add(after)
	if !c.Answer(x) {
		x.answer = "ok"
	}
	c.EditResponse(x, &x.res)
	return x.answer + " " + strings.Join(lines(&x.res.Head), ", ")
}

const policy = `RateLimit-Policy: "keys";q=3;w=180, RateLimit: "keys";`

func TestRateLimit(t *testing.T) {
	f := func(per config.PerWhat, steps ...string) {
		t.Helper()
		plan := commit(t, new(Shared), perMinute(per))
		chains := map[string]*Chain{}
		for _, route := range []string{"a", "b"} {
			chains[route] = Compile(&config.Route{Name: route, Backend: "b", RateLimit: "keys"}, plan)
		}
		for i, step := range steps {
			s, want, _ := strings.Cut(step, " -> ")
			words := strings.Fields(s) // route, client, seconds, key
			var after int
			fmt.Sscan(words[2], &after)
			var fields []string
			if len(words) > 3 {
				fields = []string{"x-API-key", words[3]}
			}
			if got := ask(chains[words[0]], words[1], time.Duration(after)*time.Second, fields...); got != want {
				t.Errorf("per %s, request %d of %s: %s, want %s", per, i, s, got, want)
			}
		}
	}
	f(config.PerClient,
		"a 192.0.2.1 0 -> ok "+policy+"r=2;t=120",
		"b 192.0.2.1 0 -> ok "+policy+"r=1;t=60", // routes share the counts
		"a 192.0.2.1 0 -> ok "+policy+"r=0;t=60",
		"a 192.0.2.1 1 -> 429 rate_limited Retry-After: 59, "+policy+"r=0;t=59",
		"b 192.0.2.1 1 -> 429 rate_limited Retry-After: 59, "+policy+"r=0;t=59",
		"a 192.0.2.2 1 -> ok "+policy+"r=2;t=120",
		"a 192.0.2.1 61 -> ok "+policy+"r=0;t=59",
		"a 2001:db8::1 61 -> ok "+policy+"r=2;t=120",
		"a 2001:db8::2 61 -> ok "+policy+"r=1;t=60", // the same network
		"a 2001:db8:0:1::2 61 -> ok "+policy+"r=2;t=120")
	f(config.PerRoute,
		"a 192.0.2.1 0 -> ok "+policy+"r=2;t=120",
		"a 192.0.2.2 0 -> ok "+policy+"r=1;t=60",
		"b 192.0.2.1 0 -> ok "+policy+"r=2;t=120")
	f("header:X-Api-Key",
		"a 192.0.2.1 0 k1 -> ok "+policy+"r=2;t=120",
		"b 192.0.2.2 0 k1 -> ok "+policy+"r=1;t=60",
		"a 192.0.2.1 0 k2 -> ok "+policy+"r=2;t=120",
		"a 192.0.2.1 0 -> ok "+policy+"r=2;t=120", // requests without the header count together
		"a 192.0.2.2 0 -> ok "+policy+"r=1;t=60")
}

// The headers have the syntax and the meaning of draft-ietf-httpapi-ratelimit-headers-11: a client that
// spreads the requests that are left over the time that it is told keeps to the rate.
func TestRateLimitHeaders(t *testing.T) {
	for _, limit := range []config.RateLimit{
		{Rate: config.Rate{Number: 10, Per: time.Second}, Burst: 20},
		{Rate: config.Rate{Number: 1_000_000, Per: time.Second}, Burst: 1},
		{Rate: config.Rate{Number: 1, Per: time.Hour}, Burst: 1_000_000},
		{Rate: config.Rate{Number: 7, Per: time.Minute}, Burst: 3},
	} {
		limit.Name, limit.Per, limit.Status = "a.B_c-9", config.PerClient, 429
		c := Compile(&config.Route{Name: "r", Backend: "b", RateLimit: limit.Name}, commit(t, new(Shared), limit))
		every := limit.Rate.Every().Seconds()
		for i := range 30 {
			x := newExchange("GET", "/")
			x.client, x.started = netip.MustParseAddrPort("192.0.2.1:1"), time.Unix(1_800_000_000, 0).Add(time.Duration(i)*limit.Rate.Every()/3)
			refused := c.Answer(x)
			c.EditResponse(x, &x.res)
			policy, now := rateItem(t, &x.res, "ratelimit-policy", limit.Name), rateItem(t, &x.res, "ratelimit", limit.Name)
			q, w, r, left := rateNumber(t, policy, "q"), rateNumber(t, policy, "w"), rateNumber(t, now, "r"), rateNumber(t, now, "t")
			if q != float64(limit.Burst) || w < 1 || q/w > 1/every*(1+1e-9) || r > q || left < 1 || r > 0 && r/left > 1/every*(1+1e-9) || refused && r != 0 {
				t.Errorf("%v, request %d: %s, %s", limit.Rate, i, x.res.GetName("ratelimit-policy"), x.res.GetName("ratelimit"))
			}
			if after, err := strconv.Atoi(string(x.res.GetName("retry-after"))); refused != (err == nil) || refused && float64(after) < left {
				t.Errorf("%v, request %d: Retry-After is %d, %v; the window %v", limit.Rate, i, after, err, left)
			}
		}
	}
}

// rateItem returns the only item of a header, which is a structured field (RFC 9651): a list of strings
// with parameters.
func rateItem(t *testing.T, res *message.Response, header, name string) httpsfv.Item {
	t.Helper()
	list, err := httpsfv.UnmarshalList([]string{string(res.GetName(header))})
	if err != nil || len(list) != 1 {
		t.Fatalf("%s %q: %d items, %v", header, res.GetName(header), len(list), err)
	}
	item, is := list[0].(httpsfv.Item)
	if !is || item.Value != name {
		t.Fatalf("%s %q: the item is not %q", header, res.GetName(header), name)
	}
	return item
}

func rateNumber(t *testing.T, item httpsfv.Item, key string) float64 {
	t.Helper()
	value, _ := item.Params.Get(key)
	n, is := value.(int64)
	if !is || n < 0 {
		t.Fatalf("%s is %v", key, value)
	}
	return float64(n)
}

// A filter that answers before leaves no headers of the rate limit.
func TestRateLimitAfterClients(t *testing.T) {
	plan := commit(t, new(Shared), perMinute(config.PerClient))
	c := Compile(&config.Route{Backend: "b", RateLimit: "keys", Clients: &config.Clients{Deny: prefixes("192.0.2.1/32")}}, plan)
	if got := ask(c, "192.0.2.1", 0); got != "403 client_denied " {
		t.Error(got)
	}
}

// A reload keeps the counts, unless the rate, the burst or the kind of keys changes. A plan
// changes nothing before it is committed.
func TestRateLimitOverReloads(t *testing.T) {
	f := func(change func(*config.RateLimit), keeps bool) {
		t.Helper()
		var s Shared
		limit := perMinute(config.PerClient)
		c := Compile(&config.Route{Backend: "b", RateLimit: "keys"}, commit(t, &s, limit))
		left := func() int { return int(strings.Split(ask(c, "192.0.2.1", 0), "r=")[1][0] - '0') }
		left()
		change(&limit)
		if _, err := s.Plan(&config.Config{RateLimits: []config.RateLimit{limit}}, nil); err != nil {
			t.Fatal(err)
		}
		if n := left(); n != 1 {
			t.Errorf("%d left after a plan", n)
		}
		commit(t, &s, limit)
		if n := left(); (n == 0) != keeps {
			t.Errorf("%+v: %d left after the reload", limit, n)
		}
	}
	f(func(*config.RateLimit) {}, true)
	f(func(l *config.RateLimit) { l.Status = 503 }, true)
	f(func(l *config.RateLimit) { l.Rate.Number = 2 }, false)
	f(func(l *config.RateLimit) { l.Burst = 4 }, false)
	f(func(l *config.RateLimit) { l.Per = config.PerRoute }, false)
}

// The values of one header are no keys of another one.
func TestRateLimitOfAnotherHeader(t *testing.T) {
	var s Shared
	c := Compile(&config.Route{Backend: "b", RateLimit: "keys"}, commit(t, &s, perMinute("header:X-A")))
	for range 3 {
		ask(c, "192.0.2.1", 0, "X-A", "k", "X-B", "k")
	}
	commit(t, &s, perMinute("header:X-B"))
	if got := ask(c, "192.0.2.1", 0, "X-A", "k", "X-B", "k"); !strings.HasPrefix(got, "ok ") {
		t.Error(got)
	}
}

func TestRateLimitOfTunnels(t *testing.T) {
	plan := commit(t, new(Shared), perMinute(config.PerClient))
	c := Compile(&config.Route{Backend: "b", RateLimit: "keys"}, plan)
	for i := range 5 {
		r := c.GuardTunnel(netip.MustParseAddrPort("192.0.2.1:1"), nil, func(string, string) {})
		if (r != nil) != (i >= 3) || r != nil && r.Reason != "rate_limited" {
			t.Errorf("connection %d: %v", i, r)
		}
	}
}

func TestRateLimitMetrics(t *testing.T) {
	var s Shared
	reg := prometheus.NewRegistry()
	s.Register(reg)
	plan := commit(t, &s, perMinute(config.PerClient))
	c := Compile(&config.Route{Backend: "b", RateLimit: "keys"}, plan)
	ask(c, "192.0.2.1", 0)
	ask(c, "192.0.2.2", 0)
	ask(c, "192.0.2.2", 0)
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, family := range all {
		m := family.Metric[0]
		got = append(got, fmt.Sprint(family.GetName(), " ", m.Label[0].GetValue(), " ", m.GetGauge().GetValue()+m.GetCounter().GetValue()))
	}
	if want := []string{"weir_rate_limit_evictions_total keys 0", "weir_rate_limit_keys keys 2"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// limited is a request of a route with a rate limit, through its filters.
func limited(per config.PerWhat) func() {
	var s Shared
	limit := config.RateLimit{Name: "keys", Rate: config.Rate{Number: 1_000_000, Per: time.Second}, Burst: 1_000_000, Per: per, Status: 429}
	plan, _ := s.Plan(&config.Config{RateLimits: []config.RateLimit{limit}}, nil)
	plan.Commit()
	g := newRateGuard("a", plan.rates["keys"])
	x := newExchange("GET", "/")
	addLines(&x.req.Head, "X-Api-Key", "0123456789abcdef")
	x.client, x.started = netip.MustParseAddrPort("192.0.2.1:1"), time.Now()
	return func() {
		x.res.Reset()
		x.started = x.started.Add(2 * time.Microsecond)
		g.Answer(x)
		g.EditResponse(x, &x.res)
	}
}

func TestRateLimitAllocatesNothing(t *testing.T) {
	for _, per := range []config.PerWhat{config.PerClient, config.PerRoute, "header:X-Api-Key"} {
		request := limited(per)
		request()
		if n := testing.AllocsPerRun(100, request); n != 0 {
			t.Errorf("per %s: %v allocations", per, n)
		}
	}
}

func BenchmarkRateLimit(b *testing.B) {
	for _, per := range []config.PerWhat{config.PerClient, config.PerRoute, "header:X-Api-Key"} {
		b.Run(string(per), func(b *testing.B) {
			request := limited(per)
			b.ReportAllocs()
			for b.Loop() {
				request()
			}
		})
	}
}
