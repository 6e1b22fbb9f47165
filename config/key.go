package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pause"
)

// A key is one key of a section. The tables of keys are the only definition of the
// configuration. weir uses them to read a file and to print it. The hash of a configuration
// is the hash of the printed text. Schema makes the JSON Schema for editors from the tables.
type key struct {
	name  string
	value value
	// doc says what the key does, in sentences for users. The description in the schema
	// adds the bounds and the default.
	doc string
}

// A value is bound to a field of an object. It reads the field from a file, prints it, and
// describes what a file may contain.
type value struct {
	// read decodes n, which has the path p. It marks where the value was written, even if
	// the value is wrong: a key with a wrong value must not be reported as missing as well.
	read func(v *draft, n *Tree, p path)
	// print returns the value as a file has it, or nil to leave the key out.
	print func(s *shower) *Tree
	// schema describes every valid value. It may allow values that read refuses.
	schema func() *schema
	// example is a valid value of a required key. Empty: the key is not required.
	example string
	// fallback describes a default that depends on other settings.
	fallback string
	// restart: a reload does not change what weir does.
	restart bool
	// upgrade: an upgrade changes it, as a restart does.
	upgrade bool
	// requests: the key of a route works on requests, so the routes of tunnels cannot have it.
	requests bool

	// inner, of a key with one section, returns that section.
	inner func() section
	// each, of a key with many sections, calls part for each of them, in the order of print. The
	// name is empty in a list.
	each func(part func(name string, of section))

	// bind, if it is not nil, makes the value for the object of the section, see lazily. The
	// value itself has only what does not depend on an object.
	bind func(object any) value
	// field returns the pointer to the field of an object to which bind binds the value. If the
	// field is zero, nothing is printed. nil: see print of the bound value.
	field func(object any) any
}

// lazily is the value of a key in a table that all objects of type O share. A file may have
// thousands of them, and most have only a few of their keys. So the value is bound to an object
// when it is needed. field returns the pointer to the field of the value, which prints nothing if
// the field is zero; nil: it always prints something.
func lazily[O any](field func(*O) any, bind func(*O) value) value {
	x := bind(new(O))
	late := value{example: x.example, fallback: x.fallback, restart: x.restart, upgrade: x.upgrade, requests: x.requests, bind: func(object any) value { return bind(object.(*O)) }}
	if field != nil {
		late.field = func(object any) any { return field(object.(*O)) }
	}
	return late
}

// isZero reports whether the value that a pointer points to is zero.
func isZero(pointer any) bool {
	switch p := pointer.(type) {
	case *string:
		return *p == ""
	case *bool:
		return !*p
	case *[]string:
		return *p == nil
	}
	return reflect.ValueOf(pointer).Elem().IsZero()
}

// required returns the value of a key that each section must have. The example is for the
// error.
func (x value) required(example string) value {
	x.example = example
	return x
}

// shownIf leaves the key out of printed configurations unless ok is true.
func (x value) shownIf(ok bool) value {
	if !ok {
		x.print, x.each = func(*shower) *Tree { return nil }, nil
	}
	return x
}

// byDefault describes a default that depends on other settings.
func (x value) byDefault(fallback string) value {
	x.fallback = fallback
	return x
}

// byRestart marks a key whose change takes effect only after a restart.
func (x value) byRestart() value {
	x.restart = true
	return x
}

// byUpgrade marks a key whose change takes effect only after a restart or an upgrade.
func (x value) byUpgrade() value {
	x.restart, x.upgrade = true, true
	return x
}

// forRequests marks a key of a route that works on requests. weir refuses it in routes of tunnels,
// because it does not read their bytes.
func (x value) forRequests() value {
	x.requests = true
	return x
}

