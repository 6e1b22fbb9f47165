package config

import (
	"cmp"
	"fmt"
	"regexp"
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

	// broken has the paths of keys whose values are errors of the document, so that they are not read.
	broken map[string]bool

	// known collects the keys of each decoded section, unless it is nil. A test compares them
	// with docs/configuration.md.
	known map[string][]string
}

// place is the place of a value in a file. A file has many of them.
type place struct {
	n    *Tree // nil: the file does not have the value
	path path
}

// hidden reports whether a part of the value came from the environment.
func (at place) hidden() bool { return at.n != nil && at.n.Hidden }

// position returns the position of a place; the zero position if the file does not have the value.
func (d *decoder) position(at place) Position {
	if at.n == nil {
		return Position{}
	}
	return d.at(at.n)
}

func newDecoder(doc Document) *decoder {
	return &decoder{file: doc.Name, several: len(doc.Included.Files) > 0, errs: doc.Errors, places: map[any]place{}, broken: map[string]bool{}}
}

// path is the path of a value in the tree. It is written out only for errors and hints, in the
// form of errors (listeners.web.address) or of the documentation (listeners.NAME.address).
type path struct {
	up    *path // nil: of the root
	step  string
	index int32
	kind  stepKind
}

// stepKind says what the last step of a path is.
type stepKind uint8

const (
	stepKey   stepKind = iota // step is a key of a section
	stepName                  // step is a name that the user chose
	stepIndex                 // index is that of an element of a list
)

func (p *path) key(k string) path     { return path{up: p, step: k} }
func (p *path) name(name string) path { return path{up: p, step: name, kind: stepName} }
func (p *path) at(i int) path         { return path{up: p, index: int32(i), kind: stepIndex} }

// shown returns the path in the form of errors.
func (p *path) shown() string {
	if p.up == nil {
		return p.step
	}
	if p.kind == stepIndex {
		return fmt.Sprintf("%s[%d]", p.up.shown(), p.index)
	}
	return joinPath(p.up.shown(), p.step)
}

// pattern returns the path in the form of the documentation.
func (p *path) pattern() string {
	switch {
	case p.up == nil:
		return p.step
	case p.kind == stepIndex:
		return p.up.pattern() + "[]"
	case p.kind == stepName:
		return joinPath(p.up.pattern(), "NAME")
	}
	return joinPath(p.up.pattern(), p.step)
}

func joinPath(up, step string) string {
	if up == "" {
		return step
	}
	return up + "." + step
}

// A keySet has the keys that a section has in the file.
type keySet []string

func (s keySet) has(key string) bool { return slices.Contains(s, key) }

func (s *keySet) add(key string) {
	if !s.has(key) {
		*s = append(*s, key)
	}
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
	d.failAt(place{n, p}, format, args...)
}

// example returns the end of an error: what to write instead; other if there is no example.
func (p *path) example(other string) string {
	if text := examples[p.pattern()]; text != "" {
		return "; write " + text
	}
	return other
}

func (d *decoder) failAt(at place, format string, args ...any) {
	d.errs = append(d.errs, d.say(at, format, args...))
}

func (d *decoder) warnAt(at place, format string, args ...any) {
	d.warns = append(d.warns, d.say(at, format, args...))
}

func (d *decoder) say(at place, format string, args ...any) Error {
	message := fmt.Sprintf(format, args...)
	if shown := at.path.shown(); shown != "" {
		message = shown + ": " + message
	}
	return Error{d.position(at), message}
}

// mark records that the value at dst was written at n.
func (d *decoder) mark(dst any, n *Tree, p path) {
	d.places[dst] = place{n, p}
}

// given reports whether the file has the key of dst, even with an invalid value.
func (d *decoder) given(dst any) bool {
	_, ok := d.places[dst]
	return ok
}

