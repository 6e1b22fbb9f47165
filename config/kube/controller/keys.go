package controller

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/config/kube/annotation"
)

// key is how weir treats one key of the ConfigMap. At most one of annotation, auth, set and passed says how it takes
// effect; without any of them it has none.
type key struct {
	rating annotation.Rating
	why    string
	exact  []string // values that ask for what weir does anyway; the rating is of all others

	annotation string                          // the key is the value of this annotation for Ingresses without it
	auth       string                          // the same for auth-url and its family
	convert    func(value string) string       // the value of the annotation; nil: that of the key
	set        func(value string, s *Settings) // stores the value
	passed     bool                            // a family of annotations reads it: annotation.OfController
	trust      bool                            // it decides whom to trust
	snippet    string                          // the value is rated as this annotation
	refuses    func(value string) bool         // weir answers 503 for Ingresses because of this value
	wrong      func(value string) error        // what weir does not support of a value that it refuses; nil: why says it
}

func (k *key) converted(value string) string {
	if k.convert != nil {
		return k.convert(value)
	}
	return value
}

// global are the annotations that the keys global-auth-* set.
var global = map[string]bool{}

func init() {
	for _, k := range keys {
		if k.auth != "" {
			global[k.auth] = true
		}
	}
}

// defaultValues are the controller's defaults that differ from weir's.
var defaultValues = map[string]string{"proxy-body-size": "1m"}

// Constructors of entries.
func fallback(name string) *key                { return &key{annotation: name} }
func globalAuth(name string) *key              { return &key{auth: name} }
func exactly(set func(string, *Settings)) *key { return &key{rating: annotation.Exact, set: set} }
func needless(why string) *key                 { return &key{rating: annotation.Near, why: why} }
func inFile(why string, exact ...string) *key {
	return &key{rating: annotation.No, why: "weir does not apply this key; " + why, exact: exact}
}
func not(why string, exact ...string) *key {
	return &key{rating: annotation.No, why: why, exact: exact}
}
func near(why string, exact ...string) *key {
	return &key{rating: annotation.Near, why: why, exact: exact}
}
func trusting(why string, exact ...string) *key {
	return &key{rating: annotation.No, trust: true, why: "weir never takes from the ConfigMap whom to trust; " + why, exact: exact}
}
func closing(why string, exact ...string) *key {
	return &key{rating: annotation.No, why: why, exact: exact, refuses: func(v string) bool { return v != "" }}
}

// Reasons of several keys.
const (
	internal   = "it tunes nginx, and weir has nothing like it"
	sizes      = "weir's limits of a head are limits.head_size and limits.head_fields"
	accessLog  = "access_log in weir's configuration has the path, the format and the fields"
	errorLog   = "weir writes its log to standard error; log in weir's configuration has the level"
	policies   = "a policy under tls_policies has versions and suites"
	tickets    = "weir resumes sessions by tickets, whose keys its replicas share"
	compressed = "weir has levels, sizes and types of its own"
	traces     = "traces in weir's configuration has the receiver of spans and the share of requests"
	snippets   = "weir does not read nginx configuration of this level; set in weir's configuration what it does"
	streams    = "limits of raw TCP are tunnel_idle and max_lifetime in weir's configuration"
	geo        = "weir has no GeoIP"
	listeners  = "listeners in weir's configuration have the addresses"
	waf        = "weir has no ModSecurity; remove the key when another server filters requests"
)

