package file

import (
	"bytes"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/pause"
)

// A reader makes a document of a text in YAML, and collects the errors.
type reader struct {
	file string
	main *reader // of the file that includes this one; nil: this is the main file
	env  func(string) (string, bool)
	errs config.Errors

	// hidden are the scalars that came from the environment: never printed. broken are
	// the scalars whose variables could not be replaced: reported, not decoded.
	hidden, broken map[*yaml.Node]bool
	// trees has the values that aliases refer to.
	trees map[*yaml.Node]*config.Tree

	// A large file has many values, so memory for them is allocated for many at once.
	free  []config.Tree
	parts []*config.Tree
}

// newTree returns a Tree without content that n stands for.
func (r *reader) newTree(n *yaml.Node) *config.Tree {
	if len(r.free) == 0 {
		r.free = make([]config.Tree, atOnce)
	}
	t := &r.free[0]
	r.free = r.free[1:]
	t.File, t.Line, t.Column = r.source(), n.Line, n.Column
	return t
}

// newParts returns a list of n nil pointers.
func (r *reader) newParts(n int) []*config.Tree {
	if n > atOnce/4 {
		return make([]*config.Tree, n)
	}
	if n > len(r.parts) {
		r.parts = make([]*config.Tree, atOnce)
	}
	all := r.parts[:n:n]
	r.parts = r.parts[n:]
	return all
}

// atOnce is the number of values for which memory is allocated at once.
const atOnce = 64

func newReader(name string, env func(string) (string, bool)) *reader {
	return &reader{file: name, env: env, hidden: map[*yaml.Node]bool{}, broken: map[*yaml.Node]bool{}, trees: map[*yaml.Node]*config.Tree{}}
}

// Read makes a document of the YAML in data, and replaces the variables of the environment.
// Errors contain name as the name of the file. The error is a config.Errors, and means that
// data is not YAML; errors of single values, and of files that data includes, are in the
// document.
func Read(name string, data []byte, env func(string) (string, bool)) (config.Document, error) {
	r := newReader(name, env)
	root := r.document(data)
	if root == nil {
		return config.Document{}, r.errs.Sorted()
	}
	doc := config.Document{Name: name, Root: root, Errors: r.errs, Source: hashOf(data)}
	i := includer{reader: r, doc: &doc, left: maxFile - len(data)}
	i.include()
	doc.Errors = r.errs
	return doc, nil
}

// source is the file of the values, for config.Tree.
func (r *reader) source() string {
	if r.main == nil {
		return ""
	}
	return r.file
}

func (r *reader) at(n *yaml.Node) config.Position {
	return config.Position{File: r.file, Line: n.Line, Column: n.Column}
}

func (r *reader) errorAt(at config.Position, format string, args ...any) {
	r.errs = append(r.errs, config.Error{Position: at, Message: fmt.Sprintf(format, args...)})
}

// noSettings is the error of a file that is empty or has only comments. The example in it is
// a complete file.
const noSettings = `the file has no settings, so weir has nothing to serve; write a listener, a route and a backend, such as ` + smallest

const secondDocument = "a second YAML document begins here; one file is one configuration, so remove the ---"

// manifest is the error of a file that kubectl reads.
const manifest = "this is a Kubernetes manifest, not a configuration of weir; use weir lint"

const smallest = `{listeners: {web: {address: ":8080", protocol: http}}, routes: [{listeners: [web], backend: app}], backends: {app: {endpoints: ["127.0.0.1:9000"]}}}`

// document parses data, which must be one YAML document, and prepares it for decoding. It
// returns nil after an error.
func (r *reader) document(data []byte) *config.Tree {
	dec := yaml.NewDecoder(paced{bytes.NewReader(data)})
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case (err == io.EOF || err == nil && isNull(doc.Content[0])) && r.main != nil:
		return &config.Tree{Shape: config.ShapeMapping, File: r.file, Line: 1, Column: 1} // everything in it is a comment
	case err == io.EOF || err == nil && isNull(doc.Content[0]):
		r.errorAt(config.Position{File: r.file, Line: 1, Column: 1}, "%s", noSettings)
		return nil
	case err != nil:
		r.syntax(data, err)
		return nil
	case isManifest(doc.Content[0]):
		r.errorAt(r.at(doc.Content[0]), "%s", manifest)
		return nil
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		r.errorAt(r.at(&second), "%s", secondDocument)
		return nil
	case err != io.EOF:
		r.syntax(data, err)
		return nil
	}
	root := doc.Content[0]
	x := expander{reader: r, open: map[*yaml.Node]bool{}, done: map[*yaml.Node]bool{}}
	if !x.expand(root, false) {
		return nil
	}
	return r.tree(root)
}

// tree converts n, whose aliases form no loop. The trees of an alias and of its value are the
// same.
func (r *reader) tree(n *yaml.Node) *config.Tree {
	pause.IfDue()
	switch n.Kind {
	case yaml.AliasNode:
		return r.tree(n.Alias)
	case yaml.ScalarNode:
		t := r.newTree(n)
		t.Text, t.Hidden, t.Broken = n.Value, r.hidden[n], r.broken[n]
		t.Shape, t.Other = shapeOf(n.Tag)
		return t
	}
	if t := r.trees[n]; t != nil {
		return t
	}
	t := r.newTree(n)
	t.Shape, t.Parts = config.ShapeMapping, r.newParts(len(n.Content))
	if n.Kind == yaml.SequenceNode {
		t.Shape = config.ShapeList
	}
	for i, part := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			t.Parts[i] = r.keyTree(part)
		} else {
			t.Parts[i] = r.tree(part)
		}
	}
	if n.Anchor != "" {
		r.trees[n] = t
	}
	return t
}

// keyTree converts a key of a mapping. Any scalar is a valid key.
func (r *reader) keyTree(n *yaml.Node) *config.Tree {
	t := r.newTree(n)
	t.Shape, t.Text = config.ShapeText, n.Value
	switch {
	case n.Tag == "!!merge":
		t.Refused = "merge keys (<<) are not supported; repeat the keys, or use an alias for the whole value"
	case n.Kind == yaml.MappingNode:
		t.Refused = "a key has to be plain text, not a mapping"
	case n.Kind == yaml.SequenceNode:
		t.Refused = "a key has to be plain text, not a list"
	case n.Kind == yaml.AliasNode:
		t.Refused = "a key has to be plain text, not an alias"
	}
	return t
}

// shapes are the shapes of scalars, by their tags in YAML.
var shapes = map[string]config.Shape{
	"!!str": config.ShapeText, "!!int": config.ShapeInteger, "!!float": config.ShapeFraction,
	"!!bool": config.ShapeBoolean, "!!null": config.ShapeNothing,
}

// shapeOf returns the shape of a scalar with a tag. other names all that have none of their own.
func shapeOf(tag string) (shape config.Shape, other string) {
	if shape, known := shapes[tag]; known {
		return shape, ""
	}
	if tag == "!!timestamp" {
		return config.ShapeOther, "a date"
	}
	const longest = 100
	if len(tag) > longest {
		tag = tag[:longest] + "..."
	}
	return config.ShapeOther, "a value tagged " + tag
}

// isManifest reports whether n has the two keys of each object of Kubernetes.
func isManifest(n *yaml.Node) bool {
	found := 0
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if key := n.Content[i].Value; key == "apiVersion" || key == "kind" {
			found++
		}
	}
	return found == 2
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