// A section is a mapping with fixed keys, bound to an object.
type section struct {
	// object is a pointer to the values. Checks that need the position of the section find it by this pointer; nil: there are no
	// such checks.
	object   any
	position *Position // where the section begins; nil: the object has no position
	keys     []key
	// short is another form of the section: a single value. Its read is nil if there is
	// none. usual: it is the usual form, so the error for a list comes from it.
	short value
	usual bool
	// check reports what no key shows alone. there has the keys that the file has.
	check func(v *draft, there keySet, n *Tree, p path)
	// rules are the conditions of check that a schema can express.
	rules []*schema
}

// read decodes the section n. at is where errors about the object as a whole point to: the
// name of the object, or n.
func (s section) read(v *draft, at, n *Tree, p path) {
	if s.position != nil {
		*s.position = v.at(at)
	}
	if s.object != nil {
		v.mark(s.object, at, p)
	}
	if s.short.read != nil && (n.isScalar() || s.usual && n.Shape != ShapeMapping) {
		if !n.Broken {
			s.short.read(v, n, p)
		}
		return
	}
	there := v.section(n, p, s)
	for i := range s.keys {
		if k := &s.keys[i]; k.value.example != "" {
			v.require(there, n, p, k.name, k.value.example)
		}
	}
	if s.check != nil {
		s.check(v, there, n, p)
	}
}

// print returns the keys that have a value.
func (s section) print(sh *shower) *Tree {
	pause.IfDue()
	node := &Tree{Shape: ShapeMapping}
	for i := range s.keys {
		if v := s.print1(i, sh); v != nil {
			node.put(s.keys[i].name, v)
		}
	}
	return node
}

// print1 returns the value of one key, or nil.
func (s section) print1(i int, sh *shower) *Tree {
	if field := s.keys[i].value.field; field != nil && isZero(field(s.object)) {
		return nil
	}
	return s.value(i).print(sh)
}

// value returns the value of a key, bound to the object of the section.
func (s section) value(i int) value {
	if x := s.keys[i].value; x.bind != nil {
		return x.bind(s.object)
	}
	return s.keys[i].value
}

// names returns the names of the keys.
func (s section) names() (all []string) {
	for i := range s.keys {
		all = append(all, s.keys[i].name)
	}
	return all
}

// mapping is the value of a key with a section that always exists. It makes the table of the
// section only if it is needed.
func mapping(of func() section) value {
	return value{
		read:   func(v *draft, n *Tree, p path) { of().read(v, n, n, p) },
		print:  func(s *shower) *Tree { return of().print(s) },
		schema: func() *schema { return of().schema() },
		inner:  of,
	}
}

// optional is the value of a key with a section that exists only if the file has the key:
// otherwise *dst is nil. fresh makes an object with the defaults.
func optional[T any](dst **T, fresh func() *T, of func(*T) section) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			*dst = fresh()
			of(*dst).read(v, n, n, p)
		},
		print: func(s *shower) *Tree {
			if *dst == nil {
				return nil
			}
			return of(*dst).print(s)
		},
		schema: func() *schema { return of(fresh()).schema() },
		inner:  func() section { return of(fresh()) },
	}
}

// named is the value of a key with a mapping of names to sections. The order of the names
// has no meaning, so they are printed in alphabetical order.
func named[T any](dst *[]*T, fresh func(name string) *T, nameOf func(*T) string, of func(*T) section) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			v.named(n, p, func(name string, key, n *Tree, p path) {
				one := fresh(name)
				*dst = append(*dst, one)
				of(one).read(v, key, n, p)
			})
		},
		schema: func() *schema { return names(of(fresh("")).schema()) },
		each: func(part func(string, section)) {
			for _, one := range slices.SortedFunc(slices.Values(*dst), func(a, b *T) int { return strings.Compare(nameOf(a), nameOf(b)) }) {
				part(nameOf(one), of(one))
			}
		},
	}.printedByParts()
}

// printedByParts adds print to a value with each.
func (x value) printedByParts() value {
	x.print = func(s *shower) *Tree {
		all := &Tree{Shape: ShapeList}
		x.each(func(name string, of section) {
			if name != "" {
				all.Shape = ShapeMapping
				all.Parts = append(all.Parts, textTree(name))
			}
			all.Parts = append(all.Parts, of.print(s))
		})
		return all.unlessEmpty()
	}
	return x
}

