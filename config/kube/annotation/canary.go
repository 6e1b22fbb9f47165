package annotation

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/proxy/expression"
)

// canaries is the family of canaries.
var canaries = map[string]judge{
	"canary":                   setting(isCanary),
	"canary-by-header":         setting(canaryHeader),
	"canary-by-header-value":   setting(canaryValue),
	"canary-by-header-pattern": setting(canaryPattern),
	"canary-by-cookie":         setting(canaryCookie),
	"canary-weight":            setting(canaryWeight),
	"canary-weight-total":      setting(canaryTotal),
}

// Canary is which requests of a main Ingress go to the Services of a canary. The rules are asked
// in the order of the fields.
type Canary struct {
	Is bool // the Ingress is a canary
	// Header is the name of an HTTP header; empty: no request is chosen by a header. A request is
	// chosen by the value Value, or else by a match of Pattern, or else by "always"; "never"
	// keeps it with the main Ingress.
	Header, Value, Pattern string
	Cookie                 string // the name of a cookie: "always" and "never" decide; empty: none
	Weight                 int    // of Total; 0: none
	Total                  int    // 0: 100
}

const (
	canaryNear    = "weir uses a canary for the paths of a main Ingress of its namespace that have the same host, path and pathType. ingress-nginx also uses it for the other paths of the same Service, and for Ingresses of other namespaces"
	badCanaryWord = "ingress-nginx ignores the value too; write letters, digits and - . _ ~ / :"
	noCanaryName  = "no request can have an HTTP header or a cookie of this name, so it chooses no request; write a name such as X-Canary"
	canaryRE2     = "weir cannot compare this expression, because it is not in the syntax of RE2, so requests with the HTTP header go to the main Ingress; write it in another way"
	badNumber     = "ingress-nginx ignores the value too; write a number"
)

var (
	basicWord = regexp.MustCompile(`^[-._~a-zA-Z0-9/:]*$`)
	// fieldName matches the names of headers and cookies among the values that ingress-nginx accepts.
	fieldName = regexp.MustCompile(`^[-._~a-zA-Z0-9]+$`)
)

func isCanary(value string, _ context, s *Settings) (Rating, string) {
	if s.Canary.Is = isTrue(value); s.Canary.Is {
		return Near, canaryNear
	}
	return Exact, ""
}

// canaryWord reads a word of ingress-nginx.
func canaryWord(value string, to *string, isName bool) (Rating, string) {
	switch {
	case !basicWord.MatchString(strings.ReplaceAll(value, " ", "")):
		return No, badCanaryWord
	case isName && value != "" && !fieldName.MatchString(value):
		return No, noCanaryName
	}
	*to = value
	return Exact, ""
}

func canaryHeader(value string, _ context, s *Settings) (Rating, string) {
	return canaryWord(value, &s.Canary.Header, true)
}

func canaryValue(value string, _ context, s *Settings) (Rating, string) {
	return canaryWord(value, &s.Canary.Value, false)
}

func canaryCookie(value string, _ context, s *Settings) (Rating, string) {
	return canaryWord(value, &s.Canary.Cookie, true)
}

// canaryPattern also keeps an expression that weir cannot compare: no request matches it, and no
// request with the header is chosen by other rules.
func canaryPattern(value string, _ context, s *Settings) (Rating, string) {
	if strings.ContainsAny(value, "\r\n") {
		return No, badCanaryWord
	}
	s.Canary.Pattern = value
	if _, _, err := expression.Compile(value, expression.Anywhere); err != nil {
		return No, canaryRE2
	}
	return Exact, ""
}

// maxWeight limits weights, as in the file.
const maxWeight = 1_000_000

func canaryWeight(value string, _ context, s *Settings) (Rating, string) {
	n, err := strconv.Atoi(value)
	if err != nil {
		return No, badNumber
	}
	s.Canary.Weight = min(max(n, 0), maxWeight)
	return Exact, ""
}

func canaryTotal(value string, _ context, s *Settings) (Rating, string) {
	n, err := strconv.Atoi(value)
	switch {
	case err != nil:
		return No, badNumber
	case n > maxWeight:
		return No, "weir's weights are at most 1000000, so it uses this total; write a smaller one"
	}
	s.Canary.Total = max(n, 100) // as ingress-nginx does
	return Exact, ""
}
