package lint

import (
	"slices"
	"strconv"
	"strings"
)

// Reasons that several annotations have.
const (
	noYet       = "weir does not do this yet"
	noSnippet   = "these are lines for nginx's configuration, which weir does not have; what they do has to be said in weir's own words"
	noSatisfy   = "it chooses among annotations for each of which weir answers 503; without them it asks for nothing"
	refusedRaw  = "it may keep clients out, and weir reads no lines for nginx's configuration, so it answers 503 for an Ingress that has it; have the application or weir's configuration do what it does, and take it out"
	refused     = "weir does not do this yet, and answers 503 for an Ingress that has it; keep this Ingress where it is until then, or have the application do it and take this out"
	refusedSix  = "it leaves out whoever comes by IPv6, which weir does not do yet, so it answers 503 for an Ingress that has it; write 0.0.0.0/0,::/0 where everybody is meant, or take it out"
	refusedTLS  = "weir answers 503 for an Ingress that has it; " + clientCerts
	noLimit     = "weir does not do this yet, so nobody is held back by it"
	noAffinity  = "weir does not do this yet; clients are spread over all endpoints"
	noCanary    = "weir does not do this yet; a canary is left out, with an event, and the main Ingress has all requests"
	noCORS      = "weir does not do this yet; the application has to answer for itself"
	clientCerts = "weir has this for a host in its configuration: a policy under tls_policies with client_auth, and a route that names it"
	buffers     = "weir passes bodies on as they come and needs no such buffer"
	toBackend   = "weir says nothing of the kind to Services; an https backend in its configuration has these settings"
	alias       = "weir does not read it; add a rule with the same paths for each host"
)

