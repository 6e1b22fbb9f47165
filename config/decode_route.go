package config

import (
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

func (v *draft) route(n *yaml.Node, p path) {
	r := &Route{Position: v.at(n)}
	v.mark(r, n, p)
	v.routes = append(v.routes, r)
	there := v.section(n, p, []field{
		{"name", v.text(&r.Name)},
		{"listeners", v.texts(&r.Listeners)},
		{"hosts", list(v.decoder, &r.Hosts, v.host)},
		{"paths", list(v.decoder, &r.Paths, v.path)},
		{"tls_policy", v.text(&r.TLSPolicy)},
		{"tls", choice(v.decoder, &r.TLS, TLSTerminate, TLSPassthrough)},
		{"alpn", list(v.decoder, &r.ALPN, v.protocolName)},
		{"first_bytes", choice(v.decoder, &r.FirstBytes, "ssh")},
		{"backend", v.text(&r.Backend)},
		{"redirect", v.redirect(r)},
		{"hsts", v.hsts(r)},
		{"max_body", v.size(&r.MaxBody, 1, 1<<40)},
		{"max_lifetime", v.duration(&r.MaxLifetime, time.Second, 365*day)},
		{"tunnel_idle", v.duration(&r.TunnelIdle, time.Second, 30*day)},
	}...)
	v.require(there, n, p, "listeners", "[web]")
	if !there["redirect"] {
		v.require(there, n, p, "backend", `app, or redirect: https`)
	}
	if combinations := max(1, len(r.Listeners)) * max(1, len(r.Hosts)) * max(1, len(r.Paths)); combinations > maxCombinations {
		v.fail(n, p, "has more than %d combinations of listener, host and path; split it", maxCombinations)
		r.Listeners = nil
	}
}

// maxCombinations limits the product of listeners, hosts and paths of one route.
const maxCombinations = 100_000

func (d *decoder) host(dst *string) setter {
	return parsed(d, dst, "a host", parseHost)
}

func (d *decoder) path(dst *Path) setter {
	return parsed(d, dst, "a path that begins with a slash", parsePath)
}

// parsePath refuses paths that can never match: weir answers 400 to dot segments and
// backslashes, and a request target contains neither spaces nor bytes beyond ASCII.
func parsePath(s string) (Path, error) {
	value, exact := strings.CutPrefix(s, "=")
	lower := strings.ToLower(value)
	switch {
	case !strings.HasPrefix(value, "/"):
		return Path{}, fmt.Errorf(`does not begin with a slash; write a prefix such as "/api" or an exact path such as "=/status"`)
	case strings.ContainsAny(value, "?#"):
		return Path{}, fmt.Errorf("has a query or fragment, which routes ignore; write only the path")
	case strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > 0x7e }):
		return Path{}, fmt.Errorf("has spaces or is not ASCII; percent-encode it, with %%20 for a space")
	case strings.Contains(value, `\`) || strings.Contains(lower, "%5c"):
		return Path{}, fmt.Errorf("has a backslash, and weir refuses every request with one; remove it")
	}
	for segment := range strings.SplitSeq(strings.ReplaceAll(lower, "%2e", "."), "/") {
		if segment == "." || segment == ".." {
			return Path{}, fmt.Errorf("has a dot segment, and weir refuses every request with one; write the path without it")
		}
	}
	return Path{Exact: exact, Value: value}, nil
}

func (p Path) String() string {
	switch {
	case p.Exact:
		return "=" + p.Value
	case p.Begins:
		return p.Value + "..."
	}
	return p.Value
}
