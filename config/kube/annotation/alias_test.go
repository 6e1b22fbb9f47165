package annotation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestAliases(t *testing.T) {
	f := func(value string, rating Rating, want ...string) {
		t.Helper()
		i := ingressOf(nil, "server-alias: "+value)
		if got := SettingsOf(i).Aliases; !slices.Equal(got, want) {
			t.Errorf("%.80q adds %q, want %q", value, got, want)
		}
		checkRating(t, i, rating)
	}
	f("b.example", Exact, "b.example")
	f("B.example , c.example,,b.example", Exact, "b.example", "c.example")
	f("b.example,*.c.example", Near, "b.example", "*.c.example")
	f("b.example,~^www\\d+\\.c\\.example$", No, "b.example")
	f("www.b.*", No)
	f("a_b.example", No)
	f("b.example:80", No)
	f(strings.Repeat("a", 300), No)
	many := strings.Split(strings.TrimSuffix(manyHosts(), ","), ",")
	f(strings.Join(many, ","), No, many[:maxAliases]...)
}

func init() {
	maps.Copy(samples, map[string][]sample{
		"server-alias": {{"hosts", "b.example", false}, {"with wildcards", "*.b.example", false}, {"with regular expressions", "~^b.*", false}, {"more than 100 hosts", manyHosts(), false}},
	})
}

// manyHosts are one host more than weir serves.
func manyHosts() string {
	var b strings.Builder
	for n := range maxAliases + 1 {
		fmt.Fprintf(&b, "h%d.example,", n)
	}
	return b.String()
}
