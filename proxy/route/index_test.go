package route

import (
	"strings"
	"testing"
)

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
