package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// String is FILE:LINE:COLUMN as editors and terminals understand it.
func (p Position) String() string {
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Error is one thing that is wrong with a configuration, and where.
type Error struct {
	Position Position
	// Message says what is wrong and what would be right. It never contains a
	// value that came from the environment.
	Message string
}

// Error is FILE:LINE:COLUMN: message.
func (e Error) Error() string { return e.Position.String() + ": " + e.Message }

// Errors is everything that is wrong with a configuration, sorted by position.
type Errors []Error

// Error has one line for each error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// sorted returns e by position, without repetitions (a value behind an alias is
// looked at once for each use).
func (e Errors) sorted() Errors {
	slices.SortStableFunc(e, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Position.Line, b.Position.Line), cmp.Compare(a.Position.Column, b.Position.Column))
	})
	return slices.Compact(e)
}
