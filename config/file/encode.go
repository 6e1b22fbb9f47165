package file

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/pause"
)

// Encode returns a configuration in the form of a document as YAML. It makes the text itself:
// the YAML library needs many times the memory of the text, and a cluster may have thousands
// of routes.
func Encode(t *config.Tree) []byte {
	var e encoder
	e.block(t, 0)
	if n := len(e.text); n == 0 || e.text[n-1] != '\n' {
		e.text = append(e.text, '\n')
	}
	return e.text
}

// encoder writes trees as YAML. It doubles each $ of a text: otherwise the loader would take
// it for the beginning of a variable. Lists of single values are on one line.
type encoder struct{ text []byte }

// indentation is the number of spaces before each level.
const indentation = 2

// block writes a tree whose first line the caller has begun. Further lines are indented.
func (e *encoder) block(t *config.Tree, indent int) {
	pause.IfDue()
	switch {
	case isFlow(t):
		e.flow(t)
	case t.Shape == config.ShapeMapping:
		for i := 0; i < len(t.Parts); i += 2 {
			e.newLine(i, indent)
			e.scalar(t.Parts[i].Text, indent, asKey)
			e.text = append(e.text, ':')
			e.value(t.Parts[i+1], indent)
		}
	case t.Shape == config.ShapeList:
		for i, part := range t.Parts {
			e.newLine(i, indent)
			e.text = append(e.text, "- "...)
			e.block(part, indent+indentation)
		}
	default:
		e.single(t, indent, onLines)
	}
}

// newLine begins the line of the i-th part; the first one has begun.
func (e *encoder) newLine(i, indent int) {
	if i > 0 {
		e.text = append(e.text, '\n')
		e.spaces(indent)
	}
}

func (e *encoder) spaces(n int) {
	for range n {
		e.text = append(e.text, ' ')
	}
}

// value writes a value behind its key.
func (e *encoder) value(t *config.Tree, indent int) {
	if t.Shape != config.ShapeMapping && t.Shape != config.ShapeList || isFlow(t) {
		e.text = append(e.text, ' ')
		e.block(t, indent)
		return
	}
	e.text = append(e.text, '\n')
	e.spaces(indent + indentation)
	e.block(t, indent+indentation)
}

// isFlow reports whether a list or mapping is on one line, in brackets.
func isFlow(t *config.Tree) bool {
	switch t.Shape {
	case config.ShapeList:
		return len(t.Parts) == 0 || t.Parts[0].Shape != config.ShapeMapping
	case config.ShapeMapping:
		return len(t.Parts) == 0
	}
	return false
}

// flow writes a tree in brackets.
func (e *encoder) flow(t *config.Tree) {
	switch t.Shape {
	case config.ShapeMapping:
		e.text = append(e.text, '{')
		for i := 0; i < len(t.Parts); i += 2 {
			e.comma(i)
			e.scalar(t.Parts[i].Text, 0, inBrackets)
			e.text = append(e.text, ": "...)
			e.flow(t.Parts[i+1])
		}
		e.text = append(e.text, '}')
	case config.ShapeList:
		e.text = append(e.text, '[')
		for i, part := range t.Parts {
			e.comma(i)
			e.flow(part)
		}
		e.text = append(e.text, ']')
	default:
		e.single(t, 0, inBrackets)
	}
}

func (e *encoder) comma(i int) {
	if i > 0 {
		e.text = append(e.text, ", "...)
	}
}

// place is where a text stands, which decides how it may be written.
type place uint8

const (
	onLines    place = iota // a value that may have lines of its own
	asKey                   // the key of a mapping that is not in brackets
	inBrackets              // in a list or mapping in brackets
)

// single writes a value that is neither a mapping nor a list.
func (e *encoder) single(t *config.Tree, indent int, at place) {
	if t.Shape != config.ShapeText { // a number or a boolean
		e.text = append(e.text, t.Text...)
		return
	}
	e.scalar(strings.ReplaceAll(t.Text, "$", "$$"), indent, at)
}

// scalar writes a text so that the loader reads it as the same text: as it is if possible.
func (e *encoder) scalar(s string, indent int, at place) {
	switch styleOf(s, at) {
	case plain:
		e.text = append(e.text, s...)
	case singleQuoted:
		e.text = append(e.text, '\'')
		e.text = append(e.text, strings.ReplaceAll(s, "'", "''")...)
		e.text = append(e.text, '\'')
	case literal:
		e.literal(s, indent)
	default:
		e.doubleQuoted(s)
	}
}

