package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
)

// pathOf is the path of an Ingress as weir matches it. Prefix goes by elements
// between slashes, and a slash at its end means nothing, as the documentation
// of Ingress has it. ImplementationSpecific is Prefix. patterns says that the
// Ingress asks ingress-nginx to take all its paths for regular expressions.
func pathOf(p *networkingv1.HTTPIngressPath, patterns bool) (config.Path, error) {
	kind, text := typeOf(p), p.Path
	if patterns && (strings.ContainsAny(text, "?+(") || kind != networkingv1.PathTypeImplementationSpecific && looksLikeRegexp(text)) { // nothing of it is text there
		return config.Path{}, pattern{"is a regular expression by this Ingress's annotations, and weir matches paths by their text; write prefixes, or exact paths, in its place"}
	}
	switch kind {
	case networkingv1.PathTypeExact:
		if !strings.HasPrefix(text, "/") {
			return config.Path{}, errors.New("does not begin with a slash; write one such as /status")
		}
		return config.ParsePath("=" + text)
	case networkingv1.PathTypePrefix:
	case networkingv1.PathTypeImplementationSpecific:
		if text == "" {
			text = "/"
		}
		if looksLikeRegexp(text) {
			return config.Path{}, pattern{"looks like a regular expression, and weir matches paths by their text; write pathType: Prefix or Exact if it is text, or prefixes in its place"}
		}
	default:
		return config.Path{}, fmt.Errorf("has the pathType %q, which weir does not know; write Exact or Prefix", kind)
	}
	if !strings.HasPrefix(text, "/") {
		return config.Path{}, errors.New("does not begin with a slash; write one such as /api")
	}
	if len(text) > 1 {
		text = strings.TrimSuffix(text, "/")
	}
	return config.ParsePath(text)
}

// pattern says that a path is a regular expression.
type pattern struct{ why string }

func (p pattern) Error() string { return p.why }

func typeOf(p *networkingv1.HTTPIngressPath) networkingv1.PathType {
	if p.PathType == nil {
		return networkingv1.PathTypeImplementationSpecific
	}
	return *p.PathType
}

// asksForPatterns says whether ingress-nginx takes the Ingress's paths for
// regular expressions, whatever their type: one that rewrites does.
func asksForPatterns(i *networkingv1.Ingress) bool {
	is, _ := strconv.ParseBool(strings.TrimSpace(i.Annotations[nginxPrefix+"use-regex"]))
	return is || i.Annotations[nginxPrefix+"rewrite-target"] != ""
}

// beginnings are what all paths begin with that the expression matches, as far as
// it is plain text, and every path where it is not. They are what has to be
// closed where whoever wrote the expression keeps clients out.
func beginnings(expression string) (all []config.Path) {
	if hasChoice(expression) {
		return []config.Path{everyPath}
	}
	text, rest := plain(expression)
	for _, one := range alternatives(rest) {
		path := beginning(text + one)
		same := slices.IndexFunc(all, func(p config.Path) bool { return p.Value == path.Value })
		if same < 0 {
			all = append(all, path)
		} else {
			all[same].Begins = all[same].Begins || path.Begins
		}
	}
	return all
}

// alternatives are what the expression is for each choice of the group that it
// begins with, such as (a|b).
func alternatives(expression string) (all []string) {
	group, rest, ok := strings.Cut(strings.TrimPrefix(expression, "("), ")")
	if !ok || expression[0] != '(' || strings.Contains(group, "(") || strings.HasPrefix(expression, "(/|$)") || strings.Count(group, "|") > maxPatterns || rest != "" && strings.ContainsRune("*?{", rune(rest[0])) {
		return []string{expression}
	}
	for _, choice := range strings.Split(group, "|") {
		all = append(all, choice+rest)
	}
	return all
}

// beginning is that of an expression without such a group.
func beginning(expression string) config.Path {
	text, rest := plain(expression)
	if rest != "" && text != "" && strings.ContainsRune("*?{", rune(rest[0])) {
		text = text[:len(text)-1] // there may be none of that
	}
	path, err := config.ParsePath(cmp.Or(strings.TrimRight(text, "/"), "/"))
	if err != nil {
		return everyPath
	}
	path.Begins = rest != "$" && !strings.HasPrefix(rest, "(/|$)") && !strings.HasSuffix(text, "/")
	return path
}

// plain is how far an expression is text.
func plain(expression string) (text, rest string) {
	end := 0
	for end < len(expression) && isPlain(expression[end:]) {
		end++
	}
	return expression[:end], expression[end:]
}

// quoted is what has a parenthesis or bar that is text.
var quoted = regexp.MustCompile(`\\.|\[[^]]*\]`)

// hasChoice says whether the expression as a whole is one of several.
func hasChoice(expression string) bool {
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

// isPlain says whether an expression begins with a character that stands for
// itself. A dot nearly always does where nothing repeats it.
func isPlain(expression string) bool {
	c := expression[0]
	if c == '.' {
		return len(expression) == 1 || !strings.ContainsRune("*+?{", rune(expression[1]))
	}
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("/-_~", rune(c))
}

// escaped is the path as requests for it have it: whoever is kept out of /café
// does not get in because weir cannot have it in that spelling.
func escaped(p *networkingv1.HTTPIngressPath) *networkingv1.HTTPIngressPath {
	wire := *p
	wire.Path = (&url.URL{Path: p.Path}).EscapedPath()
	return &wire
}

// looksLikeRegexp says whether whoever wrote the path meant an expression, as
// ingress-nginx takes them. Parentheses and a dollar alone may be text.
func looksLikeRegexp(s string) bool {
	return strings.ContainsAny(s, `^|*[]{}\`) || strings.HasSuffix(s, "$") || strings.Contains(s, ".+") || strings.Contains(s, "(.")
}
