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

// Part is what a connection sends, by its order.
type Part string

// The parts.
const (
	Header Part = "header" // the PROXY header
	Hello  Part = "hello"  // the ClientHello
	Head   Part = "head"   // the head of the first request, or what raw sends
	Body   Part = "body"   // the body of the first request
)

var parts = []Part{Header, Hello, Head, Body}

// How a cut ends a connection.
const (
	CutClose  = "close"  // a half close; what the other side still says is looked at
	CutReset  = "reset"  // a TCP reset
	CutSilent = "silent" // nothing more is sent, and the connection is kept open
)

var cuts = []string{CutClose, CutReset, CutSilent}

// Fault is something that goes wrong on purpose at one place.
type Fault struct {
	Part Part
	// Offset is the number of bytes of the part that go before; with Percent,
	// the share of them in a hundred.
	Offset  int
	Percent bool
	// Delay is how long the bytes after the place are held back. Cut, when it
	// is set, is how the connection ends there.
	Delay time.Duration
	Cut   string
}

// ParseDelay reads PLACE=DURATION.
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

// ParseCut reads PLACE, or PLACE=close, =reset or =silent.
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

// at is where the fault lies among n bytes.
func (f *Fault) at(n int) int {
	if f.Percent {
		return n * f.Offset / 100
	}
	return min(f.Offset, n)
}

// faultsOf are those of part, which is n bytes long, in their order.
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

// Share is a part of all connections, from 0 to 1.
type Share float64

// Set reads 5% or 0.05; with String and Type a flag can be one.
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
		return "0" // what help leaves out
	}
	return strconv.FormatFloat(float64(*s)*100, 'f', -1, 64) + "%"
}

// Type is what the help calls the value.
func (s *Share) Type() string { return "SHARE" }

// Unescape reads text with \r, \n, \x00 and the like, as in a string of Go.
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
