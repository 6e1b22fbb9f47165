package file

import (
	"bytes"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/config"
)

// libraryEncode is Encode by the YAML library.
func libraryEncode(t *config.Tree) string {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(indentation)
	if err := enc.Encode(libraryNode(t)); err != nil {
		panic(err)
	}
	return b.String()
}

func libraryNode(t *config.Tree) *yaml.Node {
	switch t.Shape {
	case config.ShapeText:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: strings.ReplaceAll(t.Text, "$", "$$")}
	case config.ShapeMapping, config.ShapeList:
	default:
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
		one := libraryNode(part)
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			one.Value = part.Text
		}
		n.Content = append(n.Content, one)
	}
	return n
}

func text(s string) *config.Tree { return &config.Tree{Shape: config.ShapeText, Text: s} }

func list(parts ...*config.Tree) *config.Tree {
	return &config.Tree{Shape: config.ShapeList, Parts: parts}
}

func mapping(parts ...*config.Tree) *config.Tree {
	return &config.Tree{Shape: config.ShapeMapping, Parts: parts}
}

// around returns a document with s as a key and as a value, at every depth and in brackets.
func around(s string) *config.Tree {
	number := &config.Tree{Shape: config.ShapeInteger, Text: "10"}
	return mapping(
		text("value"), text(s),
		text("k"+s), mapping(text("k"+s), text(s), text("number"), number),
		text("brackets"), list(text(s), number, text(s), list(text(s))),
		text("lines"), list(mapping(text("a"), text(s), text("b"), list(text(s))), mapping(text("a"), mapping(text("b"), text(s)))),
		text("nothing"), list(), text("none"), mapping())
}

// The texts that configurations contain look as the YAML library writes them.
func TestEncodeIsUsual(t *testing.T) {
	for _, s := range strings.Fields(`app app.example.org *.example.org **.a /api /api/v1/ =/exact ~/a(b|c)[0-9]+ 10.1.2.3:8080 [::1]:80
		10.0.0.0/8 fd00::/8 :8080 9009 1.5 1e3 0x10 true True null ~ yes no on off GET,POST unix:/run/x.sock ns1/app1:80 a#b #a a: a:b -1 - -a --- ...
		.5 ... +1 2026-11-25 12:30 1m30s 512MiB {client} ${X} $1 a,b 'a "a a'b & @ %20 ! | > ? ?a ü 日本 a?b [a] {a} , <<`) {
		if got, want := string(Encode(around(s))), libraryEncode(around(s)); got != want {
			t.Errorf("%q:\n%s\nwant\n%s", s, got, want)
		}
	}
	for _, s := range []string{"", "a b", "a: b", "a #b", "one\ntwo", "one\ntwo\n", "one\n\n", "a\tb", " a", "a ", "\u00a0", "\ufeff", "- a", "? a"} {
		if got, want := string(Encode(around(s))), libraryEncode(around(s)); got != want && !strings.Contains(s, "\n") {
			t.Errorf("%q:\n%s\nwant\n%s", s, got, want)
		}
		isReadBack(t, around(s))
	}
}

// isReadBack fails if the loader does not read the text of a tree as the same tree.
func isReadBack(t *testing.T, tree *config.Tree) {
	t.Helper()
	encoded := Encode(tree)
	var n yaml.Node
	if err := yaml.Unmarshal(encoded, &n); err != nil {
		t.Fatalf("%v in\n%s", err, encoded)
	}
	if got, want := libraryForm(n.Content[0]), libraryForm(libraryNode(tree)); got != want {
		t.Fatalf("%s\nis read as\n%s\nnot as\n%s", encoded, got, want)
	}
}

// libraryForm returns the values of a node, without their styles.
func libraryForm(n *yaml.Node) string {
	var b strings.Builder
	b.WriteString(n.ShortTag() + " " + n.Value + "(")
	for _, part := range n.Content {
		b.WriteString(libraryForm(part) + ";")
	}
	return b.String() + ")"
}

// Each text is read back as it was, wherever it stands.
func FuzzEncode(f *testing.F) {
	for _, s := range []string{"a", "null", "a\n b\n", "\n", " \n a", "-", "\"", "'", "a\\", "\u0085", "\U0001f600", "a \nb", "\r", "0b1", "?\n", "#\n#", "a:\nb: c", "|", "...\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "")
		if len(s) < 1000 { // longer keys need a mark of their own
			isReadBack(t, around(s))
		}
	})
}

// A byte that is not UTF-8 does no harm.
func TestEncodeInvalidUTF8(t *testing.T) {
	if got := string(Encode(mapping(text("a"), text("b\xff")))); got != "a: \"b\uFFFD\"\n" {
		t.Errorf("%q", got)
	}
}
