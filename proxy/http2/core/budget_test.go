package core

import (
	"testing"
	"time"
)

// A budget fills up at its rate, however often another budget is used up meanwhile.
func TestBudgetsFillUpTogether(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for k, b := range budgets {
		if b.perSecond%5 != 0 {
			t.Errorf("%s: %d units a second are no whole number in a fifth of a second", b.reason, b.perSecond)
		}
		var p purse
		other := budgetKind((k + 1) % int(numBudgets))
		for range b.burst {
			p.spend(budgetKind(k), now)
		}
		for range budgets[other].burst {
			p.spend(other, now)
		}
		for range 100 { // for 7 s, the test always takes more from the other budget than it has
			now = now.Add(70 * time.Millisecond)
			for p.spend(other, now) {
			}
		}
		if got, want := b.burst-p.spent[k], min(b.burst, 7*b.perSecond); got < want-b.perSecond || got > want {
			t.Errorf("%s: %d units are there after 7 s, want %d", b.reason, got, want)
		}
	}
}
