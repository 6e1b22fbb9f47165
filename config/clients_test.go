package config

import (
	"net/netip"
	"strings"
	"testing"
)

func clientsOf(allow, deny string) *Clients {
	networks := func(s string) (all []netip.Prefix) {
		for one := range strings.FieldsSeq(s) {
			all = append(all, netip.MustParsePrefix(one))
		}
		return all
	}
	return &Clients{Allow: networks(allow), Deny: networks(deny)}
}

func TestClientsCover(t *testing.T) {
	f := func(c, o *Clients, want bool) {
		t.Helper()
		if got := c.covers(o); got != want {
			t.Errorf("%+v covers %+v: %t", c, o, got)
		}
	}
	inner, outer := clientsOf("192.0.2.0/24", ""), clientsOf("192.0.0.0/16 2001:db8::/32", "")
	f(nil, nil, true)
	f(inner, nil, true)
	f(nil, inner, false)
	f(inner, inner, true)
	f(inner, outer, true)
	f(outer, inner, false)
	f(clientsOf("", "198.51.100.0/24"), inner, false)
	f(inner, clientsOf("", "198.51.100.0/24"), true) // no address of deny is in allow
	f(inner, clientsOf("", "192.0.2.128/25"), false)
	f(clientsOf("192.0.2.0/24", "192.0.2.0/24"), clientsOf("", "192.0.2.128/25"), true)
	f(clientsOf("", "192.0.2.128/25"), clientsOf("", "192.0.2.0/24"), false)
	f(clientsOf("", "192.0.2.0/24"), clientsOf("", "192.0.2.128/25"), true)
	f(clientsOf("", "192.0.2.0/24"), clientsOf("", "2001:db8::/32"), false)
}
