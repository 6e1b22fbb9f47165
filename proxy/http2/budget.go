package http2

import "time"

// What costs a peer nothing to send and us something to handle is bounded by
// budgets. They fill up with time and with useful work, and a connection that
// overdraws one is ended with ENHANCE_YOUR_CALM and the budget's reason.
type budgetKind uint8

const (
	forResets   budgetKind = iota // streams that the peer gives up before they are answered (CVE-2023-44487)
	forProvoked                   // streams that the peer makes us reset, or opens in excess (CVE-2025-8671)
	forPings
	forSettings
	forEmpty   // DATA and CONTINUATION that carry nothing and end nothing
	forWindows // WINDOW_UPDATE beyond what the bytes sent explain
	forStarved // streams that were refused or reset because of missing memory
	forIgnored // PRIORITY, unknown frames, frames for streams that are over
	numBudgets
)

// budgets say how many at once, how many a second, and the word for metrics.
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

// purse is what a connection has spent of its budgets.
type purse struct {
	spent  [numBudgets]int32
	filled time.Time // when time was last turned into budget
}

// spend takes one from a budget and says whether it was there.
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

// earn gives back to a budget.
func (p *purse) earn(k budgetKind, n int32) { p.spent[k] = max(0, p.spent[k]-n) }

// refill turns the time that went by into budget.
func (p *purse) refill(now time.Time) {
	const step = 50 * time.Millisecond // every rate is a whole number in it
	steps := min(int64(now.Sub(p.filled)/step), 1<<20)
	if steps <= 0 {
		return
	}
	p.filled = p.filled.Add(time.Duration(steps) * step)
	for k := range p.spent {
		p.spent[k] = int32(max(0, int64(p.spent[k])-steps*int64(budgets[k].perSecond)/20))
	}
}
