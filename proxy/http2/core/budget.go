package core

import "time"

// budgetKind is a kind of work that costs a peer nothing to cause and costs weir
// something to do. A budget limits each kind. Budgets fill up with time and with useful
// work. If a connection overdraws a budget, weir ends it with ENHANCE_YOUR_CALM and the
// budget's reason.
//
// A peer that follows the protocol causes such work in proportion to useful frames: it
// returns windows for DATA, measures the path with PINGs between DATA, and gives priorities
// to requests. So useful frames earn units, and a flood costs weir little more than the
// useful frames that paid for it. What a peer does in answer to frames of weir may come long
// after weir sent them, and for very many at a time: what they earn is kept.
type budgetKind uint8

const (
	forResets   budgetKind = iota // streams that the peer resets soon, and before they are answered (CVE-2023-44487)
	forProvoked                   // streams that the peer makes weir reset, or opens in excess (CVE-2025-8671)
	forPings
	forSettings
	forEmpty   // DATA and CONTINUATION frames that carry nothing and end nothing
	forWindows // WINDOW_UPDATE frames, beyond the number that streams and DATA frames explain
	forStarved // streams that weir refused or reset because of missing memory
	forIgnored // PRIORITY, unknown frames, frames for streams that are over
	numBudgets
)

// budgets has for each kind how many units are available at once, how many are added each
// second, how many can be earned in advance, and the word for metrics.
var budgets = [numBudgets]struct {
	burst, perSecond, advance int32
	reason                    string
}{
	forResets:   {400, 100, 400, "rapid_reset"},
	forProvoked: {200, 20, 0, "provoked_resets"},
	forPings:    {500, 100, much, "ping_flood"},
	forSettings: {50, 5, much, "settings_flood"},
	forEmpty:    {500, 100, much, "empty_frames"},
	forWindows:  {2000, 500, much, "window_flood"},
	forStarved:  {400, 100, 0, "memory"},
	forIgnored:  {1000, 500, much, "useless_frames"},
}

const much = 1 << 30

// soon is the age up to which a reset stream counts for forResets. A client that waits as
// long makes no more requests than max_streams in this time, as with quick responses.
const soon = time.Second / 10

// purse records how much a connection has spent of its budgets.
type purse struct {
	spent  [numBudgets]int32 // below 0: units that were earned in advance
	filled time.Time         // when time was last turned into budget
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

// earn gives n units to a budget.
func (p *purse) earn(k budgetKind, n int32) {
	p.spent[k] = max(-budgets[k].advance, p.spent[k]-n)
}

// useful records useful frames: DATA with bytes, in either direction. A complete exchange
// counts as four.
func (p *purse) useful(n int32) {
	for _, k := range [...]budgetKind{forPings, forSettings, forEmpty, forIgnored} {
		p.earn(k, n)
	}
}

// sentData records a DATA frame with n bytes of weir. The peer may return the windows of
// stream and connection for each frame, whatever its size, and for each KiB: Go does so for every
// 4 KiB.
func (p *purse) sentData(n int) {
	p.useful(1)
	p.earn(forWindows, int32(2+n/(1<<9)))
}

// opened records a new stream: its window may be enlarged at once.
func (p *purse) opened() { p.earn(forWindows, 2) }

// ended records a complete exchange.
func (p *purse) ended() {
	p.useful(4)
	p.earn(forResets, 1)
}

// refill turns the time since the last refill into budget.
func (p *purse) refill(now time.Time) {
	const step = time.Second / 5 // in a step, every budget gets a whole number of units
	steps := min(int64(now.Sub(p.filled)/step), 1<<20)
	if steps <= 0 {
		return
	}
	p.filled = p.filled.Add(time.Duration(steps) * step)
	for k := range p.spent {
		if p.spent[k] > 0 {
			p.spent[k] = int32(max(0, int64(p.spent[k])-steps*int64(budgets[k].perSecond)/5))
		}
	}
}
