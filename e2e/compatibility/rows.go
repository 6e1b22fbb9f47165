package main

import "regexp"

// role is the position of a program relative to weir, for example a client. The page has a table for each
// role.
type role string

const (
	client   role = "Clients"
	server   role = "Servers behind weir"
	front    role = "Proxies in front of weir"
	receiver role = "Receivers of PROXY headers behind weir"
	other    role = "Other programs"
)

// roles are all roles, in the order of the page.
var roles = []role{client, server, front, receiver, other}

// program is a client, server or proxy that the tests use with weir.
type program struct {
	name    string   // the name that users know
	version []string // the command that prints the version; or "module" and a path; or "installed" and a program in Go
}

var (
	apache    = program{"Apache HTTP Server", []string{"apache2", "-v"}}
	bind      = program{"BIND", []string{"named", "-v"}}
	chromium  = program{"Chromium", []string{"chromium-headless-shell", "--version"}}
	curl      = program{"curl", []string{"curl", "--version"}}
	gnutls    = program{"GnuTLS (gnutls-cli)", []string{"gnutls-cli", "--version"}}
	grpc      = program{"gRPC for Go", []string{"module", "google.golang.org/grpc"}}
	h2load    = program{"h2load", []string{"h2load", "--version"}}
	h2spec    = program{"h2spec", []string{"installed", "h2spec"}}
	haproxy   = program{"HAProxy", []string{"haproxy", "-v"}}
	hitch     = program{"Hitch", []string{"hitch", "--version"}}
	httpx     = program{"httpx (Python)", []string{"/usr/bin/python3", "-c", "import httpx; print(httpx.__version__)"}}
	java      = program{"Java (java.net.http, HttpsURLConnection)", []string{"java", "-version"}}
	lighttpd  = program{"lighttpd", []string{"lighttpd", "-v"}}
	nghttp    = program{"nghttp", []string{"nghttp", "--version"}}
	nghttpd   = program{"nghttpd", []string{"nghttpd", "--version"}}
	nginx     = program{"nginx", []string{"nginx", "-v"}}
	node      = program{"Node.js", []string{"node", "--version"}}
	node08    = program{"Node.js", []string{"node-0.8", "--version"}}
	node010   = program{"Node.js", []string{"node-0.10", "--version"}}
	node012   = program{"Node.js", []string{"node-0.12", "--version"}}
	node4     = program{"Node.js", []string{"node-4", "--version"}}
	node8     = program{"Node.js", []string{"node-8", "--version"}}
	node12    = program{"Node.js", []string{"node-12", "--version"}}
	nss       = program{"NSS (tstclnt)", []string{"dpkg-query", "-W", "-f", "${Version}", "libnss3-tools"}}
	openssh   = program{"OpenSSH", []string{"ssh", "-V"}}
	openssl   = program{"OpenSSL", []string{"openssl", "version"}}
	pebble    = program{"Pebble (ACME)", []string{"installed", "pebble"}}
	redis     = program{"Redis", []string{"redis-server", "--version"}}
	slowhttp  = program{"slowhttptest", []string{"slowhttptest", "-h"}}
	sslscan   = program{"sslscan", []string{"sslscan", "--version"}}
	stunnel   = program{"stunnel", []string{"stunnel4", "-version"}}
	systemd   = program{"systemd", []string{"systemctl", "--version"}}
	testssl   = program{"testssl.sh", []string{"testssl", "--version"}}
	varnish   = program{"Varnish", []string{"varnishd", "-V"}}
	websocket = program{"coder/websocket for Go", []string{"module", "github.com/coder/websocket"}}
)

// versions matches a version in the output of a program.
var versions = regexp.MustCompile(`\d+(\.\d+)+[a-z]?\d*`)

// row is a line of the page: a program, and what the tests do with it.
type row struct {
	role    role
	program program
	what    string
	tests   []string // names of tests in e2e; all must pass
}

