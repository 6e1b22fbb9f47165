package config

import (
	"regexp"
	"strconv"
)

// Setting returns the value of a key of the route on one line, as the configuration file writes
// it, without secrets; "" if the route does not have the key. key is a path such as match.methods, or snippet: then
// the value is nginx configuration.
func (r *Route) Setting(key string) string {
	if key == "snippet" {
		return r.Script.describe()
	}
	t := r.section().at(key)
	if t.Shape == ShapeText && t.Text == "" {
		return "" // the route does not have the key
	}
	return string(t.appendFlow(nil))
}

// plainText matches texts that need no quotes within braces and brackets.
var plainText = regexp.MustCompile(`^([A-Za-z/=~][A-Za-z0-9_./*=+-]*|[0-9]+[A-Za-z][A-Za-z0-9]*|[0-9.]+/[0-9]+)$`)

// appendFlow appends t on one line.
func (t *Tree) appendFlow(b []byte) []byte {
	switch {
	case t.Shape == ShapeText && !plainText.MatchString(t.Text):
		return strconv.AppendQuote(b, t.Text)
	case t.isScalar():
		return append(b, t.Text...)
	}
	ends := "{}"
	if t.Shape == ShapeList {
		ends = "[]"
	}
	b = append(b, ends[0])
	for i, p := range t.Parts {
		switch {
		case i == 0:
		case t.Shape == ShapeMapping && i%2 == 1:
			b = append(b, ": "...)
		default:
			b = append(b, ", "...)
		}
		b = p.appendFlow(b)
	}
	return append(b, ends[1])
}
