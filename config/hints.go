package config

import (
	"slices"
	"strings"
)

// examples has the correct forms of values that users often write in another form. Its keys are patterns of
// the keys of the configuration.
var examples = map[string]string{
	"listeners":                       `the name as a key, as in "listeners: {web: {address: ':8080', protocol: http}}"`,
	"backends":                        `the name as a key, as in "backends: {app: {endpoints: ['10.0.0.1:8080']}}"`,
	"backends.NAME.tls":               `"tls: {}", with keys as needed`,
	"backends.NAME.health_check":      `"health_check: {http: {path: /healthz}}"`,
	"backends.NAME.health_check.http": `"http: {path: /healthz}"`,
	"backends.NAME.health_check.grpc": `"grpc: {}"`,
	"backends.NAME.health_check.tcp":  `"tcp: {}"`,
	"backends.NAME.sticky":            `"sticky: {cookie: weir}"`,
	"backends.NAME.ejection":          `"ejection: {failures: 5}"; with 0 it is off`,
	"backends.NAME.timeouts":          `"timeouts: {response_head: 30s}"`,
	"backends.NAME.retries":           `"retries: {attempts: 3}"`,
	"routes[].auth":                   `the name of an entry of auth at the top level; there write "auth: {staff: {basic: {file: users.htpasswd}}}", and here "auth: staff"`,
	"routes[].rate_limit":             `the name of an entry of rate_limits at the top level; there write "rate_limits: {api: {rate: 10/s}}", and here "rate_limit: api"`,
	"routes[].clients":                `"clients: {allow: [10.0.0.0/8]}"`,
	"routes[].cors":                   `"cors: {origins: ['https://app.example.org']}"`,
	"routes[].rewrite":                `"rewrite: {prefix: /new}" for the part of the path that the route matched, or "rewrite: {path: /new}" for the whole path`,
	"routes[].timeouts":               `"timeouts: {request: 30s}"`,
	"routes[].retries":                `"retries: {attempts: 3, when: [connect, 503]}"`,
	"routes[].hsts":                   `"hsts: 8760h"`,
	"routes[].in_flight":              `"in_flight: {most: 10, per: client}"`,
	"routes[].match":                  `"match: {methods: [GET]}"`,
	"routes[].compress":               `"compress: true"; each client gets the coding that it prefers`,
	"routes[].match.headers":          `"headers: {X-Name: value}", or "headers: {X-Name: '*'}" for any value`,
	"routes[].match.query":            `"query: {name: value}", or "query: {name: '*'}" for any value`,
	"routes[].match.cookies":          `"cookies: {name: value}", or "cookies: {name: '*'}" for any value`,
	"routes[].request.set":            `"set: {X-Name: value}"`,
	"routes[].request.add":            `"add: {X-Name: value}"`,
	"routes[].response.set":           `"set: {X-Name: value}"`,
	"routes[].response.add":           `"add: {X-Name: value}"`,
	"routes[].mirror[].percent":       `10 for 10 %`,
	"routes[].request":                `"request: {set: {X-Name: value}}"`,
	"routes[].response":               `"response: {set: {X-Name: value}}"`,
	"routes[].respond":                `"respond: {status: 503}"`,
	"routes[].mirror":                 `"mirror: [{backend: copies}]"`,
	"routes[].errors":                 `"errors: [{status: [404], backend: pages, path: /404.html}]"`,
	"routes[].backends":               `"backends: [{name: app, weight: 90}, {name: next, weight: 10}]"`,
	"routes[].backends[]":             `"{name: app, weight: 90}"`,
	"routes[].backends[].weight":      `90 for 90 %: weights are relative to each other`,
	"auth":                            `the name as a key, as in "auth: {staff: {basic: {file: users.htpasswd}}}"`,
	"rate_limits":                     `the name as a key, as in "rate_limits: {api: {rate: 10/s}}"`,
	"health":                          `"health: {address: ':8086'}"`,
	"metrics":                         `"metrics: {address: ':8088'}"`,
	"admin":                           `"admin: {address: '127.0.0.1:8087'}", or "admin: {address: off}" for none`,
	"drain":                           `"drain: {timeout: 30s}"`,
	"log":                             `"log: {level: debug}"`,
	"access_log":                      `"access_log: {}", or "access_log: {path: off}" for none`,
	"traces":                          `"traces: {otlp: {url: 'http://127.0.0.1:4318'}}"`,
	"traces.otlp":                     `"otlp: {url: 'http://127.0.0.1:4318'}"`,
	"kubernetes":                      `"kubernetes: {}"`,
}

