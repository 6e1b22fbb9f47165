package annotation

import (
	"regexp"
	"strconv"
	"strings"
)

// affinities is the family of sticky sessions.
var affinities = map[string]judge{
	"affinity":                 setting(affinity),
	"affinity-mode":            looking(affinityMode),
	"affinity-canary-behavior": setting(canaryBehavior),
	"session-cookie-name":      setting(cookieName),
	"session-cookie-path":      setting(cookiePath),
	"session-cookie-domain":    setting(cookieDomain),
	"session-cookie-samesite":  setting(cookieSameSite),
	"session-cookie-conditional-samesite-none": setting(func(value string, _ context, s *Settings) (Rating, string) {
		s.Affinity.NoneIfKnown = isTrue(value)
		return Exact, ""
	}),
	"session-cookie-secure": setting(func(value string, _ context, s *Settings) (Rating, string) {
		s.Affinity.Secure = isTrue(value) // false has no effect in ingress-nginx either
		return Exact, ""
	}),
	"session-cookie-change-on-failure": setting(func(value string, _ context, s *Settings) (Rating, string) {
		if s.Affinity.Moves = isTrue(value); s.Affinity.Moves {
			return Exact, ""
		}
		return Near, keepsFailed
	}),
	"session-cookie-expires": setting(func(value string, _ context, s *Settings) (Rating, string) {
		return lifetime(value, &s.Affinity.Expires)
	}),
	"session-cookie-max-age": setting(func(value string, _ context, s *Settings) (Rating, string) {
		return lifetime(value, &s.Affinity.MaxAge)
	}),
}

// Affinity is how a cookie keeps clients with one Pod.
type Affinity struct {
	Cookie bool   // a cookie keeps clients; the other fields are about this cookie
	Legacy bool   // of a canary: its Pods keep no client
	Name   string // empty: the default
	Path   string // empty: that of the Ingress
	Domain string // empty: none
	// SameSite is None, Lax or Strict, or empty. NoneIfKnown leaves None out for clients that do
	// not know it.
	SameSite        string
	NoneIfKnown     bool
	Secure          bool // also without TLS
	Moves           bool // a client whose Pod failed stays with the next one
	MaxAge, Expires Lifetime
}

// Lifetime is a number of seconds.
type Lifetime struct {
	Given   bool
	Seconds int64
}

// CookieName is the default name of the cookie.
const CookieName = "INGRESSCOOKIE"

const (
	ownCookie     = "the value of the cookie is weir's own, so clients with a cookie of ingress-nginx get another Pod once. weir keeps the clients of an Ingress, and ingress-nginx also those of other Ingresses with the same Service"
	unknownType   = "ingress-nginx knows only the value cookie, and keeps no client with a Pod; write cookie"
	keepsSessions = "weir keeps each client with its Pod, and gives new Pods only new clients; ingress-nginx moves some clients when the number of Pods changes"
	noMode        = "ingress-nginx ignores the value too; write balanced or persistent"
	noBehavior    = "ingress-nginx ignores the value too; write sticky or legacy"
	keepsFailed   = "if the Pod of a client fails, weir sends the request to another Pod, and the client keeps its cookie; ingress-nginx sends it to the same Pod again"
	noCookieWord  = "weir ignores the value: a cookie cannot have it; write letters, digits and hyphens"
	noSameSite    = "ingress-nginx ignores the value too; write None, Lax or Strict"
)

func affinity(value string, _ context, s *Settings) (Rating, string) {
	if value != "cookie" {
		return No, unknownType
	}
	s.Affinity.Cookie = true
	return Near, ownCookie
}

func affinityMode(value string, _ context) (Rating, string) {
	switch value {
	case "persistent":
		return Exact, ""
	case "balanced":
		return Near, keepsSessions
	}
	return No, noMode
}

func canaryBehavior(value string, _ context, s *Settings) (Rating, string) {
	switch value {
	case "legacy":
		s.Affinity.Legacy = true
	case "sticky":
	default:
		return No, noBehavior
	}
	return Exact, ""
}

func cookieName(value string, _ context, s *Settings) (Rating, string) {
	if !fieldName.MatchString(value) {
		return No, noCookieWord + ". The cookie is called " + CookieName
	}
	s.Affinity.Name = value
	return Exact, ""
}

var (
	validCookiePath   = regexp.MustCompile(`^/[-._~a-zA-Z0-9/:,?&=]*$`)
	validCookieDomain = regexp.MustCompile(`^[-.a-zA-Z0-9]+$`)
)

func cookiePath(value string, _ context, s *Settings) (Rating, string) {
	if !validCookiePath.MatchString(value) {
		return No, "weir ignores the value, because it is no path; write one such as /app. The cookie has the path of the Ingress"
	}
	s.Affinity.Path = value
	return Exact, ""
}

func cookieDomain(value string, _ context, s *Settings) (Rating, string) {
	if !validCookieDomain.MatchString(value) {
		return No, noCookieWord
	}
	s.Affinity.Domain = value
	return Exact, ""
}

func cookieSameSite(value string, _ context, s *Settings) (Rating, string) {
	for _, known := range []string{"None", "Lax", "Strict"} {
		if strings.EqualFold(value, known) {
			s.Affinity.SameSite = known
			return Exact, ""
		}
	}
	return No, noSameSite
}

// lifetime reads a number of seconds. Browsers limit lifetimes to 400 days.
func lifetime(value string, to *Lifetime) (Rating, string) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return No, "weir ignores the value, because it is no number of seconds; write one such as 3600. The cookie ends with the browser"
	}
	*to = Lifetime{true, n}
	return Exact, ""
}
