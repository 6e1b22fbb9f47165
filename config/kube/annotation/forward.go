package annotation

import (
	"net/url"
	"regexp"
	"strings"
)

// forwards is the family of annotations for the requests that Services and mirrors get.
var forwards = map[string]judge{
	"backend-protocol":    looking(backendProtocol),
	"upstream-vhost":      setting(vhost),
	"x-forwarded-prefix":  setting(forwardedPrefix),
	"mirror-target":       setting(mirrorURL),
	"mirror-host":         setting(mirrorHost),
	"mirror-request-body": setting(mirrorBody),
}

// Forward is what a Service learns of a request.
type Forward struct {
	// Host replaces the Host header; empty: it stays. It may have $service_name, $service_port,
	// $namespace and $ingress_name.
	Host string
	// Prefix is the value of X-Forwarded-Prefix for requests whose path is rewritten; empty: none.
	Prefix string
}

// Mirror is where copies of requests go.
type Mirror struct {
	URL string // scheme, host and port; empty: there are no copies
	// Path is the path and the query, with variables in the form of config.Template; empty: those
	// of the request. With KeepQuery the query of the request follows it.
	Path      string
	KeepQuery bool
	Host      string // the Host header; empty: that of URL; "$host": the client's
	NoBody    bool   // copies have no body
}

const (
	hostDynamic  = "weir knows only $service_name, $service_port, $namespace, $ingress_name, $host and $http_host here, so Services get the client's host; write a fixed host"
	badVhost     = "weir ignores the value, because it is no host, so Services get the client's host; write one such as app.example.org"
	badPrefix    = "weir sends no X-Forwarded-Prefix, because the value is no fixed path; write one such as /app"
	mirrorDiffer = "a slow mirror does not slow down clients; weir copies bodies of up to 64 KiB, and no request with a larger one; a target without a path gets the path of the request"
	mirrorAway   = "weir copies no requests, because it cannot request this URL; write one such as http://mirror.example.svc$request_uri"
	mirrorBody0  = "ingress-nginx ignores the value too, and copies bodies; write on or off"
)

// backendProtocol rates an annotation that weir reads; without it weir uses the appProtocol of the Service.
func backendProtocol(value string, _ context) (Rating, string) {
	switch strings.ToUpper(strings.TrimSpace(value)) {
	case "HTTP", "AUTO_HTTP", "GRPC", "GRPCS":
		return Exact, ""
	case "HTTPS":
		return Near, "weir also offers HTTP/2 to the Service, and uses HTTP/1.1 if the Service does not support it"
	case "FCGI":
		return No, noFastCGI
	}
	return No, "ingress-nginx does not support this protocol either; write HTTP, HTTPS, AUTO_HTTP, GRPC or GRPCS"
}

var (
	hostAndPort = regexp.MustCompile(`^[-._a-zA-Z0-9]+(:[0-9]{1,5})?$`)
	// objectNames matches the variables whose values are in the Ingress itself.
	objectNames = regexp.MustCompile(`\$(service_name|service_port|namespace|ingress_name)\b|\$\{(service_name|service_port|namespace|ingress_name)\}`)
)

func vhost(value string, _ context, s *Settings) (Rating, string) {
	switch plain := objectNames.ReplaceAllString(value, "0"); {
	case value == "", value == "$host", value == "$http_host", value == "$best_http_host":
		return Exact, ""
	case strings.Contains(plain, "$"):
		return No, hostDynamic
	case !hostAndPort.MatchString(plain):
		return No, badVhost
	}
	s.Forward.Host = objectNames.ReplaceAllString(value, "$$${1}${2}")
	return Exact, ""
}

func forwardedPrefix(value string, _ context, s *Settings) (Rating, string) {
	switch {
	case value == "":
		return Exact, ""
	case strings.Contains(value, "$") || !validTarget.MatchString(value):
		return No, badPrefix
	}
	s.Forward.Prefix = value
	return Exact, ""
}

func mirrorURL(value string, _ context, s *Settings) (Rating, string) {
	if value == "" {
		return Exact, ""
	}
	text, known := translated(value)
	server, rest := text, ""
	if i := strings.Index(text, "://"); i >= 0 {
		if end := strings.IndexAny(text[i+3:], "/{?"); end >= 0 {
			server, rest = text[:i+3+end], text[i+3+end:]
		}
	}
	u, err := url.Parse(server)
	switch {
	case !known, tooMany(value), err != nil || u.Scheme != "http" && u.Scheme != "https" || !hostAndPort.MatchString(u.Host) || u.User != nil:
		return No, mirrorAway
	case !validURL.MatchString(value), rest != "" && rest[0] != '/' && !strings.HasPrefix(rest, "{uri}") && !strings.HasPrefix(rest, "{path}"):
		return No, mirrorAway
	}
	s.Mirror.URL, s.Mirror.Path, s.Mirror.KeepQuery = server, rest, rest != "" && !strings.Contains(value, "$") && !strings.Contains(rest, "?")
	return Near, mirrorDiffer
}

func mirrorHost(value string, _ context, s *Settings) (Rating, string) {
	switch {
	case value == "":
		return Exact, ""
	case value == "$host" || value == "$http_host":
		s.Mirror.Host = "$host"
		return Exact, ""
	case strings.Contains(value, "$"):
		return No, "weir knows only a fixed host and $host here, so copies have the host of mirror-target; write a fixed host"
	case !hostAndPort.MatchString(value):
		return No, "weir ignores the value, because it is no host, so copies have the host of mirror-target; write one such as app.example.org"
	}
	s.Mirror.Host = value
	return Exact, ""
}

func mirrorBody(value string, _ context, s *Settings) (Rating, string) {
	switch value {
	case "off":
		s.Mirror.NoBody = true
	case "on":
	default:
		return No, mirrorBody0
	}
	return Exact, ""
}