// keys has every key that ingress-nginx reads from its ConfigMap.
var keys = map[string]*key{
	// Defaults of annotations.
	"custom-http-errors": fallback("custom-http-errors"), "disable-proxy-intercept-errors": fallback("disable-proxy-intercept-errors"),
	"proxy-body-size": fallback("proxy-body-size"), "client-body-buffer-size": fallback("client-body-buffer-size"),
	"proxy-connect-timeout": fallback("proxy-connect-timeout"), "proxy-read-timeout": fallback("proxy-read-timeout"), "proxy-send-timeout": fallback("proxy-send-timeout"),
	"proxy-buffering": fallback("proxy-buffering"), "proxy-request-buffering": fallback("proxy-request-buffering"), "proxy-buffer-size": fallback("proxy-buffer-size"),
	"proxy-buffers-number": fallback("proxy-buffers-number"), "proxy-busy-buffers-size": fallback("proxy-busy-buffers-size"), "proxy-max-temp-file-size": fallback("proxy-max-temp-file-size"),
	"proxy-cookie-path": fallback("proxy-cookie-path"), "proxy-cookie-domain": fallback("proxy-cookie-domain"),
	"proxy-redirect-from": fallback("proxy-redirect-from"), "proxy-redirect-to": fallback("proxy-redirect-to"),
	"proxy-next-upstream": fallback("proxy-next-upstream"), "proxy-next-upstream-timeout": fallback("proxy-next-upstream-timeout"), "proxy-next-upstream-tries": fallback("proxy-next-upstream-tries"),
	"proxy-http-version": fallback("proxy-http-version"),
	"ssl-redirect":       fallback("ssl-redirect"), "force-ssl-redirect": fallback("force-ssl-redirect"), "preserve-trailing-slash": fallback("preserve-trailing-slash"),
	"use-port-in-redirects": fallback("use-port-in-redirects"), "relative-redirects": fallback("relative-redirects"),
	"upstream-hash-by": fallback("upstream-hash-by"), "upstream-hash-by-subset": fallback("upstream-hash-by-subset"), "upstream-hash-by-subset-size": fallback("upstream-hash-by-subset-size"),
	"app-root":     fallback("app-root"),
	"load-balance": fallback("load-balance"), "service-upstream": fallback("service-upstream"),
	"limit-rate": fallback("limit-rate"), "limit-rate-after": fallback("limit-rate-after"),
	"whitelist-source-range": fallback("whitelist-source-range"), "denylist-source-range": fallback("denylist-source-range"),
	"disable-access-log": {annotation: "enable-access-log", convert: negate}, "disable-http-access-log": {annotation: "enable-access-log", convert: negate},
	"enable-modsecurity": {annotation: "enable-modsecurity", why: waf}, "enable-owasp-modsecurity-crs": {annotation: "enable-owasp-core-rules", why: waf}, "modsecurity-snippet": {annotation: "modsecurity-snippet", why: waf},
	"enable-opentelemetry": inFile(traces, "false"), "opentelemetry-trust-incoming-span": near("weir continues the trace of a client, and only senders in trust_forwarded decide whether it is sampled"), "opentelemetry-operation-name": not("weir names a span by the method and the route"),

	// Authentication of all Ingresses.
	"global-auth-url": globalAuth("auth-url"), "global-auth-method": globalAuth("auth-method"), "global-auth-signin": globalAuth("auth-signin"),
	"global-auth-signin-redirect-param": globalAuth("auth-signin-redirect-param"), "global-auth-response-headers": globalAuth("auth-response-headers"),
	"global-auth-request-redirect": globalAuth("auth-request-redirect"), "global-auth-snippet": globalAuth("auth-snippet"), "global-auth-cache-key": globalAuth("auth-cache-key"),
	"global-auth-cache-duration": globalAuth("auth-cache-duration"), "global-auth-always-set-cookie": globalAuth("auth-always-set-cookie"),
	"no-auth-locations": near("weir asks for no authentication below /.well-known/acme-challenge/, and for all other paths", "/.well-known/acme-challenge"),

	// How annotations are read.
	"allow-snippet-annotations": {rating: annotation.Exact, passed: true}, "annotations-risk-level": {rating: annotation.Near, passed: true, why: "weir reads the annotations that it supports, whatever their level"},
	"allow-cross-namespace-resources": {exact: []string{"false"}, rating: annotation.Near, passed: true, why: "the key counts for custom-headers and auth-proxy-set-headers; weir reads Secrets only in the namespace of the Ingress"},
	"annotation-value-word-blocklist": needless("weir parses each annotation by itself, and makes no text of nginx from it"),
	annotation.AllowedHeaders:         {rating: annotation.Exact, passed: true},
	"strict-validate-path-type":       needless("weir matches each path by its type, whatever the path has"),
	"proxy-ssl-location-only":         needless("weir applies the annotations of an Ingress to its own paths"),

	// Responses and redirects.
	"hsts": {rating: annotation.Exact}, "hsts-max-age": {rating: annotation.Exact}, "hsts-include-subdomains": {rating: annotation.Exact}, "hsts-preload": {rating: annotation.Exact},
	"http-redirect-code":          exactly(redirectStatus),
	"hide-headers":                exactly(hide),
	"server-tokens":               not("weir sends no Server header of its own", "false"),
	"allow-backend-server-header": near("weir forwards the Server header of Services", "true"),
	"no-tls-redirect-locations":   near("weir never redirects paths of Ingresses below /.well-known/acme-challenge/", "/.well-known/acme-challenge"),
	"add-headers":                 {rating: annotation.Near, why: "weir sets these HTTP headers in responses of Ingresses only, before those of CORS; it leaves out an HTTP header whose value has a variable that weir does not know", set: func(v string, s *Settings) { s.AddHeaders = v }},
	"proxy-set-headers":           {rating: annotation.Near, why: "each HTTP header replaces all others of its name, and nginx sends both; weir answers 503 for all Ingresses if the ConfigMap is missing when it starts, has a variable that weir does not know, or an HTTP header that only weir sets", set: func(v string, s *Settings) { s.SetHeaders = v }},
	"default-type":                needless("weir adds no Content-Type to responses"),

	// Who is refused.
	"block-cidrs":       {rating: annotation.Near, why: "weir also refuses these clients where an Ingress has an address list of its own", set: block},
	"block-user-agents": blocking("block-user-agents", "$http_user_agent"), "block-referers": blocking("block-referers", "$http_referer"),

	"limit-req-status-code": {rating: annotation.Exact, passed: true}, "limit-conn-status-code": {rating: annotation.Exact, passed: true},
	"limit-conn-zone-variable": near("weir counts by the client's address", "$binary_remote_addr"),

	// Whom to trust.
	"use-forwarded-headers":      trusting("trust_forwarded of a listener lists the networks of proxies whose X-Forwarded-* count", "false"),
	"compute-full-forwarded-for": trusting("weir appends to the X-Forwarded-For of senders in trust_forwarded, and replaces that of all others", "false"),
	"forwarded-for-header":       trusting("weir reads X-Forwarded-For", "X-Forwarded-For"), "forwarded-for-proxy-protocol-header": needless("weir puts the address of the PROXY header into X-Forwarded-For"),
	"forwarded-host-header":         trusting("weir reads X-Forwarded-Host", "X-Forwarded-Host"),
	"enable-real-ip":                trusting("trust_forwarded of a listener lists the networks of proxies whose X-Forwarded-* count", "false"),
	"proxy-real-ip-cidr":            trusting("write the networks into trust_forwarded of the listeners, or into the rules of a policy under proxy_protocol"),
	"use-proxy-protocol":            trusting("a policy under proxy_protocol lists the networks that send PROXY headers", "false"),
	"proxy-protocol-header-timeout": inFile("header_timeout of a policy under proxy_protocol has it", "5s"),
	"generate-request-id":           near("weir makes an ID for each request, and takes none from clients"),
	"proxy-add-original-uri-header": exactly(func(v string, s *Settings) { s.OriginalURI = isTrue(v) }),

	// TLS.
	"ssl-protocols": inFile(policies, "TLSv1.2 TLSv1.3"), "ssl-ciphers": inFile(policies), "ssl-ecdh-curve": inFile(policies, "auto"), "ssl-dh-param": needless("weir has no suites with DHE"),
	"ssl-early-data": needless("weir accepts no early data"), "ssl-session-cache": needless(tickets), "ssl-session-cache-size": needless(tickets), "ssl-session-tickets": near(tickets, "true"),
	"ssl-session-ticket-key": needless(tickets), "ssl-session-timeout": needless(tickets), "ssl-buffer-size": needless(internal), "enable-ocsp": near("weir staples OCSP responses for certificates of its configuration, and none for Secrets", "false"),
	"ssl-reject-handshake": near("weir refuses handshakes for unknown hosts, unless it has a default certificate"),

	// Connections of clients.
	"keep-alive": inFile("timeouts.keep_alive of a listener has the time between requests", "360"), "keep-alive-requests": needless("weir limits no number of requests on a connection"),
	"client-header-timeout": inFile("timeouts.request_head of a listener has the time for a head", "10"), "client-body-timeout": inFile("timeouts.body_idle of a listener has the time for a body", "60"),
	"client-header-buffer-size": needless(sizes), "large-client-header-buffers": near(sizes, "4 8k"),
	"enable-underscores-in-headers": near("weir forwards HTTP headers with underscores", "true"), "ignore-invalid-headers": near("weir answers 400 to invalid HTTP headers"),
	"use-http2": inFile("http2: false of a listener turns HTTP/2 off", "true"), "http2-max-field-size": needless(sizes), "http2-max-header-size": needless(sizes), "http2-max-requests": needless("weir limits no number of requests on a connection"),
	"http2-max-concurrent-streams": inFile("http2.max_streams of a listener has the number of streams", "100"),

	// Connections to Services.
	"retry-non-idempotent":           near("weir repeats no request that may have had an effect", "false"),
	"upstream-keepalive-connections": needless("weir keeps idle connections to Pods"), "upstream-keepalive-time": needless("weir keeps idle connections to Pods"), "upstream-keepalive-timeout": needless("weir keeps idle connections to Pods"), "upstream-keepalive-requests": needless("weir keeps idle connections to Pods"),
	"grpc-buffer-size-kb": needless(internal),

	// Compression.
	"use-gzip": compresses(), "gzip-level": needless(compressed), "gzip-min-length": needless(compressed), "gzip-types": needless(compressed), "gzip-disable": needless(compressed),
	"enable-brotli": compresses(), "brotli-level": needless(compressed), "brotli-min-length": needless(compressed), "brotli-types": needless(compressed),

	// Logs.
	"access-log-path": inFile(accessLog), "http-access-log-path": inFile(accessLog), "stream-access-log-path": inFile(accessLog), "access-log-params": needless(accessLog),
	"log-format-upstream": inFile("access_log in weir's configuration has the format, and weir migrate converts this one"), "log-format-stream": inFile(accessLog), "log-format-escape-json": inFile(accessLog, "false"), "log-format-escape-none": inFile(accessLog, "false"),
	"skip-access-log-urls": inFile(accessLog), "disable-stream-access-log": inFile(accessLog, "false"), "enable-access-log-for-default-backend": near("weir also logs requests that no Ingress matches", "true"), "enable-auth-access-log": near("weir does not log its own requests for authentication", "false"),
	"error-log-path": needless(errorLog), "error-log-level": needless(errorLog), "enable-syslog": not("weir sends nothing to syslog; it writes its logs to standard output or to a file", "false"), "syslog-host": needless(accessLog), "syslog-port": needless(accessLog),

	// Traces.
	"opentelemetry-config": needless(traces), "otlp-collector-host": needless(traces), "otlp-collector-port": needless(traces), "otel-service-name": needless(traces), "otel-sampler": needless(traces), "otel-sampler-ratio": needless(traces),
	"otel-sampler-parent-based": needless(traces), "otel-max-queuesize": needless(traces), "otel-schedule-delay-millis": needless(traces), "otel-max-export-batch-size": needless(traces),

	"jaeger-collector-host": needless(traces), "jaeger-collector-port": needless(traces), "jaeger-endpoint": needless(traces), "jaeger-service-name": needless(traces), "jaeger-propagation-format": needless(traces), "jaeger-sampler-type": needless(traces), "jaeger-sampler-param": needless(traces), "jaeger-sampler-host": needless(traces), "jaeger-sampler-port": needless(traces), "jaeger-trace-context-header-name": needless(traces), "jaeger-debug-header": needless(traces), "jaeger-baggage-header": needless(traces), "jaeger-trace-baggage-header-prefix": needless(traces),

	// nginx configuration.
	"location-snippet": snippet("configuration-snippet", func(v string, s *Settings) { s.location = v }),
	"server-snippet":   snippet("server-snippet", func(v string, s *Settings) { s.server = v }),
	"http-snippet":     {rating: annotation.No, why: snippets, refuses: mayRestrict},
	"main-snippet":     not(snippets), "stream-snippet": not(snippets),

	// Raw TCP.
	"proxy-stream-timeout": inFile(streams), "proxy-stream-next-upstream": needless("weir tries another Pod if one does not connect"), "proxy-stream-next-upstream-timeout": needless("weir tries another Pod if one does not connect"),
	"proxy-stream-next-upstream-tries": needless("weir tries another Pod if one does not connect"), "proxy-stream-responses": needless("weir does not support UDP"),

	// nginx's own.
	"bind-address": inFile(listeners), "disable-ipv6": inFile(listeners, "false"), "disable-ipv6-dns": needless(internal), "nginx-status-ipv4-whitelist": needless("weir's admin port listens on loopback"), "nginx-status-ipv6-whitelist": needless("weir's admin port listens on loopback"),
	"enable-multi-accept": needless(internal), "max-worker-connections": inFile("max_connections of a listener limits its connections"), "max-worker-open-files": needless(internal), "map-hash-bucket-size": needless(internal),
	"server-name-hash-max-size": needless(internal), "server-name-hash-bucket-size": needless(internal), "proxy-headers-hash-max-size": needless(internal), "proxy-headers-hash-bucket-size": needless(internal),
	"variables-hash-bucket-size": needless(internal), "variables-hash-max-size": needless(internal), "reuse-port": needless(internal), "enable-aio-write": needless(internal),
	"worker-processes": needless("weir uses all cores"), "worker-cpu-affinity": needless(internal), "worker-shutdown-timeout": inFile("drain.timeout has the time for which open connections may finish"), "enable-serial-reloads": needless("a reload of weir keeps all connections"),
	"lua-shared-dicts": needless(internal), "debug-connections": needless(internal),
	"use-geoip": needless(geo), "use-geoip2": not(geo, "false"), "geoip2-autoreload-in-minutes": needless(geo),
}

