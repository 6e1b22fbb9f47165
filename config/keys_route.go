package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/proxy/expression"
	"github.com/weirproxy/weir/proxy/message"
)

var (
	tlsMode    = oneOf(TLSTerminate, TLSPassthrough)
	firstBytes = oneOf("ssh")
)

func (r *Route) section() section {
	return section{object: r, position: &r.Position, check: r.checkKeys, rules: routeRules, keys: routeKeys}
}

var (
	routeKeys   []key
	requestKeys []key // the keys of routeKeys with forRequests
	routeRules  []*schema
)

func init() { // functions of the table use the table
	routeKeys = []key{
		{"name", lazily(func(r *Route) any { return &r.Name }, func(r *Route) value { return text(&r.Name).byDefault("listener/host/path") }), "The name of the route in metrics and logs."},
		{"listeners", lazily(func(r *Route) any { return &r.Listeners }, func(r *Route) value { return list(&r.Listeners, text).required("[web]") }), "The listeners that use the route."},
		{"hosts", lazily(func(r *Route) any { return &r.Hosts }, func(r *Route) value { return list(&r.Hosts, routeHost.at).byDefault("every host") }), "The hosts that the route matches. \"*.example.org\" matches exactly one more label, \"**.example.org\" one or more."},
		{"paths", lazily(func(r *Route) any { return &r.Paths }, func(r *Route) value { return list(&r.Paths, pathKind.at).byDefault("every path") }), "Path prefixes that end at a segment border (/api matches /api and /api/x, but not /apis), or = and an exact path, or ~ and an expression (RE2) for the beginning of the path."},
		{"match", lazily(func(r *Route) any { return &r.Match }, func(r *Route) value { return r.matchKey().byDefault("no conditions") }), "Conditions that a request must fulfil, besides host and path. If it does not, the next less specific path gets it."},
		{"tls_policy", lazily(func(r *Route) any { return &r.TLSPolicy }, func(r *Route) value {
			return text(&r.TLSPolicy).shownIf(r.TLS != TLSPassthrough).byDefault("the policy of the host's other routes on the listener, else default")
		}), "The policy under tls_policies for these hosts."},
		{"tls", lazily(func(r *Route) any { return &r.TLS }, func(r *Route) value {
			return tlsMode.at(&r.TLS).byDefault("the value of the host's other routes on the listener, else terminate")
		}), "passthrough forwards the TLS stream by SNI to a tcp backend, without decrypting it. Only on tls listeners, without paths."},
		{"alpn", lazily(func(r *Route) any { return &r.ALPN }, func(r *Route) value { return list(&r.ALPN, protocolName.at) }), "The protocols that weir offers to clients by ALPN, the preferred one first. For routes of a tls listener that lead to a tcp backend without passthrough. Without it weir agrees on no protocol. With it weir refuses clients that offer only other protocols; clients that offer none are always served."},
		{"first_bytes", lazily(func(r *Route) any { return &r.FirstBytes }, func(r *Route) value { return firstBytes.at(&r.FirstBytes) }), "A connection that begins with SSH- becomes a tunnel to a tcp backend. On a tls or http listener, without hosts, paths, tls and tls_policy."},
		{"silent_after", lazily(func(r *Route) any { return &r.SilentAfter }, func(r *Route) value {
			return duration(&r.SilentAfter, 100*time.Millisecond, time.Minute).shownIf(r.SilentAfter != 0).byDefault("never")
		}), "With first_bytes: a client that has sent no byte for this long goes to this route too, because some SSH clients wait for the server's banner. Less than timeouts.handshake of the listeners."},
		{"backend", lazily(func(r *Route) any { return &r.Backend }, func(r *Route) value { return text(&r.Backend) }), "The name of the backend. Required, unless there are backends, a redirect or respond. Tunnels (tcp listeners, passthrough, first_bytes) need a tcp backend."},
		{"backends", lazily(func(r *Route) any { return &r.Backends }, func(r *Route) value { return r.weightsKey().byDefault("only backend") }), "Several backends that share the requests or connections by weight, in place of backend. Their endpoints all serve requests, or all are tcp."},
		{"redirect", lazily(func(r *Route) any { return &r.Redirect }, func(r *Route) value { return r.redirectKey().byDefault("none").forRequests() }), "Redirects each request to its own URL with https: https, or a mapping."},
		{"respond", lazily(func(r *Route) any { return &r.Respond }, func(r *Route) value { return r.respondKey().byDefault("none").forRequests() }), "A fixed response to all requests of the route. Without backend and redirect."},
		{"hsts", lazily(func(r *Route) any { return &r.HSTS }, func(r *Route) value { return r.hstsKey().byDefault("none").forRequests() }), "Responses over TLS tell browsers to use only https for this host from now on (Strict-Transport-Security): a duration, or a mapping."},
		{"cors", lazily(func(r *Route) any { return &r.CORS }, func(r *Route) value { return r.corsKey().byDefault("endpoints decide").forRequests() }), "What pages of other origins may do with the route (CORS). weir answers preflights, and replaces the CORS headers of endpoints."},
		{"clients", lazily(func(r *Route) any { return &r.Clients }, func(r *Route) value { return r.clientsKey().byDefault("every client") }), "Which clients may use the route, by their addresses; others get 403, and connections of tunnels are closed. deny wins over allow."},
		{"rate_limit", lazily(func(r *Route) any { return &r.RateLimit }, func(r *Route) value { return text(&r.RateLimit).byDefault("no limit") }), "The rate limit under rate_limits for the requests of the route, or for the connections of its tunnels."},
		{"in_flight", lazily(func(r *Route) any { return &r.InFlight }, func(r *Route) value { return r.inFlightKey().byDefault("no limit") }), "How many requests or tunnels of the route may be open at the same time."},
		{"request", lazily(func(r *Route) any { return &r.Request }, func(r *Route) value { return editsKey(&r.Request, ofRequests).byDefault("none").forRequests() }), "Changes of the request's HTTP headers for the endpoint."},
		{"rewrite", lazily(func(r *Route) any { return &r.Rewrite }, func(r *Route) value { return r.rewriteKey().byDefault("none").forRequests() }), "Changes of the path and of the Host header for the endpoint."},
		{"response", lazily(func(r *Route) any { return &r.Response }, func(r *Route) value { return editsKey(&r.Response, ofResponses).byDefault("none").forRequests() }), "Changes of the HTTP headers of every response, also of those that weir generates."},
		{"auth", lazily(func(r *Route) any { return &r.Auth }, func(r *Route) value { return text(&r.Auth).byDefault("none").forRequests() }), "The entry under auth that authenticates the requests."},
		{"satisfy", lazily(func(r *Route) any { return &r.Satisfy }, func(r *Route) value {
			return oneOf(SatisfyAll, SatisfyAny).at(&r.Satisfy).byDefault("all").forRequests()
		}), "Whether a request has to pass clients and auth, or one of them is enough. With any, clients.deny still refuses."},
		{"errors", lazily(func(r *Route) any { return &r.Errors }, func(r *Route) value { return r.errorsKey().byDefault("none").forRequests() }), "Pages of a backend as the bodies of error responses, of endpoints and of weir. The first entry with the status counts."},
		{"compress", lazily(func(r *Route) any { return &r.Compress }, func(r *Route) value { return truth(&r.Compress).shownIf(r.Compress).forRequests() }), "Whether weir compresses bodies of 1KiB or more for clients that accept it, with zstd, br or gzip: text, JSON, JavaScript, XML, SVG and wasm."},
		{"mirror", lazily(func(r *Route) any { return &r.Mirror }, func(r *Route) value { return r.mirrorKey().byDefault("none").forRequests() }), "Backends that get copies of requests, with bodies of up to 64 KiB. weir discards their responses, and the client does not wait for them."},
		{"timeouts", lazily(func(r *Route) any { return &r.Timeouts }, func(r *Route) value { return r.timeoutsKey().byDefault("none").forRequests() }), "How long requests wait for the head of the response, in addition to the timeouts of the backend."},
		{"retries", lazily(func(r *Route) any { return &r.Retries }, func(r *Route) value { return r.retriesKey().byDefault("the backend's").forRequests() }), "Limits for retries, in place of attempts of the backend's retries. Its share applies too."},
		{"max_body", lazily(func(r *Route) any { return &r.MaxBody }, func(r *Route) value {
			return size(&r.MaxBody, 1, 1<<40).shownIf(r.MaxBody != 0).byDefault("no limit").forRequests()
		}), "Maximum size of a request body; larger ones get 413."},
		{"traces", lazily(func(r *Route) any { return &r.Untraced }, func(r *Route) value { return negated(&r.Untraced).shownIf(r.Untraced).byDefault("true").forRequests() }), "false: weir traces no requests of the route, and does not change their traceparent."},
		{"access_log", lazily(func(r *Route) any { return &r.Unlogged }, func(r *Route) value { return negated(&r.Unlogged).shownIf(r.Unlogged).byDefault("true") }), "false: the access log has no lines for the requests and tunnels of the route, failed ones included. Metrics count them."},
		{"max_lifetime", lazily(func(r *Route) any { return &r.MaxLifetime }, func(r *Route) value {
			return duration(&r.MaxLifetime, time.Second, 365*day).shownIf(r.MaxLifetime != 0).byDefault("no limit")
		}), "weir ends a tunnel after this time, even if it is active."},
		{"tunnel_idle", lazily(func(r *Route) any { return &r.TunnelIdle }, func(r *Route) value {
			return duration(&r.TunnelIdle, time.Second, 30*day).shownIf(r.TunnelIdle != 0).byDefault("the listener's")
		}), "weir ends a tunnel that carried no bytes for this long."},
	}
	requestKeys = slices.DeleteFunc(slices.Clone(routeKeys), func(k key) bool { return !k.value.requests })
	routeRules = newRouteRules()
}

