package lint

import "strings"

const (
	noMiddlewares = "weir has no middlewares, and these may ask for passwords or list networks, so it answers 503 for an Ingress that has it, and for paths to a Service that has it; have the application do what they do, and take this out"
	everywhere    = "weir serves every Ingress on all of kubernetes.listeners, by default on all http and tls listeners"
	noSticky      = "weir does not do this yet; clients are spread over all endpoints"
	policies      = "weir has this for a host in its configuration: a policy under tls_policies, and a route that names it"
	elsewhere     = "this may be an entry point that only some networks reach, so weir answers 503 for an Ingress that has it; have a second weir with a class of its own serve those, and take this out"
	authorities   = "weir gets certificates for what its configuration lists under certificates; for an Ingress, let cert-manager make a Secret and name it under tls"
)

// traefik has every annotation that Traefik reads on Ingresses and their
// Services, without its prefix. Those of Traefik 1 are not read any more, and
// still written: by solvers of cert-manager, and where somebody relies on them.
var traefik = map[string]judge{
	"frontend-entry-points":  looking(entryPoints),
	"whitelist-source-range": looking(everybody),

	"router.entrypoints":                  looking(entryPoints),
	"router.middlewares":                  unless("", guard, noMiddlewares),
	"router.priority":                     always(No, "the order is fixed: the most specific host, then the longest of its paths, the exact before the prefix"),
	"router.rulesyntax":                   always(Exact, ""),
	"router.pathmatcher":                  looking(pathMatcher),
	"router.tls":                          looking(routerTLS),
	"router.tls.certresolver":             always(No, authorities),
	"router.tls.domains.n.main":           always(No, authorities),
	"router.tls.domains.n.sans":           always(No, authorities),
	"router.tls.options":                  unless("default", guard, "it may ask for client certificates, so weir answers 503 for an Ingress that has it; "+policies),
	"router.observability.accesslogs":     unless("true", No, "weir logs all requests, or with no access_log none"),
	"router.observability.metrics":        unless("true", Near, "weir counts all requests"),
	"router.observability.tracing":        unless("false", No, "weir makes no traces"),
	"router.observability.traceverbosity": always(No, "weir makes no traces"),

	"service.nativelb":         unless("false", Near, "weir sends requests to Pods, never to the Service's address"),
	"service.nodeportlb":       unless("false", No, "weir sends requests to Pods, and has to reach their addresses"),
	"service.serversscheme":    looking(serversScheme),
	"service.serverstransport": always(No, "weir reads no ServersTransport; an https backend in its configuration has these settings"),
	"service.passhostheader":   unless("true", No, "weir sends the Host that the client sent; a backend in its configuration has another with host"),
	"service.middlewares":      unless("", guard, noMiddlewares),
	"service.sticky.cookie":    unless("false", No, noSticky), "service.sticky.cookie.name": always(No, noSticky), "service.sticky.cookie.secure": always(No, noSticky),
	"service.sticky.cookie.samesite": always(No, noSticky), "service.sticky.cookie.domain": always(No, noSticky), "service.sticky.cookie.httponly": always(No, noSticky),
	"service.sticky.cookie.maxage": always(No, noSticky), "service.sticky.cookie.path": always(No, noSticky),
}

// entryPoints are harmless where they have the names that Traefik's documentation,
// chart and version 1 give to those for everybody.
func entryPoints(value string, _ context) (Rating, string) {
	for _, name := range strings.Split(value, ",") {
		switch strings.TrimSpace(name) {
		case "web", "websecure", "http", "https", "":
		default:
			return guard, elsewhere
		}
	}
	return Near, everywhere
}

func pathMatcher(value string, _ context) (Rating, string) {
	switch value {
	case "PathPrefix":
		return Near, "weir's prefixes end at a slash: /api has /api/x, and not /apis"
	case "Path":
		return No, "weir does not read it; write pathType: Exact"
	}
	return No, "weir matches paths by their text; write prefixes, or exact paths"
}

func routerTLS(value string, c context) (Rating, string) {
	switch {
	case !strings.EqualFold(value, "true"):
		return Near, "weir serves every Ingress with TLS as well, wherever there is a tls listener"
	case c.hasTLS:
		return Near, "weir redirects requests without TLS for these hosts to https instead of answering 404"
	}
	return Near, "weir serves every Ingress with TLS and without; name the hosts under tls, and it redirects those without to https"
}

func serversScheme(value string, _ context) (Rating, string) {
	switch strings.ToLower(value) {
	case "http":
		return Exact, ""
	case "https":
		return No, "weir does not read it; give the Service's port appProtocol: https"
	case "h2c":
		return No, "weir does not read it; give the Service's port appProtocol: kubernetes.io/h2c"
	}
	return No, "this is not a scheme that Traefik knows either"
}
