package file

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

func TestFormat(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"indentation", "a:\n      b: 1\n      c:\n      - x\n      - y: 2\n        z: 3\n", "a:\n  b: 1\n  c:\n    - x\n    - y: 2\n      z: 3\n"},
		{"spaces", "a:   {b:  1,c: 2}   # why\n", "a: {b: 1, c: 2} # why\n"},
		{"blank lines", "\n\na: 1\n\n\n\nb:\n\n  c: 1\n\n", "a: 1\n\nb:\n\n  c: 1\n"},
		{"comments", "# top\n\na: 1 # one\n# b is\n# two\nb: 2\n# end\n", "# top\n\na: 1 # one\n# b is\n# two\nb: 2\n# end\n"},
		{"a comment between sections", "a:\n    b:\n        c: 1\n    # - d\n\n    e: 2\n", "a:\n  b:\n    c: 1\n  # - d\n\n  e: 2\n"},
		{"a comment at the end of a list", "a:\n    - b:\n        c: |\n          d\n    # - e:\n    #     f: 2\n\ng: 3\n", "a:\n  - b:\n      c: |\n        d\n  # - e:\n  #     f: 2\n\ng: 3\n"},
		{"texts", "a: |\n    x\n\n\n      # y\n\nb: 1\n", "a: |\n  x\n\n\n    # y\n\nb: 1\n"},
		{"a text in quotes over two lines", "a: \"x\n\n  y\"\nb: 1\n", "a: \"x\\ny\"\nb: 1\n"},
		{"quotes, aliases and variables", "a: &x '$1'\nb: \"2\"\nc: *x\nd: ${HOME:-x}\n", "a: &x '$1'\nb: \"2\"\nc: *x\nd: ${HOME:-x}\n"},
		{"a comment at the end", "a: 1 # c\n# end\n", "a: 1 # c\n# end\n"},
		{"a comment between values", "a: 1 # c\n# end\n\nb:\n  - c # d\n  # e\nf: 2\n", "a: 1 # c\n# end\n\nb:\n  - c # d\n  # e\nf: 2\n"},
		{"spaces at the ends of lines", "a: 1  \nb: |  \n    x  \n  \n    y\t\n       \nc: 1 # d  \n \n", "a: 1\nb: \"x  \\n\\ny\\t\\n   \\n\"\nc: 1 # d\n"},
		{"lines of Windows", "a:\r\n    b: 1\r\n", "a:\n  b: 1\n"},
	} {
		got, err := Format("f", []byte(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v, and\n%s\nwant\n%s", c.name, err, got, c.want)
		}
		if again, err := Format("f", got); err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s: a second time: %v, and\n%s", c.name, err, again)
		}
	}
}

func TestFormatRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "f:1:1: the file has no settings",
		"# nothing":                        "f:1:1: the file has no settings",
		"a: [1":                            "f:1:",
		"a: 1\n---\nb: 2\n":                "a second YAML document begins here",
		"# a list\nbuy  milk\nand bread\n": "f:2:1: the file has no keys",
		"- a\n":                            "f:1:1: the file has no keys",
		"kind: Service\napiVersion: v1\n---\nkind: Pod\n": "f:1:1: this is a Kubernetes manifest",
	} {
		_, err := Format("f", []byte(in))
		var wrong config.Errors
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", in, err, want)
		}
	}
}

// The examples and the configurations of other tests stay valid, and mean the same.
func TestFormatExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range append(files, "../testdata/acceptance.yaml", "../../deploy/debian/weir.yaml") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := Format(path, data)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		env := func(string) (string, bool) { return "x", true }
		before, err := Read(path, data, env)
		if err != nil {
			t.Fatal(err)
		}
		after, err := Read(path, text, env)
		if err != nil || values(before.Root) != values(after.Root) {
			t.Errorf("%s has other values: %v", path, err)
		}
		if got, n := bytes.Count(text, []byte("#")), bytes.Count(data, []byte("#")); got != n {
			t.Errorf("%s has %d comments, and had %d", path, got, n)
		}
	}
}

// values returns a tree without the positions.
func values(t *config.Tree) string {
	var b strings.Builder
	var walk func(t *config.Tree)
	walk = func(t *config.Tree) {
		b.WriteString(t.Text)
		b.WriteByte("{[\"ifbno"[t.Shape])
		for _, p := range t.Parts {
			walk(p)
		}
		b.WriteByte('}')
	}
	walk(t)
	return b.String()
}

// Formatting changes no value, and formatting twice changes nothing more.
func FuzzFormat(f *testing.F) {
	for _, seed := range []string{"a: 1\n", "a:\n\n    - b # c\n", "a: |\n  x\n\n  #y\n\nb: {c: [1,\n\n 2]}\n", "a: >-\n  x\n  y\n\n# c\nb: 'x\n\n  y'\n", "? a\n: b\n", "- &a [*a]\n", "a: \"\\ue000\"\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, err := Format("f", data)
		if err != nil {
			return
		}
		r := &reader{}
		before, after := r.only(data), r.only(text)
		if before == nil || after == nil || !same(before, after) {
			t.Fatalf("the values of %q change:\n%q", data, text)
		}
		again, err := Format("f", text)
		if err != nil || !bytes.Equal(again, text) {
			t.Fatalf("a second time it is %q, not %q: %v", again, text, err)
		}
	})
}
