package node

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener"
)

// Access control of the admin port. The first checks refuse web pages that run in an
// operator's browser, because their requests come from loopback, too. The token is checked
// last.

// access has the rules of the admin port: which requests it answers. An access is never
// changed, only replaced.
type access struct {
	hosts []string
	token *[sha256.Size]byte // nil: no token is required
	tls   *tls.Config        // nil: plain HTTP
	of    *config.AdminTLS   // the configuration from which tls was made
	// socket is the one beside the port; empty: none.
	socket string
}

// newAccess makes an access from the configuration. If the TLS settings are the same as in
// before, connections stay valid.
func newAccess(a config.Admin, before *access) (*access, error) {
	x := &access{hosts: a.Hosts, of: a.TLS}
	if a.Network == "tcp" {
		x.socket = AdminSocket(a.Address)
	}
	if a.Token != "" {
		sum := sha256.Sum256([]byte(a.Token))
		x.token = &sum
	}
	if a.TLS == nil {
		return x, nil
	}
	if reflect.DeepEqual(a.TLS, before.of) {
		x.tls = before.tls
		return x, nil
	}
	pair, err := tls.X509KeyPair(a.TLS.CertPEM, []byte(a.TLS.KeyPEM))
	if err != nil {
		return nil, fmt.Errorf("the certificate of the admin port (admin.tls): %w", err)
	}
	x.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if a.TLS.ClientCAFile != "" {
		x.tls.ClientAuth, x.tls.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !x.tls.ClientCAs.AppendCertsFromPEM(a.TLS.ClientCAPool) {
			return nil, fmt.Errorf("%s has no CA certificate to verify client certificates of the admin port (admin.tls.client_ca)", a.TLS.ClientCAFile)
		}
	}
	return x, nil
}

// refusal is the reason why the admin port refused a request.
type refusal string

// The reasons, as label values of weir_admin_refused_total.
const (
	refusedStale  refusal = "stale"  // the access rules have changed since the connection was opened
	refusedHost   refusal = "host"   // Host is not a name of this port, as after DNS rebinding
	refusedOrigin refusal = "origin" // sent by a web page of another site
	refusedToken  refusal = "token"  // without the token, or with a wrong one, and from no trusted peer
)

var refusals = []refusal{refusedStale, refusedHost, refusedOrigin, refusedToken}

// newRefused registers the metric of refused requests.
func newRefused(reg prometheus.Registerer) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_admin_refused_total",
		Help: "Requests that the admin port or the metrics port refused, by reason: host, origin, token or stale."}, []string{"reason"})
	reg.MustRegister(c)
	for _, r := range refusals {
		c.WithLabelValues(string(r))
	}
	return c
}

// guard passes on only the requests that s.access allows.
func (s *server) guard(next http.Handler) http.Handler {
	limited := &listener.Repeats{PerSecond: 1, More: func(reason string, held int) {
		s.log.Warn("the admin port refused more requests", zap.String("reason", reason), zap.Int("more", held))
	}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin") // no page of another site may embed a response
		why, err := s.access.Load().judge(w, r)
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		s.metrics.refused.WithLabelValues(string(why)).Inc()
		if limited.Allow(string(why)) {
			s.log.Warn("the admin port refused a request", zap.String("reason", string(why)), zap.String("peer", peerOf(r)),
				zap.String("method", r.Method), zap.String("path", cut(r.URL.Path)), zap.String("host", cut(r.Host)))
		}
	})
}

// cut limits the length of text that a client wrote, for the log.
func cut(s string) string { return s[:min(len(s), 200)] }

// judge answers a request that the rules refuse, and returns the reason.
func (x *access) judge(w http.ResponseWriter, r *http.Request) (refusal, error) {
	refuse := func(why refusal, status int, format string, args ...any) (refusal, error) {
		err := fmt.Errorf(format, args...)
		http.Error(w, err.Error(), status)
		return why, err
	}
	let := letInBy(r.Context())
	if let != nil && let.by.tls != x.tls {
		w.Header().Set("Connection", "close")
		return refuse(refusedStale, http.StatusUnauthorized, "admin.tls has changed since this connection began; connect again")
	}
	if !isUnix(r) && !x.answersFor(r.Host) {
		return refuse(refusedHost, http.StatusMisdirectedRequest,
			"the admin port does not answer requests for the Host %q; use an IP address or localhost, or add the name to admin.hosts", cut(r.Host))
	}
	if err := fromElsewhere(r); err != nil {
		return refuse(refusedOrigin, http.StatusForbidden, "%v; the admin port refuses requests from web pages of other sites: type its address into the browser, or use a command such as curl", err)
	}
	switch {
	case let != nil && let.trusted:
	case x.token == nil && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0):
		if changes(r) || x.needsCertificate() {
			return refuse(refusedToken, http.StatusForbidden, "%s", x.howTrusted())
		}
	case x.token != nil && !x.knows(r):
		w.Header().Add("WWW-Authenticate", `Bearer realm="weir"`)
		if mayAskForPassword(r) {
			w.Header().Add("WWW-Authenticate", `Basic realm="weir: any user, and the token as password", charset="UTF-8"`)
		}
		if len(r.Header["Authorization"]) > 0 {
			return refuse(refusedToken, http.StatusUnauthorized, "the token in Authorization does not match admin.token or admin.token_file")
		}
		return refuse(refusedToken, http.StatusUnauthorized, "the admin port requires the token in admin.token or admin.token_file: send it as Authorization: Bearer TOKEN")
	}
	return "", nil
}

