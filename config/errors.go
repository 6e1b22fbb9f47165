package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// String returns FILE:LINE:COLUMN, which editors and terminals understand.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File // the file as a whole
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Error is one error of a configuration, and its position.
type Error struct {
	Position Position
	// Message names the error and the correction. It never contains a value that came
	// from the environment.
	Message string
}

// Error returns FILE:LINE:COLUMN: message.
func (e Error) Error() string { return e.Position.String() + ": " + e.Message }

// Errors are all errors of a configuration, sorted by position.
type Errors []Error

// Error returns one line for each error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Sorted returns e by position, without duplicates (a value behind an alias is checked
// once for each use).
func (e Errors) Sorted() Errors {
	slices.SortStableFunc(e, func(a, b Error) int {
		return cmp.Or(strings.Compare(a.Position.File, b.Position.File), cmp.Compare(a.Position.Line, b.Position.Line), cmp.Compare(a.Position.Column, b.Position.Column))
	})
	return slices.Compact(e)
}
