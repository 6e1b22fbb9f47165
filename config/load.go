package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

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
	data, err := readAll(path)
	if err != nil {
		return nil, Errors{{Position{path, 1, 1}, fmt.Sprintf("cannot read the configuration: %v", reason(err))}}
	}
	return Parse(path, data, env)
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
	d := newDecoder(name, env)
	root := d.document(data)
	if root == nil {
		return nil, d.errs.sorted()
	}
	v := draft{decoder: d}
	v.decode(root)
	v.validate()
	if len(d.errs) > 0 {
		return nil, d.errs.sorted()
	}
	hash := v.config().hash() // while file paths are as they were written
	v.files(filepath.Dir(name))
	if len(d.errs) > 0 {
		return nil, d.errs.sorted()
	}
	v.warn()
	c := v.config()
	c.Hash, c.Warnings = hash, d.warns.sorted()
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
		d.syntax(err)
		return nil
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		d.errorAt(Position{d.file, second.Line, second.Column}, "a second YAML document begins here; one file is one configuration, so remove the ---")
		return nil
	case err != io.EOF:
		d.syntax(err)
		return nil
	}
	root := doc.Content[0]
	x := expander{decoder: d, open: map[*yaml.Node]bool{}, done: map[*yaml.Node]bool{}}
	if !x.expand(root, false) {
		return nil
	}
	return root
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)

// syntax reports what the YAML parser said; it knows lines but not columns.
func (d *decoder) syntax(err error) {
	text := err.Error()
	m := yamlLine.FindStringSubmatch(text)
	line, _ := strconv.Atoi(m[1])
	d.errorAt(Position{d.file, max(line, 1), 1}, "this is not YAML: %s", text[len(m[0]):])
}
