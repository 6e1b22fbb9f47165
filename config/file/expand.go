package file

import (
	"fmt"
	"strings"

	"github.com/weirproxy/weir/pause"
	"go.yaml.in/yaml/v3"
)

// maxAliased limits the total number of values that aliases expand to: a few nested
// aliases can otherwise expand to billions.
const maxAliased = 100_000

// expander walks the tree once before decoding. It replaces variables of the environment,
// and makes sure that aliases do not form a loop.
type expander struct {
	*reader
	open    map[*yaml.Node]bool // the mappings and lists that contain the current node
	done    map[*yaml.Node]bool
	aliased int
}

// expand reports whether the tree at n may be decoded. It returns false for aliases that
// form a loop.
func (x *expander) expand(n *yaml.Node, inAlias bool) bool {
	pause.IfDue()
	if inAlias {
		if x.aliased++; x.aliased > maxAliased {
			x.errorAt(x.at(n), "the aliases in this file stand for more than %d values; write them out or use fewer", maxAliased)
			return false
		}
	}
	switch n.Kind {
	case yaml.AliasNode:
		if x.open[n.Alias] {
			x.errorAt(x.at(n), "the alias *%s refers to itself; write the value out", n.Value)
			return false
		}
		return x.expand(n.Alias, true)
	case yaml.ScalarNode:
		if strings.Contains(n.Value, "$") && !x.done[n] {
			x.done[n] = true
			x.scalar(n)
		}
		return true
	}
	x.open[n] = true
	defer delete(x.open, n)
	for i, child := range n.Content {
		if isKey := n.Kind == yaml.MappingNode && i%2 == 0; isKey {
			continue
		}
		if !x.expand(child, inAlias) {
			return false
		}
	}
	return true
}

func (x *expander) scalar(n *yaml.Node) {
	text, replaced, err := replace(n.Value, x.env)
	if err != nil {
		x.errorAt(x.at(n), "%v", err)
		x.broken[n] = true
		return
	}
	n.Value = text
	if replaced {
		x.hidden[n] = true
	}
}

// replace replaces ${NAME} and ${NAME:-default} by values of the environment, and $$ by
// $. Any other $ stands for itself, as in an expression that ends in $, except before a letter:
// $NAME is probably a mistake. replaced is true if the text contains a variable, even if its
// default was used. config.Errors contain no value.
func replace(s string, env func(string) (string, bool)) (text string, replaced bool, err error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "$")
		b.WriteString(before)
		if !found {
			return b.String(), replaced, nil
		}
		if rest, ok := strings.CutPrefix(after, "$"); ok {
			b.WriteByte('$')
			s = rest
			continue
		}
		if isPlain := !strings.HasPrefix(after, "{") && !isEnvName(after[:min(1, len(after))]); isPlain {
			b.WriteByte('$')
			s = after
			continue
		}
		if after[0] != '{' {
			return "", false, fmt.Errorf("a single $ before a letter means nothing; write ${NAME} for a value of the environment, $$ for a $, or a name in braces such as {host} for a variable of weir")
		}
		inside, rest, closed := strings.Cut(after[1:], "}")
		if !closed {
			return "", false, fmt.Errorf("${ without its }; write ${NAME} or ${NAME:-default}, or $$ for a $")
		}
		value, err := lookup(inside, env)
		if err != nil {
			return "", false, err
		}
		b.WriteString(value)
		replaced = true
		s = rest
	}
}

func lookup(inside string, env func(string) (string, bool)) (string, error) {
	name, fallback, hasFallback := strings.Cut(inside, ":-")
	if !isEnvName(name) {
		return "", fmt.Errorf("${%s} names nothing in the environment; write ${NAME} or ${NAME:-default}, NAME of letters, digits and _", inside)
	}
	if hasFallback && strings.Contains(fallback, "${") {
		return "", fmt.Errorf("the default of ${%s} contains another variable, and weir replaces no variables in defaults; write the default out, or set %s in the environment and take the default out", name, name)
	}
	value, ok := env(name)
	switch {
	case hasFallback && value == "":
		return fallback, nil
	case !ok:
		return "", fmt.Errorf("%s is not set in the environment; set it, or give a default with ${%s:-default}", name, name)
	}
	return value, nil
}

func isEnvName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
