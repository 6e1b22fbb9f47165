// Package file reads weir's configuration from a file in YAML, writes it as YAML, and watches
// this file and the files that it names. Package config knows the keys and their meaning. A file
// may contain variables of the environment, and aliases. docs/configuration.md describes the format.
package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/disk"
)

// Standard input is named "-" on the command line and in errors.
const standardInput = "-"

// maxFile limits a configuration file in bytes, so that a wrong path cannot use up the
// memory.
const maxFile = 16 << 20

// Load reads and validates the configuration file at path; "-" is standard input. env
// looks up a name in the environment, as os.LookupEnv does. The error is a config.Errors
// with all errors of the file. The file may also be a pipe, for a minute.
func Load(path string, env func(string) (string, bool)) (*config.Config, error) {
	c, _, err := Check(path, env)
	return c, err
}

// Reload is Load for a process that already serves, and reads only regular files. A file that is in use and that weir
// cannot use now is only a warning. So an unrelated broken file does not block a valid
// change of the configuration.
func Reload(path string, env func(string) (string, bool), inUse config.InUse) (*config.Config, error) {
	data, err := readRegular(path)
	c, _, err := build(path, data, err, env, inUse)
	return c, err
}

// Check is Load, but returns the warnings even if there are errors.
func Check(path string, env func(string) (string, bool)) (*config.Config, config.Errors, error) {
	data, err := readFirst(path)
	return build(path, data, err, env, config.InUse{})
}

// build makes a configuration of the content of a file. err is the error of reading it.
func build(path string, data []byte, err error, env func(string) (string, bool), inUse config.InUse) (*config.Config, config.Errors, error) {
	if err != nil {
		var p *fs.PathError // the position has its path
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, nil, config.Errors{{Position: config.Position{File: path}, Message: fmt.Sprintf("cannot read the configuration: %v", err)}}
	}
	return parse(path, data, env, inUse)
}

// readFirst reads the configuration file, which may be a pipe.
func readFirst(path string) ([]byte, error) {
	if path == standardInput {
		return disk.ReadStream(os.Stdin, "standard input", maxFile)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return disk.ReadStream(nil, path, maxFile)
	}
	return readRegular(path)
}

// readRegular reads a file. It refuses pipes and devices, because a reload would wait for them.
func readRegular(path string) ([]byte, error) {
	return disk.With(path, func(f *os.File) ([]byte, error) {
		var text bytes.Buffer
		if info, err := f.Stat(); err == nil {
			text.Grow(int(min(info.Size(), maxFile)) + bytes.MinRead)
		}
		_, err := text.ReadFrom(paced{io.LimitReader(f, maxFile+1)})
		data := text.Bytes()
		if err == nil && len(data) > maxFile {
			return nil, errors.New("it is larger than 16 MiB")
		}
		return data, err
	})
}

// Parse validates the configuration in data. Errors contain name as the name of the file,
// and relative file paths in the configuration start at name's folder. The error is a
// config.Errors.
func Parse(name string, data []byte, env func(string) (string, bool)) (*config.Config, error) {
	c, _, err := parse(name, data, env, config.InUse{})
	return c, err
}

// parse returns the warnings even if there are errors.
func parse(name string, data []byte, env func(string) (string, bool), inUse config.InUse) (*config.Config, config.Errors, error) {
	doc, err := Read(name, data, env)
	if err != nil {
		return nil, nil, err
	}
	return config.Build(doc, env, inUse)
}