// nginx has every annotation that ingress-nginx reads, without its prefix.
var nginx = map[string]judge{
	"affinity": always(No, noAffinity), "affinity-mode": always(No, noAffinity), "affinity-canary-behavior": always(No, noAffinity),
	"session-cookie-name": always(No, noAffinity), "session-cookie-path": always(No, noAffinity), "session-cookie-domain": always(No, noAffinity),
	"session-cookie-secure": always(No, noAffinity), "session-cookie-expires": always(No, noAffinity), "session-cookie-max-age": always(No, noAffinity),
	"session-cookie-samesite": always(No, noAffinity), "session-cookie-conditional-samesite-none": always(No, noAffinity), "session-cookie-change-on-failure": always(No, noAffinity),
	"upstream-hash-by":             always(No, "weir does not do this for Services yet; a backend of its configuration has balance: hash, by client address"),
	"upstream-hash-by-subset":      always(No, noAffinity),
	"upstream-hash-by-subset-size": always(No, noAffinity),
	"load-balance":                 always(Near, "weir sends each request to the less busy of two endpoints that it draws"),
	"service-upstream":             unless("false", Near, "weir sends requests to Pods, never to the Service's address; Pods that are about to end, or not ready, get none"),
	"backend-protocol":             looking(backendProtocol),
	"secure-backends":              unless("false", No, "weir does not read it; write nginx.ingress.kubernetes.io/backend-protocol: HTTPS"),
	"grpc-backend":                 unless("false", No, "weir does not read this old name; write backend-protocol: GRPC"),
	"fastcgi-index":                always(No, "weir does not speak FastCGI"), "fastcgi-params-configmap": always(No, "weir does not speak FastCGI"),

	"auth-type": always(guard, refused), "auth-secret": always(guard, refused), "auth-secret-type": always(guard, refused), "auth-realm": always(guard, refused),
	"auth-url": always(guard, refused), "auth-method": always(guard, refused), "auth-signin": always(guard, refused), "auth-signin-redirect-param": always(guard, refused),
	"auth-response-headers": always(guard, refused), "auth-request-redirect": always(guard, refused), "auth-proxy-set-headers": always(guard, refused),
	"auth-cache-key": always(guard, refused), "auth-cache-duration": always(guard, refused), "auth-always-set-cookie": always(guard, refused), "auth-keepalive": always(guard, refused),
	"auth-keepalive-share-vars": always(guard, refused), "auth-keepalive-requests": always(guard, refused), "auth-keepalive-timeout": always(guard, refused),
	"auth-snippet": always(guard, refused), "satisfy": always(No, noSatisfy),
	"enable-global-auth": unless("false", guard, refused),
	"auth-tls-secret":    always(guard, refusedTLS), "auth-tls-verify-client": unless("off", guard, refusedTLS), "auth-tls-verify-depth": always(guard, refusedTLS),
	"auth-tls-error-page": always(guard, refusedTLS+"; it ends the handshake of a client without a certificate and shows no page"), "auth-tls-match-cn": always(guard, refused),
	"auth-tls-pass-certificate-to-upstream": unless("false", guard, refusedTLS+"; it tells backends of the certificate"),

	"whitelist-source-range": looking(everybody), "allowlist-source-range": looking(everybody), "denylist-source-range": always(guard, refused),
	"limit-connections": always(No, noLimit), "limit-rps": always(No, noLimit), "limit-rpm": always(No, noLimit), "limit-rate": unless("0", No, noLimit),
	"limit-rate-after": unless("0", No, noLimit), "limit-burst-multiplier": always(No, noLimit), "limit-whitelist": always(No, noLimit), "limit-allowlist": always(No, noLimit),

	"canary": unless("false", No, noCanary), "canary-by-header": always(No, noCanary), "canary-by-header-value": always(No, noCanary), "canary-by-header-pattern": always(No, noCanary),
	"canary-by-cookie": always(No, noCanary), "canary-weight": always(No, noCanary), "canary-weight-total": always(No, noCanary),
	"mirror-target": always(No, noYet), "mirror-request-body": always(No, noYet), "mirror-host": always(No, noYet),

	"enable-cors": unless("false", No, noCORS), "cors-allow-origin": always(No, noCORS), "cors-allow-methods": always(No, noCORS), "cors-allow-headers": always(No, noCORS),
	"cors-expose-headers": always(No, noCORS), "cors-allow-credentials": always(No, noCORS), "cors-max-age": always(No, noCORS),

	"rewrite-target": always(No, "weir does not rewrite paths yet; the application has to serve the path that clients ask for"),
	"use-regex":      unless("false", No, "weir matches paths by their text; write prefixes, or exact paths"),
	"app-root":       always(No, noYet), "permanent-redirect": always(No, noYet), "permanent-redirect-code": always(No, noYet),
	"temporal-redirect": always(No, noYet), "temporal-redirect-code": always(No, noYet), "from-to-www-redirect": unless("false", No, noYet),
	"relative-redirects": unless("false", Near, "weir's own redirects to https are absolute"), "use-port-in-redirects": unless("false", Near, "weir's own redirects lead to port 443"),
	"ssl-redirect": looking(sslRedirect), "force-ssl-redirect": looking(forceRedirect),
	"preserve-trailing-slash": unless("true", Near, "weir's redirects keep the URL as it is, the slash at its end included"),
	"server-alias":            always(No, alias), "upstream-vhost": always(No, "weir sends the Host that the client sent; a backend in its configuration has another with host"),
	"x-forwarded-prefix": always(No, noYet), "custom-headers": always(No, noYet), "connection-proxy-header": unless("keep-alive", No, "weir keeps connections to Pods open and sets Connection itself"),
	"configuration-snippet": looking(snippet), "server-snippet": looking(snippet), "stream-snippet": always(No, noSnippet),
	"default-backend":    always(No, "weir answers 503 by itself where no endpoint is ready; spec.defaultBackend is for requests that no path has"),
	"custom-http-errors": always(No, "weir passes on what Services answer"), "disable-proxy-intercept-errors": always(Exact, ""),

	"proxy-body-size":           unless("0", Near, "weir takes bodies of any size, so nothing is refused"),
	"proxy-connect-timeout":     unless("5|5s", Near, "weir gives a connection 5 seconds"),
	"proxy-read-timeout":        unless("60|60s", Near, "weir waits 60 seconds for the head of a response, and for more of its body; tunnels such as WebSockets may be quiet for an hour"),
	"proxy-send-timeout":        unless("60|60s", Near, "weir waits 60 seconds for a Pod to take more of a request"),
	"proxy-next-upstream":       unless("error timeout|error", Near, "weir tries another endpoint where the request cannot have had an effect, and never after a response began"),
	"proxy-next-upstream-tries": unless("3", Near, "weir makes three attempts in all; endpoints that refuse the connection do not count"), "proxy-next-upstream-timeout": unless("0", Near, "attempts are bounded in number, and each in time"),
	"proxy-buffering":         unless("off", Near, buffers+", so a slow client keeps its Pod busy"),
	"proxy-request-buffering": unless("off", Near, buffers+", so a slow client keeps its Pod busy"),
	"proxy-buffer-size":       looking(headSize), "proxy-buffers-number": always(Near, buffers), "proxy-busy-buffers-size": always(Near, buffers),
	"proxy-max-temp-file-size": unless("0", Near, buffers), "client-body-buffer-size": always(Near, buffers),
	"proxy-http-version":  unless("1.1", No, "weir speaks HTTP/1.1 to Services, or HTTP/2 where they say so"),
	"proxy-cookie-domain": unless("off", No, noYet), "proxy-cookie-path": unless("off", No, noYet), "proxy-redirect-from": unless("off", No, noYet), "proxy-redirect-to": unless("off", No, noYet),
	"proxy-ssl-secret": always(No, toBackend), "proxy-ssl-ciphers": always(No, toBackend), "proxy-ssl-name": always(No, toBackend), "proxy-ssl-protocols": always(No, toBackend),
	"proxy-ssl-verify": unless("off", No, toBackend), "proxy-ssl-verify-depth": always(No, toBackend), "proxy-ssl-server-name": unless("off", No, toBackend),

	"ssl-passthrough":           unless("false", No, "weir does not read it; a route of its configuration with tls: passthrough does this"),
	"ssl-ciphers":               always(No, "weir has this for a host in its configuration: a policy under tls_policies, and a route that names it"),
	"ssl-prefer-server-ciphers": unless("true", Near, "the order of suites is always weir's"),
	"http2-push-preload":        unless("false", Near, "browsers take no pushes any more, so nothing is lost"),
	"enable-access-log":         unless("true", No, "weir logs all requests, or with no access_log none"), "enable-rewrite-log": unless("false", Near, "there are no rewrites to log"),
	"enable-opentelemetry": unless("false", No, "weir makes no traces"), "opentelemetry-trust-incoming-span": always(No, "weir makes no traces; fields of clients' traces reach Services as they are"),
	"opentelemetry-operation-name": always(No, "weir makes no traces"),
	"enable-modsecurity":           unless("false", guard, refused), "enable-owasp-core-rules": unless("false", guard, refused), "modsecurity-transaction-id": always(No, noYet), "modsecurity-snippet": always(guard, refused),
}