func (r *Route) checkKeys(v *draft, there keySet, n *Tree, p path) {
	if !there.has("redirect") && !there.has("respond") && !there.has("backends") {
		v.require(there, n, p, "backend", `app, or redirect: https`)
	}
	if combinations := max(1, len(r.Listeners)) * max(1, len(r.Hosts)) * max(1, len(r.Paths)); combinations > maxCombinations {
		v.fail(n, p, "has more than %d combinations of listener, host and path; split it", maxCombinations)
		r.Listeners = nil
	}
}

// maxCombinations limits the product of listeners, hosts and paths of one route.
const maxCombinations = 100_000

// pathKind is a path of a route.
var pathKind = kind[Path]{what: "a path that begins with a slash", parse: parseRoutePath, format: Path.String, pattern: `=?/[!"$->@-\[\]-~]*|~.+`}

// parseRoutePath reads a path of the file, which may be an expression.
func parseRoutePath(s string) (Path, error) {
	text, isExpression := strings.CutPrefix(s, "~")
	if !isExpression {
		return parsePath(s)
	}
	if text == "" {
		return Path{}, fmt.Errorf(`has no expression behind "~"; write one such as "~/v[0-9]+/"`)
	}
	if strings.HasPrefix(text, "*/") || strings.HasPrefix(text, "*^") {
		return Path{}, fmt.Errorf(`begins as in nginx; write "~(?i)%s" to ignore case`, strings.TrimPrefix(text[1:], "^"))
	}
	if _, _, err := expression.Compile(text, expression.Start); err != nil {
		return Path{}, fmt.Errorf("cannot be compared: %w", err)
	}
	if !mayMatchPath(text) {
		return Path{}, fmt.Errorf(`matches no path, because weir compares it from the beginning of the path, and each path begins with a slash; begin the expression with ".*" to match anywhere, or with "/"`)
	}
	return Path{Expression: true, Value: text}, nil
}

