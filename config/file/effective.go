package file

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/config"
)

// Effective returns the configuration in effect as YAML: defaults are filled in, and
// variables of the environment are replaced. It names key files but does not show their
// content. "(hidden)" replaces secrets; the first line then says so. Without secrets,
// weir can load the text again. Effective omits the default of node.
func Effective(c *config.Config) []byte {
	all, hid := c.Print()
	text := Encode(all)
	if hid {
		text = append([]byte("# "+config.Placeholder+" replaces secrets; put the secrets back before you load this file.\n"), text...)
	}
	return text
}

// EffectiveBeside returns what c has in addition to the file that it was merged with: the
// configuration made from a cluster's objects, in the format of a file. It is not part of
// any file.
func EffectiveBeside(c, file *config.Config) []byte {
	all := c.PrintBeside(file)
	if all == nil {
		return nil
	}
	return Encode(all)
}

// Encode returns a configuration in the form of a document as YAML.
func Encode(t *config.Tree) []byte {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(node(t)); err != nil { // a tree of scalars always encodes
		panic(fmt.Sprintf("encoding the effective configuration: %v", err))
	}
	return b.Bytes()
}

// node returns t as YAML. It doubles each $ of a text: otherwise the loader would take it
// for the beginning of a variable. Lists of single values are on one line.
func node(t *config.Tree) *yaml.Node {
	switch t.Shape {
	case config.ShapeText:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: strings.ReplaceAll(t.Text, "$", "$$")}
	case config.ShapeMapping, config.ShapeList:
	default: // a number or a boolean
		return &yaml.Node{Kind: yaml.ScalarNode, Value: t.Text}
	}
	n := &yaml.Node{Kind: yaml.MappingNode}
	if t.Shape == config.ShapeList {
		n.Kind = yaml.SequenceNode
		if len(t.Parts) > 0 && t.Parts[0].Shape != config.ShapeMapping {
			n.Style = yaml.FlowStyle
		}
	}
	for i, part := range t.Parts {
		one := node(part)
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			one.Value = part.Text // the loader looks for variables in values only
		}
		n.Content = append(n.Content, one)
	}
	return n
}
