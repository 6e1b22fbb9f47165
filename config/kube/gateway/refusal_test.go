package gateway

import (
	"fmt"
	"strings"
	"testing"
)

// A message has each error once, and ends before it is too long for a reader.
func TestAlso(t *testing.T) {
	a, b := &Problem{"A", "First."}, &Problem{"B", "Second."}
	both := Also(Also(Also(Also(nil, a), b), a), b)
	if both.Reason != "A" || both.Message != "First. Second." || a.Message != "First." {
		t.Errorf("the problem is %v", both)
	}
	var p *Problem
	for i := range 1000 {
		p = Also(p, &Problem{"A", fmt.Sprintf("The Service %d does not exist.", i)})
	}
	if len(p.Message) > mostSaid+100 || strings.Count(p.Message, "There are more errors.") != 1 || !strings.HasSuffix(p.Message, "There are more errors.") {
		t.Errorf("the message of 1000 errors is %q", p.Message)
	}
}
