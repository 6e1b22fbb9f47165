package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirproxy/weir/proxy/expression"
	"github.com/weirproxy/weir/proxy/message"
)

// Match is the conditions of a route besides its hosts and paths. A request must fulfil all
// of them. An empty field is no condition.
type Match struct {
	Methods []string // the method of the request is one of them
	// Headers, Query and Cookies are in the order of their names. Of several HTTP headers,
	// query parameters or cookies of the name, the first one counts.
	Headers, Query, Cookies []Condition
	Clients                 []netip.Prefix // the client address is in one of them
}

// Condition is a condition for an HTTP header, a query parameter or a cookie.
type Condition struct {
	Name  string // of an HTTP header: as in the file
	Kind  ConditionKind
	Value string // empty with ConditionPresent
}

// ConditionKind is how the value of a condition is compared.
type ConditionKind uint8

// The kinds of conditions.
const (
	ConditionEqual   ConditionKind = iota // the whole value is equal; case matters
	ConditionLike                         // a regular expression (RE2) matches the whole value
	ConditionPresent                      // there is a value; it may be empty
)

// matchKey is a mapping of conditions.
func (r *Route) matchKey() value {
	return optional(&r.Match, func() *Match { return &Match{} }, func(m *Match) section {
		return section{object: &r.Match, check: m.checkKeys, rules: matchRules, keys: m.keys()}
	})
}

func (m *Match) keys() []key {
	return []key{
		{"methods", list(&m.Methods, matchedMethod.at), "The request has one of these methods. Case matters."},
		{"headers", headerConditions(&m.Headers), "The first HTTP header of each name has the value. The case of names does not matter. \"*\" means that the header is there, \"~\" begins an expression (RE2) for the whole value, and any other text has to be equal."},
		{"query", conditions(&m.Query, "a query parameter", ""), "The first query parameter of each name has the value, after decoding. Values have the syntax of headers."},
		{"cookies", conditions(&m.Cookies, "a cookie", token), "The first cookie of each name has the value. Values have the syntax of headers."},
		{"clients", list(&m.Clients, prefix.at), "The client address is in one of these networks."},
	}
}

func (m *Match) checkKeys(v *draft, there keySet, n *Tree, p path) {
	if len(there) == 0 && n.Shape == ShapeMapping && len(n.Parts) == 0 {
		v.fail(n, p, "has no conditions; give one, such as {methods: [POST]}, or take the key out")
	}
}

// canonical returns a text that is equal for matches with equal conditions. m may be nil.
func (m *Match) canonical() string {
	if m == nil {
		return ""
	}
	c := Match{Methods: slices.Sorted(slices.Values(m.Methods)), Query: m.Query, Cookies: m.Cookies,
		Clients: slices.SortedFunc(slices.Values(m.Clients), netip.Prefix.Compare)}
	for _, h := range m.Headers {
		c.Headers = append(c.Headers, Condition{strings.ToLower(h.Name), h.Kind, h.Value})
	}
	return string(section{keys: c.keys()}.print(&shower{}).appendTo(nil))
}