// literal writes the lines of a text below each other.
func (e *encoder) literal(s string, indent int) {
	e.text = append(e.text, '|')
	switch body := strings.TrimSuffix(s, "\n"); {
	case body == s:
		e.text = append(e.text, '-')
	case strings.HasSuffix(body, "\n"):
		e.text = append(e.text, '+')
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		e.text = append(e.text, '\n')
		if line != "" {
			e.spaces(indent + indentation)
			e.text = append(e.text, line...)
		}
	}
}

// doubleQuoted writes a text in quotation marks, with escapes. A byte that is not UTF-8 becomes
// U+FFFD.
func (e *encoder) doubleQuoted(s string) {
	e.text = append(e.text, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			e.text = append(e.text, '\\', byte(r))
		case r == '\n':
			e.text = append(e.text, `\n`...)
		case r == '\r':
			e.text = append(e.text, `\r`...)
		case r == '\t':
			e.text = append(e.text, `\t`...)
		case isPrintable(r):
			e.text = utf8.AppendRune(e.text, r)
		case r <= 0xff:
			e.text = fmt.Appendf(e.text, `\x%02X`, r)
		case r <= 0xffff:
			e.text = fmt.Appendf(e.text, `\u%04X`, r)
		default:
			e.text = fmt.Appendf(e.text, `\U%08X`, r)
		}
	}
	e.text = append(e.text, '"')
}

// isPrintable reports whether a character may stand in YAML without an escape, and does not
// end a line.
func isPrintable(r rune) bool {
	switch {
	case r == 0x2028, r == 0x2029, r == 0xfeff, r == 0xfffe, r == 0xffff:
		return false
	case 0xd800 <= r && r < 0xe000, 0x7f <= r && r < 0xa0:
		return false
	}
	return r >= ' ' && r <= 0xffff
}

// scalarStyle is how a text is written.
type scalarStyle uint8

const (
	plain scalarStyle = iota
	singleQuoted
	doubleQuoted
	literal
)

// styleOf chooses how a text is written. YAML reads some texts as something else if they are
// plain: these have a meaning as a whole, such as null or 10, or contain its signs.
func styleOf(s string, at place) scalarStyle {
	if s == "" {
		return doubleQuoted
	}
	signs, lines := beginsWithSign(s) || s[len(s)-1] == ' ', false
	for i, r := range s {
		switch {
		case r == '\n':
			lines = true
		case !isPrintable(r), r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			return doubleQuoted
		case r == ':':
			signs = signs || at == inBrackets || i+1 == len(s) || s[i+1] == ' '
		case r == '#':
			signs = signs || s[max(0, i-1)] == ' '
		case strings.ContainsRune("[]{},?", r):
			signs = signs || at == inBrackets
		}
	}
	switch {
	case lines && (at != onLines || !isBlock(s)):
		return doubleQuoted
	case lines:
		return literal
	case hasMeaning(s):
		return doubleQuoted
	case signs:
		return singleQuoted
	}
	return plain
}

// beginsWithSign reports whether a text begins with a sign of YAML.
func beginsWithSign(s string) bool {
	switch c := s[0]; {
	case strings.IndexByte("#,[]{}&*!|>'\"%@` ", c) >= 0:
		return true
	case strings.IndexByte("-?:", c) >= 0:
		return len(s) == 1 || s[1] == ' ' || strings.HasPrefix(s, "---")
	}
	return strings.HasPrefix(s, "...")
}

// isBlock reports whether the lines of a text may stand below each other. A reader of the file
// could not see spaces at their ends.
func isBlock(s string) bool {
	return s[0] != ' ' && s[0] != '\n' && s[len(s)-1] != ' ' && !strings.Contains(s, " \n")
}

// hasMeaning reports whether YAML reads the plain text s as something else than a text, for
// example as a number or as nothing.
func hasMeaning(s string) bool {
	switch c := s[0]; {
	case '0' <= c && c <= '9', c == '+', c == '-', c == '.':
	case len(s) <= len("false") && strings.IndexByte("tTfFnN~<", c) >= 0:
	default:
		return false
	}
	n := yaml.Node{Kind: yaml.ScalarNode, Value: s}
	return n.ShortTag() != "!!str"
}
