package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node"
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
)

// defaultFiles are the places where a command looks for a configuration file if its command line names none. It takes
// the first file that exists.
var defaultFiles = []string{"weir.yaml", "/etc/weir/weir.yaml"}

// aboutFiles says in the help of each command how it takes configuration files.
const aboutFiles = `Without FILE it is ./weir.yaml, or else /etc/weir/weir.yaml; - is standard input.`

// files takes configuration files in the same way for each command: as arguments, or the one of --config.
type files struct {
	inPod bool // in a Pod the command needs no file: then the one path is empty
	many  bool // the command takes several files
	flag  []string
	paths []string
}

func (f *files) flags(c *cobra.Command) {
	c.Flags().StringArrayVarP(&f.flag, "config", "c", nil, "configuration `FILE`, instead of the argument")
}

// choose sets the paths.
func (f *files) choose(c *cobra.Command, args []string) error {
	f.flag = slices.Compact(f.flag) // a script in place of the binary may write the same one again
	switch {
	case slices.Contains(args, ""): // an unset variable of a shell, for example
		return fmt.Errorf("an empty argument names no file; write %s FILE", c.CommandPath())
	case slices.Contains(f.flag, ""):
		return fmt.Errorf("--config names no file; write %s FILE", c.CommandPath())
	case len(f.flag) > 0 && len(args) > 0:
		return fmt.Errorf("two configuration files: %s, and %s with --config; write one of them", args[0], f.flag[0])
	case len(f.flag) > 1 && !f.many:
		return fmt.Errorf("two configuration files: %s and %s, both with --config; write one of them", f.flag[0], f.flag[1])
	case len(f.flag) > 0:
		f.paths = f.flag
	case len(args) > 0:
		f.paths = args
	case f.inPod && kube.InPod():
		f.paths = []string{""}
	default:
		for _, path := range defaultFiles {
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) { // another error is reported when weir reads the file
				f.paths = []string{path}
				return nil
			}
		}
		return fmt.Errorf("no configuration file, and there is no %s; write %s FILE", strings.Join(defaultFiles, " and no "), c.CommandPath())
	}
	return nil
}

// each calls do with each path, and returns all errors together, each with its file.
func each(paths []string, do func(path string) error) error {
	var all config.Errors
	for _, path := range paths {
		var wrong config.Errors
		switch err := do(path); {
		case errors.As(err, &wrong):
			all = append(all, wrong...)
		case err != nil:
			all = append(all, config.Error{Position: config.Position{File: cmp.Or(path, node.BuiltIn)}, Message: err.Error()})
		}
	}
	if len(all) > 0 {
		return all
	}
	return nil
}
