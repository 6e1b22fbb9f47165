package annotation

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/proxy/expression"
)

// rewrites is the family of regular expressions in paths, and of new paths.
var rewrites = map[string]judge{
	"use-regex":      looking(useRegex),
	"rewrite-target": setting(rewriteTarget),
}

// Rewrite is the new path of requests for the endpoint.
type Rewrite struct {
	// Path is the new path, with $1 to $9 for the groups of the path in the Ingress. Empty:
	// requests keep their path, as they do if the path in the Ingress is equal to this.
	Path string
	// Scheme is http or https if requests are redirected to Path of Host and Port instead; empty:
	// they are not.
	Scheme, Host string
	Port         int // 0: the default
}

const (
	badTarget      = "ingress-nginx ignores this value, and so does weir: requests keep their path; write a path of letters, digits and - . _ ~ / :, with $1 to $9 for the groups of the path"
	targetURL      = "weir redirects by this annotation only to a fixed host, so requests keep their path; write one such as https://www.example.org/$1, or a URL under nginx.ingress.kubernetes.io/temporal-redirect"
	targetVariable = "weir knows $1 to $9 here, and no other variable of nginx, so requests keep their path; write the new path without the variable"
	targetStart    = "the new path does not begin with one slash or with a group, so requests keep their path; write one such as /$1"
	badPattern     = "weir cannot compare a path of this Ingress, because it is no regular expression of RE2 (which has no lookaround, back reference or possessive repetition), or a long one; an event names it and says what to write. Requests below its literal beginning answer 503; of what a lookahead excludes, a longer path of an Ingress may be served, because longer paths go first"
)

// UsesPatterns reports whether ingress-nginx treats the paths of the Ingress as regular
// expressions, whatever their type, and with them all paths of their hosts.
func UsesPatterns(i *networkingv1.Ingress) bool {
	if isTrue(strings.TrimSpace(i.Annotations[Nginx+"use-regex"])) {
		return true
	}
	target := strings.TrimSpace(i.Annotations[Nginx+"rewrite-target"])
	if target == "" || !validTarget.MatchString(target) {
		return false
	}
	return slices.ContainsFunc(i.Spec.Rules, func(r networkingv1.IngressRule) bool {
		return r.HTTP != nil && slices.ContainsFunc(r.HTTP.Paths, func(p networkingv1.HTTPIngressPath) bool { return p.Path != target })
	})
}

// CompilePattern checks a path that is a regular expression of ingress-nginx. Each path that it
// matches begins with one of the beginnings, which are in lower case. Most paths are plain text,
// for which it compiles nothing.
func CompilePattern(path string) (beginnings []string, err error) {
	plain := !strings.ContainsFunc(path, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '/' || r == '-' || r == '_')
	})
	if plain && len(path) <= expression.MaxText/2 {
		return []string{strings.ToLower(path)}, nil
	}
	return expression.Beginnings(path)
}

// useRegex rates use-regex.
func useRegex(value string, c context) (Rating, string) {
	if isTrue(value) && c.paths == unreadable {
		return No, badPattern
	}
	return Exact, ""
}

// validTarget matches the values that ingress-nginx accepts.
var validTarget = regexp.MustCompile(`^/?[-._~a-zA-Z0-9/:$]*$`)

// group matches what weir knows of the variables of nginx.
var group = regexp.MustCompile(`\$[1-9]`)

// rewriteTarget reads rewrite-target.
func rewriteTarget(value string, _ context, s *Settings) (Rating, string) {
	switch {
	case value == "":
		return Exact, ""
	case !validTarget.MatchString(value):
		return No, badTarget
	case strings.HasPrefix(value, "http://"), strings.HasPrefix(value, "https://"), strings.HasPrefix(value, "$scheme"):
		return rewriteURL(value, s) // nginx redirects
	case strings.Contains(group.ReplaceAllString(value, ""), "$"):
		return No, targetVariable
	case value[0] != '/' && value[0] != '$', strings.HasPrefix(value, "//"):
		return No, targetStart
	}
	s.Rewrite.Path = value
	return Exact, ""
}

// rewriteURL reads a rewrite-target that is a URL.
func rewriteURL(value string, s *Settings) (Rating, string) {
	scheme, rest, _ := strings.Cut(value, "://")
	host, path := rest, ""
	if end := strings.IndexAny(rest, "/$"); end >= 0 {
		host, path = rest[:end], rest[end:]
	}
	u, err := url.Parse(scheme + "://" + host)
	if err != nil || !hostAndPort.MatchString(host) {
		return No, targetURL
	}
	switch {
	case strings.Contains(group.ReplaceAllString(path, ""), "$"):
		return No, targetVariable
	case strings.HasPrefix(path, "//"):
		return No, targetURL
	case !strings.HasPrefix(path, "/"):
		path = "/" + path // a group cannot become a part of the host
	}
	port, _ := strconv.Atoi(u.Port()) // checked by url.Parse
	if port > 65535 {
		return No, targetURL
	}
	s.Rewrite = Rewrite{Path: path, Scheme: scheme, Host: u.Hostname(), Port: port}
	return Exact, ""
}

// quoted matches escapes and character classes, in which a parenthesis or bar is text.
var quoted = regexp.MustCompile(`\\.|\[[^]]*\]`)

// HasChoice reports whether an expression has alternatives outside of groups. ingress-nginx puts an
// anchor before the first of them alone.
func HasChoice(expression string) bool {
	depth := 0
	for _, r := range quoted.ReplaceAllString(expression, "") {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == '|' && depth == 0:
			return true
		}
	}
	return false
}
