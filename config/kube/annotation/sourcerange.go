package annotation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// IsUnset reports whether ingress-nginx ignores the annotation. It ignores an empty whitelist-source-range, which is the
// older name of allowlist-source-range. Many charts write one.
func IsUnset(name, value string) bool { return name == Nginx+"whitelist-source-range" && value == "" }

// sourceRanges is the family of lists of clients.
var sourceRanges = map[string]judge{
	"allowlist-source-range": setting(allowlist),
	"denylist-source-range":  setting(denylist),
	"whitelist-source-range": setting(whitelist),
}

const badList = "the list has something other than networks and addresses, so weir answers 503 for an Ingress that has it, as ingress-nginx does; write networks such as 10.0.0.0/8, separated by commas, or remove the annotation"

// allowlist reads allowlist-source-range. ingress-nginx ignores the older name beside it.
func allowlist(value string, c context, s *Settings) (Rating, string) {
	list, ok := networks(value)
	everybody := slices.Contains(list, everyIPv4) && slices.Contains(list, everyIPv6) // solvers of cert-manager have it
	switch {
	case !ok:
		return guard, badList
	case everybody: // ingress-nginx ignores the older name also beside such a list
		list = nil // it restricts no client, whatever the paths are
	case c.loose != nil:
		return guard, c.loose.String()
	}
	s.Allow, s.Everybody, s.allowed = list, everybody, true
	return Exact, ""
}

// whitelist reads whitelist-source-range. SettingsOf reads the newer name first.
func whitelist(value string, c context, s *Settings) (Rating, string) {
	if s.allowed {
		s = &Settings{}
	}
	return allowlist(value, c, s)
}

// denylist reads denylist-source-range.
func denylist(value string, c context, s *Settings) (Rating, string) {
	list, ok := networks(value)
	switch {
	case !ok:
		return guard, badList
	case c.loose != nil:
		return guard, c.loose.String()
	}
	s.Deny = list
	return Exact, ""
}

var everyIPv4, everyIPv6 = netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")

// networks reads a list of networks and addresses.
func networks(value string) (list []netip.Prefix, ok bool) {
	for _, text := range strings.Split(value, ",") {
		n, ok := network(strings.TrimSpace(text))
		if !ok {
			return nil, false
		}
		list = append(list, n)
	}
	return list, true
}

// Network reads a network, or an address, of an address list of ingress-nginx.
func Network(text string) (netip.Prefix, error) {
	n, ok := network(text)
	if !ok {
		return n, fmt.Errorf("%q is neither a network nor an address", text)
	}
	return n, nil
}

// network reads a network, or an address. nginx has no zones, and no IPv4 networks in IPv6.
func network(text string) (netip.Prefix, bool) {
	n, err := netip.ParsePrefix(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" { // PrefixFrom drops the zone
			return netip.Prefix{}, false
		}
		n = netip.PrefixFrom(a, a.BitLen())
	}
	return n.Masked(), !n.Addr().Is4In6()
}
