package filter

import (
	"reflect"
	"strings"
)

// Named is a filter whose key in a route differs from the name of its type.
type Named interface {
	// FilterName returns the key, such as redirect.
	FilterName() string
}

// Names returns the keys of the filters in a route of the configuration, in their order of
// effect.
func (c *Chain) Names() []string {
	if c == nil {
		return nil
	}
	return c.names
}

// keyOf returns the key of a filter: the name that it gives, or that of its type.
func keyOf(f any) string {
	switch f := f.(type) {
	case Named:
		return f.FilterName()
	case Guard:
		return f.GuardName()
	}
	t := reflect.TypeOf(f)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var key strings.Builder
	for i, c := range t.Name() {
		if 'A' <= c && c <= 'Z' {
			if i > 0 {
				key.WriteByte('_')
			}
			c += 'a' - 'A'
		}
		key.WriteRune(c)
	}
	return key.String()
}

func (m *move) FilterName() string          { return "redirect" }
func (e *requestEdits) FilterName() string  { return "request" }
func (e *responseEdits) FilterName() string { return "response" }
func (preflights) FilterName() string       { return "cors" }