// openly are the directives that leave nobody out: of responses, of sizes and
// times, and of logs.
var openly = []string{
	"access_log", "add_header", "charset", "error_log", "expires", "more_clear_headers", "more_set_headers", "proxy_hide_header", "server_tokens",
	"gzip", "gzip_buffers", "gzip_comp_level", "gzip_disable", "gzip_http_version", "gzip_min_length", "gzip_proxied", "gzip_types", "gzip_vary",
	"client_body_buffer_size", "client_header_buffer_size", "client_max_body_size", "large_client_header_buffers",
	"proxy_buffer_size", "proxy_buffering", "proxy_buffers", "proxy_busy_buffers_size", "proxy_http_version", "proxy_max_temp_file_size", "proxy_request_buffering",
	"client_body_timeout", "client_header_timeout", "keepalive_timeout", "proxy_connect_timeout", "proxy_read_timeout", "proxy_send_timeout", "send_timeout",
}

// snippet: lines for nginx's configuration may ask for passwords or list
// networks, and fields of requests that they set may be what an application trusts.
func snippet(value string, _ context) (Rating, string) {
	if value == "" {
		return Exact, ""
	}
	for value = strings.TrimSpace(value); value != ""; {
		first, rest := directive(value)
		if first != "" && !slices.Contains(openly, first) && !setsOwn(strings.TrimSuffix(value, rest)) {
			return guard, refusedRaw
		}
		value = rest
	}
	return No, noSnippet
}

// own are the fields of requests that weir sets itself, or that are the client's
// connection alone, and the values that mean the same as weir's.
var own = map[string][]string{
	"connection": {"upgrade", "$connection_upgrade", "$http_connection", "keep-alive", ""},
	"upgrade":    {"$http_upgrade"},
	"host":       {"$host", "$http_host", "$best_http_host"},

	"x-real-ip": {"$remote_addr"}, "x-forwarded-for": {"$remote_addr", "$proxy_add_x_forwarded_for"},
	"x-forwarded-proto": {"$scheme", "$pass_access_scheme", "https"}, "x-forwarded-host": {"$host", "$http_host", "$best_http_host"},
	"x-forwarded-port": {"$server_port", "$pass_server_port", "443"}, "x-request-id": {"$req_id", "$request_id"},
}

