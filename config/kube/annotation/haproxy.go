package annotation

import (
	"slices"
	"strings"
)

// HAProxy are the prefixes of HAProxy Ingress and of HAProxy's own controller, which share many names.
var HAProxy = []string{"haproxy-ingress.github.io/", "ingress.kubernetes.io/", "haproxy.org/", "haproxy.com/"}

// haproxy has the common annotations of both controllers. weir applies none of them. It answers 503 for an Ingress with
// an annotation that restricts access, because otherwise everybody would have access. weir lint reports every annotation
// in this table.
var haproxy = map[string]judge{}

func init() {
	for names, name := range haproxyNames {
		why := "weir does not read the annotations of HAProxy's controllers; write " + Nginx + name
		if !strings.HasPrefix(name, "+") {
			haproxyAll(names, always(No, why))
			continue
		}
		haproxyAll(names, always(guard, "weir does not read the annotations of HAProxy's controllers, and answers 503 for an Ingress that has it; write "+Nginx+name[1:]+" in its place"))
	}
	haproxyAll("auth-tls-secret auth-tls-verify-client auth-tls-cert-header auth-tls-error-page auth-tls-strict client-ca client-crt-optional", always(guard, refusedTLS))
	haproxyAll("oauth oauth-uri-prefix oauth-headers waf waf-mode auth-proxy auth-external-placement", always(guard, refused))
	haproxyAll("config-backend backend-config-snippet frontend-config-snippet config-frontend config-tcp config-defaults", always(guard, "weir does not read HAProxy configuration, which may restrict access, so weir answers 503 for an Ingress that has it; do the same in weir's configuration, and remove the annotation"))
	haproxyAll("balance-algorithm load-balance blue-green-balance blue-green-deploy blue-green-mode initial-weight slots-increment slots-min-free scale-server-slots agent-check-port agent-check-addr agent-check-interval "+
		"health-check-uri health-check-addr health-check-port health-check-interval health-check-rise-count health-check-fall-count check check-http check-interval maxconn-server maxqueue-server pod-maxconn "+
		"use-resolver session-cookie-dynamic session-cookie-keywords session-cookie-preserve session-cookie-shared session-cookie-strategy session-cookie-value-strategy session-cookie-disable session-cookie-httponly "+
		"proxy-protocol send-proxy-protocol server-proto server-crt server-ca server-sni backend-server-naming backend-server-slots dynamic-scaling abortonclose forwarded-for src-ip-header request-capture request-capture-len "+
		"standalone-backend nbthread tls-alpn path-type path-type-order hsts hsts-include-subdomains hsts-max-age hsts-preload quic-enable-for-tls ssl-cipher-suites ssl-ciphers ssl-options ssl-redirect-port",
		always(No, "weir does not read the annotations of HAProxy's controllers; weir's configuration has such settings for listeners, backends and TLS policies"))
}

// haproxyNames has annotations of HAProxy's controllers as keys, and the annotation of ingress-nginx with the same effect
// as the value. A value begins with + if the annotations restrict access.
var haproxyNames = map[string]string{
	"allowlist-source-range whitelist-source-range allow-list whitelist": "+allowlist-source-range", "denylist-source-range deny-list blacklist": "+denylist-source-range",
	"auth-type": "+auth-type", "auth-secret": "+auth-secret", "auth-realm": "+auth-realm",
	"auth-url": "+auth-url", "auth-method": "+auth-method", "auth-signin": "+auth-signin", "auth-headers-request auth-headers-succeed auth-headers-fail": "+auth-response-headers",
	"affinity cookie-persistence": "affinity", "session-cookie-name": "session-cookie-name", "app-root": "app-root",
	"backend-protocol secure-backends server-ssl": "backend-protocol", "secure-crt-secret secure-verify-ca-secret secure-verify-hostname secure-sni": "proxy-ssl-secret",
	"cors-enable": "enable-cors", "cors-allow-origin": "cors-allow-origin", "cors-allow-methods": "cors-allow-methods", "cors-allow-headers": "cors-allow-headers",
	"cors-allow-credentials": "cors-allow-credentials", "cors-expose-headers": "cors-expose-headers", "cors-max-age": "cors-max-age",
	"headers response-set-header": "custom-headers", "request-set-header set-host": "upstream-vhost",
	"limit-connections": "limit-connections", "limit-rps rate-limit-requests": "limit-rps", "limit-whitelist rate-limit-whitelist": "limit-whitelist", "rate-limit-period rate-limit-size rate-limit-status-code": "limit-rpm",
	"proxy-body-size": "proxy-body-size", "rewrite-target path-rewrite": "rewrite-target", "redirect-to request-redirect": "permanent-redirect", "redirect-from": "server-alias",
	"request-redirect-code redirect-to-code redirect-from-code": "permanent-redirect-code", "server-alias server-alias-regex": "server-alias", "service-upstream": "service-upstream",
	"ssl-passthrough": "ssl-passthrough", "ssl-redirect": "ssl-redirect", "ssl-redirect-code": "ssl-redirect",
	"timeout-connect": "proxy-connect-timeout", "timeout-server timeout-tunnel timeout-client timeout-http-request timeout-keep-alive timeout-queue timeout-check": "proxy-read-timeout",
}

func haproxyAll(names string, j judge) {
	for _, name := range strings.Fields(names) {
		haproxy[name] = j
	}
}

// isHAProxy reports whether a name has a prefix of HAProxy's controllers.
func isHAProxy(name string) bool {
	return slices.ContainsFunc(HAProxy, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// rateHAProxy rates an annotation of HAProxy's controllers. ok is false if weir does not know the annotation, if its value
// is empty, or if the object has an annotation of ingress-nginx with the same name: many charts write both.
func rateHAProxy(name, value string, all map[string]string) (rating Rating, why string, ok bool) {
	for _, prefix := range HAProxy {
		short, has := strings.CutPrefix(name, prefix)
		if !has {
			continue
		}
		j, known := haproxy[short]
		if _, beside := all[Nginx+short]; beside || !known || strings.TrimSpace(value) == "" {
			return "", "", false
		}
		return j.rating, j.why, true
	}
	return "", "", false
}
