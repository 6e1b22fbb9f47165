package route

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// The limits of a regular expression. The time of a comparison grows with the size of the
// expression, and tenants of a cluster may write expressions.
const (
	maxExpression   = 1024 // bytes of text
	maxInstructions = 1000 // of the compiled expression
)

// Where an expression has to match.
type anchor uint8

const (
	wholeValue anchor = iota
	start
	startFolded // in any case
)

var (
	errLongExpression  = fmt.Errorf("the regular expression is longer than %d bytes; split it", maxExpression)
	errLargeExpression = fmt.Errorf("the regular expression may compile to more than %d instructions; use smaller counts in braces, or split it", maxInstructions)
)

// compileExpression compiles a regular expression (RE2). beginning is the text, in lower case,
// with which each match begins in some case.
func compileExpression(text string, at anchor) (compiled *regexp.Regexp, beginning string, err error) {
	if len(text) > maxExpression {
		return nil, "", errLongExpression
	}
	flags := syntax.Perl
	if at == startFolded {
		flags |= syntax.FoldCase
	}
	parsed, err := syntax.Parse(text, flags)
	if err != nil {
		var wrong *syntax.Error
		errors.As(err, &wrong)
		return nil, "", fmt.Errorf("the regular expression %q is invalid: %s in %q; weir supports the syntax of RE2", text, wrong.Code, wrong.Expr)
	}
	if instructions(parsed) > maxInstructions {
		return nil, "", errLargeExpression
	}
	// The parsed form is complete in itself: an open \Q in text cannot quote the parenthesis.
	anchored := `\A(?:` + parsed.String() + ")"
	if at == wholeValue {
		anchored += `\z`
	}
	if compiled, err = regexp.Compile(anchored); err != nil {
		return nil, "", fmt.Errorf("compiling the regular expression %q: %w", text, err)
	}
	beginning, _ = literal(parsed)
	return compiled, beginning, nil
}

// instructions is at least the number of instructions to which an expression compiles.
func instructions(e *syntax.Regexp) int {
	n := 2
	if e.Op == syntax.OpLiteral {
		n = len(e.Rune) + 1
	}
	for _, part := range e.Sub {
		n += instructions(part)
	}
	if e.Op == syntax.OpRepeat {
		n *= max(1, e.Min+1, e.Max)
	}
	return n
}

// literal returns the ASCII text, in lower case, with which all matches of an expression begin
// in some case. whole is true if this is the whole match.
func literal(e *syntax.Regexp) (text string, whole bool) {
	switch e.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginText:
		return "", true
	case syntax.OpLiteral:
		for i, r := range e.Rune {
			if r > 0x7e {
				return strings.ToLower(string(e.Rune[:i])), false
			}
		}
		return strings.ToLower(string(e.Rune)), true
	case syntax.OpCapture:
		return literal(e.Sub[0])
	case syntax.OpPlus:
		text, _ = literal(e.Sub[0])
		return text, false
	case syntax.OpConcat:
		for _, part := range e.Sub {
			more, whole := literal(part)
			text += more
			if !whole {
				return text, false
			}
		}
		return text, true
	}
	return "", false
}
