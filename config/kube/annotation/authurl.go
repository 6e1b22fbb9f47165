package annotation

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/proxy/script"
)

// authURLs is the family of authentication by another server.
var authURLs = union([]map[string]judge{
	{
		"auth-url":           {look: rateIn(readAuthURL, "auth-url"), set: setAuthURL},
		"enable-global-auth": unless("false", guard, refused),
	},
	ratedBy(readAuthURL, "auth-snippet", "auth-proxy-set-headers", "auth-method", "auth-signin", "auth-signin-redirect-param", "auth-response-headers", "auth-request-redirect",
		"auth-cache-key", "auth-cache-duration", "auth-always-set-cookie"),
	{"auth-keepalive": always(Exact, ""), "auth-keepalive-share-vars": always(Exact, ""), "auth-keepalive-requests": always(Exact, ""), "auth-keepalive-timeout": always(Exact, "")},
})

// AuthURL is what auth-url and the annotations beside it ask for. Texts with variables are a
// config.Template.
type AuthURL struct {
	URL    string // scheme://host:port; empty: no authentication. The host may be HostVariable.
	Path   string // and query, with variables
	Host   string
	Method string // empty: GET
	// Headers are those of a good response that the Service gets.
	Headers []string
	SignIn  string // with variables; empty: none
	// Redirect is the value of X-Auth-Request-Redirect, with variables.
	Redirect      string
	AlwaysCookies bool
	CacheBy       string // with variables; empty: no cache
	Cache         []CacheTime
	HeadersFrom   ConfigMap // with HTTP headers for the server
	// Add are further HTTP headers for the server, with variables in the values. Each replaces those before it.
	Add    []Header
	Global bool // the ConfigMap of ingress-nginx has the URL
}

// Header is an HTTP header. The value is a config.Template.
type Header struct{ Name, Value string }

// HostVariable stands for the host of the rule in the URL of an AuthURL.
const HostVariable = "$host"

// For returns the same with the host of a rule for HostVariable.
func (a AuthURL) For(host string) AuthURL {
	if a.Host == HostVariable {
		a.URL, a.Host = strings.Replace(a.URL, HostVariable, host, 1), host
	}
	return a
}

// ConfigMap is the name of a ConfigMap. The zero value names none.
type ConfigMap struct{ Namespace, Name string }

// CacheTime is how long responses with one of the statuses are remembered; no status: all of them.
type CacheTime struct {
	Statuses []int
	For      time.Duration
}

const closedFor = "weir answers 503 for an Ingress that has it"