// changes returns true if a request may change weir, or makes a profile.
func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead || isProfile(r.URL.Path)
}

// needsCertificate returns true if clients authenticate by certificates, which the socket beside the port cannot ask for.
func (x *access) needsCertificate() bool { return x.tls != nil && x.tls.ClientCAs != nil }

// howTrusted says how a client without a token may change weir.
func (x *access) howTrusted() string {
	text := "this request changes weir, or shows its memory, so it needs a token: set admin.token_file, and send the token as Authorization: Bearer TOKEN"
	if x.needsCertificate() {
		text = "the admin port requires a client certificate of admin.tls.client_ca"
	}
	switch {
	case runtime.GOOS != "linux": // the peer of a Unix socket is not known
		return text
	case x.socket == "":
		return text + "; over a Unix socket root and weir's own user need none"
	}
	return text + "; on this machine root and weir's own user need none: weir's commands use the Unix socket " + x.socket + ", and so does curl --abstract-unix-socket " + x.socket[1:]
}

// answersFor returns true if Host is an IP address, localhost or a name of
// admin.hosts. An attacker's name servers can make any other name point here
// (DNS rebinding).
func (x *access) answersFor(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	return name == "localhost" || slices.Contains(x.hosts, name)
}

// fromElsewhere returns an error if a web page of another site made the request. Browsers
// send Sec-Fetch-Site to https and to loopback, and send Origin with requests that may
// change something; other programs send neither. CrossOriginProtection of net/http checks
// neither header for GET, and a GET can start a profile.
func fromElsewhere(r *http.Request) error {
	for _, site := range r.Header["Sec-Fetch-Site"] {
		if site != "same-origin" && site != "none" {
			return fmt.Errorf("a web page made this request (Sec-Fetch-Site: %s)", cut(site))
		}
	}
	for _, origin := range r.Header["Origin"] {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Errorf("a web page of another site made this request (Origin: %s)", cut(origin))
		}
	}
	return nil
}

// knows returns true if the request has the token: as a bearer token, or as the password of
// any user. The password is for clients that take user and password from a URL, such as go
// tool pprof.
func (x *access) knows(r *http.Request) bool {
	var token string
	if scheme, value, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		token = strings.TrimSpace(value)
	} else if _, password, ok := r.BasicAuth(); ok {
		token = password
	}
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], x.token[:]) == 1
}

// mayAskForPassword returns true if a browser should ask for the token as a password: browsers do not
// ask for bearer tokens. They send the password with requests that pages of other sites make, too.
// Over TLS and on loopback they also send Sec-Fetch-Site, by which fromElsewhere refuses these.
func mayAskForPassword(r *http.Request) bool {
	return wantsPage(r) && (r.TLS != nil || isLoopbackRequest(r))
}

// isProfile returns true if the path is a profile, which shows the process's memory or uses
// CPU time. The list of profiles does neither.
func isProfile(path string) bool {
	return strings.HasPrefix(path, "/debug/pprof/") && path != "/debug/pprof/"
}

// isLoopbackRequest returns true if the request was sent to a loopback address.
func isLoopbackRequest(r *http.Request) bool {
	a, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return a != nil && a.IP.IsLoopback()
}

func isUnix(r *http.Request) bool {
	a, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return a != nil && a.Network() == "unix"
}

// guardedListener makes connections that record the access rules at the time when they
// were opened.
type guardedListener struct {
	net.Listener
	access func() *access
	plain  bool // without TLS, whatever the rules say
}

type guardedConn struct {
	net.Conn
	*let
}

// let is how a connection was let in.
type let struct {
	by      *access // the rules at that time
	trusted bool    // the peer of a Unix socket is root or weir's own user
	user    string  // of the peer of a Unix socket, such as "user 1000"; empty: unknown
}

// peerOf returns the peer of a request, for the log.
func peerOf(r *http.Request) string {
	if l := letInBy(r.Context()); l != nil && l.user != "" {
		return l.user
	}
	return r.RemoteAddr
}

// Accept adds TLS if the rules require it. The server makes the handshake.
func (l guardedListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	x := l.access()
	by := &let{by: x}
	if uid, known := PeerUser(nc); known {
		by.trusted, by.user = uid == 0 || uid == os.Geteuid(), fmt.Sprint("user ", uid)
	}
	nc = &guardedConn{nc, by}
	if x.tls != nil && !l.plain {
		return tls.Server(nc, x.tls), nil
	}
	return nc, nil
}

type letInKey struct{}

// letIn is the ConnContext of the http.Server.
func letIn(ctx context.Context, nc net.Conn) context.Context {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	if g, ok := nc.(*guardedConn); ok {
		return context.WithValue(ctx, letInKey{}, g.let)
	}
	return ctx
}

func letInBy(ctx context.Context) *let {
	l, _ := ctx.Value(letInKey{}).(*let)
	return l
}
