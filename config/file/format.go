package file

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/config"
)

// Format returns a configuration in the usual layout: two spaces for each level, one space
// around values and comments, at most one blank line in a row. It keeps comments, the order of
// keys, quotes, aliases and variables. It checks only that data is one YAML document with keys, and no
// manifest of Kubernetes. Errors contain name as the name of the file; the error is a config.Errors.
func Format(name string, data []byte) ([]byte, error) {
	r := &reader{file: name}
	source := strings.ReplaceAll(string(data), "\r\n", "\n")
	old := r.only([]byte(source))
	if old == nil {
		return nil, r.errs.Sorted()
	}
	text := trimmed(source, old)
	// The encoder sometimes needs a second look at a comment that has moved.
	for range 4 {
		next, err := r.format(text)
		if err != nil {
			return nil, err
		}
		if next == text {
			if !same(old, r.only([]byte(text))) {
				return nil, r.otherValues()
			}
			return []byte(text), nil
		}
		text = next
	}
	return nil, r.unchanged("its comments have no stable place; put them on lines of their own above the keys")
}

// format formats a text once.
func (r *reader) format(text string) (string, error) {
	before := r.only([]byte(text))
	if before == nil {
		return "", r.errs.Sorted()
	}
	// The encoder drops blank lines. So they are comments until it has written the text.
	marked := r.only([]byte(markBlanks(text, before)))
	if marked == nil {
		return "", r.errs.Sorted()
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(marked); err != nil {
		return "", r.unchanged(fmt.Sprintf("its YAML cannot be written again: %v", err))
	}
	encoded := r.only(b.Bytes())
	if encoded == nil {
		return "", r.otherValues()
	}
	out := restoreBlanks(b.String(), encoded)
	after := r.only([]byte(out))
	if after != nil {
		out = alignComments(text, out, before, after)
		after = r.only([]byte(out))
	}
	switch {
	case after == nil || !same(before, after):
		return "", r.otherValues()
	case comments(out) != comments(text):
		return "", r.unchanged("a comment would be lost; give the comments within [] and {} lines of their own above the key")
	}
	return out, nil
}

func (r *reader) otherValues() error {
	return r.unchanged("its values would not stay the same; write the texts that span several lines in quotes, or after a |")
}

func (r *reader) unchanged(why string) error {
	return config.Errors{{Position: config.Position{File: r.file, Line: 1, Column: 1}, Message: "the file is not formatted, because " + why}}
}

// only parses data, which must be one YAML document with keys. It returns nil after an error.
func (r *reader) only(data []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case err == io.EOF:
		r.errorAt(config.Position{File: r.file, Line: 1, Column: 1}, "%s", noSettings)
		return nil
	case err != nil:
		r.syntax(data, err)
		return nil
	case doc.Content[0].Kind != yaml.MappingNode:
		r.errorAt(r.at(doc.Content[0]), "the file has no keys, so it is not a configuration of weir, and stays as it is")
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
	return &doc
}

// trimmed returns a text with a line feed at its end, and without spaces at the ends of lines, but not
// within texts of several lines.
func trimmed(text string, doc *yaml.Node) string {
	within := textLines(text, doc)
	all := strings.Split(text, "\n")
	for i, line := range all {
		if !within[i+1] {
			all[i] = strings.TrimRight(line, " \t")
		}
	}
	return strings.Trim(strings.Join(all, "\n"), "\n") + "\n"
}

// blank stands for a blank line. No file has it by chance.
const blank = "#\ue000 weir fmt: a blank line"

// markBlanks replaces each group of blank lines by one comment, but not within texts.
func markBlanks(text string, doc *yaml.Node) string {
	within := textLines(text, doc)
	var out []string
	all := strings.Split(text, "\n")
	for i, line := range all {
		switch {
		case line != "" || i == len(all)-1 || within[i+1]:
			out = append(out, line)
		case i == 0 || all[i-1] != "":
			next := i
			for next < len(all)-1 && all[next] == "" {
				next++
			}
			indent := len(all[next]) - len(strings.TrimLeft(all[next], " "))
			out = append(out, strings.Repeat(" ", indent)+blank)
		}
	}
	return strings.Join(out, "\n")
}

// textLines returns the lines, from 1, that may belong to a text of several lines.
func textLines(text string, doc *yaml.Node) []bool {
	all := strings.Split(text, "\n")
	var values []*yaml.Node
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		values = append(values, n)
		for _, child := range n.Content {
			walk(child)
		}
	}
	walk(doc)
	slices.SortStableFunc(values, func(a, b *yaml.Node) int { return a.Line - b.Line })
	within := make([]bool, len(all)+1)
	for i, n := range values {
		end := len(all)
		if i+1 < len(values) {
			end = values[i+1].Line
		}
		switch {
		case n.Kind != yaml.ScalarNode:
			continue
		case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 && !strings.HasSuffix(n.Value, "\n\n"):
			end = blockEnd(all, n.Line, end)
		case !strings.Contains(n.Value, "\n"):
			continue
		}
		for line := n.Line; line < end; line++ {
			within[line] = true
		}
	}
	return within
}

