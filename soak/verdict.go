package soak

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The exit statuses of the command. docs/soak.md explains them.
const (
	StatusOK          = 0
	StatusFailed      = 1   // the run could not be made, or the report could not be written
	StatusUsage       = 2   // the command line is invalid
	StatusAnomalies   = 3   // anomalies were found
	StatusThreshold   = 4   // a threshold was missed
	StatusNoAnswer    = 5   // a target never answered
	StatusInterrupted = 130 // a signal ended the run early; the value that shells use
)

// results are the names of the statuses in reports.
var results = map[int]string{
	StatusOK: "ok", StatusAnomalies: "anomalies", StatusThreshold: "threshold_missed",
	StatusNoAnswer: "never_answered", StatusInterrupted: "interrupted",
}

// An ExitError is an error with an exit status.
type ExitError struct {
	Status int
	Err    error
}

func (e *ExitError) Error() string { return e.Err.Error() }
func (e *ExitError) Unwrap() error { return e.Err }

// ExitStatus is for programs that do not import this package.
func (e *ExitError) ExitStatus() int { return e.Status }

// A Threshold is a limit that the user has set, and the measured value.
type Threshold struct {
	Name   string  `json:"name"` // max_p99 or max_errors
	Target string  `json:"target"`
	Limit  string  `json:"limit"`
	Value  float64 `json:"value"` // seconds, or the number of errors
	Met    bool    `json:"met"`
	text   string
}

// never are the kinds of anomalies that --max-errors does not allow, because they do not
// depend on the load.
var never = []Kind{PlaintextOnTLS, WrongAddress}

// neverAnswered returns true if the target sent not one byte although it should have. A
// target may close a connection with faults without an answer.
func neverAnswered(s *Snapshot) bool {
	return s.Received == 0 && s.Exchanges == 0 && len(s.Outcomes) == 0 && len(s.Anomalies) > 0
}

func anomaliesIn(s *Snapshot, kinds ...Kind) (n int64) {
	for kind, a := range s.Anomalies {
		if len(kinds) == 0 || slices.Contains(kinds, kind) {
			n += a.Count
		}
	}
	return n
}

// refusedConnects is the number of connects that the target refused. weir soak sent no request on them.
func refusedConnects(s *Snapshot) int64 { return anomaliesIn(s, Refused) }

// thresholds compares the results of one target with the user's limits.
func thresholds(o *Options, name string, s *Snapshot) (all []Threshold) {
	if o.MaxP99 > 0 {
		p := s.Exchange.Percentiles()
		t := Threshold{Name: "max_p99", Target: name, Limit: o.MaxP99.String(), Value: p.P99}
		t.Met = p.Count > 0 && p.P99 <= o.MaxP99.Seconds()
		t.text = fmt.Sprintf("p99 is %s, the limit is %s", seconds(p.P99), o.MaxP99)
		if p.Count == 0 {
			t.text = "there is no p99, because no request was successful"
		}
		all = append(all, t)
	}
	if o.MaxErrors.Given {
		n := anomaliesIn(s)
		t := Threshold{Name: "max_errors", Target: name, Limit: o.MaxErrors.String(), Value: float64(n)}
		t.Met = o.MaxErrors.allows(n, s.Exchanges)
		t.text = fmt.Sprintf("%s errors in %s requests, the limit is %s", number(n), number(n+s.Exchanges), t.Limit)
		if refused := refusedConnects(s); refused > 0 {
			t.text = fmt.Sprintf("%s errors (%s × connect refused) in %s requests and refused connects, the limit is %s",
				number(n), number(refused), number(n+s.Exchanges), t.Limit)
		}
		all = append(all, t)
	}
	return all
}

// judge sets the status of the run: the first of these that applies.
func (r *Report) judge(o *Options, targets []*Snapshot) {
	var silent, missed []string
	var wrong int64
	for i, s := range targets {
		name := o.plans[i].name
		if neverAnswered(s) {
			silent = append(silent, name)
		}
		if o.MaxErrors.Given {
			wrong += anomaliesIn(s, never...)
		} else {
			wrong += anomaliesIn(s)
		}
		for _, t := range thresholds(o, name, s) {
			r.Thresholds = append(r.Thresholds, t)
			if !t.Met {
				missed = append(missed, r.named(name, t.text))
			}
		}
	}
	switch {
	case len(silent) > 0:
		r.Status, r.why = StatusNoAnswer, strings.Join(silent, ", ")+" never answered"
	case wrong > 0:
		r.Status, r.why = StatusAnomalies, "anomalies were found: "+number(wrong)
	case len(missed) > 0:
		r.Status, r.why = StatusThreshold, "threshold missed: "+strings.Join(missed, "; ")
	case r.Interrupted:
		r.Status, r.why = StatusInterrupted, "the run was interrupted after "+time.Duration(r.Seconds*float64(time.Second)).Round(100*time.Millisecond).String()
	}
	r.Result = results[r.Status]
}

// named adds the name of the target to text, if there are several.
func (r *Report) named(target, text string) string {
	if len(r.Targets) == 1 {
		return text
	}
	return target + ": " + text
}

// Err returns an *ExitError, or nil if the run was successful.
func (r *Report) Err() error {
	if r.Status == StatusOK {
		return nil
	}
	return &ExitError{r.Status, fmt.Errorf("%s", r.why)}
}
