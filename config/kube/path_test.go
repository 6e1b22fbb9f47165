package kube

import (
	"strings"
	"testing"
)

// An expression with very many choices does not make a route for each choice.
func TestBeginningsAreFew(t *testing.T) {
	f := func(expression string, want int, first string) {
		t.Helper()
		if got := beginnings(expression); len(got) != want || got[0].String() != first {
			t.Errorf("%.20q begins with %d paths, the first of them %v, want %d and %s", expression, len(got), got[0], want, first)
		}
	}
	choices := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, strings.Repeat("a", 1+i%40)+strings.Repeat("b", i/40))
		}
		return "/x/(" + strings.Join(all, "|") + ")$"
	}
	f("/admin(/|$)(.*)", 1, "/admin")
	f("/admin.*", 1, "/admin...")
	f("/(a|b)/.*", 2, "/a/")
	f(choices(maxChoices), maxChoices, "/x/a")
	f(choices(100*maxChoices), 1, "/x/")
}