// blockEnd returns the line after a block of text whose header is on a line, at most end.
func blockEnd(all []string, header, end int) int {
	indent, last := -1, header
	for line := header + 1; line < end; line++ {
		text := all[line-1]
		own := len(text) - len(strings.TrimLeft(text, " "))
		switch {
		case own == len(text) && (indent < 0 || own <= indent): // an empty line
			continue
		case indent < 0:
			indent = own
		case own < indent:
			return last + 1
		}
		last = line
	}
	return last + 1
}

// restoreBlanks puts blank lines back, and removes those that the encoder has made.
func restoreBlanks(text string, doc *yaml.Node) string {
	within := textLines(text, doc)
	var out []string
	for i, line := range strings.Split(text, "\n") {
		switch {
		case strings.TrimSpace(line) == blank:
			out = append(out, "")
		case line != "" || within[i+1]:
			out = append(out, line)
		}
	}
	return strings.Trim(strings.Join(out, "\n"), "\n") + "\n"
}

// alignComments indents each line that is only a comment like the line that it was aligned
// with in the old text: the next one with a value, otherwise one before that encloses it. The
// encoder indents a comment between two sections like the end of the first one.
func alignComments(old, text string, oldDoc, doc *yaml.Node) string {
	was, is := commentLines(old, oldDoc), commentLines(text, doc)
	if len(was) != len(is) {
		return text
	}
	all := strings.Split(text, "\n")
	moved := map[int]int{}
	movedLines(moved, oldDoc, doc)
	for i, c := range is {
		switch {
		case was[i].text != c.text: // the encoder has moved a comment
			return text
		case was[i].next == was[i].indent && c.next >= 0:
			all[c.line] = strings.Repeat(" ", c.next) + c.text
		case was[i].enclosing >= 0:
			if now := moved[was[i].enclosing+1]; now > 0 {
				line := all[now-1]
				all[c.line] = line[:len(line)-len(strings.TrimLeft(line, " "))] + c.text
			}
		}
	}
	return strings.Join(all, "\n")
}

// movedLines notes for each line of a document, from 1, on which a value begins, where another
// document with the same values has it.
func movedLines(moved map[int]int, old, doc *yaml.Node) {
	if old.Kind != yaml.DocumentNode && moved[old.Line] == 0 {
		moved[old.Line] = doc.Line
	}
	for i := range old.Content {
		movedLines(moved, old.Content[i], doc.Content[i])
	}
}

// commentLine is a line that is only a comment, and its indentation.
type commentLine struct {
	line      int // from 0
	text      string
	indent    int
	next      int // the indentation of the next line with a value; -1: there is none
	enclosing int // the line before with the same indentation, without a smaller one between them; -1: there is none
}

func commentLines(text string, doc *yaml.Node) (found []commentLine) {
	all := strings.Split(text, "\n")
	within := textLines(text, doc)
	isComment := func(i int) bool { return strings.HasPrefix(strings.TrimSpace(all[i]), "#") && !within[i+1] }
	indentOf := func(i int) int { return len(all[i]) - len(strings.TrimLeft(all[i], " ")) }
	hasValue := func(i int) bool { return all[i] != "" && !isComment(i) && !within[i+1] }
	next := func(i int) int {
		for ; i < len(all); i++ {
			if all[i] != "" && !isComment(i) {
				return indentOf(i)
			}
		}
		return -1
	}
	enclosing := func(i, indent int) int {
		for i--; i >= 0; i-- {
			if hasValue(i) && indentOf(i) <= indent {
				if indentOf(i) == indent {
					return i
				}
				return -1
			}
		}
		return -1
	}
	for i, line := range all {
		if isComment(i) {
			trimmed := strings.TrimSpace(line)
			found = append(found, commentLine{i, trimmed, indentOf(i), next(i), enclosing(i, indentOf(i))})
		}
	}
	return found
}

// same reports whether two documents have the same values.
func same(a, b *yaml.Node) bool {
	if a.Kind != b.Kind || a.ShortTag() != b.ShortTag() || a.Value != b.Value || a.Anchor != b.Anchor || len(a.Content) != len(b.Content) {
		return false
	}
	for i := range a.Content {
		if !same(a.Content[i], b.Content[i]) {
			return false
		}
	}
	return true
}

// comments counts what looks like the beginning of a comment. A text that contains one counts
// before and after the formatting.
func comments(text string) (n int) {
	for _, line := range strings.Split(text, "\n") {
		n += strings.Count(" "+strings.ReplaceAll(line, "\t", " "), " #")
	}
	return n
}
