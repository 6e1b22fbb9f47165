package kube

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// pathOf is the path of an Ingress as weir matches it. Prefix compares path elements, and
// a slash at its end has no meaning, as the documentation of Ingress says.
// ImplementationSpecific is Prefix. patterns reports whether ingress-nginx would treat
// all paths of the Ingress as regular expressions.
func pathOf(p *networkingv1.HTTPIngressPath, patterns bool) (config.Path, error) {
	kind, text := typeOf(p), p.Path
	if patterns && (strings.ContainsAny(text, "?+(") || kind != networkingv1.PathTypeImplementationSpecific && looksLikeRegexp(text)) { // ingress-nginx would match it as a regular expression
		return config.Path{}, pattern{"is a regular expression, because the Ingress has use-regex or rewrite-target, but weir supports only prefixes and exact paths; use these instead"}
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
			return config.Path{}, pattern{"looks like a regular expression, but weir supports only prefixes and exact paths; use these instead, or set pathType to Prefix or Exact if it is plain text"}
		}
	default:
		return config.Path{}, fmt.Errorf("has the unknown pathType %q; write Exact or Prefix", kind)
	}
	if !strings.HasPrefix(text, "/") {
		return config.Path{}, errors.New("does not begin with a slash; write one such as /api")
	}
	if len(text) > 1 {
		text = strings.TrimSuffix(text, "/")
	}
	return config.ParsePath(text)
}

// pattern is the error of a path that is a regular expression.
type pattern struct{ why string }

func (p pattern) Error() string { return p.why }

func typeOf(p *networkingv1.HTTPIngressPath) networkingv1.PathType {
	if p.PathType == nil {
		return networkingv1.PathTypeImplementationSpecific
	}
	return *p.PathType
}

// asksForPatterns reports whether ingress-nginx treats the paths of the Ingress as
// regular expressions, whatever their type. It also does so with rewrite-target.
func asksForPatterns(i *networkingv1.Ingress) bool {
	is, _ := strconv.ParseBool(strings.TrimSpace(i.Annotations[annotation.Nginx+"use-regex"]))
	return is || i.Annotations[annotation.Nginx+"rewrite-target"] != ""
}

// beginnings are the literal prefixes of all paths that the expression matches, or
// every path if it has none. weir closes them if the expression cannot be matched.
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

// maxChoices is the maximum number of choices of an expression that weir closes separately.
const maxChoices = 100

// alternatives are the expressions for each choice of a group at the beginning, such
// as (a|b).
func alternatives(expression string) (all []string) {
	group, rest, ok := strings.Cut(strings.TrimPrefix(expression, "("), ")")
	if !ok || expression[0] != '(' || strings.Contains(group, "(") || strings.HasPrefix(expression, "(/|$)") || strings.Count(group, "|") > maxChoices || rest != "" && strings.ContainsRune("*?{", rune(rest[0])) {
		return []string{expression}
	}
	for _, choice := range strings.Split(group, "|") {
		all = append(all, choice+rest)
	}
	return all
}

// beginning is the literal prefix of an expression without such a group.
func beginning(expression string) config.Path {
	text, rest := plain(expression)
	if rest != "" && text != "" && strings.ContainsRune("*?{", rune(rest[0])) {
		text = text[:len(text)-1] // the last character is optional
	}
	path, err := config.ParsePath(cmp.Or(text, "/"))
	if err != nil {
		return everyPath
	}
	path.Begins = rest != "$" && !strings.HasPrefix(rest, "(/|$)") && !strings.HasSuffix(text, "/")
	return path
}

// plain splits an expression into its literal prefix and the rest.
func plain(expression string) (text, rest string) {
	end := 0
	for end < len(expression) && isPlain(expression[end:]) {
		end++
	}
	return expression[:end], expression[end:]
}

// quoted matches escapes and character classes, in which a parenthesis or bar is text.
var quoted = regexp.MustCompile(`\\.|\[[^]]*\]`)

// hasChoice reports whether the expression has alternatives outside of groups.
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

// isPlain reports whether an expression begins with a literal character. A dot without
// repetition nearly always means a dot.
func isPlain(expression string) bool {
	c := expression[0]
	if c == '.' {
		return len(expression) == 1 || !strings.ContainsRune("*+?{", rune(expression[1]))
	}
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("/-_~", rune(c))
}

// escaped is the path as it is in requests. So a closed path such as /café stays
// closed, although weir cannot match that spelling.
func escaped(p *networkingv1.HTTPIngressPath) *networkingv1.HTTPIngressPath {
	wire := *p
	var b strings.Builder
	for _, c := range []byte(p.Path) {
		if c <= ' ' || c > 0x7e {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	wire.Path = b.String()
	return &wire
}

// looksLikeRegexp reports whether the path is probably meant as a regular expression of
// ingress-nginx. Parentheses alone, or a dollar that is not at the end, may be text.
func looksLikeRegexp(s string) bool {
	return strings.ContainsAny(s, `^|*[]{}\`) || strings.HasSuffix(s, "$") || strings.Contains(s, ".+") || strings.Contains(s, "(.")
}
