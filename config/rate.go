package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rate is a number of requests or connections within a time.
type Rate struct {
	Number int           // 0: no limit
	Per    time.Duration // a second, a minute or an hour
}

// Every returns the time between two requests at the rate, at least 1 ns; 0: no limit.
func (r Rate) Every() time.Duration {
	if r.Number == 0 {
		return 0
	}
	return r.Per / time.Duration(r.Number)
}

// String writes the rate as the configuration does; empty: no limit.
func (r Rate) String() string {
	if r.Number == 0 {
		return ""
	}
	for _, p := range ratePeriods {
		if r.Per == p.is {
			return strconv.Itoa(r.Number) + "/" + p.letter
		}
	}
	return strconv.Itoa(r.Number) + "/" + r.Per.String()
}

var ratePeriods = []struct {
	letter string
	is     time.Duration
}{{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}}

// maxRate limits the numbers of rates and bursts. A whole burst at the slowest rate then takes
// less time than a time.Duration can hold.
const maxRate = 1_000_000

var rateKind = kind[Rate]{what: "a rate such as 10/s, 30/m or 100/h", format: Rate.String, pattern: "(1000000|[1-9][0-9]{0,5})/[smh]", parse: parseRate}

func parseRate(s string) (Rate, error) {
	number, letter, _ := strings.Cut(s, "/")
	n, err := strconv.Atoi(number)
	for _, p := range ratePeriods {
		if letter == p.letter && err == nil && n > 0 && n <= maxRate && number == strconv.Itoa(n) {
			return Rate{n, p.is}, nil
		}
	}
	return Rate{}, fmt.Errorf("is not a rate; write a whole number from 1 to %d and s, m or h, such as 10/s", maxRate)
}
