package annotation

import (
	"slices"
	"strconv"
	"strings"
)

// Reasons that several annotations have.
const (
	noYet      = "weir does not support this yet"
	noSnippet  = "weir does not read nginx configuration; set in weir's configuration what the snippet does"
	refused    = "weir does not support this yet, and answers 503 for an Ingress that has it; leave this Ingress to its present controller, or restrict access in the application and remove the annotation"
	refusedSix = "the list excludes IPv6 clients, which weir does not support yet, so weir answers 503 for an Ingress that has it; write 0.0.0.0/0,::/0 if everybody may have access, or remove the annotation"
	refusedTLS = "weir answers 503 for an Ingress that has it; weir's configuration can require client certificates for a host: a policy under tls_policies with client_auth, and a route that names the policy"
	buffers    = "weir forwards bodies as they arrive and needs no such buffer"
	noFastCGI  = "weir does not support FastCGI"
	onlyPaths  = "weir supports only prefixes and exact paths; use these instead"
	allLogged  = "weir logs all requests, or none without access_log"
	oneHost    = "weir's configuration can set this for a host: a policy under tls_policies, and a route that names the policy"
)

// families are the annotations of ingress-nginx that weir reads, without their prefix. Each
// family has a file of its own, with what rates it and what reads it.
var families = []map[string]judge{
	bodySizes,
	rewrites,
	redirects,
	canaries,
	affinities,
	aliases,
	balances,
	defaultBackends,
	passthroughs,
	forwards,
	traces,
	sourceRanges,
	timeouts,
	retries,
	basicAuths,
	authURLs,
	authTLSs,
	corses,
	snippets,
	reverses,
	customHeaders,
	proxySSLs,
	customErrors,
	logs,
	limits,
	satisfies,
	unread,
}

// nginx has every annotation that ingress-nginx reads, without its prefix.
var nginx = union(families)

// union is one map of all families. An annotation belongs to one family.
func union(families []map[string]judge) map[string]judge {
	all := map[string]judge{}
	for _, family := range families {
		for name, j := range family {
			if _, twice := all[name]; twice {
				panic("two families have the annotation " + name)
			}
			all[name] = j
		}
	}
	return all
}

const gone = "ingress-nginx has removed this annotation, so it has no effect there, and none in weir; remove it"

// unread are the annotations of ingress-nginx that set nothing for routes.
var unread = map[string]judge{
	"secure-backends": unless("false", No, "weir does not support this old name; write nginx.ingress.kubernetes.io/backend-protocol: HTTPS"),
	"grpc-backend":    unless("false", No, "weir does not support this old name; write nginx.ingress.kubernetes.io/backend-protocol: GRPC"),
	// Charts still have these, without an effect in ingress-nginx.
	"session-cookie-hash": always(Near, gone), "enable-opentracing": always(Near, gone), "opentracing-operation-name": always(Near, gone), "opentracing-trust-incoming-span": always(Near, gone),

	"fastcgi-index": always(No, noFastCGI), "fastcgi-params-configmap": always(No, noFastCGI),

	"use-port-in-redirects": unless("false", Near, "weir's redirects go to port 443, or to the public_port of a tls listener"),

	"connection-proxy-header": unless("keep-alive", Near, "weir keeps connections to Pods open, and sets the HTTP header Connection itself"),

	"proxy-buffering":         unless("off", Near, buffers+", so a slow client keeps its Pod busy"),
	"proxy-request-buffering": unless("off", Near, buffers+", so a slow client keeps its Pod busy"),
	"proxy-buffer-size":       looking(headSize), "proxy-buffers-number": always(Near, buffers), "proxy-busy-buffers-size": always(Near, buffers),
	"proxy-max-temp-file-size": unless("0", Near, buffers), "client-body-buffer-size": always(Near, buffers),
	"proxy-http-version": unless("1.1", Near, "weir sends HTTP/1.1 to Services, and accepts responses in HTTP/1.0; only a Service that cannot read a chunked request body sees the difference"),

	"ssl-ciphers":               always(No, oneHost),
	"ssl-prefer-server-ciphers": unless("true", Near, "weir always uses its own order of cipher suites"),
	"http2-push-preload":        unless("false", Near, "browsers no longer support HTTP/2 push, so this has no effect"),
	"enable-modsecurity":        unless("false", guard, refused), "enable-owasp-core-rules": unless("false", guard, refused), "modsecurity-transaction-id": always(No, noYet), "modsecurity-snippet": always(guard, refused),
}

