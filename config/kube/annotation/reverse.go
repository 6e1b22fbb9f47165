package annotation

import (
	"regexp"
	"strings"
)

// reverses is the family of names in responses of Services.
var reverses = map[string]judge{
	"proxy-cookie-domain": setting(reverseDomain),
	"proxy-cookie-path":   setting(reversePath),
	"proxy-redirect-from": {look: rateRedirectNames, set: setRedirectNames},
	"proxy-redirect-to":   {look: rateRedirectNames, set: setRedirectNames},
}

// redirectChars are the characters that ingress-nginx accepts in proxy-redirect-from and -to.
const redirectChars = variableChars + "-.~/:,?&= "

// Replacement replaces From with To. An empty From replaces nothing.
type Replacement struct{ From, To string }

// Reverse is how names in responses of Services change.
type Reverse struct{ Location, CookieDomain, CookiePath Replacement }

const (
	badCookieDomain = "ingress-nginx ignores the value, and so does weir; write two names, such as app.internal app.example.org"
	badCookiePath   = "weir supports only two paths, such as /app/ /; regular expressions and other values have no effect"
	lostRedirect    = "ingress-nginx ignores the value, and so does weir; write a URL or a path without variables"
	oddRedirect     = "weir supports only URLs and paths, without regular expressions and spaces; the value has no effect"
)

var (
	reverseNames  = regexp.MustCompile(`^([A-Za-z0-9.-]+)\s+([A-Za-z0-9.-]+)$`)
	reversePaths  = regexp.MustCompile(`^(/[A-Za-z0-9._~/:,?&=-]*)\s+(/[A-Za-z0-9._~/:,?&=-]*)$`)
	redirectNames = regexp.MustCompile(`^[A-Za-z0-9._/:,?&=-][A-Za-z0-9._~/:,?&=-]*$`)
)

func reverseDomain(value string, _ context, s *Settings) (Rating, string) {
	if value == "" || value == "off" {
		return Exact, ""
	}
	m := reverseNames.FindStringSubmatch(value)
	if m == nil {
		return No, badCookieDomain
	}
	s.Reverse.CookieDomain = Replacement{strings.TrimPrefix(m[1], "."), strings.TrimPrefix(m[2], ".")}
	return Exact, ""
}

func reversePath(value string, _ context, s *Settings) (Rating, string) {
	if value == "" || value == "off" {
		return Exact, ""
	}
	m := reversePaths.FindStringSubmatch(value)
	if m == nil {
		return No, badCookiePath
	}
	s.Reverse.CookiePath = Replacement{m[1], m[2]}
	return Exact, ""
}

// setRedirectNames reads proxy-redirect-from and proxy-redirect-to. One has no effect without the other.
func setRedirectNames(_ string, c context, s *Settings) (Rating, string) {
	from, to := c.value("proxy-redirect-from"), c.value("proxy-redirect-to")
	if from != "" && from != "off" && from != "default" && to != "" && to != "off" && redirectNames.MatchString(from) && redirectNames.MatchString(to) {
		s.Reverse.Location = Replacement{from, to}
	}
	return Exact, ""
}

func rateRedirectNames(value string, _ context) (Rating, string) {
	switch {
	case value != "" && strings.Trim(value, redirectChars) != "":
		return Near, lostRedirect
	case value != "" && !redirectNames.MatchString(value):
		return No, oddRedirect
	}
	return Exact, ""
}
