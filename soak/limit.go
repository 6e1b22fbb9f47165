package soak

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// A Limit is how many errors a run may have: a number, or a fraction of all requests. Set,
// String and Type make it a flag.
type Limit struct {
	Given bool
	Count int64
	Share Share // a fraction of all requests; used if it is not 0
}

// Set parses a limit such as 0.1% or 10.
func (l *Limit) Set(text string) error {
	*l = Limit{Given: true}
	if strings.HasSuffix(text, "%") {
		if l.Share.Set(text) != nil {
			return errors.New("a limit is a share like 0.1%, or a number like 10")
		}
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return errors.New("a limit is a share like 0.1%, or a number like 10")
	}
	l.Count = n
	return nil
}

func (l *Limit) String() string {
	switch {
	case !l.Given:
		return ""
	case l.Share > 0:
		return l.Share.String()
	}
	return strconv.FormatInt(l.Count, 10)
}

// Type names the value in the help.
func (l *Limit) Type() string { return "LIMIT" }

// allows returns true if a run may have this many errors together with this many successful
// requests.
func (l *Limit) allows(errors, requests int64) bool {
	if l.Share > 0 {
		return float64(errors) <= float64(l.Share)*float64(errors+requests)
	}
	return errors <= l.Count
}

// A Rate is a number of events per second.
type Rate float64

// ParseRate parses a rate such as 500/s, 90/m or 3600/h.
func ParseRate(text string) (Rate, error) {
	number, unit, ok := strings.Cut(text, "/")
	each := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[unit]
	v, err := strconv.ParseFloat(number, 64)
	if !ok || each == 0 || err != nil || !(v > 0) || math.IsInf(v, 0) {
		return 0, errors.New("a rate is written as 500/s, 90/m or 3600/h")
	}
	return Rate(v / each.Seconds()), nil
}

// Set parses a flag's value.
func (r *Rate) Set(text string) (err error) {
	*r, err = ParseRate(text)
	return err
}

func (r *Rate) String() string {
	if *r == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*r), 'f', -1, 64) + "/s"
}

// Type names the value in the help.
func (r *Rate) Type() string { return "RATE" }
