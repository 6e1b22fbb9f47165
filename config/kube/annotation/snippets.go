package annotation

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/proxy/script"
)

// snippets is the family of nginx configuration.
var snippets = map[string]judge{
	"configuration-snippet": {look: rateSnippets("configuration-snippet"), set: setSnippets},
	"server-snippet":        {look: rateSnippets("server-snippet"), set: setSnippets},
	"stream-snippet":        always(No, noSnippet),
}

// Snippets are the texts of the snippets that weir reads. Both are empty if weir does not support one
// of them.
type Snippets struct{ Host, Location string }

const (
	onlyAllowed  = "weir reads snippets only if allow-snippet-annotations is true in the ConfigMap of kubernetes.ingress_nginx"
	snippetOff   = onlyAllowed + "; allow them, or set in weir's configuration what the snippet does"
	snippetOut   = onlyAllowed + ", and this one may restrict access, so weir answers 503 for an Ingress that has it; allow snippets, or do the same in the application or in weir's configuration, and remove the annotation"
	snippetWrite = "weir does not support %s, and so does nothing of the snippet; %s"
	snippetSay   = "the snippet has %s, which weir does not support and which may restrict access, so weir answers 503 for an Ingress that has it; %s"
	snippetHas   = "weir does not support %s, and so does nothing of the snippet; take it out"
	snippetShut  = "the snippet has %s, which weir does not support and which may restrict access, so weir answers 503 for an Ingress that has it; take it out, and do the same in the application or in weir's configuration"
	snippetNear  = "weir does nothing for %s"
	snippetAny   = "the snippet has allow or deny, and weir does not combine these with satisfy: any, so weir answers 503 for an Ingress that has it; write allowlist-source-range"
	snippetReal  = "the snippet " + realIPHas + ", so weir answers 503 for an Ingress that has it; " + realIPInstead
	snippetLoose = "the snippet may refuse requests; %s"
)

// What a snippet with directives of realIP has, and what to do instead.
const (
	realIPHas     = "has a directive such as real_ip_header, weir takes the addresses of clients from nobody whom a tenant names, and these addresses may decide about access"
	realIPInstead = "list the proxies in trust_forwarded of the listener, and take the directive out"
)

// ErrRealIP closes an Ingress with Settings.RealIP beside one with Settings.ByAddress.
var ErrRealIP = errors.New(realIPHas + "; " + realIPInstead)

// realIP are the directives that change the addresses of clients. byAddress are directives and variables with these
// addresses, and byAddressToo the annotations.
var (
	realIP       = regexp.MustCompile(`set_real_ip_from|real_ip_(header|recursive)`)
	byAddress    = regexp.MustCompile(`(^|[\s;{}])["']?(allow|deny)["']?\s|(?i:remote_(addr|port)|realip|the_real_ip|(add|full)_x_forwarded_for)`)
	byAddressToo = regexp.MustCompile(`source-range|allowlist|whitelist|denylist|blacklist|auth-url`)
)

// byAddress reports whether addresses of clients may decide about access.
func (c context) byAddress() bool {
	for name, value := range c.values {
		if value != "" && (byAddressToo.MatchString(name) || strings.HasSuffix(name, "-snippet") && byAddress.MatchString(value)) {
			return true
		}
	}
	return false
}

// allowsSnippets reports whether the ConfigMap of the controller allows snippets, or has those with these names itself.
func (c context) allowsSnippets(names ...string) bool {
	return isTrue(c.keys["allow-snippet-annotations"]) || !slices.ContainsFunc(names, func(name string) bool { return c.value(name) != c.keys[name] })
}

func rateSnippets(name string) func(string, context) (Rating, string) {
	return func(value string, c context) (Rating, string) {
		switch r, _ := snippet(value, c); {
		case r == Exact:
			return Exact, "" // it is empty
		case c.allowsSnippets("server-snippet", "configuration-snippet"):
		case r == guard:
			return guard, snippetOut
		default:
			return No, snippetOff
		}
		return rateIn(readSnippets, name)(value, c)
	}
}

func setSnippets(_ string, c context, s *Settings) (Rating, string) {
	s.Snippets, _ = readSnippets(c)
	return Exact, ""
}

// RefusedSnippets returns why weir closes the paths of an Ingress because of its snippets, if they are
// allowed: sentences without a full stop, each of which names what weir does not support.
func RefusedSnippets(i *networkingv1.Ingress) (why []string) {
	if i.Annotations[Nginx+"configuration-snippet"]+i.Annotations[Nginx+"server-snippet"] == "" {
		return nil
	}
	c := contextOf(i)
	_, ratings := readSnippets(c)
	for _, name := range slices.Sorted(maps.Keys(ratings)) {
		if r := ratings[name]; r.Rating == guard {
			why = append(why, Nginx+name+": "+r.why)
		}
	}
	return why
}