// mayMatchPath reports whether a match of an expression may begin with a slash. No match of \.php$ does;
// users of nginx write such expressions, because nginx searches the whole path for a match.
func mayMatchPath(expr string) bool {
	all, err := expression.Beginnings(expr)
	return err != nil || slices.ContainsFunc(all, func(s string) bool { return s == "" || s[0] == '/' })
}

// parsePath refuses paths that can never match without raw_targets: weir answers 400 to dot segments,
// backslashes and broken escapes, and a request target contains neither spaces nor bytes beyond ASCII.
func parsePath(s string) (Path, error) {
	value, exact := strings.CutPrefix(s, "=")
	lower := strings.ToLower(value)
	switch {
	case strings.HasPrefix(value, "^/"):
		return Path{}, fmt.Errorf(`begins as an expression does; write "~%s", or without the "^" for a prefix`, strings.TrimPrefix(value, "^"))
	case !strings.HasPrefix(value, "/"):
		return Path{}, fmt.Errorf(`does not begin with a slash; write a prefix such as "/api" or an exact path such as "=/status"`)
	case strings.ContainsAny(value, "?#"):
		return Path{}, fmt.Errorf("has a query or fragment, which routes ignore; write only the path")
	case strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > 0x7e }):
		return Path{}, fmt.Errorf("has spaces or is not ASCII; percent-encode it, with %%20 for a space")
	case strings.Contains(value, `\`) || strings.Contains(lower, "%5c"):
		return Path{}, fmt.Errorf("has a backslash, which servers read in different ways; remove it")
	}
	for segment := range strings.SplitSeq(strings.ReplaceAll(lower, "%2e", "."), "/") {
		if segment == "." || segment == ".." {
			return Path{}, fmt.Errorf("has a dot segment, and weir refuses every request with one; write the path without it")
		}
	}
	if message.AmbiguousPath([]byte(value)) {
		return Path{}, fmt.Errorf("has a broken percent-encoding, a null byte or a dot segment, and weir refuses every request with one; write the plain path")
	}
	return Path{Exact: exact, Value: value}, nil
}

func (p Path) String() string {
	switch {
	case p.Decoded:
		return "~*" + p.Value
	case p.Expression:
		return "~" + p.Value
	case p.Exact:
		return "=" + p.Value
	case p.Begins:
		return p.Value + "..."
	}
	return p.Value
}
