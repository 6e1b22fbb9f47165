package route

import (
	"regexp/syntax"
	"strings"
	"testing"
)

// checkInstructions returns to how many instructions an expression compiles. They are at most as many
// as instructions returns.
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
	if n := len(program.Inst); n > most+2 { // two begin and end each program
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
		for _, at := range []anchor{start, startFolded} {
			if _, got, err := compileExpression(text, at); err != nil || got != want {
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

// A host with many expressions is as fast as a host with one, if their paths begin differently: only the
// expressions that may match are compared.
func TestExpressionsAreIndexed(t *testing.T) {
	var table []string
	for i := range 1000 {
		table = append(table, "~*/p"+strings.Repeat("x", i%10)+string(rune('a'+i%26))+"/[0-9]+")
	}
	p := compiled(t, lines(append(table, "~/q/[0-9]+")...))
	asked := 0
	c := p.expressions.cursor()
	for _, b := range []byte("/q/1") {
		if !c.step(b) {
			break
		}
		if n := c.text(); n != nil {
			asked += int(n.to - n.from)
		}
	}
	if asked != 1 {
		t.Errorf("%d expressions are compared", asked)
	}
}
