package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/config/file"
)

func newFmtCommand() *cobra.Command {
	var f formatting
	in := files{many: true}
	c := &cobra.Command{
		Use:   "fmt [FILE...]",
		Short: "Print configuration files in the usual layout, or rewrite them",
		Long: `Fmt prints configuration files with two spaces for each level and at most one
blank line in a row. It keeps comments, quotes and the order of keys, and it
changes no value: a file that it cannot write again exactly stays as it is, with
an error.
` + aboutFiles + `

With --write it replaces each file whose layout differs. With --check it only
names these files; the exit status is then 1.`,
		Example: `  weir fmt weir.yaml
  weir fmt --write /etc/weir/*.yaml
  weir fmt --check weir.yaml        in CI`,
		SuggestFor: []string{"format"},
		PreRunE:    in.choose,
		RunE:       func(c *cobra.Command, _ []string) error { return f.all(c, in.paths) },
	}
	in.flags(c)
	c.Flags().BoolVarP(&f.write, "write", "w", false, "replace the files")
	c.Flags().BoolVar(&f.check, "check", false, "name the files that have another layout")
	c.MarkFlagsMutuallyExclusive("write", "check")
	return c
}

// formatting is what weir fmt does with the files.
type formatting struct{ write, check bool }

// errLayout is the error of weir fmt --check. The names of the files are printed before.
var errLayout = errors.New("these files have another layout; run weir fmt --write with them")

// all formats the files.
func (f *formatting) all(c *cobra.Command, paths []string) error {
	differ := false
	err := each(paths, func(path string) error {
		other, err := f.one(c, path)
		differ = differ || other
		return err
	})
	if err == nil && differ && f.check {
		return errLayout
	}
	return err
}

// one formats a file. It reports whether the layout of the file was another one.
func (f *formatting) one(c *cobra.Command, path string) (differs bool, err error) {
	data, err := readToFormat(c, path)
	if err != nil {
		return false, fmt.Errorf("cannot read the configuration: %w", err)
	}
	text, err := file.Format(path, data)
	if err != nil {
		return false, err
	}
	differs = !bytes.Equal(data, text)
	switch {
	case f.check && differs:
		fmt.Fprintln(c.OutOrStdout(), path)
	case f.check:
	case !f.write || path == "-":
		_, err = c.OutOrStdout().Write(text)
	case differs:
		err = replaceFile(path, data, text)
	}
	return differs, err
}

func readToFormat(c *cobra.Command, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(c.InOrStdin())
	}
	return os.ReadFile(path)
}

// replaceFile writes a file in place, so that its owner, its mode and links to it stay. A weir
// that watches the file loads it once its content is complete. If the new text cannot be written,
// for example because the disk is full, the old one comes back.
func replaceFile(path string, old, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0) // not O_TRUNC: a full disk takes the old text again only where it was
	if err != nil {
		return fmt.Errorf("cannot write the formatted configuration: %w", err)
	}
	err = overwrite(f, text)
	if err != nil {
		if again := overwrite(f, old); again != nil {
			err = fmt.Errorf("%w; its old text cannot be written either: %w", err, again)
		}
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("cannot write the formatted configuration: %w", err)
	}
	return nil
}

// overwrite gives a file another content, and waits until the disk has it.
func overwrite(f *os.File, text []byte) error {
	if _, err := f.WriteAt(text, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(text))); err != nil {
		return err
	}
	return f.Sync()
}