// openly are the directives that restrict no access: they set responses, sizes,
// timeouts and logs.
var openly = []string{
	"access_log", "add_header", "charset", "error_log", "expires", "more_clear_headers", "more_set_headers", "proxy_hide_header", "server_tokens",
	"gzip", "gzip_buffers", "gzip_comp_level", "gzip_disable", "gzip_http_version", "gzip_min_length", "gzip_proxied", "gzip_types", "gzip_vary",
	"client_body_buffer_size", "client_header_buffer_size", "client_max_body_size", "large_client_header_buffers",
	"proxy_buffer_size", "proxy_buffering", "proxy_buffers", "proxy_busy_buffers_size", "proxy_http_version", "proxy_max_temp_file_size", "proxy_request_buffering",
	"client_body_timeout", "client_header_timeout", "keepalive_timeout", "proxy_connect_timeout", "proxy_read_timeout", "proxy_send_timeout", "send_timeout",
}

// snippet rates nginx configuration that weir does not read: it may require passwords or list networks, and
// the application may trust HTTP headers that it sets.
func snippet(value string, _ context) (Rating, string) {
	if value == "" {
		return Exact, ""
	}
	for value = strings.TrimSpace(value); value != ""; {
		first, rest := directive(value)
		if first != "" && !slices.Contains(openly, first) && !setsOwn(strings.TrimSuffix(value, rest)) {
			return guard, ""
		}
		value = rest
	}
	return No, ""
}

// own are the HTTP headers of requests that weir sets itself, or that apply only to
// the client's connection, and the values with the same meaning as weir's.
var own = map[string][]string{
	"connection": {"upgrade", "$connection_upgrade", "$http_connection", "keep-alive", ""},
	"upgrade":    {"$http_upgrade"},
	"host":       {"$host", "$http_host", "$best_http_host"},

	"x-real-ip": {"$remote_addr"}, "x-forwarded-for": {"$remote_addr", "$proxy_add_x_forwarded_for"},
	"x-forwarded-proto": {"$scheme", "$pass_access_scheme", "https"}, "x-forwarded-host": {"$host", "$http_host", "$best_http_host"},
	"x-forwarded-port":   {"$server_port", "$pass_server_port", "443"},
	"x-forwarded-scheme": {"$scheme", "$pass_access_scheme", "https"}, "x-scheme": {"$scheme", "$pass_access_scheme", "https"}, "x-request-id": {"$req_id", "$request_id"},
}

// setsOwn reports whether a directive sets an HTTP header to the value that weir sets.
func setsOwn(directive string) bool {
	words := strings.Fields(strings.TrimSuffix(directive, ";"))
	if len(words) != 3 || words[0] != "proxy_set_header" {
		return false
	}
	values, known := own[strings.ToLower(words[1])]
	return known && slices.Contains(values, strings.Trim(words[2], `"'`))
}

// directive returns the first word of the first directive, and the text after that
// directive. A directive with a block or a comment inside returns the brace or #.
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
		begins := strings.ContainsRune(space, before) // of a word; only whole words may be quoted
		switch {
		case before == '\\':
			r = 0 // an escaped character has no special meaning
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

// everybody rates lists of networks: a list of all networks restricts nothing. Solvers of
// cert-manager have it.
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

// headSize rates proxy-buffer-size, which ingress-nginx needs for large response heads.
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
	return Near, "weir accepts heads of up to 64 KiB; limits.head_size in weir's configuration changes this"
}
