package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/proxy/message"
)

// CORS is what pages of other origins may do with a route (the CORS protocol of the Fetch
// standard).
type CORS struct {
	// Origins have the form scheme://host:port, in lower case and without the default port. A host
	// that begins with "*." stands for one more label, "**." for one or more. "*" is every
	// origin.
	Origins []string
	// Methods, Headers and Expose are lists of names. "*" is every name, and then the only
	// element; not together with Credentials.
	Methods []string
	Headers []string // of requests
	Expose  []string // headers of responses that pages may read
	// Credentials: pages may send cookies and HTTP authentication, and read the responses.
	Credentials bool
	MaxAge      time.Duration // how long browsers keep the answer to a preflight; 0: their default
	// Echo means what the Gateway API demands: with Credentials a "*" is allowed, and weir answers
	// with the origin, the method and the headers that the request names. The answer to a preflight
	// has the headers in Expose, too. Only objects of a cluster have it.
	Echo bool
	// AsNginx means what ingress-nginx does: weir answers every OPTIONS of an allowed origin, and
	// sets its CORS headers in all responses to such an origin. CORS headers of the endpoint with
	// other names stay.
	// Origins may have null, and "*" also with Credentials. Only objects of a cluster set it.
	AsNginx bool
}

func (r *Route) corsKey() value {
	fresh := func() *CORS { return &CORS{Methods: []string{"GET", "HEAD", "POST"}} }
	return optional(&r.CORS, fresh, func(c *CORS) section {
		return section{object: &r.CORS, check: c.check, rules: corsRules, keys: []key{
			{"origins", list(&c.Origins, origin.at).required(`["https://app.example.org"]`), "The origins whose pages may use the route, such as https://app.example.org. \"https://*.example.org\" matches exactly one more label, \"https://**.example.org\" one or more. \"*\" is every origin."},
			{"methods", list(&c.Methods, method.at), "The methods that pages may use. Browsers allow GET, HEAD and POST in any case. \"*\" is every method."},
			{"headers", list(&c.Headers, corsName.at), "The HTTP headers that pages may send, besides those that browsers always allow. \"*\" is every header but Authorization."},
			{"expose", list(&c.Expose, corsName.at), "The HTTP headers of responses that pages may read, besides those that browsers always show. \"*\" is every header."},
			{"credentials", truth(&c.Credentials), "Whether pages may send cookies and HTTP authentication, and read the responses. Not with \"*\"."},
			{"max_age", duration(&c.MaxAge, 0, 24*time.Hour).shownIf(c.MaxAge != 0).byDefault("the browser's, 5s"), "How long browsers may remember the answer to a preflight, in whole seconds. Most browsers limit it to 2h."},
		}}
	})
}

// corsRules: browsers read "*" literally in responses to requests with credentials.
var corsRules = []*schema{when(is("credentials", true), withoutStar("origins"), withoutStar("methods"), withoutStar("headers"), withoutStar("expose"))}

func withoutStar(key string) *schema {
	return &schema{Not: contains(key, &schema{Const: "*"})}
}

func (c *CORS) check(v *draft, there keySet, n *Tree, p path) {
	for _, l := range []struct {
		name string
		all  *[]string
	}{{"origins", &c.Origins}, {"methods", &c.Methods}, {"headers", &c.Headers}, {"expose", &c.Expose}} {
		star := slices.Index(*l.all, "*")
		switch {
		case star < 0:
		case c.Credentials:
			v.failAt(v.places[l.all], `has "*", which browsers refuse together with credentials; list the %s, or take credentials out`, l.name)
		case len(*l.all) > 1:
			v.failAt(v.places[l.all], `has "*", which stands for all %s, and others; keep one of the two`, l.name)
		}
	}
	if c.MaxAge%time.Second != 0 {
		v.failAt(v.places[&c.MaxAge], "is sent in whole seconds; write a whole number of seconds")
	}
}

// corsName is the name of an HTTP header. A star is a token, too.
var corsName = kind[string]{what: "the name of an HTTP header", format: same[string], pattern: token, parse: func(s string) (string, error) {
	if !message.ValidToken([]byte(s)) || s != "*" && strings.Contains(s, "*") {
		return "", fmt.Errorf(`is not the name of an HTTP header; write one such as X-Token, or only "*" for all`)
	}
	return s, nil
}}

// origin is the origin of web pages as browsers write it (RFC 6454, section 6.2), with wildcards.
var origin = kind[string]{what: `an origin such as "https://app.example.org"`, format: same[string], pattern: `\*|[A-Za-z][A-Za-z0-9+.-]*://[^/?#@ ]+`, parse: parseOrigin}

func parseOrigin(s string) (string, error) {
	if s == "*" {
		return s, nil
	}
	s = strings.ToLower(s)
	scheme, authority, whole := strings.Cut(s, "://")
	switch {
	case s == "null":
		return "", fmt.Errorf("is the origin of sandboxed pages and local files, whoever wrote them; list origins with a host")
	case !whole || scheme == "" || strings.ContainsFunc(scheme, func(r rune) bool { return !message.ValidToken([]byte(string(r))) }):
		return "", fmt.Errorf("is not an origin; write a scheme and a host, such as https://app.example.org")
	case strings.ContainsAny(authority, "/?#@"):
		return "", fmt.Errorf("is more than an origin; write only the scheme, the host and perhaps a port")
	}
	wild, name := "", authority
	for _, star := range []string{"**.", "*."} {
		if rest, found := strings.CutPrefix(name, star); found {
			wild, name = star, rest
			break
		}
	}
	host, port, err := splitOrigin(name)
	switch {
	case err != nil:
		return "", err
	case wild != "" && isAddress(host):
		return "", fmt.Errorf("has a wildcard before an address; only names have labels")
	case port == "443" && scheme == "https" || port == "80" && scheme == "http":
		return scheme + "://" + wild + host, nil // browsers leave the default port out
	case port != "":
		return scheme + "://" + wild + host + ":" + port, nil
	}
	return scheme + "://" + wild + host, nil
}

// splitOrigin splits a host from its port, if it has one.
func splitOrigin(authority string) (host, port string, err error) {
	if _, err := parseHostField(authority); err != nil {
		return "", "", fmt.Errorf("has no valid host: %w", err)
	}
	if i := strings.LastIndexByte(authority, ':'); i > strings.LastIndexByte(authority, ']') {
		return authority[:i], authority[i+1:], nil
	}
	return authority, "", nil
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}
