package annotation

import (
	"regexp"
	"strconv"
	"strings"
)

// redirects is the family of redirects.
var redirects = map[string]judge{
	"ssl-redirect":            setting(sslRedirect),
	"force-ssl-redirect":      setting(forceRedirect),
	"preserve-trailing-slash": unless("true", Near, "weir's redirects keep the URL unchanged, with a trailing slash"),
	"permanent-redirect": setting(func(value string, _ context, s *Settings) (Rating, string) {
		return movesTo(value, &s.Redirects.Permanent, true)
	}),
	"temporal-redirect": setting(func(value string, _ context, s *Settings) (Rating, string) {
		return movesTo(value, &s.Redirects.Temporal, false)
	}),
	"permanent-redirect-code": setting(func(value string, _ context, s *Settings) (Rating, string) {
		return redirectStatus(value, &s.Redirects.PermanentStatus, 308)
	}),
	"temporal-redirect-code": setting(func(value string, _ context, s *Settings) (Rating, string) {
		return redirectStatus(value, &s.Redirects.TemporalStatus, 307)
	}),
	"from-to-www-redirect": setting(fromToWWW),
	"app-root":             setting(appRoot),
	"relative-redirects":   setting(relativeRedirects),
}

// Redirects are what the annotations set for redirects.
type Redirects struct {
	HTTPS Choice // of the hosts with TLS
	Force bool   // requests without TLS are redirected to https, whether or not the host has TLS
	// Temporal and Permanent are URLs to which all requests are redirected; empty: they are not.
	// Temporal goes first. A URL that begins with a slash is on the host of the request. Variables
	// are in the form of config.Template.
	Temporal, Permanent             string
	TemporalStatus, PermanentStatus int    // 0: the default
	Relative                        bool   // a URL that begins with a slash is sent as it is
	WWW                             bool   // www.HOST is redirected to HOST, and HOST to www.HOST
	Root                            string // the path to which the path / of each host is redirected; empty: it is not
}

// Choice is the value of a setting that may be left to its default.
type Choice int

// The values of Choice.
const (
	Default Choice = iota
	On
	Off
)

const (
	badRedirect    = "ingress-nginx refuses the value too; weir ignores it, and the requests go to the Services; write a URL such as https://www.example.org/new"
	redirectLoose  = "the last ingress-nginx refuses variables here, and earlier ones accept them; weir sends the redirect"
	unknownInURL   = "weir knows only the variables $scheme, $host, $request_uri, $uri, $args, $query_string and $request_method here, so it ignores the value, and the requests go to the Services; write the URL without the variable"
	manyInURL      = "weir supports up to 32 variables here, so it ignores the value, and the requests go to the Services; write fewer"
	otherStatus    = "weir uses the default status, because this is none of 301, 302, 303, 307 and 308; ingress-nginx uses another status of 300 to 308, and then sends the URL as the body; write one of these numbers"
	badRoot        = "ingress-nginx ignores the value too; write a path such as /app, without variables"
	relativeOthers = "weir does the same for permanent-redirect, and redirects no path because of a missing slash"
	wwwDifferences = "weir's new URL has no port if it is the default one, and keeps a trailing slash"
)

func sslRedirect(value string, _ context, s *Settings) (Rating, string) {
	if on, err := strconv.ParseBool(value); err == nil { // otherwise the default applies
		s.Redirects.HTTPS = Off
		if on {
			s.Redirects.HTTPS = On
		}
	}
	return Exact, ""
}

func forceRedirect(value string, _ context, s *Settings) (Rating, string) {
	s.Redirects.Force = isTrue(value)
	return Exact, ""
}

func fromToWWW(value string, _ context, s *Settings) (Rating, string) {
	if s.Redirects.WWW = isTrue(value); s.Redirects.WWW {
		return Near, wwwDifferences
	}
	return Exact, ""
}

func relativeRedirects(value string, _ context, s *Settings) (Rating, string) {
	if s.Redirects.Relative = isTrue(value); s.Redirects.Relative {
		return Near, relativeOthers
	}
	return Exact, ""
}

// inURL are the variables of nginx that a URL may have, and weir's.
var inURL = map[string]string{
	"scheme": "{scheme}", "host": "{host}", "request_uri": "{uri}", "uri": "{path}", "document_uri": "{path}", "args": "{query}", "query_string": "{query}", "request_method": "{method}",
}

var (
	// validURL matches the values of ingress-nginx, and variables.
	validURL    = regexp.MustCompile(`^[-._~a-zA-Z0-9/:,?&=${}]*$`)
	nginxInText = regexp.MustCompile(`\$(\w+|\{\w+\})`)
	// wholeURL matches a URL whose host is fixed or the request's.
	wholeURL = regexp.MustCompile(`^(https?|\{scheme\})://([-.a-zA-Z0-9]+|\{host\})(:[0-9]+)?([/?]|\{uri\}|\{path\}|$)`)
)

// movesTo reads a URL. local means that it may be a path.
func movesTo(value string, to *string, local bool) (Rating, string) {
	if value == "" {
		return Exact, ""
	}
	text, known := translated(value)
	isLocal := strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "//")
	switch {
	case !validURL.MatchString(value), strings.ContainsAny(nginxInText.ReplaceAllString(value, ""), "${}"):
		return No, badRedirect
	case !known:
		return No, unknownInURL
	case tooMany(value):
		return No, manyInURL
	case !wholeURL.MatchString(text) && !(local && isLocal):
		return No, badRedirect
	}
	*to = text
	if strings.Contains(value, "$") {
		return Near, redirectLoose
	}
	return Exact, ""
}

// tooMany reports whether a text has more variables than MaxVariables.
func tooMany(text string) bool { return strings.Count(text, "$") > MaxVariables }

// translated replaces the variables of nginx by weir's. It returns false if weir does not know one
// of them.
func translated(value string) (text string, known bool) {
	known = !strings.ContainsAny(nginxInText.ReplaceAllString(value, ""), "${}") // a brace alone would begin a variable of weir
	text = nginxInText.ReplaceAllStringFunc(value, func(v string) string {
		ours := inURL[strings.Trim(v, "${}")]
		known = known && ours != ""
		return ours
	})
	return text, known
}

// redirectStatus reads a status. A number that is not from 300 to most is the same as none.
func redirectStatus(value string, status *int, most int) (Rating, string) {
	n, err := strconv.Atoi(value)
	switch {
	case err != nil:
		return No, "ingress-nginx refuses the whole Ingress because of this value; weir uses the default status; write a number"
	case n < 300 || n > most:
		return Exact, "" // the default
	case n == 300 || n >= 304 && n <= 306:
		return No, otherStatus
	}
	*status = n
	return Exact, ""
}

// validRoot matches the paths to which weir redirects.
var validRoot = regexp.MustCompile(`^/([-._~a-zA-Z0-9:][-._~a-zA-Z0-9/:]*)?$`)

func appRoot(value string, _ context, s *Settings) (Rating, string) {
	switch {
	case value == "":
		return Exact, ""
	case !validRoot.MatchString(value) || value == "/":
		return No, badRoot
	}
	s.Redirects.Root = value
	return Exact, ""
}
