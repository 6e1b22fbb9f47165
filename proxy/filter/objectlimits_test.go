package filter

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// objectsLimited returns two routes of an Ingress with limits.
func objectsLimited(t *testing.T, s *Shared, l *config.ObjectLimits) (one, two *Chain) {
	t.Helper()
	routes := []*config.Route{{Name: "one", Backend: "b", Limits: l}, {Name: "two", Backend: "b", Limits: l}}
	p, err := s.Plan(&config.Config{Routes: routes, Limits: config.Limits{Clients: config.ClientLimits{PrefixIPv4: 32, PrefixIPv6: 64}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	one, two = Compile(routes[0], p), Compile(routes[1], p)
	p.Commit()
	return one, two
}

// As nginx does it: a burst beyond the first request, shared by the routes of the Ingress; a client
// of its own counts on its own, and some do not count.
func TestObjectLimits(t *testing.T) {
	var s Shared
	l := &config.ObjectLimits{Name: "shop/web", RateStatus: 503, OpenStatus: 508, Except: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		Rates: []config.ObjectRate{{Rate: config.Rate{Number: 10, Per: time.Second}, Burst: 3}, {Rate: config.Rate{Number: 60, Per: time.Minute}, Burst: 5}}}
	one, two := objectsLimited(t, &s, l)
	now := time.Now()
	f := func(c *Chain, client string, after time.Duration, want string) {
		t.Helper()
		now = now.Add(after)
		got := ""
		for range len(want) {
			x := newExchange("GET", "/")
			x.client, x.started = netip.AddrPortFrom(netip.MustParseAddr(client), 1), now
			switch answered := c.Answer(x); {
			case !answered:
				got += "y"
			case x.answer == "503 rate_limited":
				got += "n"
			default:
				got += "?"
			}
			c.EditResponse(x, &x.res)
			if len(x.res.Fields) > 0 {
				t.Errorf("the response has headers: %q", shown(&x.res.Head))
			}
		}
		if got != want {
			t.Errorf("%s after %v is %s, want %s", client, after, got, want)
		}
	}
	f(one, "192.0.2.1", 0, "yyy")
	f(two, "192.0.2.1", 0, "yn") // the rate per second
	f(two, "192.0.2.2", 0, "yyyyn")
	f(one, "198.51.100.7", 0, "yyyyyyyyyy")
	f(one, "192.0.2.1", time.Second, "yyyn") // 4 of 6 count by the minute, one of which is over
	f(one, "192.0.2.1", 10*time.Second, "yyyyn")
	f(one, "2001:db8::1", 0, "yyyy")
	f(one, "2001:db8::2", 0, "n")     // of the same network
	one, _ = objectsLimited(t, &s, l) // a reload
	f(one, "192.0.2.1", 0, "n")
	other := *l
	other.Name = "shop/other"
	one, _ = objectsLimited(t, &s, &other)
	f(one, "192.0.2.1", 0, "yyyy")
}

// Requests that are open count for all routes of the Ingress.
func TestObjectLimitsOfOpenRequests(t *testing.T) {
	var s Shared
	one, two := objectsLimited(t, &s, &config.ObjectLimits{Name: "shop/web", InFlight: 2, OpenStatus: 503})
	open := func(c *Chain, client, want string) *exchange {
		t.Helper()
		x := newExchange("GET", "/")
		x.client = netip.AddrPortFrom(netip.MustParseAddr(client), 1)
		if c.Answer(x); x.answer != want {
			t.Errorf("%s: %q, want %q", client, x.answer, want)
		}
		return x
	}
	first := open(one, "192.0.2.1", "")
	open(two, "192.0.2.1", "")
	open(one, "192.0.2.1", "503 in_flight")
	open(one, "192.0.2.2", "")
	first.state.End()
	open(two, "192.0.2.1", "")
	var state State
	if r := one.GuardTunnel(netip.MustParseAddrPort("192.0.2.1:1"), &state, func(string, string) {}); r == nil || !strings.Contains(r.Reason, "in_flight") {
		t.Errorf("a tunnel gets %v", r)
	}
}