var rows = []row{
	{client, chromium, "a page, uploads and a WebSocket, over HTTP/2", []string{"TestChromium"}},
	{client, chromium, "CORS, basic authentication, login by OpenID Connect", []string{"TestChromiumAllowsOtherOrigins", "TestChromiumSignsInByBasicAuthentication", "TestChromiumSignsInByOIDC"}},
	{client, curl, "HTTP/1.1, plain and over TLS: uploads of 5 MiB with and without `Expect`, chunked bodies, HTTP/1.0, large responses", []string{"TestCurl"}},
	{client, curl, "HTTP/2 by ALPN and with prior knowledge", []string{"TestCurlByHTTP2"}},
	{client, curl, "HTTP/1.0 over TLS, with ALPN `http/1.0`", []string{"TestCurlHTTP10"}},
	{client, curl, "`https://` with an IP address: no SNI", []string{"TestCurlToAnAddress"}},
	{client, curl, "NTLM, against a test server written in Go", []string{"TestCurlLogsInByNTLM"}},
	{client, gnutls, "TLS 1.0 with RSA key exchange, without SNI; only DHE suites (refused, with a reason)", []string{"TestClientsThatGoCannotServe"}},
	{client, grpc, "all kinds of calls, deadlines, cancellation, statuses", []string{"TestGRPCUnary", "TestGRPCStreams", "TestGRPCStatuses", "TestGRPCDeadlinesAndCancels"}},
	{client, h2load, "many streams, uploads, small windows", []string{"TestH2load"}},
	{client, httpx, "POST requests over HTTP/2 whose end comes in a frame of its own", []string{"TestHTTPXByHTTP2"}},
	{client, java, "TLS 1.0 to 1.3, HTTP/1.1 and HTTP/2, uploads, connections used again", []string{"TestJava"}},
	{client, nghttp, "request trailers over HTTP/2", []string{"TestNghttp"}},
	{client, node08, "HTTPS: TLS 1.0, uploads", []string{"TestOldNode"}},
	{client, node010, "HTTPS: TLS 1.0 and 1.2, uploads", []string{"TestOldNode"}},
	{client, node012, "HTTPS with a keep-alive agent: TLS 1.1 and 1.2, uploads", []string{"TestOldNode"}},
	{client, node4, "HTTPS with a keep-alive agent: TLS 1.2, uploads", []string{"TestOldNode"}},
	{client, node8, "HTTPS with a keep-alive agent: TLS 1.2, uploads", []string{"TestOldNode"}},
	{client, node12, "HTTPS with a keep-alive agent: TLS 1.2, uploads", []string{"TestOldNode"}},
	{client, node, "HTTPS with a keep-alive agent, TLS 1.2", []string{"TestOldNodeWithKeepAliveAgent"}},
	{client, node, "HTTP/2", []string{"TestNodeByHTTP2"}},
	{client, nss, "TLS 1.0 to 1.3", []string{"TestNSS"}},
	{client, openssh, "ssh and scp on the port of HTTPS", []string{"TestStory4SSHAndHTTPSOnOneAddress"}},
	{client, openssl, "TLS 1.0 to 1.3 by host and network (SECLEVEL=0), sessions resumed on another replica", []string{"TestStory2OldTLSOnlyWhereItIsNeeded", "TestOpenSSLResumesOnTheOtherReplica"}},
	{client, openssl, "no SNI, TLS 1.0", []string{"TestOpenSSLWithoutSNI"}},
	{client, openssl, "raw TCP in TLS that weir terminates, with ALPN", []string{"TestOpenSSLThroughATunnel"}},
	{client, openssl, "client certificates signed with SHA-1, with odd RSA-PSS salts or negative serial numbers (refused, with a reason)", []string{"TestClientsThatGoCannotServe"}},
	{client, redis, "redis-cli, over TLS that weir terminates", []string{"TestRedisOverTLS"}},
	{client, stunnel, "TLS 1.1 and 1.3, for a client without TLS", []string{"TestStunnelAsClient"}},
	{client, websocket, "WebSockets over HTTP/1.1", []string{"TestWebSocketEcho"}},
	{server, apache, "HTTP/1.1, HTTPS with HTTP/2, cleartext HTTP/2: uploads, chunked bodies, connections used again", []string{"TestMoreServersBehind"}},
	{server, grpc, "cleartext HTTP/2 and TLS, health checks, GOAWAY", []string{"TestGRPCHealthAndFailures", "TestGRPCEndpointGoesAway", "TestGRPCOverTLSToTheEndpoint"}},
	{server, haproxy, "an SSLv2-format ClientHello, passed through", []string{"TestSSLv2HelloIsPassedThrough"}},
	{server, hitch, "HTTPS: uploads, chunked bodies, connections used again", []string{"TestMoreServersBehind"}},
	{server, lighttpd, "CGI, with HTTP headers that clients must not forge", []string{"TestForgedHeadersBehindLighttpd"}},
	{server, nghttpd, "HTTP/2, cleartext and over TLS, with trailers", []string{"TestNghttpdAsBackend"}},
	{server, nginx, "HTTPS with TLS 1.0 only", []string{"TestOldHTTPSBackends"}},
	{server, nginx, "idle connections that it closes unannounced, plain and over TLS", []string{"TestEndpointClosesIdleConnections"}},
	{server, nginx, "an SSLv2-format ClientHello, passed through", []string{"TestSSLv2HelloIsPassedThrough"}},
	{server, node, "idle connections that it announces to close", []string{"TestEndpointClosesIdleConnections"}},
	{server, openssh, "sshd, which speaks first", []string{"TestStory4SSHAndHTTPSOnOneAddress"}},
	{server, openssl, "HTTPS with only TLS 1.0, only RSA key exchange, or only SHA-1 signatures", []string{"TestOldHTTPSBackends"}},
	{server, openssl, "raw TCP in TLS that weir opens, with ALPN", []string{"TestOpenSSLThroughATunnel"}},
	{server, openssl, "an SSLv2-format ClientHello, passed through", []string{"TestSSLv2HelloIsPassedThrough"}},
	{server, redis, "raw TCP behind TLS that weir terminates", []string{"TestRedisOverTLS"}},
	{server, stunnel, "HTTPS: uploads, chunked bodies, connections used again", []string{"TestMoreServersBehind"}},
	{server, varnish, "HTTP/1.1: uploads, chunked bodies, connections used again", []string{"TestMoreServersBehind"}},
	{front, haproxy, "PROXY v1 and v2 with TLVs and CRC32C, health checks", []string{"TestBehindHAProxy"}},
	{front, haproxy, "TLS in front of `redirect: https`", []string{"TestRedirectBehindHAProxy"}},
	{front, haproxy, "HTTPS to weir without SNI", []string{"TestProxiesWithoutSNI"}},
	{front, haproxy, "`X-Forwarded-For` and `X-Forwarded-Proto` as a trusted proxy", []string{"TestClientsOfTrustedProxiesForgeNothing"}},
	{front, hitch, "PROXY v2", []string{"TestMoreProxiesInFront"}},
	{front, nginx, "HTTPS to weir without SNI", []string{"TestProxiesWithoutSNI"}},
	{front, nginx, "`X-Forwarded-For` and `X-Forwarded-Proto` as a trusted proxy", []string{"TestClientsOfTrustedProxiesForgeNothing"}},
	{front, stunnel, "PROXY v1", []string{"TestMoreProxiesInFront"}},
	{front, varnish, "PROXY v2", []string{"TestMoreProxiesInFront"}},
	{receiver, apache, "PROXY v1 and v2", []string{"TestMoreReceiversOfPROXYHeaders"}},
	{receiver, haproxy, "PROXY v2 in front of TLS, from tunnels", []string{"TestHAProxyReceivesTunnels"}},
	{receiver, nginx, "PROXY v1 and v2", []string{"TestMoreReceiversOfPROXYHeaders"}},
	{receiver, varnish, "PROXY v1 and v2", []string{"TestMoreReceiversOfPROXYHeaders"}},
	{other, bind, "DNS-01 by RFC 2136", []string{"TestWildcardByNameServer"}},
	{other, h2spec, "all its tests of HTTP/2 and HPACK", []string{"TestH2spec"}},
	{other, pebble, "ACME: HTTP-01, TLS-ALPN-01, DNS-01, renewal", []string{"TestChallengesComeThroughEveryPolicy", "TestWildcardByNameServer", "TestRenewalBreaksNoConnection"}},
	{other, redis, "storage that replicas share", []string{"TestStorageGoesAway"}},
	{other, slowhttp, "its four attacks, plain and over TLS", []string{"TestSlowHTTP"}},
	{other, sslscan, "three policies: finds exactly their versions, and the expected number of suites of each strength", []string{"TestScanners"}},
	{other, testssl, "three policies: finds nothing but what [docs/tls.md](tls.md#scanner-results) lists", []string{"TestScanners"}},
	{other, systemd, "the unit, and notifications of start, reload and stop", []string{"TestSystemdUnit", "TestSystemdIsNotified"}},
}
