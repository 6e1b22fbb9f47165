package status

import (
	"sync"
	"time"

	"github.com/weirproxy/weir/proxy/tally"
)

// Every is the time between two samples of a History.
const Every = 10 * time.Second

const (
	samplesKept = int(time.Hour/Every) + 1
	// leastWindow is the shortest time for which Now is computed: rates of shorter times jump.
	leastWindow = 5 * time.Second
	mostPoints  = 60
)

// History keeps the traffic of the last hour, in less than 100 KiB. The zero value is empty.
type History struct {
	mu      sync.Mutex
	samples []sample // the oldest first
}

type sample struct {
	at          time.Time
	counts      tally.Counts
	connections int
}

// Add adds the counts of a moment, and the number of connections that are open.
func (h *History) Add(at time.Time, counts tally.Counts, connections int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.samples) == samplesKept {
		copy(h.samples, h.samples[1:])
		h.samples = h.samples[:samplesKept-1]
	}
	h.samples = append(h.samples, sample{at, counts, connections})
}

// Traffic returns the traffic until now. counts are the counts at this moment.
func (h *History) Traffic(now time.Time, counts tally.Counts) Traffic {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := Traffic{Past: []Point{}, Total: counts.Total()}
	if len(h.samples) == 0 {
		return t
	}
	last := len(h.samples) - 1
	for last > 0 && now.Sub(h.samples[last].at) < leastWindow {
		last--
	}
	t.Now = ratesSince(&h.samples[last], now, counts)
	t.Hour = ratesSince(&h.samples[0], now, counts)
	every := (len(h.samples)-1)/mostPoints + 1
	// Points are counted from the newest sample, so that the last one is always the latest.
	for i := (len(h.samples) - 1) % every; i+every < len(h.samples); i += every {
		to := &h.samples[i+every]
		r := ratesSince(&h.samples[i], to.at, to.counts)
		t.Past = append(t.Past, Point{At: to.at, Requests: r.Requests, Errors: r.Errors, P50: r.P50, P99: r.P99, Connections: to.connections})
	}
	return t
}

func ratesSince(before *sample, now time.Time, counts tally.Counts) Rates {
	return ratesOf(counts.Minus(&before.counts), now.Sub(before.at))
}

// ratesOf returns the rates of the counts of a time.
func ratesOf(c tally.Counts, d time.Duration) Rates {
	if d <= 0 {
		return Rates{}
	}
	s := d.Seconds()
	return Rates{
		Seconds: s, Requests: float64(c.Total()) / s, Errors: float64(c.Classes[5]) / s, Refused: float64(c.Classes[4]) / s,
		P50: c.Quantile(0.5).Seconds(), P90: c.Quantile(0.9).Seconds(), P99: c.Quantile(0.99).Seconds(),
	}
}
