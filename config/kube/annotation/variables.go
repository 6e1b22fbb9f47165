package annotation

import (
	"fmt"
	"strings"
)

// MaxVariables is the maximum number of variables in a text of an annotation. Tenants write these texts, and a variable may
// be as large as the head of a request. Without a limit, one request could need gigabytes.
const MaxVariables = 32

// nginxText converts a text with variables of nginx to a config.Template. known has constants of
// the Ingress by their names. The error names what weir does not support.
func nginxText(text string, known map[string]string) (string, error) {
	if tooMany(text) {
		return "", fmt.Errorf("more than %d variables", MaxVariables)
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(literal(before))
		if !found {
			return b.String(), nil
		}
		name := rest[:len(rest)-len(strings.TrimLeft(rest, variableChars))]
		text = rest[len(name):]
		if inBraces, after, closed := strings.Cut(strings.TrimPrefix(rest, "{"), "}"); strings.HasPrefix(rest, "{") && closed {
			name, text = inBraces, after
		}
		if name == "" || strings.Trim(name, variableChars) != "" {
			return "", fmt.Errorf("a dollar sign without the name of a variable")
		}
		value, ok := variableOf(strings.ToLower(name), known)
		if !ok {
			return "", fmt.Errorf("the variable $%s", name)
		}
		b.WriteString(value)
	}
}

const variableChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

// literal is text of a template that means itself.
func literal(text string) string { return strings.ReplaceAll(text, "{", "{{") }

// variableOf is the variable of weir for one of nginx, in braces.
func variableOf(name string, known map[string]string) (string, bool) {
	if value, ok := known[name]; ok {
		return literal(value), true
	}
	if v, ok := sameVariables[name]; ok {
		return v, true
	}
	if header, ok := strings.CutPrefix(name, "http_"); ok && header != "" {
		return "{header." + strings.ReplaceAll(header, "_", "-") + "}", true
	}
	if cookie, ok := strings.CutPrefix(name, "cookie_"); ok && cookie != "" {
		return "{cookie." + cookie + "}", true
	}
	if param, ok := strings.CutPrefix(name, "arg_"); ok && param != "" {
		return "{param." + param + "}", true
	}
	return "", false
}

// sameVariables are the variables of nginx, and of ingress-nginx, that weir has.
var sameVariables = map[string]string{
	"host": "{host}", "http_host": "{authority}", "best_http_host": "{authority}",
	"request_uri": "{uri}", "escaped_request_uri": "{uri_encoded}", "args": "{query}", "query_string": "{query}",
	"scheme": "{scheme}", "pass_access_scheme": "{scheme}", "request_method": "{method}",
	"remote_addr": "{client}", "remote_user": "{user}", "req_id": "{request_id}", "request_id": "{request_id}",
	"literal_dollar": "$",
}

// constants are the variables of nginx that have the same value for all requests of the Ingress.
func (c context) constants() map[string]string {
	return map[string]string{"namespace": c.namespace, "ingress_name": c.name}
}