// synonym is the key of this configuration for a word of another program.
type synonym struct {
	key   string // the pattern of the key
	write string // what to write
}

// Words that stand for the same in several sections.
var (
	compresses = synonym{"routes[].compress", `"compress: true"`}
	allows     = synonym{"routes[].clients.allow", `"clients: {allow: [10.0.0.0/8]}"`}
	denies     = synonym{"routes[].clients.deny", `"clients: {deny: [192.0.2.0/24]}"`}
	passwords  = synonym{"routes[].auth", `"auth: staff", and at the top level "auth: {staff: {basic: {file: users.htpasswd}}}"`}
	asksOther  = synonym{"routes[].auth", `"auth: sso", and at the top level "auth: {sso: {forward: {url: 'http://127.0.0.1:4180/oauth2/auth'}}}"`}
	tokens     = synonym{"routes[].auth", `"auth: api", and at the top level "auth: {api: {jwt: {issuer: 'https://issuer.example.org', audience: [api], keys: jwks.json}}}"`}
	splits     = synonym{"routes[].backends", examples["routes[].backends"]}
	strips     = synonym{"routes[].rewrite.prefix", `"rewrite: {prefix: /}", which replaces the prefix that the route matched`}
	limits     = synonym{"routes[].rate_limit", `"rate_limit: api", and at the top level "rate_limits: {api: {rate: 10/s}}"`}
	sticks     = synonym{"backends.NAME.sticky", `"sticky: {cookie: weir}" in the backend`}
	setsHeader = synonym{"routes[].request.set", `"request: {set: {X-Name: value}}"`}
	addsHeader = synonym{"routes[].response.add", `"response: {add: {X-Name: value}}"`}
	bodySize   = synonym{"routes[].max_body", `"max_body: 10MiB"`}
	forwards   = synonym{"routes[].backend", `"backend: app", and at the top level "backends: {app: {endpoints: ['10.0.0.1:8080']}}"`}
	ejects     = synonym{"backends.NAME.ejection", `"ejection: {failures: 5, for: 10s}"`}
	balances   = synonym{"backends.NAME.balance", `"balance: round_robin", least_requests or hash`}
	addresses  = synonym{"backends.NAME.endpoints", `"endpoints: ['10.0.0.1:8080']"`}
	checks     = synonym{"backends.NAME.health_check", examples["backends.NAME.health_check"]}
	pairs      = synonym{"certificates", `"certificates: [{cert: www.crt, key: www.key}]" at the top level; clients get the one for their name`}
	issues     = synonym{"certificates[].acme", `"certificates: [{acme: {email: ops@example.org}}]" at the top level`}
	hosts      = synonym{"routes[].hosts", `"hosts: [www.example.org]" in a route`}
	binds      = synonym{"listeners.NAME.address", `"address: ':8080'" in a listener, as in "listeners: {web: {address: ':8080', protocol: http}}"`}
	encrypts   = synonym{"listeners.NAME.protocol", `"protocol: tls" in the listener, and "certificates: [{cert: www.crt, key: www.key}]" at the top level`}
	paths      = synonym{"routes[].paths", `"paths: [/app]"`}
	upgrades   = synonym{"routes[].backend", "nothing: WebSockets and other upgrades need no setting"}
	reads      = synonym{"routes[].timeouts.response_head", `"timeouts: {response_head: 60s, body_idle: 60s}": the wait for the head of the response, and for each next part of its body`}
	sends      = synonym{"routes[].timeouts.send", `"timeouts: {send: 60s}"`}
	connects   = synonym{"routes[].timeouts.connect", `"timeouts: {connect: 5s}"`}
	most       = synonym{"limits.max_connections", `"max_connections: 10000" in a listener, a backend, or limits`}
	mixes      = synonym{"proxy_protocol.NAME.rules[].mixed_families", `"mixed_families: true" in an entry of rules of proxy_protocol`}
	answers    = synonym{"backends.NAME.timeouts.response_head", examples["backends.NAME.timeouts"]}
	streams    = synonym{"backends.NAME.timeouts.stream_idle", `"timeouts: {stream_idle: 8h}"`}
)

