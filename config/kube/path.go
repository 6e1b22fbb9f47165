package kube

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// pathOf is the path of an Ingress as weir matches it. Prefix compares path elements, and
// a slash at its end has no meaning, as the documentation of Ingress says.
// ImplementationSpecific is Prefix. patterns reports whether the path is a regular expression,
// whatever its type, as in ingress-nginx. Each path that it matches begins with one of the
// beginnings, which are in lower case.
func pathOf(p *networkingv1.HTTPIngressPath, patterns bool) (path config.Path, beginnings []string, err error) {
	if patterns && isExpression(p) {
		if beginnings, err = annotation.CompilePattern(p.Path); err != nil {
			return config.Path{}, nil, pattern{"is a regular expression, because of use-regex or rewrite-target, and weir cannot compare it: " + err.Error()}
		}
		return config.Path{Expression: true, Decoded: true, Value: p.Path}, beginnings, nil
	}
	if patterns && p.Path == "/" {
		return everyPath, []string{"/"}, nil
	}
	path, err = textOf(p)
	return path, []string{strings.ToLower(path.Value)}, err
}

// isExpression reports whether a path of a host with regular expressions is one itself. Challenges
// are not, so that no expression takes their requests.
func isExpression(p *networkingv1.HTTPIngressPath) bool {
	switch typeOf(p) {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix, networkingv1.PathTypeImplementationSpecific:
		return len(p.Path) > 1 && p.Path[0] == '/' && !claim.IsChallenge(config.Path{Value: p.Path})
	}
	return false
}

// textOf is the path of an Ingress that is no regular expression.
func textOf(p *networkingv1.HTTPIngressPath) (config.Path, error) {
	kind, text := typeOf(p), p.Path
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
			return config.Path{}, pattern{"looks like a regular expression, but no Ingress of this namespace has use-regex or rewrite-target for the host; set nginx.ingress.kubernetes.io/use-regex: \"true\", or set pathType to Prefix or Exact if it is plain text"}
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

// beginnings are the literal prefixes of all paths that the expression matches, or
// every path if it has none. weir closes them if the expression cannot be matched.
func beginnings(expression string) (all []config.Path) {
	if annotation.HasChoice(expression) {
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