// label names the conditions in a default name, without their values. m may be nil.
func (m *Match) label() string {
	if m == nil {
		return ""
	}
	parts := slices.Clone(m.Methods)
	for _, all := range [][]Condition{m.Headers, m.Query, m.Cookies} {
		for _, c := range all {
			parts = append(parts, c.Name)
		}
	}
	if len(m.Clients) > 0 {
		parts = append(parts, "clients")
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// token is a pattern of the names that RFC 9110 allows for methods, headers and cookies.
const token = "[!#$%&'*+.^_`|~0-9A-Za-z-]+"

// method is a method of HTTP.
var method = kind[string]{what: "a method such as GET", format: same[string], pattern: token, parse: func(s string) (string, error) {
	upper := strings.ToUpper(s)
	switch {
	case !message.ValidToken([]byte(s)):
		return "", fmt.Errorf("is not a method; write one such as GET")
	case s != upper && slices.Contains(usualMethods, upper):
		return "", fmt.Errorf("is in lower case, and the case of methods matters; write %s", upper)
	}
	return s, nil
}}

// matchedMethod is a method that a request may have when weir chooses its route.
var matchedMethod = kind[string]{what: method.what, format: method.format, pattern: strings.Replace(token, "*", "", 1), parse: func(s string) (string, error) {
	switch {
	case strings.Contains(s, "*"):
		return "", fmt.Errorf("is no method, and a star stands for nothing here; list the methods, or take the key out for every method")
	case s == "CONNECT" || s == "TRACE":
		return "", fmt.Errorf("is a method that weir refuses in every request; take it out")
	}
	return method.parse(s)
}}

var usualMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}

// conditionValue is the value of a condition. The name stays empty.
var conditionValue = kind[Condition]{what: `a value, "*" or "~" and an expression`, parse: parseCondition, format: Condition.text}

func parseCondition(s string) (c Condition, err error) {
	text, isExpression := strings.CutPrefix(s, "~")
	switch {
	case s == "*":
		return Condition{Kind: ConditionPresent}, nil
	case !isExpression:
		return Condition{Value: s}, nil
	}
	if _, _, err = expression.Compile(text, expression.Whole); err != nil {
		return c, fmt.Errorf("cannot be compared: %w", err)
	}
	return Condition{Kind: ConditionLike, Value: text}, nil
}

// text returns the value as a file has it.
func (c Condition) text() string {
	switch {
	case c.Kind == ConditionPresent:
		return "*"
	case c.Kind == ConditionLike:
		return "~" + c.Value
	}
	return c.Value
}

// headerConditions are conditions for HTTP headers. The case of names does not matter.
func headerConditions(dst *[]Condition) value {
	x := conditions(dst, "an HTTP header", token)
	all := x.read
	x.read = func(v *draft, n *Tree, p path) {
		all(v, n, p)
		for i, c := range *dst {
			same := func(other Condition) bool { return strings.EqualFold(other.Name, c.Name) }
			switch {
			case strings.EqualFold(c.Name, "Host"):
				v.fail(n, p, "Host is compared by the key hosts of a route; take it out here")
			case message.Lookup([]byte(c.Name)).IsHopByHop() && !strings.EqualFold(c.Name, "Upgrade"):
				v.fail(n, p, "%s is about one connection, and weir removes it before it chooses a route; take it out", c.Name)
			case slices.ContainsFunc((*dst)[:i], same):
				v.fail(n, p, "has the HTTP header %s twice, in different case; keep one", c.Name)
			}
		}
	}
	return x
}

// checkMatch reports conditions for headers that no request has when weir chooses its route.
func (v *draft) checkMatch(r *Route, asserted *message.Names) {
	if r.Match == nil {
		return
	}
	for _, c := range r.Match.Headers {
		if asserted.HasAlike([]byte(c.Name)) {
			v.failAt(v.places[&r.Match.Headers], "%s is set by an entry of auth, and weir removes it from all requests before it chooses a route, so none fulfils the condition; take it out", c.Name)
		}
	}
}

// conditions is the value of a key with a mapping of names to values that a request must
// have. what names one of them. pattern matches all valid names; empty: any text is valid.
// The order has no meaning, so the names are in alphabetical order.
func conditions(dst *[]Condition, what, pattern string) value {
	return value{
		read:  func(v *draft, n *Tree, p path) { v.readConditions(dst, what, pattern, n, p) },
		print: func(s *shower) *Tree { return printConditions(*dst).unlessEmpty() },
		schema: func() *schema {
			all := &schema{Type: "object", MinProperties: 1, AdditionalProperties: conditionValue.at(new(Condition)).schema()}
			all.PropertyNames = &schema{Pattern: "."}
			if pattern != "" {
				all.PropertyNames = &schema{Pattern: "^" + pattern + "$"}
			}
			return all
		},
	}
}

func (v *draft) readConditions(dst *[]Condition, what, pattern string, n *Tree, p path) {
	v.mark(dst, n, p)
	if n.Shape == ShapeMapping && len(n.Parts) == 0 {
		v.fail(n, p, "is empty; give it an entry, or take the key out")
	}
	v.mapping(n, p, func(name, value *Tree) {
		at := p.name(name.Text)
		switch {
		case name.Text == "" || pattern != "" && !message.ValidToken([]byte(name.Text)):
			v.fail(name, p, "%q is not the name of %s; write the name without spaces and colons", shorten(name.Text), what)
		case isNull(value):
			v.fail(name, at, `has no value; write "*" for any value`)
		case !value.Broken:
			c := new(Condition)
			conditionValue.read(v, c, value, at)
			if *c != (Condition{}) {
				c.Name = name.Text
				*dst = append(*dst, *c)
			}
		}
	})
	slices.SortFunc(*dst, func(a, b Condition) int { return strings.Compare(a.Name, b.Name) })
}

func printConditions(all []Condition) *Tree {
	n := &Tree{Shape: ShapeMapping}
	for _, c := range all {
		n.put(c.Name, textTree(c.text()))
	}
	return n
}