const (
	authSnippet    = "weir does not support %s in this snippet, so " + closedFor + "; write proxy_set_header with names and variables that weir knows, or let the server of auth-url decide by the HTTP headers that it gets"
	authSnippets   = "weir reads snippets only if allow-snippet-annotations is true in the ConfigMap of kubernetes.ingress_nginx, so " + closedFor + "; allow snippets, or write the HTTP headers into the ConfigMap of auth-proxy-set-headers"
	authSnippetTwo = "%s replaces the HTTP header of this name that weir sends to the server of auth-url; nginx sends both"
	badAuthURL     = "the value is no URL that weir can request, so " + closedFor + ", as ingress-nginx does; write one such as http://auth.shop.svc.cluster.local/check"
	hostVariable   = "the host of the URL has a variable, and weir supports only the whole host $host, so " + closedFor + "; write the host"
	wideHosts      = "the host of the URL is $host, and a rule of the Ingress has a wildcard or no host, so clients would choose the server; " + closedFor + "; write the host into the URL, or one rule for each host"
	authURLText    = "the URL has %s, which weir does not support, so " + closedFor + "; take it out"
	twoAuths       = "the Ingress has auth-type as well, and weir supports only one of them, so " + closedFor + "; remove one of them"
	noPathInURL    = "weir requests the path /, and ingress-nginx an internal path of its own; write a path in auth-url"
	badMethod      = "weir does not send this method, so " + closedFor + ", as ingress-nginx does for methods that it does not know; write GET"
	badHeaders     = "the list has something other than names of HTTP headers, so " + closedFor + ", as ingress-nginx does; write names separated by commas"
	badSignIn      = "ingress-nginx ignores the value, because it is no URL; clients get 401"
	signInText     = "the URL has %s, which weir does not support, so clients get 401; take it out"
	badParam       = "ingress-nginx ignores the value, and uses rd"
	badRedirectTo  = "ingress-nginx drops authentication for this value, so " + closedFor + "; write a URL without variables"
	badCookie      = "ingress-nginx drops authentication for this value, so " + closedFor + "; write true or false"
	badDuration    = "the value is no list of statuses and a time, so " + closedFor + ", as ingress-nginx does; write one such as 200 202 10m, 401 1m"
	badCacheKey    = "ingress-nginx ignores the value; weir asks the server for each request"
	cacheText      = "the key has %s, which weir does not support, so weir asks the server for each request"
	cacheHeaders   = "weir does not remember a response with Cache-Control, Expires, Vary or cookies"
	authMap        = "each HTTP header of the ConfigMap replaces one of the same name that weir sends to the server of auth-url; nginx sends both"
	badAuthMap     = "the value is no name of a ConfigMap, so " + closedFor + "; write namespace/name of a ConfigMap"
	bareAuthMap    = "ingress-nginx answers 503 for a name without namespace; weir uses the ConfigMap in the namespace of the Ingress"
	otherAuthMap   = "the ConfigMap is in another namespace, so " + closedFor + ", as ingress-nginx does; copy it into the namespace of the Ingress, or write allow-cross-namespace-resources: \"true\" into the ConfigMap of ingress-nginx"
)

func setAuthURL(_ string, c context, s *Settings) (Rating, string) {
	a, ratings := readAuthURL(c)
	for _, r := range ratings {
		if r.Rating == guard {
			a = AuthURL{}
		}
	}
	s.AuthURL = a
	if r, ok := ratings["auth-url"]; ok {
		return r.Rating, r.why
	}
	return Exact, ""
}

// readAuthURL reads the family. It returns the ratings of annotations that are not exact.
func readAuthURL(c context) (a AuthURL, ratings map[string]because) {
	ratings = map[string]because{}
	text := c.value("auth-url")
	if text == "" {
		return a, ratings // the others have no effect
	}
	note := func(name string, r Rating, why string, args ...any) {
		ratings[name] = because{r, fmt.Sprintf(why, args...)}
	}
	if c.value("auth-type") != "" {
		note("auth-url", guard, twoAuths)
	}
	a.readURL(c, text, note)
	a.readMethodAndHeaders(c, note)
	a.readSignIn(c, note)
	a.readCache(c, note)
	a.Redirect = "{uri}"
	if to := c.value("auth-request-redirect"); to != "" {
		if a.Redirect = literal(to); !isURLText(to, "") {
			note("auth-request-redirect", guard, badRedirectTo)
		}
	}
	if value := c.value("auth-always-set-cookie"); value != "" {
		var err error
		if a.AlwaysCookies, err = strconv.ParseBool(value); err != nil {
			note("auth-always-set-cookie", guard, badCookie)
		}
	}
	a.readSnippet(c, note)
	a.readHeadersFrom(c, note)
	_, a.Global = c.keys["auth-url"]
	if c.loose != nil {
		note("auth-url", guard, "%s", c.loose)
	}
	return a, ratings
}

type noter func(name string, r Rating, why string, args ...any)

// urlChars are the characters that ingress-nginx accepts in URLs, besides letters and digits.
const urlChars = "-._~/:,?&="

// isURLText reports whether ingress-nginx accepts the text as a URL. more are further characters.
func isURLText(text, more string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(urlChars+more, r))
	})
}

