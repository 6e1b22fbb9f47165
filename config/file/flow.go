package file

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weirproxy/weir/config"
)

// The YAML parser reports the line where it gave up. That is often far below the bracket that
// is not closed, and the parser does not name the bracket. So this file looks for it.

// bracket is an open bracket.
type bracket struct {
	closer       byte
	line, column int // from 1
}

// flow finds a bracket that is not closed. It reads only the lists and mappings in brackets
// of a document, and nothing within them precisely.
type flow struct {
	open   []bracket
	indent int // of the line on which the first open bracket is
}

var (
	// beforeFlow matches the beginning of a line up to the bracket of its value.
	beforeFlow = regexp.MustCompile(`^\s*(?:- +)*(?:(?:[\w./-]+|"[^"]*"|'[^']*'):[ \t]+)?(?:- +)*(?:[&!]\S+[ \t]+)*`)
	// nextKey matches a line that is not within brackets, if its indentation is small enough.
	nextKey = regexp.MustCompile(`^\s*(?:- +)?[\w./-]+:(?:\s|$)|^\s*- `)
	// blockText matches a line that begins a block of text, which lasts as long as its indentation.
	blockText = regexp.MustCompile(`(?:^|[:-])[ \t]+[|>][-+0-9]*[ \t]*(?:#.*)?$`)
)

// unclosed finds a bracket that is not closed, in a document that is not valid YAML. It
// returns its position and an error text with the missing bracket.
func unclosed(data []byte, at config.Position) (config.Position, string, bool) {
	var f flow
	text := -1 // the indentation of the key of a block of text
	for n, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSuffix(line, "\r")
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if text >= 0 && (indent > text || strings.TrimSpace(line) == "") {
			continue
		}
		text = -1
		from := 0
		switch {
		case len(f.open) > 0 && indent <= f.indent && nextKey.MatchString(line):
			return f.missing(at, f.closers(), fmt.Sprintf("before line %d", n+1))
		case len(f.open) == 0 && blockText.MatchString(line):
			text = indent
			continue
		case len(f.open) == 0:
			from, f.indent = len(beforeFlow.FindString(line)), indent
			if from == len(line) || line[from] != '[' && line[from] != '{' {
				continue
			}
		}
		if wrong, ok := f.read(line, from, n+1); !ok {
			if wrong == "" {
				return at, "", false
			}
			return f.missing(at, f.closers()[:1], wrong)
		}
	}
	if len(f.open) == 0 {
		return at, "", false
	}
	return f.missing(at, f.closers(), "at the end of the file")
}

// read reads a line within brackets. It returns false if a closing bracket does not match the
// open one, with its place in wrong, and if it cannot read the line, with an empty wrong.
func (f *flow) read(line string, from, number int) (wrong string, ok bool) {
	begins := true // a value begins here, so a quotation mark opens a quoted text
	for i := from; i < len(line); i++ {
		c := line[i]
		switch {
		case c == ' ' || c == '\t':
			continue
		case c == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t'):
			return "", true
		case begins && (c == '"' || c == '\''):
			end := quoted(line[i:])
			if end < 0 {
				return "", false
			}
			i += end
		case c == '$' && i+1 < len(line) && line[i+1] == '{': // a variable
			end := strings.IndexByte(line[i:], '}')
			if end < 0 {
				return "", false
			}
			i += end
		case c == '[' || c == '{':
			f.open = append(f.open, bracket{c + 2, number, 1 + utf8.RuneCountInString(line[:i])})
		case c == ']' || c == '}':
			if last := len(f.open) - 1; f.open[last].closer != c {
				return fmt.Sprintf("before the %c on line %d", c, number), false
			} else if f.open = f.open[:last]; last == 0 {
				return "", true // the rest of the line is not within brackets
			}
		}
		begins = strings.IndexByte("[{,:", c) >= 0
	}
	return "", true
}

// quoted returns the index of the closing quotation mark; s begins with the opening one. -1:
// there is none.
func quoted(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && s[0] == '"':
			i++
		case s[i] == s[0] && s[0] == '\'' && i+1 < len(s) && s[i+1] == '\'':
			i++
		case s[i] == s[0]:
			return i
		}
	}
	return -1
}

// closers returns the closing brackets that are missing, in their order.
func (f *flow) closers() (all string) {
	for _, b := range slices.Backward(f.open) {
		all += string(b.closer)
	}
	return all
}

// missing returns the error that the last bracket is not closed, with what to write and where.
func (f *flow) missing(at config.Position, closers, where string) (config.Position, string, bool) {
	b := f.open[len(f.open)-1]
	at.Line, at.Column = b.line, b.column
	return at, fmt.Sprintf("the %c that begins here is not closed; write %s %s", b.closer-2, closers, where), true
}
