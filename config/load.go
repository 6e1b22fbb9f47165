package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Standard input is named "-" on the command line and in errors.
const standardInput = "-"

// maxFile limits a configuration file in bytes, so that a wrong path cannot use up the
// memory.
const maxFile = 16 << 20

// Load reads and validates the configuration file at path; "-" is standard input. env
// looks up a name in the environment, as os.LookupEnv does. The error is an Errors with
// all errors of the file.
func Load(path string, env func(string) (string, bool)) (*Config, error) {
	return Reload(path, env, InUse{})
}

// InUse reports which files the process already uses. Without functions: none.
type InUse struct {
	// Pair returns the names that weir serves with a certificate and key from two files.
	Pair func(cert, key string) (names []string, ok bool)
	// CRL returns true if revocation lists from a file are in use.
	CRL func(file string) bool
}

// Reload is Load for a process that already serves. A file that is in use and that weir
// cannot use now is only a warning. So an unrelated broken file does not block a valid
// change of the configuration.
func Reload(path string, env func(string) (string, bool), inUse InUse) (*Config, error) {
	c, _, err := load(path, env, inUse)
	return c, err
}

// Check is Load, but returns the warnings even if there are errors.
func Check(path string, env func(string) (string, bool)) (*Config, Errors, error) {
	return load(path, env, InUse{})
}

func load(path string, env func(string) (string, bool), inUse InUse) (*Config, Errors, error) {
	data, err := readAll(path)
	if err != nil {
		return nil, nil, Errors{{Position{path, 1, 1}, fmt.Sprintf("cannot read the configuration: %v", reason(err))}}
	}
	return parse(path, data, env, inUse)
}

func readAll(path string) ([]byte, error) {
	in := os.Stdin
	if path != standardInput {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(data) > maxFile {
		return nil, errors.New("it is larger than 16 MiB")
	}
	return data, err
}

// reason is err without the path. The caller names the path, or must not name it.
func reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Parse validates the configuration in data. Errors contain name as the name of the file,
// and relative file paths in the configuration start at name's folder. The error is an
// Errors.
func Parse(name string, data []byte, env func(string) (string, bool)) (*Config, error) {
	c, _, err := parse(name, data, env, InUse{})
	return c, err
}

// parse returns the warnings even if there are errors.
func parse(name string, data []byte, env func(string) (string, bool), inUse InUse) (*Config, Errors, error) {
	d := newDecoder(name, env)
	root := d.document(data)
	if root == nil {
		return nil, nil, d.errs.sorted()
	}
	v := draft{decoder: d, names: map[string]bool{}, inFile: map[*Certificate]keyed{}, inUse: inUse}
	v.decode(root)
	v.validate()
	hash := ""
	if len(d.errs) == 0 {
		hash = v.config().hash() // before file paths are made absolute
	}
	v.files(filepath.Dir(name))
	if !v.unread {
		v.routeHosts()
		v.checkKeys()
	}
	v.warn()
	warnings := d.warns.sorted()
	if len(d.errs) > 0 {
		return nil, warnings, d.errs.sorted()
	}
	c := v.config()
	c.Hash, c.Warnings, c.source = hash, warnings, sha256.Sum256(data)
	return c, warnings, nil
}

// document parses data, which must be one YAML document, and prepares it for decoding. It
// returns nil after an error.
func (d *decoder) document(data []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case err == io.EOF || err == nil && isNull(doc.Content[0]):
		d.errorAt(Position{d.file, 1, 1}, "the configuration is empty; it needs at least listeners, routes and backends")
		return nil
	case err != nil:
		d.syntax(data, err)
		return nil
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		d.errorAt(Position{d.file, second.Line, second.Column}, "a second YAML document begins here; one file is one configuration, so remove the ---")
		return nil
	case err != io.EOF:
		d.syntax(data, err)
		return nil
	}
	root := doc.Content[0]
	x := expander{decoder: d, open: map[*yaml.Node]bool{}, done: map[*yaml.Node]bool{}}
	if !x.expand(root, false) {
		return nil
	}
	return root
}

var (
	yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)
	// The parser counts lines from zero in these errors, and from one in all others.
	countedFromZero = regexp.MustCompile(`^did not find expected (node content|key|'-' indicator|',' or|<)`)
	unknownAnchor   = regexp.MustCompile(`^unknown anchor '([^']*)' referenced`)
)

// syntax reports an error of the YAML parser. The parser reports a line but no column,
// and for an unknown anchor no line either.
func (d *decoder) syntax(data []byte, err error) {
	m := yamlLine.FindStringSubmatch(err.Error())
	message := err.Error()[len(m[0]):]
	at := Position{d.file, 1, 1}
	if line, err := strconv.Atoi(m[1]); err == nil {
		at.Line = line
		if countedFromZero.MatchString(message) {
			at.Line++
		}
	}
	if m := unknownAnchor.FindStringSubmatch(message); m != nil {
		d.errorAt(firstOf(data, "*"+m[1], at), "nothing above has the anchor &%s; define it before its first use, or write the value out", m[1])
		return
	}
	if tab, ok := indentedByTab(data, at); ok {
		d.errorAt(tab, "the line is indented with a tab, and YAML allows only spaces there; write spaces in place of the tab")
		return
	}
	if place, value, ok := unquoted(data, at, message); ok {
		d.errorAt(place, "YAML does not read this as text without quotes; write %q", value)
		return
	}
	if place, missing, ok := unclosed(data, at); ok {
		d.errorAt(place, "%s", missing)
		return
	}
	if message == "did not find expected key" {
		d.errorAt(at, "this is not YAML: in the mapping or list that begins here, a line does not fit; give all keys the same indentation, and write nothing behind a closing quote")
		return
	}
	d.errorAt(at, "this is not YAML: %s", message)
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
func unquoted(data []byte, at Position, message string) (Position, string, bool) {
	lines := strings.Split(string(data), "\n")
	if at.Line > len(lines) {
		return at, "", false
	}
	for _, n := range needQuotes {
		if !strings.Contains(message, n.says) {
			continue
		}
		if m := n.value.FindStringSubmatchIndex(lines[at.Line-1]); m != nil {
			return Position{at.File, at.Line, m[2] + 1}, lines[at.Line-1][m[2]:m[3]], true
		}
	}
	return at, "", false
}

// indentedByTab returns the position of a tab in the indentation of the line with the
// error, or of the line before or after it.
func indentedByTab(data []byte, at Position) (Position, bool) {
	lines := bytes.Split(data, []byte("\n"))
	for _, number := range []int{at.Line, at.Line + 1, at.Line - 1} {
		if number < 1 || number > len(lines) {
			continue
		}
		line := lines[number-1]
		indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
		if i := bytes.IndexByte(indent, '\t'); i >= 0 && len(indent) < len(line) {
			return Position{at.File, number, i + 1}, true
		}
	}
	return at, false
}

// firstOf returns the position where text first occurs in data.
func firstOf(data []byte, text string, at Position) Position {
	if i := bytes.Index(data, []byte(text)); i >= 0 {
		before := data[:i]
		at.Line = 1 + bytes.Count(before, []byte("\n"))
		at.Column = 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):])
	}
	return at
}
