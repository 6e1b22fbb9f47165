package annotation

import (
	"slices"
	"strconv"
	"strings"
)

// customErrors is the family of errors that a default backend shows.
var customErrors = map[string]judge{
	"custom-http-errors":             {look: rateErrors, set: setErrors},
	"disable-proxy-intercept-errors": setting(onlyOwnErrors),
}

// Errors are the responses that the default backend replaces.
type Errors struct {
	Statuses []int
	OnlyOwn  bool // only weir's own responses
}

const (
	badErrors    = "ingress-nginx ignores the value, and so does weir; write statuses from 400 to 599, separated by commas"
	pageErrors   = "weir asks the Service of default-backend by GET, without the body of the request, and uses responses of up to 256 KiB"
	nobodyErrors = "without default-backend, weir forwards the responses unchanged; the default backend of ingress-nginx itself answers 404; name a Service in default-backend, or in kubernetes.ingress_nginx.default_backend of weir's configuration"
	sharedErrors = "weir asks the Service of kubernetes.ingress_nginx.default_backend by GET, without the body of the request, and uses responses of up to 256 KiB"
)

func rateErrors(value string, c context) (Rating, string) {
	switch list, ok := readErrors(value); {
	case !ok:
		return No, badErrors
	case len(list) == 0:
		return Exact, ""
	case serviceName.MatchString(c.value("default-backend")):
		return Near, pageErrors
	case c.keys[ErrorsOfAll] != "":
		return Near, sharedErrors
	}
	return Near, nobodyErrors
}

func setErrors(value string, c context, s *Settings) (Rating, string) {
	s.Errors.Statuses, _ = readErrors(value)
	return rateErrors(value, c)
}

func readErrors(value string) (list []int, ok bool) {
	for one := range strings.SplitSeq(value, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(one))
		switch {
		case one == "" && value == "":
		case err != nil || n < 400 || n > 599:
			return nil, false
		default:
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), true
}

func onlyOwnErrors(value string, _ context, s *Settings) (Rating, string) {
	s.Errors.OnlyOwn = isTrue(value)
	return Exact, ""
}