func (a *AuthURL) readURL(c context, text string, note noter) {
	u, err := url.Parse(text)
	if err != nil || !isURLText(text, "$") || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.Contains(u.Host, "..") {
		note("auth-url", guard, badAuthURL)
		return
	}
	switch {
	case !strings.Contains(u.Host, "$"):
	case u.Hostname() != HostVariable:
		note("auth-url", guard, hostVariable)
		return
	case c.wide:
		note("auth-url", guard, wideHosts)
		return
	}
	a.URL, a.Host = u.Scheme+"://"+u.Host, u.Hostname()
	target := strings.TrimPrefix(text, text[:strings.Index(text, "://")+3]+u.Host)
	if a.Path, err = c.authText(target); err != nil {
		note("auth-url", guard, authURLText, err)
		return
	}
	switch {
	case target == "":
		a.Path = "/"
		note("auth-url", Near, noPathInURL)
	case !strings.HasPrefix(target, "/"):
		a.Path = "/" + a.Path
	}
}

// authText converts a text of the request to the server, which has no query of its own in nginx.
func (c context) authText(text string) (string, error) {
	if strings.Contains(text, "$arg_") || strings.Contains(text, "${arg_") {
		return "", errors.New("a variable $arg_NAME (empty in nginx)")
	}
	known := c.constants()
	known["args"], known["query_string"] = "", ""
	return nginxText(text, known)
}

// AuthText converts a value of the ConfigMap of auth-proxy-set-headers, a text with variables of nginx, to a
// config.Template. namespace and name are those of the Ingress. The error names what weir does not support.
func AuthText(namespace, name, value string) (string, error) {
	return context{namespace: namespace, name: name}.authText(value)
}

// readHeadersFrom reads auth-proxy-set-headers.
func (a *AuthURL) readHeadersFrom(c context, note noter) {
	const annotation = "auth-proxy-set-headers"
	value := c.value(annotation)
	namespace, name, whole := strings.Cut(value, "/")
	if !whole {
		namespace, name = c.namespace, value
	}
	switch {
	case value == "":
		return
	case whole && namespace == "" || !objectName.MatchString(name):
		note(annotation, guard, badAuthMap)
	case namespace != c.namespace && !isTrue(c.keys["allow-cross-namespace-resources"]):
		note(annotation, guard, otherAuthMap)
	case !whole:
		note(annotation, Near, bareAuthMap)
	default:
		note(annotation, Near, authMap)
	}
	a.HeadersFrom = ConfigMap{namespace, name}
}

// readSnippet reads auth-snippet. nginx sends its headers beside those of the same name that ingress-nginx writes, and weir in
// their place.
func (a *AuthURL) readSnippet(c context, note noter) {
	const annotation = "auth-snippet"
	text := c.value(annotation)
	if text == "" {
		return
	}
	headers, ignored, err := script.Headers(text)
	switch {
	case !c.allowsSnippets(annotation):
		note(annotation, guard, authSnippets)
		return
	case err != nil:
		note(annotation, guard, authSnippet, err)
		return
	case strings.Count(text, "$") > MaxVariables:
		note(annotation, guard, authSnippet, fmt.Sprintf("more than %d variables", MaxVariables))
		return
	}
	for _, h := range headers {
		value, err := c.authText(h[1])
		if err != nil {
			note(annotation, guard, authSnippet, err)
			return
		}
		a.Add = append(a.Add, Header{h[0], value})
		if slices.Contains(toAuth, strings.ToLower(h[0])) {
			note(annotation, Near, authSnippetTwo, h[0])
		}
	}
	if len(ignored) > 0 {
		note(annotation, Near, snippetNear, strings.Join(ignored, ", "))
	}
}

// toAuth are the HTTP headers that weir and ingress-nginx send to the server of auth-url.
var toAuth = []string{"x-original-uri", "x-original-url", "x-original-method", "x-scheme", "x-sent-from", "x-real-ip", "x-forwarded-for", "x-request-id", "x-auth-request-redirect"}

