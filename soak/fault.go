package soak

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Part is a part of the data that a connection sends. The constants are in the order of
// sending.
type Part string

// The parts.
const (
	Header Part = "header" // the PROXY header
	Hello  Part = "hello"  // the ClientHello
	Head   Part = "head"   // or the bytes that raw sends
	Body   Part = "body"   // the body of the first request
)

var parts = []Part{Header, Hello, Head, Body}

// How a cut ends a connection.
const (
	CutClose  = "close"  // a half close; weir soak still evaluates what the other side sends
	CutReset  = "reset"  // a TCP reset
	CutSilent = "silent" // weir soak sends nothing more, and keeps the connection open
)

var cuts = []string{CutClose, CutReset, CutSilent}

// Fault is an intentional error at one place.
type Fault struct {
	Part Part
	// Offset is the number of bytes of the part that are sent before the place. With
	// Percent, it is their share of the part in percent.
	Offset  int
	Percent bool
	// Delay is the time before the bytes after the place are sent. Cut, if it is set, is
	// how the connection ends at the place.
	Delay time.Duration
	Cut   string
}

// ParseDelay parses PLACE=DURATION.
func ParseDelay(s string) (Fault, error) {
	place, length, ok := strings.Cut(s, "=")
	if !ok {
		return Fault{}, fmt.Errorf("%q is not PLACE=DURATION, as in header+8=3s", s)
	}
	f, err := parsePlace(place)
	if err != nil {
		return f, err
	}
	f.Delay, err = time.ParseDuration(length)
	if err != nil || f.Delay <= 0 {
		return f, fmt.Errorf("%q is not a duration, as in 3s or 250ms", length)
	}
	return f, nil
}

// ParseCut parses PLACE, or PLACE=close, =reset or =silent.
func ParseCut(s string) (Fault, error) {
	place, how, ok := strings.Cut(s, "=")
	f, err := parsePlace(place)
	if err != nil {
		return f, err
	}
	if f.Cut = how; !ok {
		f.Cut = CutClose
	}
	if !slices.Contains(cuts, f.Cut) {
		return f, fmt.Errorf("%q is not a kind of cut: use one of %s", how, strings.Join(cuts, ", "))
	}
	return f, nil
}

func parsePlace(s string) (f Fault, err error) {
	part, offset, more := strings.Cut(s, "+")
	f.Part = Part(part)
	if !slices.Contains(parts, f.Part) {
		return f, fmt.Errorf("%q is not a place: use header, hello, head or body, alone or with an offset as in header+8 or head+50%%", s)
	}
	if !more {
		return f, nil
	}
	offset, f.Percent = strings.CutSuffix(offset, "%")
	f.Offset, err = strconv.Atoi(offset)
	if err != nil || f.Offset < 0 || f.Percent && f.Offset > 100 {
		return f, fmt.Errorf("%q has no offset after its +: use a number of bytes, or a percentage as in head+50%%", s)
	}
	return f, nil
}

// at returns the offset of the fault in a part of n bytes.
func (f *Fault) at(n int) int {
	if f.Percent {
		return n * f.Offset / 100
	}
	return min(f.Offset, n)
}

// faultsOf returns the faults of part, which is n bytes long, in the order of their
// offsets.
func faultsOf(all []Fault, part Part, n int) []Fault {
	var of []Fault
	for _, f := range all {
		if f.Part == part {
			of = append(of, f)
		}
	}
	slices.SortStableFunc(of, func(a, b Fault) int { return cmp.Compare(a.at(n), b.at(n)) })
	return of
}

// Share is a fraction of all connections, from 0 to 1.
type Share float64

// Set parses 5% or 0.05. With Set, String and Type, a Share can be the value of a flag.
func (s *Share) Set(text string) error {
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(number, 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) {
		return errors.New("a share is written as 5% or 0.05")
	}
	*s = Share(v)
	return nil
}

func (s *Share) String() string {
	if *s == 0 {
		return "0" // the help omits this default
	}
	return strconv.FormatFloat(float64(*s)*100, 'f', -1, 64) + "%"
}

// Type names the value in the help.
func (s *Share) Type() string { return "SHARE" }

// Unescape replaces \r, \n, \x00 and other escape sequences, as in a string of Go.
func Unescape(s string) ([]byte, error) {
	text, err := strconv.Unquote(`"` + strings.ReplaceAll(s, `"`, `\"`) + `"`)
	if err != nil {
		return nil, fmt.Errorf("%q has a backslash without an escape sequence: write \\\\ for a backslash", s)
	}
	return []byte(text), nil
}

// String returns the fault in the form that ParseDelay and ParseCut accept.
func (f Fault) String() string {
	s := string(f.Part)
	switch {
	case f.Percent:
		s += fmt.Sprintf("+%d%%", f.Offset)
	case f.Offset > 0:
		s += fmt.Sprintf("+%d", f.Offset)
	}
	if f.Cut != "" {
		return s + "=" + f.Cut
	}
	return s + "=" + f.Delay.String()
}
