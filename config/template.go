package config

import (
	"fmt"
	"slices"
	"strings"
)

// Template is a text with variables in braces, such as "{scheme}://{host}". Two opening braces
// are one literal brace.
type Template string

// Variable is the name of a value of a request, as a Template has it in braces.
type Variable string

// The variables.
const (
	VariableClient    Variable = "client"     // the client's address, without the port
	VariableScheme    Variable = "scheme"     // http or https
	VariableHost      Variable = "host"       // in lower case, without the port
	VariableURI       Variable = "uri"        // path and query, as the client sent them
	VariablePath      Variable = "path"       // without the query
	VariableQuery     Variable = "query"      // without the question mark
	VariableMethod    Variable = "method"     // GET
	VariableRequestID Variable = "request_id" // the value of X-Request-Id
)

// Variables that only objects of a cluster use: nginx has them.
const (
	VariableAuthority  Variable = "authority"   // the Host of the request, as the client sent it
	VariableURIEncoded Variable = "uri_encoded" // uri, with each byte percent-encoded that is not unreserved
	VariableUser       Variable = "user"        // of the Authorization of the request (Basic)

	// The prefixes of variables with the name of a header, a cookie or a query parameter.
	VariableHeader = "header."
	VariableCookie = "cookie."
	VariableParam  = "param."
)

var variables = []Variable{VariableClient, VariableScheme, VariableHost, VariableURI, VariablePath, VariableQuery, VariableMethod, VariableRequestID}

// TemplatePart is a variable, or else literal text.
type TemplatePart struct {
	Text     string
	Variable Variable // empty: Text counts
	// Group is the number of a group of the expression that the route's path matched, 1 to 9;
	// 0: none, and Text or Variable counts. Only PathParts returns such parts.
	Group int
}

// Parts returns the parts of t in order. t has been read from a file, or was made from an object, so
// it is valid.
func (t Template) Parts() []TemplatePart {
	parts, _ := splitTemplate(string(t), func(Variable) bool { return true })
	return parts
}

// parseTemplate splits a text of a file into its literal parts and its variables.
func parseTemplate(s string) (parts []TemplatePart, err error) {
	return splitTemplate(s, func(v Variable) bool { return slices.Contains(variables, v) })
}

func splitTemplate(s string, known func(Variable) bool) (parts []TemplatePart, err error) {
	literal := ""
	end := func() {
		if literal != "" {
			parts = append(parts, TemplatePart{Text: literal})
		}
		literal = ""
	}
	for {
		before, after, found := strings.Cut(s, "{")
		literal += before
		if !found {
			end()
			return parts, nil
		}
		if rest, double := strings.CutPrefix(after, "{"); double {
			literal, s = literal+"{", rest
			continue
		}
		name, rest, closed := strings.Cut(after, "}")
		if !closed {
			return nil, fmt.Errorf(`has a "{" without its "}"; write a variable such as {host}, or {{ for a brace`)
		}
		if !known(Variable(name)) {
			return nil, unknownVariable(name)
		}
		end()
		parts, s = append(parts, TemplatePart{Variable: Variable(name)}), rest
	}
}

func unknownVariable(name string) error {
	words := make([]string, len(variables))
	for i, v := range variables {
		words[i] = string(v)
	}
	if near := nearest(name, words); near != "" {
		return fmt.Errorf("has the variable {%s}, which weir does not know; did you mean {%s}?", shorten(name), near)
	}
	return fmt.Errorf("has the variable {%s}, which weir does not know; write one of {%s}, or {{ for a brace", shorten(name), strings.Join(words, "}, {"))
}

// templatePattern matches every valid template, but also texts with spaces at their ends.
var templatePattern = func() string {
	names := make([]string, len(variables))
	for i, v := range variables {
		names[i] = string(v)
	}
	return `([^{\x00-\x1F\x7F]|\{\{|\{(` + strings.Join(names, "|") + `)\})+`
}()

// headerTemplate is the value of an HTTP header. HTTP has no values that begin or end with a
// space (RFC 9110, section 5.5).
var headerTemplate = kind[Template]{what: "the value of an HTTP header, with variables such as {host}", format: same[Template], pattern: templatePattern,
	parse: func(s string) (Template, error) {
		if strings.TrimSpace(s) != s {
			return "", fmt.Errorf("begins or ends with a space, which HTTP headers lose; take it out")
		}
		_, err := parseTemplate(s)
		return Template(s), err
	}}