// synonyms are keys of other programs, by the pattern of the section in which users write them.
var synonyms = map[string]map[string]synonym{
	"": {
		"upstreams": {"backends", examples["backends"]}, "services": {"backends", examples["backends"]},
		"entrypoints": {"listeners", examples["listeners"]}, "entryPoints": {"listeners", examples["listeners"]}, "frontends": {"listeners", examples["listeners"]},
		"routers": {"routes", `"routes: [{listeners: [web], backend: app}]"`}, "logging": {"log", examples["log"]},
		"dashboard": {"admin", examples["admin"]}, "api": {"admin", examples["admin"]}, "stats": {"admin", examples["admin"]}, "prometheus": {"metrics", examples["metrics"]},
		"frontend": binds, "listen": binds, "bind": binds, "server": binds, "http": binds, "upstream": {"backends", examples["backends"]},
		"sites": hosts, "site": hosts, "vhosts": hosts, "virtual_hosts": hosts, "server_name": hosts, "hosts": hosts, "ssl": encrypts, "tls": encrypts,
		"acme": issues, "email": issues, "letsencrypt": issues, "certificatesResolvers": issues, "ssl_certificate": pairs, "users": passwords, "error_log": {"log", examples["log"]},
		"log_format": {"access_log.format", `"access_log: {format: nginx}"`}, "pid": {"pid_file", `"pid_file: /run/weir/weir.pid"`}, "maxconn": most, "middlewares": {"routes", "each of them as a key of the route, such as compress, request, rewrite or auth"},
	},
	"listeners.NAME": {
		"port": binds, "bind": binds, "listen": binds, "ssl": encrypts, "tls": encrypts, "mode": encrypts, "certificates": pairs, "certificate": pairs, "ssl_certificate": pairs,
		"redirect": {"routes[].redirect", `"redirect: https" in a route of this listener`}, "default_backend": forwards, "accept_proxy": {"listeners.NAME.proxy_protocol", `"proxy_protocol: edge", and at the top level "proxy_protocol: {edge: {rules: [{from: [10.0.0.0/8], header: require}]}}"`},
		"maxconn": {"listeners.NAME.max_connections", `"max_connections: 10000"`}, "keepalive_timeout": {"listeners.NAME.timeouts.keep_alive", `"timeouts: {keep_alive: 1m}"`}, "hosts": hosts, "server_name": hosts,
		"mixed_families": mixes, "silent_after": {"routes[].silent_after", `"silent_after: 2s" in the route with first_bytes`}, "stream_idle": {"listeners.NAME.timeouts.stream_idle", streams.write},
		"body_idle": {"listeners.NAME.timeouts.body_idle", `"timeouts: {body_idle: 2m}"`}, "send_proxy": {"backends.NAME.send_proxy", `"send_proxy: v2" in the backend`},
	},
	"proxy_protocol.NAME": {"mixed_families": mixes},
	"routes[]": {
		"response_head": {"routes[].timeouts.response_head", answers.write}, "stream_idle": {"routes[].timeouts.stream_idle", streams.write}, "send_proxy": {"backends.NAME.send_proxy", `"send_proxy: v2" in the backend`},
		"gzip": compresses, "brotli": compresses, "zstd": compresses, "compression": compresses, "encode": compresses,
		"allow": allows, "allowlist": allows, "whitelist": allows, "ip_allow_list": allows, "ipAllowList": allows, "deny": denies, "denylist": denies, "blacklist": denies,
		"basic_auth": passwords, "basicAuth": passwords, "basicauth": passwords, "auth_basic": passwords,
		"forward_auth": asksOther, "forwardAuth": asksOther, "auth_request": asksOther, "auth_url": asksOther, "jwt": tokens,
		"canary": splits, "weighted": splits, "weights": splits, "traffic_split": splits, "weight": splits,
		"strip_prefix": strips, "stripPrefix": strips, "ratelimit": limits, "rateLimit": limits, "limit_req": limits, "limit_conn": {"routes[].in_flight", examples["routes[].in_flight"]},
		"sticky": sticks, "stick": sticks, "stick-table": sticks, "affinity": sticks, "http-request": setsHeader, "http-response": addsHeader, "tls_cert": pairs, "session_affinity": sticks,
		"headers":    {"routes[].request.set", `"request: {set: {X-Name: value}}", for responses "response: {set: {X-Name: value}}", and as a condition "match: {headers: {X-Name: value}}"`},
		"add_header": addsHeader, "response_headers": addsHeader, "request_headers": setsHeader, "proxy_set_header": setsHeader, "set_header": setsHeader,
		"client_max_body_size": bodySize, "body_size": bodySize, "max_body_size": bodySize, "timeout": {"routes[].timeouts", examples["routes[].timeouts"]},
		"proxy_read_timeout": reads, "read_timeout": reads, "proxy_send_timeout": sends, "proxy_connect_timeout": connects, "server_name": hosts, "domain": hosts, "domains": hosts, "hostname": hosts, "hostnames": hosts,
		"ssl": pairs, "certificate": pairs, "ssl_certificate": pairs, "use_backend": forwards, "default_backend": forwards, "to": forwards, "url": forwards, "proxy": forwards, "websocket": upgrades, "websockets": upgrades, "upgrade": upgrades,
		"grpc": {"backends.NAME.protocol", `"protocol: grpc" in the backend`}, "h2c": {"backends.NAME.protocol", `"protocol: h2c" in the backend`}, "handle": paths, "handle_path": paths, "path": paths, "path_prefix": paths,
		"expires": {"routes[].response.set", `"response: {set: {Cache-Control: max-age=3600}}"`}, "auth_basic_user_file": passwords, "limit_req_zone": limits, "if": {"routes[].match", examples["routes[].match"]}, "acl": {"routes[].match", examples["routes[].match"]},
		"upstream": forwards, "service": forwards, "proxy_pass": forwards, "reverse_proxy": forwards,
		"methods": {"routes[].match.methods", `"match: {methods: [GET]}"`}, "method": {"routes[].match.methods", `"match: {methods: [GET]}"`},
		"query": {"routes[].match.query", `"match: {query: {name: value}}"`}, "cookies": {"routes[].match.cookies", `"match: {cookies: {name: value}}"`},
		"error_page": {"routes[].errors", examples["routes[].errors"]}, "error_pages": {"routes[].errors", examples["routes[].errors"]},
		"shadow": {"routes[].mirror", examples["routes[].mirror"]}, "return": {"routes[].respond", examples["routes[].respond"]}, "location": {"routes[].paths", `"paths: [/app]"`},
		"priority": {"routes[].match", `no priority: the most specific host wins, then the most specific path, then the most conditions in match`},
	},
	"routes[].match": {
		"path": {"routes[].paths", `"paths: [/app]" in the route`}, "paths": {"routes[].paths", `"paths: [/app]" in the route`}, "host": {"routes[].hosts", `"hosts: [www.example.org]" in the route`},
		"hosts": {"routes[].hosts", `"hosts: [www.example.org]" in the route`}, "method": {"routes[].match.methods", `"methods: [GET]"`}, "header": {"routes[].match.headers", examples["routes[].match.headers"]},
		"source": {"routes[].match.clients", `"clients: [10.0.0.0/8]"`}, "ip": {"routes[].match.clients", `"clients: [10.0.0.0/8]"`},
	},
	"routes[].request":  {"headers": {"routes[].request.set", `"set: {X-Name: value}"`}},
	"routes[].response": {"headers": {"routes[].response.set", `"set: {X-Name: value}"`}},
	"routes[].rewrite":  {"strip": strips, "strip_prefix": strips, "regex": {"routes[].rewrite.path", `"paths: ['~/old/(.*)']" in the route, and "rewrite: {path: /new/$1}"`}},
	"routes[].redirect": {"url": {"routes[].redirect.to", `"to: 'https://www.example.org{uri}'"`}, "location": {"routes[].redirect.to", `"to: 'https://www.example.org{uri}'"`}, "code": {"routes[].redirect.status", `"status: 301"`}},
	"routes[].retries":  {"on": {"routes[].retries.when", `"when: [connect, 503]"`}, "retry_on": {"routes[].retries.when", `"when: [connect, 503]"`}, "count": {"routes[].retries.attempts", `"attempts: 3"`}},
	"routes[].timeouts": {
		"read": {"routes[].timeouts.response_head", `"response_head: 60s" and "body_idle: 60s"`}, "response": {"routes[].timeouts.request", `"request: 30s"`},
		"idle": {"routes[].timeouts.body_idle", `"body_idle: 1m"`},
	},
	"routes[].cors": {
		"allow_origins": {"routes[].cors.origins", "origins"}, "allowed_origins": {"routes[].cors.origins", "origins"}, "origin": {"routes[].cors.origins", "origins"},
		"allow_methods": {"routes[].cors.methods", "methods"}, "allow_headers": {"routes[].cors.headers", "headers"},
		"allow_credentials": {"routes[].cors.credentials", "credentials"}, "expose_headers": {"routes[].cors.expose", "expose"},
	},
	"auth.NAME": {"forward_auth": {"auth.NAME.forward", `"forward: {url: 'http://127.0.0.1:4180/oauth2/auth'}"`}, "basic_auth": {"auth.NAME.basic", `"basic: {file: users.htpasswd}"`}},
	"auth.NAME.basic": {"users": {"auth.NAME.basic.file", `"file: users.htpasswd"; the htpasswd program makes such a file`},
		"htpasswd": {"auth.NAME.basic.file", `"file: users.htpasswd"`}, "user_file": {"auth.NAME.basic.file", `"file: users.htpasswd"`}},
	"auth.NAME.forward": {
		"address": {"auth.NAME.forward.url", "url"}, "uri": {"auth.NAME.forward.url", "url"},
		"response_headers": {"auth.NAME.forward.headers", "headers"}, "copy_headers": {"auth.NAME.forward.headers", "headers"}, "signin": {"auth.NAME.forward.sign_in", "sign_in"},
	},
	"auth.NAME.jwt": {
		"jwks": {"auth.NAME.jwt.keys", "keys, with a file or an https URL"}, "jwks_url": {"auth.NAME.jwt.keys", "keys, with an https URL"}, "jwks_uri": {"auth.NAME.jwt.keys", "keys, with an https URL"},
		"aud": {"auth.NAME.jwt.audience", "audience"}, "iss": {"auth.NAME.jwt.issuer", "issuer"},
	},
	"rate_limits.NAME": {"average": {"rate_limits.NAME.rate", `"rate: 10/s"`}, "requests": {"rate_limits.NAME.rate", `"rate: 10/s"`}, "key": {"rate_limits.NAME.per", `"per: client"`}},
	"backends.NAME": {
		"server": addresses, "url": addresses, "address": addresses, "port": addresses, "health": checks, "health_uri": checks, "healthcheck_path": checks, "check": checks, "option": checks, "httpchk": checks, "fall": checks, "rise": checks,
		"weight": {"backends.NAME.endpoints[].weight", `"endpoints: [{address: '10.0.0.1:8080', weight: 2}]"`}, "ssl": {"backends.NAME.protocol", `"protocol: https"`}, "scheme": {"backends.NAME.protocol", `"protocol: https"`}, "mode": {"backends.NAME.protocol", `"protocol: tcp"`},
		"verify": {"backends.NAME.tls", examples["backends.NAME.tls"]}, "insecure": {"backends.NAME.tls", examples["backends.NAME.tls"]}, "tls_insecure_skip_verify": {"backends.NAME.tls", examples["backends.NAME.tls"]},
		"proxy_read_timeout": reads, "read_timeout": reads, "proxy_connect_timeout": connects, "keepalive": {"backends.NAME.max_idle", `"max_idle: 32"`}, "host_header": {"backends.NAME.host", `"host: app.internal"`},
		"max_conn": {"backends.NAME.max_connections", `"max_connections: 500"`}, "maxconn": {"backends.NAME.max_connections", `"max_connections: 500"`}, "resolver": {"backends.NAME.resolve_interval", "names as endpoints: weir resolves them again every 30s (resolve_interval)"},
		"servers": addresses, "upstreams": addresses, "targets": addresses, "hosts": addresses, "urls": addresses,
		"lb_policy": balances, "algorithm": balances, "load_balancing": balances, "affinity": sticks, "session_affinity": sticks, "cookie": sticks,
		"outlier_detection": ejects, "circuit_breaker": ejects, "max_fails": ejects, "slow_start": {"backends.NAME.ramp_up", `"ramp_up: 30s"`},
		"proxy_protocol": {"backends.NAME.send_proxy", `"send_proxy: v2"`}, "max_conns": {"backends.NAME.max_connections", `"max_connections: 500"`}, "response_head": answers, "stream_idle": streams,
	},
}

