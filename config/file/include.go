package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
)

// maxIncluded limits the number of files that a configuration includes.
const maxIncluded = 10_000

// An includer puts the content of other files in the place of the key include.
type includer struct {
	*reader
	doc  *config.Document
	left int // how many bytes all files may have together
}

// include adds the files that the document includes, and takes the key out. Errors of the files
// are among those of the reader.
func (i *includer) include() {
	root := i.doc.Root
	if root.Shape != config.ShapeMapping {
		return
	}
	at := slices.IndexFunc(keys(root), func(k *config.Tree) bool { return k.Text == "include" })
	if at < 0 {
		return
	}
	list := root.Parts[2*at+1]
	rest := *root // the anchor of another value may have the same tree
	rest.Parts = slices.Delete(slices.Clone(root.Parts), 2*at, 2*at+2)
	i.doc.Root = &rest
	for _, path := range i.paths(list) {
		i.add(path)
	}
}

// keys returns the keys of a mapping.
func keys(t *config.Tree) []*config.Tree {
	all := make([]*config.Tree, 0, len(t.Parts)/2)
	for i := 0; i < len(t.Parts); i += 2 {
		all = append(all, t.Parts[i])
	}
	return all
}

func (i *includer) refuse(n *config.Tree, format string, args ...any) {
	i.errorAt(config.Position{File: i.file, Line: n.Line, Column: n.Column}, "include: "+format, args...)
}

// includedPath is a file to include, and the value that names it.
type includedPath struct {
	path string
	by   *config.Tree
}

// paths returns the files of the list, in order.
func (i *includer) paths(list *config.Tree) (all []includedPath) {
	parts := list.Parts
	switch {
	case list.Shape == config.ShapeText: // one path needs no list
		parts = []*config.Tree{list}
	case list.Shape != config.ShapeList || len(parts) == 0:
		i.refuse(list, `has to be a list of files, folders or patterns; write include: [conf.d]`)
		return nil
	}
	first := map[string]bool{}
	for _, n := range parts {
		switch {
		case n.Broken: // already reported
			continue
		case n.Hidden:
			i.refuse(n, "a path cannot contain a variable of the environment, because errors name the files; write the path out")
			continue
		case n.Shape != config.ShapeText || n.Text == "":
			i.refuse(n, `has to be the path of a file or folder, or a pattern; write include: [conf.d]`)
			continue
		}
		pattern := n.Text
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(i.file), pattern)
		}
		i.doc.Included.Patterns = append(i.doc.Included.Patterns, pattern)
		files, err := includedFiles(pattern)
		if err != nil {
			i.refuse(n, "cannot include %s: %v", n.Text, err)
		}
		for _, path := range files {
			if i.isMain(path) {
				i.refuse(n, "%s contains the configuration file itself; put the other files into a folder of their own, such as conf.d", n.Text)
				continue
			}
			if first[path] {
				i.refuse(n, "%s is included twice; name it once", path)
				continue
			}
			first[path] = true
			all = append(all, includedPath{path, n})
		}
	}
	return all
}

// includedFiles returns the files of a path: the file itself, the *.yaml files of a folder, or
// the files that match a pattern, in lexical order. It never returns files whose names begin
// with a dot, unless the path names one. A folder and a pattern may have no files.
func includedFiles(pattern string) ([]string, error) {
	info, err := os.Stat(pattern)
	switch {
	case err == nil && info.IsDir():
		pattern = filepath.Join(escapePattern(pattern), "*.yaml")
	case err == nil:
		return []string{pattern}, nil
	case !strings.ContainsAny(pattern, "*?["):
		return nil, cause(err)
	}
	all, err := filepath.Glob(pattern)
	if err != nil {
		return nil, errors.New("it is not a valid pattern; write one such as sites/*.yaml")
	}
	all = slices.DeleteFunc(all, func(path string) bool {
		info, err := os.Stat(path)
		return strings.HasPrefix(filepath.Base(path), ".") || err == nil && info.IsDir()
	})
	slices.Sort(all)
	if len(all) > maxIncluded {
		return nil, fmt.Errorf("it has %d files, more than %d; put several sections into one file", len(all), maxIncluded)
	}
	return all, nil
}

// isMain returns true if the path is that of the configuration file.
func (i *includer) isMain(path string) bool {
	mine, err := os.Stat(i.file)
	if err != nil { // standard input
		return false
	}
	other, err := os.Stat(path)
	return err == nil && os.SameFile(mine, other)
}

// escapePattern makes a pattern of the name of a folder.
func escapePattern(folder string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(folder)
}

// cause returns the error without the path, which the position has.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// add reads a file and adds its content to the document. A file that cannot be read does not
// hide the errors of others.
func (i *includer) add(file includedPath) {
	data, err := readRegular(file.path)
	switch {
	case err != nil:
		i.refuse(file.by, "cannot read %s: %v", file.path, cause(err))
		return
	case len(data) > i.left:
		i.refuse(file.by, "with %s the configuration is larger than 16 MiB", file.path)
		return
	}
	i.left -= len(data)
	i.doc.Included.Files = append(i.doc.Included.Files, config.IncludedFile{Path: file.path, Source: hashOf(data)})
	r := newReader(file.path, i.env)
	r.main = i.reader
	root := r.document(data)
	i.errs = append(i.errs, r.errs...)
	switch {
	case root == nil:
	case root.Shape != config.ShapeMapping:
		i.errorAt(config.Position{File: file.path, Line: root.Line, Column: root.Column}, "has to be a mapping of keys to values; write the same keys as in %s", i.file)
	default:
		i.merge(root)
	}
}

// merge adds the keys of a file to the document: it joins lists, and the entries of mappings.
// Any other key that two files have stays there twice, and so is an error.
func (i *includer) merge(root *config.Tree) {
	all := i.doc.Root
	for k := 0; k+1 < len(root.Parts); k += 2 {
		key, value := root.Parts[k], root.Parts[k+1]
		at := slices.IndexFunc(keys(all), func(other *config.Tree) bool { return other.Text == key.Text && other.Refused == "" })
		isJoined := value.Shape == config.ShapeList || value.Shape == config.ShapeMapping
		if at < 0 || !isJoined || all.Parts[2*at+1].Shape != value.Shape {
			all.Parts = append(all.Parts, key, value)
			continue
		}
		joined := *all.Parts[2*at+1] // an alias may have the same tree
		joined.Parts = slices.Concat(joined.Parts, value.Parts)
		all.Parts[2*at+1] = &joined
	}
}
