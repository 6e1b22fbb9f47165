package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Schema returns a JSON Schema (draft 2020-12) of the configuration, for editors. Every
// valid configuration is valid by the schema. The schema cannot express all conditions, so
// the reverse is not true: weir check decides.
func Schema() []byte {
	s := newRoot().section().schema()
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Description = "The configuration file of weir, a TCP, TLS and HTTP reverse proxy. weir check reports all errors in a file, also those that this schema cannot express."
	s.Defs = map[string]*schema{variable: {
		Comment: "${NAME} or ${NAME:-default}, a value from the environment. $$ is a $.",
		Type:    "string",
		Pattern: `^([^$]|` + plainDollar + `)*((\$\$|` + oneVariable + `)([^$]|` + plainDollar + `)*)+\$?$`,
	}}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil { // it has only plain values
		panic(fmt.Sprintf("encoding the schema: %v", err))
	}
	return b.Bytes()
}

// A KeyText is a key of the configuration, such as routes[].hosts, and what the schema says about it.
type KeyText struct{ Key, Text string }

// Reference returns all keys in the order of the schema.
func Reference() []KeyText {
	var all []KeyText
	known := map[string]bool{}
	newRoot().section().schema().reference("", func(key, text string) {
		if !known[key] {
			known[key] = true
			all = append(all, KeyText{key, text})
		}
	})
	return all
}

// reference calls tell for each key below the key at.
func (s *schema) reference(at string, tell func(key, text string)) {
	for _, p := range s.Properties {
		key := strings.TrimPrefix(at+"."+p.name, ".")
		tell(key, p.Description)
		p.reference(key, tell)
	}
	for _, other := range s.AnyOf {
		other.reference(at, tell)
	}
	if s.Items != nil {
		s.Items.reference(at+"[]", tell)
	}
	if named, is := s.AdditionalProperties.(*schema); is {
		named.reference(at+".NAME", tell)
	}
}

// A schema is a JSON Schema, with the keywords that weir uses.
type schema struct {
	Schema               string              `json:"$schema,omitempty"`
	Title                string              `json:"title,omitempty"`
	Description          string              `json:"description,omitempty"`
	Comment              string              `json:"$comment,omitempty"`
	Ref                  string              `json:"$ref,omitempty"`
	Type                 string              `json:"type,omitempty"`
	Default              any                 `json:"default,omitempty"`
	Enum                 []any               `json:"enum,omitempty"`
	Const                any                 `json:"const,omitempty"`
	Pattern              string              `json:"pattern,omitempty"`
	PatternErrorMessage  string              `json:"patternErrorMessage,omitempty"` // of editors, beside the standard
	DoNotSuggest         bool                `json:"doNotSuggest,omitempty"`        // the same
	Minimum              any                 `json:"minimum,omitempty"`
	Maximum              any                 `json:"maximum,omitempty"`
	MinItems             int                 `json:"minItems,omitempty"`
	MaxItems             int                 `json:"maxItems,omitempty"`
	UniqueItems          bool                `json:"uniqueItems,omitempty"`
	Items                *schema             `json:"items,omitempty"`
	Contains             *schema             `json:"contains,omitempty"`
	MinProperties        int                 `json:"minProperties,omitempty"`
	PropertyNames        *schema             `json:"propertyNames,omitempty"`
	Properties           properties          `json:"properties,omitempty"`
	Required             []string            `json:"required,omitempty"`
	AdditionalProperties any                 `json:"additionalProperties,omitempty"` // false, or a *schema
	DependentRequired    map[string][]string `json:"dependentRequired,omitempty"`
	AllOf                []*schema           `json:"allOf,omitempty"`
	AnyOf                []*schema           `json:"anyOf,omitempty"`
	OneOf                []*schema           `json:"oneOf,omitempty"`
	Not                  *schema             `json:"not,omitempty"`
	If                   *schema             `json:"if,omitempty"`
	Then                 *schema             `json:"then,omitempty"`
	Defs                 map[string]*schema  `json:"$defs,omitempty"`

	bounds string // a sentence with the valid values, for descriptions
}

// properties keep the order of the table: editors show the keys in this order.
type properties []property

type property struct {
	name string
	*schema
}

