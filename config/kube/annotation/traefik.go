package annotation

import (
	"strconv"
	"strings"
)

const (
	noMiddlewares = "weir does not support middlewares, which may restrict access, so weir answers 503 for an Ingress that has it, and for paths to a Service that has it; do the same in the application, and remove the annotation"
	everywhere    = "weir serves every Ingress on all listeners in kubernetes.listeners, by default all http and tls listeners"
	securely      = "weir redirects requests without TLS for the hosts of the Ingress to https; Traefik answers them with 404"
	elsewhere     = "this entry point may be reachable only from some networks, so weir answers 503 for an Ingress that has it; serve such Ingresses with a second weir and a class of its own, and remove the annotation"
	authorities   = "weir issues certificates only for hosts in its own configuration (certificates); for an Ingress, let cert-manager create a Secret, and name it under spec.tls"
)

// traefik has every annotation that Traefik reads on Ingresses and their
// Services, without its prefix. Traefik no longer reads those of Traefik 1, but they
// still occur: in solvers of cert-manager, and in old manifests.
var traefik = map[string]judge{
	"frontend-entry-points":  looking(entryPoints),
	"whitelist-source-range": looking(everybody),

	"router.entrypoints":                  looking(entryPoints),
	"router.middlewares":                  unless("", guard, noMiddlewares),
	"router.priority":                     looking(routerPriority),
	"router.rulesyntax":                   always(Exact, ""),
	"router.pathmatcher":                  looking(pathMatcher),
	"router.tls":                          looking(routerTLS),
	"router.tls.certresolver":             always(No, authorities),
	"router.tls.domains.n.main":           always(No, authorities),
	"router.tls.domains.n.sans":           always(No, authorities),
	"router.tls.options":                  unless("default", guard, "it may require client certificates, so weir answers 503 for an Ingress that has it; "+oneHost),
	"router.observability.accesslogs":     unless("true", No, allLogged),
	"router.observability.metrics":        unless("true", Near, "weir counts all requests"),
	"router.observability.tracing":        unless("true", No, "weir traces the requests of every Ingress if its configuration has traces; nginx.ingress.kubernetes.io/enable-opentelemetry: \"false\" turns traces off"),
	"router.observability.traceverbosity": always(Near, "the traces of weir have a span of the request and one of each attempt"),

	"service.nativelb":           unless("false", Near, "weir sends requests to Pods, never to the Service's address"),
	"service.nodeportlb":         unless("false", No, "weir sends requests to Pods, so it must be able to reach their addresses"),
	"service.serversscheme":      looking(serversScheme),
	"service.serverstransport":   always(No, "weir does not read ServersTransport; an https backend in weir's configuration has these settings"),
	"service.passhostheader":     unless("true", Near, "weir sends the externalName of the Service, or SERVICE.NAMESPACE.svc; Traefik sends the address of the Pod"),
	"service.middlewares":        unless("", guard, noMiddlewares),
	"service.sticky.cookie":      unless("false", Near, "the value of the cookie is weir's own, so clients with a cookie of Traefik get another Pod once; without a name the cookie is called "+traefikCookie),
	"service.sticky.cookie.name": looking(fits(cookieNames)), "service.sticky.cookie.path": looking(fits(cookiePaths)), "service.sticky.cookie.domain": looking(fits(cookieDomains)),
	"service.sticky.cookie.secure": unless("true", Near, "over TLS the cookie is always Secure"), "service.sticky.cookie.httponly": unless("true", Near, "the cookie is always HttpOnly"),
	"service.sticky.cookie.samesite": unless("none|lax|strict", No, "write none, lax or strict"), "service.sticky.cookie.maxage": looking(cookieSeconds),
}

// entryPoints rates lists of entry points. They restrict nothing if they have the names
// that Traefik's documentation, its chart and Traefik 1 use for public entry points.
func entryPoints(value string, _ context) (Rating, string) {
	web, secure := false, false
	for _, name := range strings.Split(value, ",") {
		switch strings.TrimSpace(name) {
		case "websecure", "https":
			secure = true
		case "web", "http":
			web = true
		case "":
		default:
			return guard, elsewhere
		}
	}
	if secure && !web {
		return Near, securely
	}
	return Near, everywhere
}

func pathMatcher(value string, _ context) (Rating, string) {
	switch value {
	case "PathPrefix":
		return Near, "weir's prefixes end at a slash: /api matches /api/x, but not /apis"
	case "Path":
		return Exact, ""
	}
	return No, onlyPaths
}

func routerTLS(value string, _ context) (Rating, string) {
	if !strings.EqualFold(value, "true") {
		return Near, "weir also serves every Ingress over TLS if there is a tls listener"
	}
	return Near, securely
}

func serversScheme(value string, _ context) (Rating, string) {
	switch strings.ToLower(value) {
	case "http", "h2c":
		return Exact, ""
	case "https":
		return Near, "weir does not verify the certificates of Services, and also offers HTTP/2 to them"
	}
	return No, "Traefik does not support this scheme either; write http, https or h2c"
}

func routerPriority(value string, _ context) (Rating, string) {
	if n, err := strconv.Atoi(value); err != nil || n < 0 {
		return No, "write a number above 0"
	}
	return Near, "the priority decides between the paths of one host in one namespace; otherwise the longest path wins, and an exact path before a prefix"
}

// fits rates a value of a cookie: exact, if usable reports that weir can use it.
func fits(usable func(string) bool) func(string, context) (Rating, string) {
	return func(value string, _ context) (Rating, string) {
		if usable(value) {
			return Exact, ""
		}
		return No, "weir does not put this value into a cookie; use letters, digits, -, _ and dots"
	}
}

func cookieSeconds(value string, _ context) (Rating, string) {
	if n, err := strconv.ParseInt(value, 10, 32); err != nil || n < 0 {
		return No, "write a number of seconds"
	}
	return Exact, ""
}
