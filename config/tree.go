package config

import (
	"crypto/sha256"
	"strconv"

	"github.com/weirproxy/weir/pause"
)

// A Document is the text of a configuration after it was parsed, whatever its format.
type Document struct {
	// Name is the name of the file in errors. Relative paths start at its folder.
	Name string
	Root *Tree
	// Errors are what the parser found wrong. Build reports them together with its own.
	Errors Errors
	// Source is the SHA-256 hash of the text, by which a watch knows it again.
	Source [sha256.Size]byte
	// Included are the files whose content is a part of Root.
	Included Included
}

// A Tree is a value in a Document: a mapping, a list, or a text with a shape.
type Tree struct {
	// Text is the text of a value that is neither a mapping nor a list.
	Text string
	// Parts are the elements of a list, or the keys of a mapping, each before its value.
	// A value may be part of several others.
	Parts []*Tree
	// File is the included file that has the value; empty: the document's own file.
	File string
	// Line and Column are the position in the file; they count from 1.
	Line, Column int
	Shape        Shape
	// Hidden: at least a part of Text came from the environment. Errors do not show it, and
	// it may have any shape: only the text matters.
	Hidden bool
	// Broken: one of the document's Errors is about this value. Build does not read it.
	Broken bool
	// Refused is the reason why this key of a mapping is not plain text; empty: it is.
	Refused string
	// Other names a value of ShapeOther in errors, such as "a date".
	Other string
}

// Shape says what a value in a document looks like.
type Shape uint8

// The shapes. In some formats a text without quotes can be a number or a boolean.
const (
	ShapeMapping Shape = iota
	ShapeList
	ShapeText
	ShapeInteger
	ShapeFraction // a number with a dot or an exponent
	ShapeBoolean
	ShapeNothing // a key without a value
	ShapeOther
)

// isScalar reports whether t is neither a mapping nor a list.
func (t *Tree) isScalar() bool { return t.Shape != ShapeMapping && t.Shape != ShapeList }

// describe names the shape of t, for errors.
func (t *Tree) describe() string {
	switch t.Shape {
	case ShapeMapping:
		return "a mapping"
	case ShapeList:
		return "a list"
	case ShapeText:
		return "text"
	case ShapeInteger, ShapeFraction:
		return "a number"
	case ShapeBoolean:
		return "a boolean"
	case ShapeNothing:
		return "nothing"
	}
	return t.Other
}

// put appends a key and its value to a mapping.
func (t *Tree) put(key string, value *Tree) {
	t.Parts = append(t.Parts, textTree(key), value)
}

// unlessEmpty returns nil for a list or mapping without parts.
func (t *Tree) unlessEmpty() *Tree {
	if len(t.Parts) == 0 {
		return nil
	}
	return t
}

func textTree(s string) *Tree { return &Tree{Shape: ShapeText, Text: s} }

func textUnlessEmpty(s string) *Tree {
	if s == "" {
		return nil
	}
	return textTree(s)
}

// appendTo appends t to b. Different trees have different texts.
func (t *Tree) appendTo(b []byte) []byte {
	pause.IfDue()
	opening, closing := byte('{'), byte('}')
	switch t.Shape {
	case ShapeMapping:
	case ShapeList:
		opening, closing = '[', ']'
	case ShapeText:
		return strconv.AppendQuote(b, t.Text)
	default: // a number or a boolean
		return append(b, t.Text...)
	}
	b = append(b, opening)
	for _, p := range t.Parts {
		b = append(p.appendTo(b), ' ')
	}
	return append(b, closing)
}