// compresses is a key that compresses responses.
func compresses() *key {
	return &key{rating: annotation.Near, why: "weir compresses text of 1 KiB or more with zstd, br or gzip, whichever the client prefers, and no response that sets a cookie",
		exact: []string{"false"}, set: func(v string, s *Settings) { s.Compress = s.Compress || isTrue(v) }}
}

func isTrue(value string) bool {
	is, _ := strconv.ParseBool(value)
	return is
}

func negate(value string) string {
	if is, err := strconv.ParseBool(value); err == nil {
		return strconv.FormatBool(!is)
	}
	return "true"
}

// redirectStatus reads http-redirect-code.
func redirectStatus(value string, s *Settings) {
	if n, err := strconv.Atoi(value); err == nil && slices.Contains([]int{301, 302, 307, 308}, n) {
		s.RedirectStatus = n
	}
}

// hide reads hide-headers.
func hide(value string, s *Settings) {
	for _, name := range strings.Split(value, ",") {
		if name = strings.TrimSpace(name); name != "" {
			s.Hide = append(s.Hide, name)
		}
	}
}

// block reads block-cidrs.
func block(value string, s *Settings) {
	for _, text := range strings.Split(value, ",") {
		if n, err := annotation.Network(strings.TrimSpace(text)); err == nil {
			s.Deny = append(s.Deny, n)
		} else if text != "" {
			s.closes = append(s.closes, "block-cidrs")
		}
	}
}

// snippet is a key with a snippet for each Ingress, which weir reads like the annotation.
func snippet(name string, set func(string, *Settings)) *key {
	return &key{snippet: name, set: set}
}

// restricting are the words of nginx that restrict access, or that send requests elsewhere.
var restricting = regexp.MustCompile(`\b(deny|allow|satisfy|auth_\w+|return|rewrite|if|limit_\w+|modsecurity\w*|access_by_lua\w*|rewrite_by_lua\w*|ssl_verify_client|server|location)\b`)

// mayRestrict reports whether a snippet outside of servers may restrict access.
func mayRestrict(value string) bool { return restricting.MatchString(value) }
