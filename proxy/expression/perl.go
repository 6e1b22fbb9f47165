package expression

import (
	"fmt"
	"regexp"
	"regexp/syntax"
)

// Error is why RE2 does not parse a regular expression.
type Error struct {
	Text    string // the regular expression
	Has     string // a name for syntax of Perl, and the syntax; empty: it is invalid
	Wrong   string // why it is invalid
	Instead string // what to do
}

func (e *Error) Error() string {
	if e.Has == "" {
		return fmt.Sprintf("the regular expression %q is invalid: %s; %s", e.Text, e.Wrong, e.Instead)
	}
	return fmt.Sprintf("the regular expression %q has %s, which RE2 does not have; %s", e.Text, e.Has, e.Instead)
}

// perl is syntax of Perl, and of nginx (PCRE), that RE2 does not have.
var perl = []struct {
	syntax  *regexp.Regexp
	name    string
	instead string
}{
	{regexp.MustCompile(`^\(\?[=!]`), "a lookahead", "write which texts it matches, without the lookahead; of paths, a longer one may serve what a lookahead excludes"},
	{regexp.MustCompile(`^\(\?<[=!]`), "a lookbehind", "write the text before it as a part of the expression"},
	{regexp.MustCompile(`^\(\?>`), "an atomic group", "write (?:...), which tries more ways to match"},
	{regexp.MustCompile(`^\(\?[|R0-9&(]`), "a conditional, recursive or branch reset group", "write the alternatives one by one"},
	{regexp.MustCompile(`^(?:[*+?]|\{\d*,?\d*\})\+$`), "a possessive repetition", "write it without the last plus, which tries more ways to match"},
	{regexp.MustCompile(`^\\(?:[1-9]|[gk])`), "a back reference", "write the text again"},
	{regexp.MustCompile(`^\\[KGRhHvVNXZ]`), "an escape", "write the characters that it stands for"},
}

// errorOf explains why RE2 does not parse an expression.
func errorOf(text string, wrong *syntax.Error) *Error {
	for _, p := range perl {
		if found := p.syntax.FindString(wrong.Expr); found != "" {
			return &Error{Text: text, Has: fmt.Sprintf("%s (%q)", p.name, found), Instead: p.instead}
		}
	}
	return &Error{Text: text, Wrong: fmt.Sprintf("%s in %q", wrong.Code, wrong.Expr), Instead: "weir supports the syntax of RE2"}
}
