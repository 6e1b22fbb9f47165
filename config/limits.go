package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ConnectionRate is a number of new connections within a time.
type ConnectionRate struct {
	Number int           // 0: no limit
	Per    time.Duration // a second, a minute or an hour
}

// String writes the rate as the configuration does; "" for no limit.
func (r ConnectionRate) String() string {
	if r.Number == 0 {
		return ""
	}
	per := r.Per.String()
	for unit, d := range rateUnits {
		if r.Per == d {
			per = unit
		}
	}
	return strconv.Itoa(r.Number) + "/" + per
}

// Every is the time between two connections at the rate, at least 1 ns; 0: no limit.
func (r ConnectionRate) Every() time.Duration {
	if r.Number == 0 {
		return 0
	}
	return r.Per / time.Duration(r.Number)
}

var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// maxRate limits the numbers of rates and bursts. A burst of connections at the slowest rate
// then takes less time than a time.Duration can hold.
const maxRate = 1_000_000

var connectionRate = kind[ConnectionRate]{what: "a rate such as 400/s, 30/m or 10/h", format: ConnectionRate.String, pattern: "(1000000|[1-9][0-9]{0,5})/[smh]",
	parse: func(s string) (ConnectionRate, error) {
		number, unit, _ := strings.Cut(s, "/")
		n, err := strconv.Atoi(number)
		if per := rateUnits[unit]; err == nil && n > 0 && n <= maxRate && per > 0 && number == strconv.Itoa(n) {
			return ConnectionRate{n, per}, nil
		}
		return ConnectionRate{}, fmt.Errorf("is not a rate; write a whole number up to %d and s, m or h, such as 400/s", maxRate)
	},
}

var clientLimitsRules = []*schema{when(has("burst"), has("rate"))}

// checkClientLimits reports a burst without a rate.
func (v *draft) checkClientLimits() {
	c := &v.limits.Clients
	if v.given(&c.Burst) && !v.given(&c.Rate) {
		v.failAt(v.places[&c.Burst], "has no effect without rate; write limits.clients.rate beside it, such as 400/s")
	}
}
