package expression

import (
	"regexp/syntax"
	"strings"
	"testing"
)

// checkInstructions returns the number of instructions of a compiled expression. It checks that the number
// does not exceed the estimate of instructions.
func checkInstructions(t *testing.T, text string, fold bool) int {
	t.Helper()
	flags := syntax.Perl
	if fold {
		flags |= syntax.FoldCase
	}
	parsed, err := syntax.Parse(text, flags)
	if err != nil {
		t.Fatal(err)
	}
	most := instructions(parsed)
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(program.Inst); n > most+2 { // two instructions begin and end each program
		t.Errorf("%q compiles to %d instructions, more than %d", text, n, most)
	}
	return most
}

func TestInstructions(t *testing.T) {
	for _, text := range []string{"", "a", "abc", "a|bc|def|gh|ij|kl|mn", "(a)(b)(c)", "a{5}", "(ab?){3,7}", "(a{2,}){4}", "x*y+z?", "[a-z0-9]+", `\pL+`, "(|a|)", "(?:a|b|)*", "((((a))))", "a{0}", "(a|b){0,3}"} {
		if n := checkInstructions(t, text, false); n > 100 {
			t.Errorf("%q seems to need %d instructions", text, n)
		}
	}
}

func TestBeginnings(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		for _, at := range []Anchor{Start, StartFolded} {
			if _, got, err := Compile(text, at); err != nil || got != want {
				t.Errorf("%q begins with %q, not %q (%v)", text, got, want, err)
			}
		}
	}
	f("/api/v[0-9]+", "/api/v")
	f("/App(/|$)(.*)", "/app")
	f("^/a", "/a")
	f("/a|/b", "/")
	f("/abc|/abd", "/ab")
	f("(/ab)c", "/abc")
	f("(/a+)c", "/a")
	f("/a?b", "/")
	f("/(a{2})c", "/")
	f(".*", "")
	f("", "")
	f("/é", "/")
	f("/sK", "/sk")
}

// In nginx (PCRE) a dollar matches at the end of a value, and before a line feed at its end.
func TestDollars(t *testing.T) {
	for _, c := range []struct {
		text, value  string
		plain, nginx bool
	}{
		{"/admin$", "/admin", true, true},
		{"/admin$", "/admin\n", false, true},
		{"/admin$", "/admin\n\n", false, false},
		{"/admin$", "/admin\nx", false, false},
		{"/admin(/|$)(.*)", "/admin\n", false, true},
		{"/(a|b$|c)$", "/b\n", false, true},
		{`/admin\z`, "/admin\n", false, false},
		{`/admin\$`, "/admin\n", false, false},
		{`/admin[$]`, "/admin$", true, true},
		{"(?m)/admin$", "/admin\nx", true, true},
	} {
		for at, want := range map[Anchor]bool{Start: c.plain, Anywhere: c.plain, StartFolded: c.nginx, AnywhereNginx: c.nginx} {
			compiled, _, err := Compile(c.text, at)
			if err != nil {
				t.Fatal(err)
			}
			if got := compiled.MatchString(c.value); got != want {
				t.Errorf("%q matches %q by anchor %d: %v, want %v", c.text, c.value, at, got, want)
			}
		}
	}
}

// A regular expression never compiles to more instructions than the estimate.
func FuzzExpressions(f *testing.F) {
	f.Add("/v[0-9]+/items(/|$)", "/v1/items", false)
	f.Add("(?i)abc|abd|(x{2,5}y*){3}", "ABC", true)
	f.Add(`/a\Qb`, "/ab", false)
	f.Fuzz(func(t *testing.T, text, path string, fold bool) {
		at := Start
		if fold {
			at = StartFolded
		}
		compiled, beginning, err := Compile(text, at)
		if err != nil {
			return
		}
		if most := checkInstructions(t, text, fold); most > maxInstructions {
			t.Errorf("%q compiles to %d instructions", text, most)
		}
		ascii := !strings.ContainsFunc(path, func(r rune) bool { return r > 0x7e })
		if ascii && compiled.MatchString(path) && !strings.HasPrefix(strings.ToLower(path), beginning) {
			t.Errorf("%q matches %q, which does not begin with %q", text, path, beginning)
		}
	})
}