// What weir does not do, and what to use. docs/not.md has the same list for readers.
const (
	noFiles    = "weir does not serve files; use a file server such as nginx or Caddy as a backend"
	noFastCGI  = "weir does not speak FastCGI, uWSGI or SCGI; use the application's HTTP server, or nginx or Caddy in front of it, as a backend"
	noCache    = "weir does not cache responses; use a cache such as Varnish as a backend, or a CDN in front of weir"
	noScripts  = "weir does not run scripts or plugins; use an auth entry with forward, which asks a server of yours about each request"
	noFirewall = "weir does not inspect requests for attacks; use a web application firewall in front of weir or as a backend"
	noPlaces   = "weir does not know the countries of addresses; use clients with a list of networks"
	noUDP      = "weir does not forward UDP; use the load balancer or nftables for these ports"
	noBodies   = "weir does not change the bodies of responses, except to compress them; let the application do it"
	noMail     = "weir does not speak mail protocols; use a listener with protocol tcp, which forwards their bytes"
	noHTTP3    = "weir does not speak HTTP/3; clients use HTTP/2, or a CDN in front of weir speaks it"
	noWorkers  = "weir does not start workers, or run in the background; it is one process on all cores, which systemd starts"
	noForward  = "weir does not serve as a proxy to arbitrary hosts; use a forward proxy such as Squid"
)