// quote returns a value in the form in which errors show it.
func (d *decoder) quote(dst any, value string) string {
	if d.places[dst].hidden() {
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
func (v *draft) section(n *Tree, p path, s section) (there keySet) {
	if v.known != nil {
		v.known[p.pattern()] = s.names()
	}
	there = make(keySet, 0, len(n.Parts)/2)
	v.mapping(n, p, func(name, n *Tree) {
		i := slices.IndexFunc(s.keys, func(k key) bool { return k.name == name.Text })
		if i < 0 {
			there.add(v.unknownKey(name, &p, s.names()))
			return
		}
		there.add(name.Text)
		v.set(s.value(i), name, n, p.key(name.Text))
	})
	return there
}

// unknownKey reports a key that its section does not know. It returns the key that the user
// probably meant, which is then not reported as missing, or the key itself.
func (v *draft) unknownKey(name *Tree, p *path, known []string) (meant string) {
	right := fmt.Sprintf("; known here: %s", strings.Join(known, ", "))
	meant = name.Text
	if other, is := synonyms[p.pattern()][name.Text]; is {
		right = "; write " + other.write
		meant = other.key[strings.LastIndexByte(other.key, '.')+1:]
	} else if why, is := absent[strings.ToLower(name.Text)]; is {
		right = "; " + why
	} else if near := nearest(name.Text, known); near != "" {
		right = fmt.Sprintf("; did you mean %q?", near)
		meant = near
	} else if other, is := elsewhere(p.pattern(), name.Text); is {
		right = fmt.Sprintf("; the key for this is %s: write %s", other.key, other.write)
	} else if len(known) == 0 {
		right = "; nothing belongs here, write {}"
	}
	v.fail(name, *p, "unknown key %q%s", shorten(name.Text), right)
	return meant
}

// set reads n, unless the key has no value to decode.
func (v *draft) set(x value, key, n *Tree, p path) {
	switch {
	case n.Broken: // already reported
		v.broken[p.shown()] = true
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
	seen := seenKeys{before: n.Parts}
	for i := 0; i+1 < len(n.Parts); i += 2 {
		key, value := n.Parts[i], n.Parts[i+1]
		if key.Refused != "" {
			d.fail(key, p, "%s", key.Refused)
		} else if first := seen.first(i); first != nil {
			d.fail(key, p, "key %q is given twice, first on %s; keep one", shorten(key.Text), d.line(d.at(first)))
		} else {
			each(key, value)
		}
	}
}

// seenKeys finds repeated keys of a mapping.
type seenKeys struct {
	before []*Tree          // the parts of the mapping
	byText map[string]*Tree // of long mappings
}

// fewKeys is the number of keys that are compared with each other.
const fewKeys = 32

// first returns the first key with the text of the key at an index, if that is another one. It is
// called for each index in turn.
func (s *seenKeys) first(i int) *Tree {
	key := s.before[i]
	if len(s.before) <= 2*fewKeys {
		for j := 0; j < i; j += 2 {
			if s.before[j].Text == key.Text && s.before[j].Refused == "" {
				return s.before[j]
			}
		}
		return nil
	}
	if s.byText == nil {
		s.byText = make(map[string]*Tree, len(s.before)/2)
	}
	if first := s.byText[key.Text]; first != nil {
		return first
	}
	s.byText[key.Text] = key
	return nil
}

// plainWord is a text that YAML reads as it is, also within brackets.
var plainWord = regexp.MustCompile(`^[0-9A-Za-z/][0-9A-Za-z/._-]{0,50}$`)

// elements returns the elements of the list n that have a value.
func (d *decoder) elements(n *Tree, p path) []*Tree {
	if n.Shape != ShapeList {
		right := "; write [...]"
		if n.isScalar() && n.Shape != ShapeBoolean && !n.Hidden && plainWord.MatchString(n.Text) {
			right = "; write [" + n.Text + "]"
		}
		d.fail(n, p, "has to be a list, not %s%s", n.describe(), p.example(right))
		return nil
	}
	if len(n.Parts) == 0 {
		d.fail(n, p, "is empty; give it an entry, or take the key out")
	}
	elements := make([]*Tree, 0, len(n.Parts))
	for i, e := range n.Parts {
		if isNull(e) {
			d.fail(e, p.at(i), "has no value; give it one, or take it out")
			continue
		}
		elements = append(elements, e)
	}
	return elements
}

// require reports that a key is missing from the section that begins at n. example is a
// valid value.
func (d *decoder) require(there keySet, n *Tree, p path, key, example string) {
	if !there.has(key) && n.Shape == ShapeMapping {
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
