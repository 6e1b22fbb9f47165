package file

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weirproxy/weir/config"
)

var (
	yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)
	// The parser counts lines from zero in these errors, and from one in all others.
	countedFromZero = regexp.MustCompile(`^did not find expected (node content|key|'-' indicator|',' or|<)`)
	unknownAnchor   = regexp.MustCompile(`^unknown anchor '([^']*)' referenced`)
)

// syntax reports an error of the YAML parser. The parser reports a line but no column,
// and for an unknown anchor no line either.
func (r *reader) syntax(data []byte, err error) {
	m := yamlLine.FindStringSubmatch(err.Error())
	message := err.Error()[len(m[0]):]
	at := config.Position{File: r.file, Line: 1, Column: 1}
	if line, err := strconv.Atoi(m[1]); err == nil {
		at.Line = line
		if countedFromZero.MatchString(message) {
			at.Line++
		}
	}
	if m := unknownAnchor.FindStringSubmatch(message); m != nil {
		r.errorAt(firstOf(data, "*"+m[1], at), "nothing above has the anchor &%s; define it before its first use, or write the value out", m[1])
		return
	}
	if tab, ok := indentedByTab(data, at); ok {
		r.errorAt(tab, "the line is indented with a tab, and YAML allows only spaces there; write spaces in place of the tab")
		return
	}
	if place, value, ok := unquoted(data, at, message); ok {
		r.errorAt(place, "YAML does not read this as text without quotes; write %q", value)
		return
	}
	if place, missing, ok := unclosed(data, at); ok {
		r.errorAt(place, "%s", missing)
		return
	}
	if message == "did not find expected key" {
		r.errorAt(at, "this is not YAML: in the mapping or list that begins here, a line does not fit; give all keys the same indentation, and write nothing behind a closing quote")
		return
	}
	r.errorAt(at, "this is not YAML: %s", message)
}

// Values that YAML refuses without quotes, and a part of the parser's error for each: ports
// and IPv6 addresses, names with a star, and variables within {} and [].
var needQuotes = []struct {
	says  string
	value *regexp.Regexp
}{
	{"node content", regexp.MustCompile(`[\s\[{,](:\d+|\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]*\]:\d+)(?:[\s,\]}]|$)`)},
	{"alphabetic or numeric", regexp.MustCompile(`[\s\[{,](\*(?:\.[\w.-]+)?)(?:[\s,\]}]|$)`)},
	{"did not find expected ',' or", regexp.MustCompile(`[\[{].*?[\s\[{,]([\w.:/-]*\$\{[^}"']*\}[\w.:/-]*)(?:[\s,\]}]|$)`)},
}

// unquoted returns the first value on the line of the error that needs quotes.
func unquoted(data []byte, at config.Position, message string) (config.Position, string, bool) {
	lines := strings.Split(string(data), "\n")
	if at.Line > len(lines) {
		return at, "", false
	}
	for _, n := range needQuotes {
		if !strings.Contains(message, n.says) {
			continue
		}
		if m := n.value.FindStringSubmatchIndex(lines[at.Line-1]); m != nil {
			return config.Position{File: at.File, Line: at.Line, Column: m[2] + 1}, lines[at.Line-1][m[2]:m[3]], true
		}
	}
	return at, "", false
}

// indentedByTab returns the position of a tab in the indentation of the line with the
// error, or of the line before or after it.
func indentedByTab(data []byte, at config.Position) (config.Position, bool) {
	lines := bytes.Split(data, []byte("\n"))
	for _, number := range []int{at.Line, at.Line + 1, at.Line - 1} {
		if number < 1 || number > len(lines) {
			continue
		}
		line := lines[number-1]
		indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
		if i := bytes.IndexByte(indent, '\t'); i >= 0 && len(indent) < len(line) {
			return config.Position{File: at.File, Line: number, Column: i + 1}, true
		}
	}
	return at, false
}

// firstOf returns the position where text first occurs in data.
func firstOf(data []byte, text string, at config.Position) config.Position {
	if i := bytes.Index(data, []byte(text)); i >= 0 {
		before := data[:i]
		at.Line = 1 + bytes.Count(before, []byte("\n"))
		at.Column = 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):])
	}
	return at
}