// setsOwn says whether a directive sets a field of requests to what weir sets it to.
func setsOwn(directive string) bool {
	words := strings.Fields(strings.TrimSuffix(directive, ";"))
	if len(words) != 3 || words[0] != "proxy_set_header" {
		return false
	}
	values, known := own[strings.ToLower(words[1])]
	return known && slices.Contains(values, strings.Trim(words[2], `"'`))
}

// directive is the first word of the first directive, and what comes behind
// that one. What has a block, or a comment within, is called by its brace or #.
func directive(text string) (first, rest string) {
	const space = " \t\r\n"
	for text = strings.TrimSpace(text); strings.HasPrefix(text, "#"); text = strings.TrimSpace(text) {
		_, text, _ = strings.Cut(text, "\n")
	}
	first = text
	if end := strings.IndexAny(text, space+";"); end >= 0 {
		first = text[:end]
	}
	quote, before := rune(0), ' '
	for i, r := range text {
		begins := strings.ContainsRune(space, before) // a word, which alone may be quoted
		switch {
		case before == '\\':
			r = 0 // it means itself
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case begins && (r == '"' || r == '\''):
			quote = r
		case r == ';':
			return first, text[i+1:]
		case r == '{' || r == '}' || begins && r == '#':
			return string(r), ""
		}
		before = r
	}
	return first, ""
}

// backendProtocol: weir reads it, and where it is not there what Services say of themselves.
func backendProtocol(value string, _ context) (Rating, string) {
	switch strings.ToUpper(strings.TrimSpace(value)) {
	case "HTTP", "GRPC", "GRPCS":
		return Exact, ""
	case "HTTPS":
		return Near, "weir offers HTTP/2 to the Service as well, and speaks HTTP/1.1 where it does not take that"
	case "AUTO_HTTP":
		return No, "weir speaks the same to a Service whatever its client speaks; write HTTP or HTTPS"
	case "FCGI":
		return No, "weir does not speak FastCGI"
	}
	return No, "this is not a protocol that ingress-nginx knows either"
}

// everybody: a list that leaves nobody out asks for nothing. Solvers of cert-manager have it.
func everybody(value string, _ context) (Rating, string) {
	four, six := false, false
	for _, network := range strings.Split(value, ",") {
		switch strings.TrimSpace(network) {
		case "0.0.0.0/0":
			four = true
		case "::/0":
			six = true
		}
	}
	switch {
	case four && six:
		return Exact, ""
	case four:
		return guard, refusedSix
	}
	return guard, refused
}

// isTrue reads a value as ingress-nginx does.
func isTrue(value string) bool {
	is, _ := strconv.ParseBool(value)
	return is
}

func sslRedirect(value string, c context) (Rating, string) {
	switch {
	case isTrue(value) || !c.hasTLS:
		return Exact, ""
	default:
		return No, "weir redirects requests without TLS for hosts with TLS; kubernetes.https_redirect: false ends it for all Ingresses"
	}
}

func forceRedirect(value string, c context) (Rating, string) {
	switch {
	case !isTrue(value):
		return Exact, ""
	case c.hasTLS:
		return Near, "weir redirects the hosts that this Ingress has TLS for"
	}
	return No, "weir redirects only hosts that the Ingress has TLS for; add them under tls. A secretName is not needed there"
}

// headSize: ingress-nginx needs it for large response heads.
func headSize(value string, _ context) (Rating, string) {
	unit := 1
	number := strings.ToLower(value)
	if n, ok := strings.CutSuffix(number, "k"); ok {
		number, unit = n, 1<<10
	} else if n, ok := strings.CutSuffix(number, "m"); ok {
		number, unit = n, 1<<20
	}
	if n, err := strconv.Atoi(number); err == nil && n >= 0 && n <= (64<<10)/unit {
		return Exact, "" // the default of limits.head_size
	}
	return Near, "weir takes heads of 64 KiB; limits.head_size in its configuration changes that"
}
