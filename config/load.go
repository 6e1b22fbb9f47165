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
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Standard input is named "-" on the command line and in errors.
const standardInput = "-"

// maxFile bounds a configuration file in bytes, so that a wrong path cannot eat the memory.
const maxFile = 16 << 20

// Load reads and validates the configuration file at path; "-" is standard
// input. env looks up a name in the environment, as os.LookupEnv does. The
// error is an Errors with everything that is wrong.
func Load(path string, env func(string) (string, bool)) (*Config, error) {
	return Reload(path, env, nil)
}

// Reload is Load for a process that serves already: files of a certificate and
// its key that are unusable at the moment are only warned of where inUse knows
// the names that an earlier pair from them is being served for. So a good change
// of the configuration does not wait for files that somebody else writes.
func Reload(path string, env func(string) (string, bool), inUse func(cert, key string) (names []string, ok bool)) (*Config, error) {
	data, err := readAll(path)
	if err != nil {
		return nil, Errors{{Position{path, 1, 1}, fmt.Sprintf("cannot read the configuration: %v", reason(err))}}
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

// reason is err without the path, which the caller names (or must not name).
func reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Parse validates the configuration in data. name stands for it in errors, and
// relative file paths in it start at name's folder. The error is an Errors.
func Parse(name string, data []byte, env func(string) (string, bool)) (*Config, error) {
	return parse(name, data, env, nil)
}

func parse(name string, data []byte, env func(string) (string, bool), inUse func(cert, key string) ([]string, bool)) (*Config, error) {
	d := newDecoder(name, env)
	root := d.document(data)
	if root == nil {
		return nil, d.errs.sorted()
	}
	v := draft{decoder: d, names: map[string]bool{}, inUse: inUse}
	v.decode(root)
	v.validate()
	hash := ""
	if len(d.errs) == 0 {
		hash = v.config().hash() // while file paths are as they were written
	}
	v.files(filepath.Dir(name))
	if !v.unread {
		v.routeHosts()
	}
	if len(d.errs) > 0 {
		return nil, d.errs.sorted()
	}
	v.warn()
	c := v.config()
	c.Hash, c.Warnings, c.source = hash, d.warns.sorted(), sha256.Sum256(data)
	return c, nil
}

// document parses data as the one YAML document that it has to be, and makes
// it ready for decoding. It returns nil after an error.
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
	// The parser counts lines from zero in these, and from one in all others.
	countedFromZero = regexp.MustCompile(`^did not find expected (node content|key|'-' indicator|',' or|<)`)
	unknownAnchor   = regexp.MustCompile(`^unknown anchor '([^']*)' referenced`)
)

// syntax reports what the YAML parser said. It knows lines, not columns, and of
// an unknown anchor not even that.
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
	d.errorAt(at, "this is not YAML: %s", message)
}

// firstOf is where text is first in data.
func firstOf(data []byte, text string, at Position) Position {
	if i := bytes.Index(data, []byte(text)); i >= 0 {
		before := data[:i]
		at.Line = 1 + bytes.Count(before, []byte("\n"))
		at.Column = 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):])
	}
	return at
}
