package core

import "time"

// budgetKind is a kind of work that costs a peer nothing to cause and costs weir
// something to do. A budget limits each kind. Budgets fill up with time and with useful
// work. If a connection overdraws a budget, weir ends it with ENHANCE_YOUR_CALM and the
// budget's reason.
type budgetKind uint8

const (
	forResets   budgetKind = iota // streams that the peer resets before they are answered (CVE-2023-44487)
	forProvoked                   // streams that the peer makes weir reset, or opens in excess (CVE-2025-8671)
	forPings
	forSettings
	forEmpty   // DATA and CONTINUATION frames that carry nothing and end nothing
	forWindows // WINDOW_UPDATE frames, beyond the number that the sent bytes explain
	forStarved // streams that weir refused or reset because of missing memory
	forIgnored // PRIORITY, unknown frames, frames for streams that are over
	numBudgets
)

// budgets has for each kind how many units are available at once, how many are added each
// second, and the word for metrics.
var budgets = [numBudgets]struct {
	burst, perSecond int32
	reason           string
}{
	forResets:   {400, 100, "rapid_reset"},
	forProvoked: {200, 20, "provoked_resets"},
	forPings:    {500, 100, "ping_flood"},
	forSettings: {50, 5, "settings_flood"},
	forEmpty:    {500, 100, "empty_frames"},
	forWindows:  {2000, 500, "window_flood"},
	forStarved:  {400, 100, "memory"},
	forIgnored:  {1000, 500, "useless_frames"},
}

// purse records how much a connection has spent of its budgets.
type purse struct {
	spent  [numBudgets]int32
	filled time.Time // when time was last turned into budget
}

// spend takes one unit from a budget. It returns false if the budget is used up.
func (p *purse) spend(k budgetKind, now time.Time) bool {
	if p.spent[k] >= budgets[k].burst {
		p.refill(now)
	}
	if p.spent[k] >= budgets[k].burst {
		return false
	}
	if p.filled.IsZero() {
		p.filled = now
	}
	p.spent[k]++
	return true
}

// earn gives n units back to a budget.
func (p *purse) earn(k budgetKind, n int32) { p.spent[k] = max(0, p.spent[k]-n) }

// refill turns the time since the last refill into budget.
func (p *purse) refill(now time.Time) {
	const step = time.Second / 5 // in a step, every budget gets a whole number of units
	steps := min(int64(now.Sub(p.filled)/step), 1<<20)
	if steps <= 0 {
		return
	}
	p.filled = p.filled.Add(time.Duration(steps) * step)
	for k := range p.spent {
		p.spent[k] = int32(max(0, int64(p.spent[k])-steps*int64(budgets[k].perSecond)/5))
	}
}
