package annotation

import (
	"strconv"
	"strings"
	"time"
)

// timeouts is the family of waits for Services.
var timeouts = map[string]judge{
	"proxy-connect-timeout": waiting(func(s *Settings) *time.Duration { return &s.Timeouts.Connect }),
	"proxy-read-timeout":    waiting(func(s *Settings) *time.Duration { return &s.Timeouts.Read }),
	"proxy-send-timeout":    waiting(func(s *Settings) *time.Duration { return &s.Timeouts.Send }),
}

// retries is the family of repeated attempts.
var retries = map[string]judge{
	"proxy-next-upstream":         setting(nextUpstream),
	"proxy-next-upstream-tries":   setting(nextTries),
	"proxy-next-upstream-timeout": setting(nextTimeout),
}

// Timeouts are the limits of waits for a Service; 0: the annotation sets none.
type Timeouts struct {
	Connect time.Duration
	Read    time.Duration // between two parts of a response, and between any bytes of a tunnel
	Send    time.Duration // between two parts of a request
}

// Retries are what proxy-next-upstream and the annotations beside it set.
type Retries struct {
	Off           bool     // no request is repeated
	When          []string // failures as config.RetryCause names them; nil: the annotations set none
	NonIdempotent bool
	Attempts      int           // 0: the annotations set none
	Within        time.Duration // 0: no limit
}

const (
	notSeconds  = "ingress-nginx cannot use the value either, and applies its default; weir applies kubernetes.timeouts; write a number of seconds, such as 60"
	alwaysNext  = "weir always tries another endpoint if it cannot connect to the first one"
	notInvalid  = "weir does not repeat a request after an invalid response"
	mostTries   = 10
	tooManyTry  = "weir makes at most 10 attempts"
	badUpstream = "ingress-nginx does not accept the value either, and applies its default; weir retries by its own default: write words such as error, timeout and http_503, separated by spaces"
)

// longestWait limits times, so that they fit into a time.Duration. nginx has a similar limit.
const longestWait = 1<<31 - 1

// seconds reads a number of seconds, as ingress-nginx does.
func seconds(value string) (time.Duration, bool) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > longestWait {
		return 0, false
	}
	return time.Duration(n) * time.Second, true
}

// waiting rates and reads an annotation that limits waits.
func waiting(dst func(*Settings) *time.Duration) judge {
	return setting(func(value string, _ context, s *Settings) (Rating, string) {
		d, ok := seconds(value)
		if !ok || d == 0 { // with 0, nginx answers 504 at once
			return Near, notSeconds
		}
		*dst(s) = d
		return Exact, ""
	})
}

// nextUpstream reads proxy-next-upstream.
func nextUpstream(value string, _ context, s *Settings) (Rating, string) {
	r := Retries{When: []string{}}
	rating, why, isOff := Exact, "", false
	words := strings.Fields(value)
	connects := false
	for _, word := range words {
		switch word {
		case "error":
			r.When, connects = append(r.When, "reset"), true
		case "timeout":
			r.When = append(r.When, "timeout")
		case "http_500", "http_502", "http_503", "http_504", "http_403", "http_404", "http_429":
			r.When = append(r.When, strings.TrimPrefix(word, "http_"))
		case "non_idempotent":
			r.NonIdempotent = true
		case "off":
			isOff = true
		case "invalid_header":
			rating, why = Near, notInvalid
		default:
			return Near, badUpstream
		}
	}
	switch {
	case len(words) == 0:
		return Near, badUpstream
	case isOff:
		s.Retries.Off = true
		return Exact, ""
	case !connects && rating == Exact:
		rating, why = Near, alwaysNext
	}
	s.Retries.When, s.Retries.NonIdempotent = r.When, r.NonIdempotent
	return rating, why
}

// nextTries reads proxy-next-upstream-tries. 0 is no limit.
func nextTries(value string, _ context, s *Settings) (Rating, string) {
	n, err := strconv.Atoi(value)
	switch {
	case err != nil || n < 0:
		return Near, notSeconds
	case n == 0 || n > mostTries:
		s.Retries.Attempts = mostTries
		return Near, tooManyTry
	}
	s.Retries.Attempts = n
	return Exact, ""
}

// nextTimeout reads proxy-next-upstream-timeout. 0 is no limit.
func nextTimeout(value string, _ context, s *Settings) (Rating, string) {
	d, ok := seconds(value)
	if !ok {
		return Near, notSeconds
	}
	s.Retries.Within = d
	return Exact, ""
}
