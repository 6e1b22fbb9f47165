package expression

import (
	"errors"
	"strings"
	"testing"
)

// Syntax of nginx that RE2 does not have has a name, and advice.
func TestSyntaxOfPerl(t *testing.T) {
	f := func(text, has, instead string) {
		t.Helper()
		_, _, err := Compile(text, StartFolded)
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.Has != has || !strings.Contains(wrong.Instead, instead) {
			t.Errorf("%s: %v", text, err)
		}
	}
	f("/(?!api).*", `a lookahead ("(?!")`, "a longer one")
	f("/a(?=b)", `a lookahead ("(?=")`, "without the lookahead")
	f("/a(?<=b)c", `a lookbehind ("(?<=")`, "the text before it")
	f("/a(?<!b)c", `a lookbehind ("(?<!")`, "the text before it")
	f("/(?>a|ab)c", `an atomic group ("(?>")`, "(?:...)")
	f("/[^/]++/a", `a possessive repetition ("++")`, "without the last plus")
	f("/a*+", `a possessive repetition ("*+")`, "without the last plus")
	f("/a?+", `a possessive repetition ("?+")`, "without the last plus")
	f("/a{1,2}+", `a possessive repetition ("{1,2}+")`, "without the last plus")
	f(`/(a)\1`, "a back reference (\"\\\\1\")", "again")
	f(`/(?<n>a)\k<n>`, "a back reference (\"\\\\k\")", "again")
	f(`/a\Kb`, "an escape (\"\\\\K\")", "the characters")
	f("/(?|a|b)", `a conditional, recursive or branch reset group ("(?|")`, "one by one")
	f("/(?(1)a|b)", `a conditional, recursive or branch reset group ("(?(")`, "one by one")
	f("/(", "", "syntax of RE2")
	f("/a**", "", "syntax of RE2")
	for _, text := range []string{"/(?<n>a)", `/\_a`, "/(?i:a)", `\/a`, `/\d{4}`, "/a+?", "/[[:word:]]"} {
		if _, _, err := Compile(text, StartFolded); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