// readSnippets reads the server-snippet and the configuration-snippet together, because the
// configuration-snippet may use variables that the server-snippet sets.
func readSnippets(c context) (s Snippets, ratings map[string]because) {
	ratings = map[string]because{}
	host, location := c.value("server-snippet"), c.value("configuration-snippet")
	if !c.allowsSnippets("server-snippet", "configuration-snippet") {
		return s, ratings
	}
	ok := true
	for _, one := range []struct {
		name, text     string
		host, location string
	}{{"server-snippet", host, host, ""}, {"configuration-snippet", location, host, location}} {
		if one.text == "" || !ok && one.name == "configuration-snippet" {
			continue
		}
		r := c.rateSnippet(one.host, one.location, one.text)
		if r.Rating != "" {
			ratings[one.name] = r
		}
		ok = ok && r.Rating != No && r.Rating != guard
	}
	if !ok {
		return s, ratings
	}
	return Snippets{host, location}, ratings
}

// rateSnippet rates text, which is a server-snippet or a configuration-snippet. For a server-snippet,
// host is text and location is empty. For a configuration-snippet, host is the server-snippet and
// location is text.
func (c context) rateSnippet(host, location, text string) because {
	server := "a.example"
	if c.wide {
		server = ""
	}
	p, err := script.Parse(host, location, script.Constants(c.namespace, c.name, "", "", "", server))
	if err == nil && p.Moves && c.deep {
		err = script.ErrMoves
	}
	if err != nil {
		r, _ := snippet(text, c)
		var u *script.Unsupported
		switch known := errors.As(err, &u); {
		case known && r == guard:
			return because{guard, fmt.Sprintf(snippetSay, u.What, u.Instead)}
		case known:
			return because{No, fmt.Sprintf(snippetWrite, u.What, u.Instead)}
		case r == guard:
			return because{guard, fmt.Sprintf(snippetShut, err)}
		}
		return because{No, fmt.Sprintf(snippetHas, err)}
	}
	_, _, err = Clients(p.Access)
	switch {
	case err != nil:
		return because{guard, fmt.Sprintf(snippetShut, err)}
	case len(p.Access) > 0 && c.value("satisfy") == "any":
		return because{guard, snippetAny}
	case c.loose != nil && location != c.keys["configuration-snippet"] && (len(p.Location) > 0 || len(p.Access) > 0 && !p.OfHost): // other snippets are for all paths
		return because{guard, fmt.Sprintf(snippetLoose, c.loose)}
	case realIP.MatchString(text) && c.byAddress():
		return because{guard, snippetReal}
	case len(p.Ignored) > 0:
		return because{Near, fmt.Sprintf(snippetNear, strings.Join(p.Ignored, ", "))}
	}
	return because{}
}

// Clients converts the directives allow and deny of nginx to two lists: the clients that may use a
// route, and the clients that may not. In nginx, the first directive that contains the client's address
// decides. An empty list allow has every client.
func Clients(entries []script.Entry) (allow, deny []netip.Prefix, err error) {
	var seen []netip.Prefix
	for _, e := range entries {
		all := []netip.Prefix{everyIPv4, everyIPv6}
		if e.Network != "all" {
			n, ok := network(e.Network)
			if !ok {
				return nil, nil, fmt.Errorf("allow or deny of %s", e.Network)
			}
			all = []netip.Prefix{n}
		}
		for _, n := range all {
			left := without(n, seen)
			if e.Allow {
				allow = append(allow, left...)
			} else {
				deny = append(deny, left...)
			}
			seen = append(seen, n)
		}
		if len(allow)+len(deny) > mostClients {
			return nil, nil, fmt.Errorf("networks in allow and deny that contain each other in too many places")
		}
		if e.Network != "all" {
			continue
		}
		if e.Allow { // every client outside deny may use the route
			return nil, deny, nil
		}
		// "deny all" ends the list, so allow has every client that may use the route.
		if len(allow) == 0 {
			return nil, all, nil
		}
		return allow, nil, nil
	}
	return nil, deny, nil
}

// mostClients limits the networks that Clients returns.
const mostClients = 10_000

// without returns networks with the addresses of n, except the addresses in others.
func without(n netip.Prefix, others []netip.Prefix) []netip.Prefix {
	left := []netip.Prefix{n}
	for _, o := range others {
		var next []netip.Prefix
		for _, p := range left {
			switch {
			case !p.Overlaps(o):
				next = append(next, p)
			case o.Bits() > p.Bits(): // o is a part of p
				next = append(next, around(p, o)...)
			}
		}
		left = next
	}
	return left
}

// around returns networks with the addresses of p, except the addresses in o, which is a part of p.
func around(p, o netip.Prefix) (all []netip.Prefix) {
	for bits := p.Bits() + 1; bits <= o.Bits(); bits++ {
		address := o.Addr().AsSlice()
		for i := range address { // the half of the network that does not have o
			if at := bits - 1; at/8 == i {
				address[i] ^= 0x80 >> (at % 8)
			}
		}
		half, _ := netip.AddrFromSlice(address)
		all = append(all, netip.PrefixFrom(half, bits).Masked())
	}
	return all
}