// sections is the value of a key with a list of sections.
func sections[T any](dst *[]*T, fresh func() *T, of func(*T) section) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			for i, e := range v.elements(n, p) {
				one := fresh()
				*dst = append(*dst, one)
				of(one).read(v, e, e, p.at(i))
			}
		},
		schema: func() *schema { return items(of(fresh()).schema()) },
		each: func(part func(string, section)) {
			for _, one := range *dst {
				part("", of(one))
			}
		},
	}.printedByParts()
}

// inPlace is sections for a slice without pointers. No check may need the elements before
// the whole list was read.
func inPlace[T any](dst *[]T, fresh func() T, of func(*T) section) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			elements := v.elements(n, p)
			all := make([]T, len(elements))
			*dst = all
			for i, e := range elements {
				all[i] = fresh()
				of(&all[i]).read(v, e, e, p.at(i))
			}
		},
		print: func(s *shower) *Tree {
			all := &Tree{Shape: ShapeList}
			for i := range *dst {
				all.Parts = append(all.Parts, of(&(*dst)[i]).print(s))
			}
			return all.unlessEmpty()
		},
		schema: func() *schema {
			one := fresh()
			return items(of(&one).schema())
		},
	}
}

// list is the value of a key with a list whose elements must differ. Elements with an error
// stay zero. one binds a value to an element.
func list[T comparable](dst *[]T, one func(dst *T) value) value {
	return value{
		read: func(v *draft, n *Tree, p path) { readList(v, dst, one, n, p) },
		print: func(s *shower) *Tree {
			return printList(*dst, one, s).unlessEmpty()
		},
		schema: func() *schema {
			all := items(one(new(T)).schema())
			all.UniqueItems = true
			return all
		},
	}
}

// listOrNone is list, except that an empty list is a value too: nothing, in place of the
// default.
func listOrNone[T comparable](dst *[]T, one func(dst *T) value) value {
	x := list(dst, one)
	some, describe := x.read, x.schema
	x.read = func(v *draft, n *Tree, p path) {
		if n.Shape == ShapeList && len(n.Parts) == 0 {
			v.mark(dst, n, p)
			*dst = []T{}
			return
		}
		some(v, n, p)
	}
	x.print = func(s *shower) *Tree {
		if *dst == nil {
			return nil
		}
		return printList(*dst, one, s)
	}
	x.schema = func() *schema {
		all := describe()
		all.MinItems = 0
		return all
	}
	return x
}

func readList[T comparable](v *draft, dst *[]T, one func(dst *T) value, n *Tree, p path) {
	v.mark(dst, n, p)
	elements := v.elements(n, p)
	values := make([]T, len(elements))
	seen := map[T]int{}
	var zero T
	for i, e := range elements {
		v.mark(&values[i], e, p.at(i))
		if !e.Broken {
			one(&values[i]).read(v, e, p.at(i))
		}
		if values[i] == zero {
			continue
		}
		if line, twice := seen[values[i]]; twice {
			v.fail(e, p.at(i), "%s is given twice, first on line %d; keep one", v.quoteNode(e), line)
			values[i] = zero
			continue
		}
		seen[values[i]] = e.Line
	}
	*dst = values
}

func printList[T any](all []T, one func(dst *T) value, s *shower) *Tree {
	node := &Tree{Shape: ShapeList}
	for i := range all {
		node.Parts = append(node.Parts, orEmpty(one(&all[i]).print(s)))
	}
	return node
}

// orEmpty returns n, or an empty text for an element without a value.
func orEmpty(n *Tree) *Tree {
	if n == nil {
		return textTree("")
	}
	return n
}

// plainTree returns a number or a boolean.
func plainTree(shape Shape, text string) *Tree { return &Tree{Shape: shape, Text: text} }