// MarshalJSON returns an object.
func (p properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for i, one := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:", one.name)
		if err := enc.Encode(one.schema); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// schema describes the mapping, and its short form if it has one.
func (s section) schema() *schema {
	all := &schema{Type: "object", AdditionalProperties: false, AllOf: s.rules}
	for i := range s.keys {
		k := s.keys[i]
		k.value = s.value(i)
		all.Properties = append(all.Properties, property{k.name, k.schema()})
		if k.value.example != "" {
			all.Required = append(all.Required, k.name)
		}
	}
	if s.short.schema == nil {
		return all
	}
	return anyOf(s.short.schema(), all)
}

// schema describes the key.
func (k key) schema() *schema {
	s := k.value.schema()
	sentences := []string{k.doc}
	if s.bounds != "" {
		sentences = append(sentences, s.bounds)
	}
	if k.value.requests {
		sentences = append(sentences, "Not for tunnels.")
	}
	switch {
	case k.value.upgrade:
		sentences = append(sentences, "Only a restart or an upgrade changes it.")
	case k.value.restart:
		sentences = append(sentences, "Only a restart changes it.")
	}
	fallback := k.value.fallback
	if n := k.value.print(&shower{}); n != nil && n.isScalar() && fallback == "" && k.value.example == "" {
		s.Default = plainValue(n)
		fallback = n.Text
	}
	if fallback != "" {
		sentences = append(sentences, "Default: "+fallback+".")
	}
	s.Description = strings.Join(sentences, " ")
	return s
}

// plainValue returns a printed default as JSON has it.
func plainValue(n *Tree) any {
	switch {
	case n.Shape == ShapeText:
		return n.Text
	case n.Text == "true" || n.Text == "false":
		return n.Text == "true"
	}
	return json.Number(n.Text)
}

// variable is the name of the schema of texts with variables of the environment.
const variable = "variable"

// oneVariable matches ${NAME} and ${NAME:-default}. No default contains another variable.
const oneVariable = `\$\{[A-Za-z_][A-Za-z0-9_]*(:-([^$}]|\$+[^${}])*\$*)?\}`

// plainDollar matches a $ that stands for itself, and the character behind it.
const plainDollar = `\$[^$A-Za-z_{]`

// orVariable is s, or a text with variables of the environment.
func orVariable(s *schema) *schema {
	all := anyOf(s, &schema{Ref: "#/$defs/" + variable})
	all.bounds = s.bounds
	return all
}

// anyOf joins schemas; alternatives of alternatives become one list.
func anyOf(several ...*schema) *schema {
	all := &schema{}
	for _, s := range several {
		if len(s.AnyOf) > 0 && s.Type == "" {
			all.AnyOf = append(all.AnyOf, s.AnyOf...)
		} else {
			all.AnyOf = append(all.AnyOf, s)
		}
		if all.bounds == "" {
			all.bounds = s.bounds
		}
	}
	return all
}

// anyText allows text that is not empty, without control characters, in which each $
// begins a variable, is doubled, or is not before a letter.
func anyText() *schema {
	return &schema{Type: "string", Pattern: `^(([^$\x00-\x1F\x7F]|\$\$|\$[^$A-Za-z_{\x00-\x1F\x7F]|` + oneVariable + `)+\$?|\$)$`}
}

// textLike allows texts that match the pattern as a whole, or the words. what names the valid
// texts.
func textLike(what, pattern string, words []string) *schema {
	switch {
	case len(words) > 0:
		s := &schema{}
		for _, w := range words {
			s.Enum = append(s.Enum, w)
		}
		return orVariable(s)
	case pattern != "":
		return orVariable(&schema{Type: "string", Pattern: "^(" + pattern + ")$", PatternErrorMessage: "This is not " + what + "."})
	}
	return anyText()
}

func wholeNumber(lo, hi int) *schema {
	return orVariable(&schema{Type: "integer", Minimum: lo, Maximum: hi, bounds: fmt.Sprintf("From %d to %d.", lo, hi)})
}

// durationPattern matches durations in Go's format, without a sign.
const durationPattern = `(([0-9]+\.?[0-9]*|\.[0-9]+)` + durationUnit + ")+"

const durationUnit = "(ns|us|µs|μs|ms|s|m|h)"

func durationText(lo, hi time.Duration) *schema {
	s := textLike("a duration such as 5s", `\+?`+durationPattern+"|-([0.]+"+durationUnit+")+", nil) // no key may be negative
	s.bounds = fmt.Sprintf("A duration (500ms, 5s, 1h30m) from %s to %s.", short(lo), short(hi))
	return s
}

func sizeText(lo, hi int64) *schema {
	s := textLike("a size such as 64KiB", `[0-9]+(B|KiB|MiB|GiB)`, nil)
	s.bounds = fmt.Sprintf("A size (512B, 64KiB, 10MiB, 1GiB) from %s to %s.", formatSize(lo), formatSize(hi))
	return s
}

// names is a mapping of names to s.
func names(s *schema) *schema {
	return &schema{Type: "object", MinProperties: 1, AdditionalProperties: s,
		PropertyNames: &schema{Pattern: `^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`}}
}

// items is a list of s with at least one element.
func items(s *schema) *schema { return &schema{Type: "array", MinItems: 1, Items: s} }