// absent has words of other programs for what weir does not do, in every section.
var absent = map[string]string{
	"root": noFiles, "alias": noFiles, "index": noFiles, "autoindex": noFiles, "try_files": noFiles, "file_server": noFiles, "static": noFiles, "browse": noFiles,
	"fastcgi": noFastCGI, "fastcgi_pass": noFastCGI, "php_fastcgi": noFastCGI, "php": noFastCGI, "uwsgi": noFastCGI, "uwsgi_pass": noFastCGI, "scgi": noFastCGI, "scgi_pass": noFastCGI,
	"cache": noCache, "proxy_cache": noCache, "proxy_cache_path": noCache, "proxy_cache_valid": noCache, "http_cache": noCache,
	"lua": noScripts, "lua_load": noScripts, "plugins": noScripts, "plugin": noScripts, "wasm": noScripts, "njs": noScripts,
	"modsecurity": noFirewall, "waf": noFirewall, "coraza": noFirewall, "geoip": noPlaces, "geoip2": noPlaces,
	"udp": noUDP, "sub_filter": noBodies, "replace_response": noBodies, "templates": noBodies, "mail": noMail, "smtp": noMail, "imap": noMail,
	"gzip_static": noFiles, "precompressed": noFiles, "http3": noHTTP3, "quic": noHTTP3, "h3": noHTTP3, "worker_processes": noWorkers, "worker_connections": noWorkers, "daemon": noWorkers, "nbthread": noWorkers,
	"forward_proxy": noForward, "http_proxy": noForward,
}

// placesOf are the sections in which users look for words of other programs. Most of these words belong to routes.
var placesOf = []string{"routes[]", "backends.NAME", "listeners.NAME", ""}

// elsewhere finds the key for a word that a section does not know, and that another one does.
func elsewhere(section, word string) (synonym, bool) {
	if !slices.Contains(placesOf, section) {
		return synonym{}, false
	}
	for _, place := range placesOf {
		pattern := strings.TrimPrefix(place+"."+word, ".")
		if s, is := synonyms[place][word]; is {
			return s, true
		} else if write, is := examples[pattern]; is {
			return synonym{pattern, write}, true
		}
	}
	return synonym{}, false
}
