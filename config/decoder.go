package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pause"
)

// A decoder converts the trees of a document to values and collects all errors. A value that it cannot
// decode keeps its default, so that the rest can still be checked.
type decoder struct {
	file    string
	several bool // the document includes other files
	errs    Errors
	warns   Errors

	// places maps the pointer to a decoded value to the place where the file has the
	// value.
	places map[any]place

	// known collects the keys of each decoded section, unless it is nil. A test compares them
	// with docs/configuration.md.
	known map[string][]string
}

// place is the place of a value in a file.
type place struct {
	Position
	path   path
	hidden bool
}

func newDecoder(doc Document) *decoder {
	return &decoder{file: doc.Name, several: len(doc.Included.Files) > 0, errs: doc.Errors, places: map[any]place{}}
}

// path is the path of a value in the tree: in the form of errors (listeners.web.address)
// and in the form of the documentation (listeners.NAME.address).
type path struct{ shown, pattern string }

func (p path) key(k string) path {
	if p.shown == "" {
		return path{k, k}
	}
	return path{p.shown + "." + k, p.pattern + "." + k}
}

func (p path) name(name string) path { return path{p.shown + "." + name, p.pattern + ".NAME"} }

func (p path) index(i int) path {
	return path{fmt.Sprintf("%s[%d]", p.shown, i), p.pattern + "[]"}
}

func (d *decoder) at(n *Tree) Position { return Position{cmp.Or(n.File, d.file), n.Line, n.Column} }

// line names a line for an error at another position, with the file if there are several.
func (d *decoder) line(p Position) string {
	if !d.several {
		return fmt.Sprintf("line %d", p.Line)
	}
	return fmt.Sprintf("line %d of %s", p.Line, p.File)
}

// fail reports an error at node n, whose path is p.
func (d *decoder) fail(n *Tree, p path, format string, args ...any) {
	d.failAt(place{Position: d.at(n), path: p}, format, args...)
}

// example returns the end of an error: what to write instead; other if there is no example.
func (p path) example(other string) string {
	if text := examples[p.pattern]; text != "" {
		return "; write " + text
	}
	return other
}

func (d *decoder) failAt(at place, format string, args ...any) {
	d.errs = append(d.errs, at.say(format, args...))
}

func (d *decoder) warnAt(at place, format string, args ...any) {
	d.warns = append(d.warns, at.say(format, args...))
}

func (at place) say(format string, args ...any) Error {
	message := fmt.Sprintf(format, args...)
	if at.path.shown != "" {
		message = at.path.shown + ": " + message
	}
	return Error{at.Position, message}
}

// mark records that the value at dst was written at n.
func (d *decoder) mark(dst any, n *Tree, p path) {
	d.places[dst] = place{d.at(n), p, n.Hidden}
}

// given reports whether the file has the key of dst, even with an invalid value.
func (d *decoder) given(dst any) bool {
	_, ok := d.places[dst]
	return ok
}

// quote returns a value in the form in which errors show it.
func (d *decoder) quote(dst any, value string) string {
	if d.places[dst].hidden {
		return "the value from the environment"
	}
	return fmt.Sprintf("%q", value)
}

func (d *decoder) quoteNode(n *Tree) string {
	if n.Hidden {
		return "the value from the environment"
	}
	return fmt.Sprintf("%q", shorten(n.Text))
}

func shorten(s string) string {
	if len(s) > 100 {
		return s[:100] + "..."
	}
	return s
}

// section decodes a mapping with the given keys, and returns the keys that it contains.
func (v *draft) section(n *Tree, p path, keys []key) (there map[string]bool) {
	there = map[string]bool{}
	known := make([]string, len(keys))
	for i, k := range keys {
		known[i] = k.name
	}
	if v.known != nil {
		v.known[p.pattern] = known
	}
	v.mapping(n, p, func(name, n *Tree) {
		if i := slices.Index(known, name.Text); i >= 0 {
			there[name.Text] = true
			v.set(keys[i].value, name, n, p.key(name.Text))
			return
		}
		right := fmt.Sprintf("; known here: %s", strings.Join(known, ", "))
		if other, is := synonyms[p.pattern][name.Text]; is {
			right = "; write " + other.write
			there[other.key[strings.LastIndexByte(other.key, '.')+1:]] = true
		} else if near := nearest(name.Text, known); near != "" {
			right = fmt.Sprintf("; did you mean %q?", near)
			there[near] = true // a misspelled key is not reported as missing, too
		} else if len(known) == 0 {
			right = "; nothing belongs here, write {}"
		}
		v.fail(name, p, "unknown key %q%s", shorten(name.Text), right)
	})
	return there
}

// set reads n, unless the key has no value to decode.
func (v *draft) set(x value, key, n *Tree, p path) {
	switch {
	case n.Broken: // already reported
	case isNull(n):
		v.fail(key, p, "has no value; give it one, or take the key out")
	default:
		x.read(v, n, p)
	}
}

// named decodes a mapping whose keys are names.
func (d *decoder) named(n *Tree, p path, each func(name string, key, value *Tree, p path)) {
	empty := true
	d.mapping(n, p, func(key, value *Tree) {
		empty = false
		if !isName(key.Text) {
			d.fail(key, p, "%q is not a name; use up to 63 letters, digits, dots, dashes and underscores, a letter or digit first", shorten(key.Text))
			return
		}
		if isNull(value) {
			d.fail(key, p.name(key.Text), "has no value; give it one, or take the key out")
			return
		}
		each(key.Text, key, value, p.name(key.Text))
	})
	if empty && n.Shape == ShapeMapping {
		d.fail(n, p, "is empty; give it an entry, or take the key out")
	}
}

// mapping calls each for every pair, and reports repeated keys.
func (d *decoder) mapping(n *Tree, p path, each func(key, value *Tree)) {
	if n.Shape != ShapeMapping {
		d.fail(n, p, "has to be a mapping of keys to values, not %s%s", n.describe(), p.example(""))
		return
	}
	pause.IfDue()
	seen := map[string]*Tree{}
	for i := 0; i+1 < len(n.Parts); i += 2 {
		key, value := n.Parts[i], n.Parts[i+1]
		switch first, twice := seen[key.Text]; {
		case key.Refused != "":
			d.fail(key, p, "%s", key.Refused)
		case twice:
			d.fail(key, p, "key %q is given twice, first on %s; keep one", shorten(key.Text), d.line(d.at(first)))
		default:
			seen[key.Text] = key
			each(key, value)
		}
	}
}

// elements returns the elements of the list n that have a value.
func (d *decoder) elements(n *Tree, p path) []*Tree {
	if n.Shape != ShapeList {
		d.fail(n, p, "has to be a list, not %s%s", n.describe(), p.example("; write [...]"))
		return nil
	}
	if len(n.Parts) == 0 {
		d.fail(n, p, "is empty; give it an entry, or take the key out")
	}
	elements := make([]*Tree, 0, len(n.Parts))
	for i, e := range n.Parts {
		if isNull(e) {
			d.fail(e, p.index(i), "has no value; give it one, or take it out")
			continue
		}
		elements = append(elements, e)
	}
	return elements
}

// require reports that a key is missing from the section that begins at n. example is a
// valid value.
func (d *decoder) require(there map[string]bool, n *Tree, p path, key, example string) {
	if !there[key] && n.Shape == ShapeMapping {
		d.fail(n, p, "%s is missing; give it, such as %s", key, example)
	}
}

func isNull(n *Tree) bool { return n.Shape == ShapeNothing }

func isName(s string) bool {
	for i, c := range []byte(s) {
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return s != "" && len(s) <= 63
}
