// Package expression compiles the regular expressions (RE2) of routes, within limits. It is apart
// from proxy/route so that the configuration is checked by the same rules.
package expression

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
	MaxText         = 1024 // bytes of text
	maxInstructions = 1000 // of the compiled expression
)

// Anchor is where an expression has to match.
type Anchor uint8

const (
	Whole         Anchor = iota // it matches the whole value
	Start                       // it matches the beginning of the value
	StartFolded                 // the same, in any case, and a dollar as in nginx
	Anywhere                    // it matches a part of the value
	AnywhereNginx               // the same, and a dollar as in nginx
)

var (
	errLongExpression  = fmt.Errorf("the regular expression is longer than %d bytes; split it", MaxText)
	errLargeExpression = fmt.Errorf("the regular expression may compile to more than %d instructions; use smaller counts in braces, or split it", maxInstructions)
)

// Compile compiles a regular expression (RE2). beginning is the text, in lower case, with which
// each match begins in some case; empty with Anywhere and AnywhereNginx. The error quotes text.
func Compile(text string, at Anchor) (compiled *regexp.Regexp, beginning string, err error) {
	if len(text) > MaxText {
		return nil, "", errLongExpression
	}
	flags := syntax.Perl
	if at == StartFolded {
		flags |= syntax.FoldCase
	}
	parsed, err := syntax.Parse(text, flags)
	if err != nil {
		var wrong *syntax.Error
		errors.As(err, &wrong)
		return nil, "", errorOf(text, wrong)
	}
	if at == StartFolded || at == AnywhereNginx {
		dollarsAsNginx(parsed)
	}
	if instructions(parsed) > maxInstructions {
		return nil, "", errLargeExpression
	}
	// The parsed form is complete in itself: an open \Q in text cannot quote the parenthesis.
	anchored := `\A(?:` + parsed.String() + ")"
	switch at {
	case Whole:
		anchored += `\z`
	case Anywhere, AnywhereNginx:
		anchored = parsed.String()
	}
	if compiled, err = regexp.Compile(anchored); err != nil {
		return nil, "", fmt.Errorf("compiling the regular expression %q: %w", text, err)
	}
	if at != Anywhere && at != AnywhereNginx {
		beginning, _ = literal(parsed)
	}
	return compiled, beginning, nil
}

// dollarsAsNginx lets each dollar match before a line feed at the end of the value as well, as PCRE does. Otherwise
// the path /admin%0A would not be one that /admin$ protects in nginx.
func dollarsAsNginx(e *syntax.Regexp) {
	if e.Op == syntax.OpEndText && e.Flags&syntax.WasDollar != 0 {
		feed := &syntax.Regexp{Op: syntax.OpLiteral, Rune: []rune{'\n'}}
		*e = syntax.Regexp{Op: syntax.OpConcat, Sub: []*syntax.Regexp{{Op: syntax.OpQuest, Sub: []*syntax.Regexp{feed}}, {Op: syntax.OpEndText}}}
		return
	}
	for _, part := range e.Sub {
		dollarsAsNginx(part)
	}
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