func (a *AuthURL) readMethodAndHeaders(c context, note noter) {
	a.Method = c.value("auth-method")
	if a.Method != "" && !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, a.Method) {
		note("auth-method", guard, badMethod)
	}
	for _, name := range strings.Split(c.value("auth-response-headers"), ",") {
		name = strings.TrimSpace(name)
		switch {
		case name == "":
		case strings.Trim(name, variableChars+"-") != "":
			note("auth-response-headers", guard, badHeaders)
			return
		default:
			a.Headers = append(a.Headers, name)
		}
	}
}

// readSignIn reads the URL to which clients are redirected. ingress-nginx appends the URL of the
// request, unless the parameter is there.
func (a *AuthURL) readSignIn(c context, note noter) {
	text, param := c.value("auth-signin"), c.value("auth-signin-redirect-param")
	if !isURLText(param, "") {
		note("auth-signin-redirect-param", Near, badParam)
		param = ""
	}
	if param == "" {
		param = "rd"
	}
	u, err := url.Parse(text)
	if text == "" {
		return
	}
	if err != nil || !isURLText(text, "$") {
		note("auth-signin", Near, badSignIn)
		return
	}
	const requested = "=$pass_access_scheme://$http_host$escaped_request_uri"
	switch q := u.Query(); {
	case len(q) == 0:
		text += "?" + param + requested
	case q.Get(param) == "":
		text += "&" + param + requested
	}
	if a.SignIn, err = nginxText(text, c.constants()); err != nil {
		note("auth-signin", No, signInText, err)
		a.SignIn = ""
	}
}

func (a *AuthURL) readCache(c context, note noter) {
	rules, ok := cacheRules(c.value("auth-cache-duration"))
	if !ok {
		note("auth-cache-duration", guard, badDuration)
	}
	key := c.value("auth-cache-key")
	switch {
	case key == "":
		return
	case strings.Trim(key, variableChars+"-${}") != "":
		note("auth-cache-key", Near, badCacheKey)
		return
	}
	text, err := nginxText(key, c.constants())
	if err != nil {
		note("auth-cache-key", Near, cacheText, err)
		return
	}
	a.CacheBy, a.Cache = text, rules
	note("auth-cache-key", Near, cacheHeaders)
}

// cacheRules reads auth-cache-duration.
func cacheRules(value string) (all []CacheTime, ok bool) {
	for _, one := range strings.Split(value, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		r, ok := cacheRule(one)
		if !ok {
			return nil, false
		}
		all = append(all, r)
	}
	if all == nil {
		all = []CacheTime{{[]int{200, 202, 401}, 5 * time.Minute}}
	}
	return all, true
}

// cacheRule reads statuses and a time, such as 200 202 10m. Without statuses, nginx remembers
// responses with 200, 301 and 302.
func cacheRule(text string) (r CacheTime, ok bool) {
	words := strings.Fields(text)
	last := words[len(words)-1]
	if r.For, ok = nginxTime(last); !ok {
		return r, false
	}
	for _, word := range words[:len(words)-1] {
		if word == "any" {
			return CacheTime{nil, r.For}, true
		}
		n, err := strconv.Atoi(word)
		if err != nil || n < 100 || n > 599 {
			return r, false
		}
		r.Statuses = append(r.Statuses, n)
	}
	if len(words) == 1 {
		r.Statuses = []int{200, 301, 302}
	}
	return r, true
}

// timeUnits are the units of times of nginx. A month has 30 days, and a year 365.
var timeUnits = map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour,
	"d": 24 * time.Hour, "w": 7 * 24 * time.Hour, "M": 30 * 24 * time.Hour, "y": 365 * 24 * time.Hour}

// nginxTime reads a number and a unit.
func nginxTime(text string) (time.Duration, bool) {
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	unit, known := timeUnits[text[len(digits):]]
	n, err := strconv.Atoi(digits)
	if !known || err != nil || n > int(time.Duration(1<<62)/unit) {
		return 0, false
	}
	return time.Duration(n) * unit, true
}
