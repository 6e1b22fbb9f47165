package node

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/route"
	"github.com/weirproxy/weir/tls/certs"
	"github.com/weirproxy/weir/tls/hello"
)

// Asked is what "weir explain" and GET /explain are asked: a request, or a connection.
type Asked struct {
	// URL is http://HOST/PATH or https://HOST/PATH for a request, and tcp://HOST:PORT or
	// ssh://HOST:PORT for a connection. Its port chooses the listener.
	URL     string
	Method  string   // empty: GET
	Client  string   // the client address of the connection; empty: unknown
	Headers []string // "Name: value"
}

// Explained is the way of a request or connection through weir.
type Explained struct {
	Listener    string            `json:"listener"`
	Address     string            `json:"address"`
	Protocol    config.Protocol   `json:"protocol"`
	Host        string            `json:"host,omitempty"`
	Client      string            `json:"client,omitempty"` // of the request
	TLSPolicy   string            `json:"tls_policy,omitempty"`
	Certificate string            `json:"certificate,omitempty"`
	Route       string            `json:"route"` // empty: none
	Position    string            `json:"position,omitempty"`
	Backend     string            `json:"backend"` // empty: weir answers, or no route has the request
	Filters     []ExplainedFilter `json:"filters"`
	NewPath     string            `json:"new_path,omitempty"`   // path and query for the endpoint, if the route rewrites them
	NewHost     string            `json:"new_host,omitempty"`   // the Host for the endpoint, if the route rewrites it
	Location    string            `json:"location,omitempty"`   // where a redirect leads
	GuardedBy   string            `json:"guarded_by,omitempty"` // the route whose guards the request would avoid
	Refused     *ExplainedRefusal `json:"refused,omitempty"`
	Nearest     []ExplainedMiss   `json:"nearest,omitempty"`
}

// ExplainedFilter is a filter of the route: its key, and its setting on one line.
type ExplainedFilter struct {
	Name    string `json:"name"`
	Setting string `json:"setting"`
}

// ExplainedRefusal is the answer of weir to a request that no endpoint gets.
type ExplainedRefusal struct {
	Status int    `json:"status"`
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

// ExplainedMiss is a route that does not have the request, and the first condition that failed.
type ExplainedMiss struct {
	Route     string `json:"route"`
	Position  string `json:"position,omitempty"`
	Condition string `json:"condition"`
	Wants     string `json:"wants"`
	Has       string `json:"has,omitempty"`
}

// Explain finds the way of a request through a configuration that is not in effect. It opens no
// socket and asks no other machine.
func Explain(cfg *config.Config, a Asked) (*Explained, error) {
	s := newServer(zap.NewNop(), zap.NewAtomicLevel(), Build{})
	defer s.close()
	t, store, err := s.tableOffline(cfg)
	if err != nil {
		return nil, err
	}
	return explain(cfg, t, store, a)
}

// tableOffline makes the table of a configuration without putting any part of it into effect.
func (s *server) tableOffline(cfg *config.Config) (*proxy.Table, *certs.Store, error) {
	of, err := s.prepareTLS(cfg)
	if err != nil {
		return nil, nil, err
	}
	backends, err := s.backends.Plan(cfg.AllBackends(), newNodeInfo(cfg), nil)
	if err != nil {
		return nil, nil, err
	}
	shared, err := s.filters.Plan(cfg, deciders(backends))
	if err != nil {
		return nil, nil, err
	}
	t, err := proxy.NewTable(cfg, proxy.Parts{Backends: backends.Backends(), Shared: shared, Policies: of.policies, Metrics: s.proxy.Metrics, ECH: of.ech})
	if err != nil {
		return nil, nil, err
	}
	store, err := s.storeOffline(cfg)
	return t, store, err
}

// storeOffline returns the certificates of a configuration but those of authorities, which only
// a running weir has.
func (s *server) storeOffline(cfg *config.Config) (*certs.Store, error) {
	var own []config.Certificate
	for _, c := range cfg.Certificates {
		if c.ACME == nil {
			own = append(own, c)
		}
	}
	store := certs.New(s.expiries)
	return store, store.Load(own)
}

// showExplanation answers GET /explain about the configuration in effect.
func (s *server) showExplanation(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	x, err := explain(s.configInEffect(), s.proxy.Table(), s.certs, Asked{URL: q.Get("url"), Method: q.Get("method"), Client: q.Get("client"), Headers: q["header"]})
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	writeJSON(w, x)
}

func explain(cfg *config.Config, t *proxy.Table, store *certs.Store, a Asked) (*Explained, error) {
	u, err := parseAsked(a)
	if err != nil {
		return nil, err
	}
	l, err := u.listener(cfg)
	if err != nil {
		return nil, err
	}
	q := proxy.Question{Listener: l.Name, SSH: u.scheme == "ssh", Client: u.client}
	out := &Explained{Listener: l.Name, Address: l.Address, Protocol: l.Protocol, Filters: []ExplainedFilter{}}
	if l.Protocol == config.ProtocolTLS && u.scheme == "https" {
		q.SNI = hello.Name(u.name())
	}
	if u.head != "" && l.Protocol != config.ProtocolTCP {
		q.Request = new(message.Request)
		if refusal, err := u.read(q.Request, cfg.Limits, l); err != nil {
			return nil, err
		} else if refusal != nil {
			out.refuse(refusal)
			return out, nil
		}
	}
	x, known := t.Explain(q)
	if !known {
		return nil, fmt.Errorf("explaining %s: listener %s is not in effect, because its address could not be opened", a.URL, l.Name)
	}
	out.fill(&x)
	if x.Policy != "" {
		out.Certificate = certificateOf(cfg, store, x.Policy, q.SNI)
	}
	return out, nil
}

// fill copies what the table found.
func (out *Explained) fill(x *proxy.Explanation) {
	out.Host, out.TLSPolicy = x.Host, x.Policy
	if x.Client.IsValid() {
		out.Client = x.Client.String()
	}
	if r := x.Route; r != nil {
		out.Route, out.Position, out.Backend = r.Name, positionOf(r), r.Backend
		if out.Backend == "" {
			out.Backend = r.Setting("backends")
		}
		for _, name := range x.Filters {
			out.Filters = append(out.Filters, ExplainedFilter{name, r.Setting(name)})
		}
	}
	out.NewPath, out.NewHost, out.Location = x.NewPath, x.NewHost, x.Location
	if x.Guard != nil {
		out.GuardedBy = x.Guard.Name
	}
	if x.Refusal != nil {
		out.refuse(x.Refusal)
		out.Refused.Detail = cmp.Or(x.Why, out.Refused.Detail)
		if x.Refusal.Reason == "snippet" {
			out.Backend = ""
		}
	}
	for _, m := range x.Nearest {
		out.Nearest = append(out.Nearest, ExplainedMiss{m.Route.Name, positionOf(m.Route), m.Condition, m.Wants, m.Has})
	}
}

func (out *Explained) refuse(r *message.Refusal) {
	out.Refused = &ExplainedRefusal{r.Status, r.Reason, r.ForLog()}
}

// positionOf returns where the configuration has the route; empty: an object of a cluster has it.
func positionOf(r *config.Route) string {
	if r.Position.Line == 0 {
		return ""
	}
	return r.Position.String()
}

// certificateOf describes the certificate that clients of a TLS policy get for a name. The policies of Gateways have
// certificates of their own, which no other client gets.
func certificateOf(cfg *config.Config, store *certs.Store, policy, name string) string {
	if !slices.ContainsFunc(cfg.TLSPolicies, func(p config.TLSPolicy) bool { return p.Name == policy && p.Owned }) {
		return certificateFor(cfg, store, name)
	}
	_, parent, _ := strings.Cut(name, ".")
	var fit, all []string
	for i := range cfg.Certificates {
		if c := &cfg.Certificates[i]; ownerOf(c) == policy {
			text, names := describeCertificate(c, store)
			all = append(all, text)
			if slices.Contains(names, name) || slices.Contains(names, "*."+parent) {
				fit = append(fit, text)
			}
		}
	}
	switch {
	case len(fit) > 0:
		return strings.Join(slices.Compact(fit), orByKey)
	case len(all) > 0:
		return strings.Join(slices.Compact(all), orByKey) + ", which is not valid for the name"
	}
	return "none, so weir refuses the handshake"
}

// ownerOf is the TLS policy whose clients get a certificate; empty: an entry of the file.
func ownerOf(c *config.Certificate) string {
	switch {
	case c.Pair != nil:
		return c.Pair.Owner
	case c.ACME != nil:
		return c.ACME.Owner
	}
	return ""
}

// orByKey separates certificates of which a client gets the one whose kind of key it supports.
const orByKey = ", or by the kind of key "

// certificateFor describes the entry of the certificates for a name, or that for clients without
// SNI and for names that no entry lists.
func certificateFor(cfg *config.Config, store *certs.Store, name string) string {
	byName := make(map[string][]string) // descriptions of entries
	first := "none"
	for i := len(cfg.Certificates) - 1; i >= 0; i-- {
		if ownerOf(&cfg.Certificates[i]) != "" {
			continue
		}
		text, names := describeCertificate(&cfg.Certificates[i], store)
		for _, n := range names {
			byName[n] = append([]string{text}, byName[n]...)
		}
		if cfg.Certificates[i].ACME == nil {
			first = text
		}
	}
	if found, ok := route.NewHosts(byName).Find([]byte(name)); ok && name != "" {
		return strings.Join(slices.Compact(found), orByKey)
	}
	for i := range cfg.Certificates {
		if a := cfg.Certificates[i].ACME; a != nil && a.Owner == "" && a.Issuer == nil && len(a.Hosts) == 0 && name != "" {
			text, _ := describeCertificate(&cfg.Certificates[i], store)
			return text
		}
	}
	if first == "none" {
		return first
	}
	return first + ", the first one: no entry names the host"
}

// describeCertificate returns an entry with its position, and its names.
func describeCertificate(c *config.Certificate, store *certs.Store) (text string, names []string) {
	at := " (" + c.Position.String() + ")"
	switch {
	case c.ACME != nil:
		return "acme" + at, c.ACME.Hosts
	case c.Pair != nil:
		return c.Pair.Name, c.Pair.Hosts
	case len(c.SelfSigned) > 0:
		return "self_signed" + at, c.SelfSigned
	}
	names, _ = store.InUse(c.CertFile, c.KeyFile)
	return c.CertFile + at, names
}

// askedURL is a checked Asked.
type askedURL struct {
	text   string
	scheme string // http, https, tcp or ssh
	host   string // without port and brackets
	port   int    // 0: none is given
	client netip.Addr
	head   string // of the request; empty: there is none
	named  string // the host of the last Host header; empty: there is none
}

// name is the host that clients ask for in TLS. An address in the URL chooses a listener, such as one of several
// Gateways; the name is then that of the Host header.
func (u *askedURL) name() string {
	if u.isAddress() && u.named != "" {
		return u.named
	}
	return u.host
}

func (u *askedURL) isAddress() bool {
	_, err := netip.ParseAddr(u.host)
	return err == nil
}

// parseAsked checks what was asked. It keeps the bytes of the path as they are, because weir
// routes them so.
func parseAsked(a Asked) (*askedURL, error) {
	for _, text := range append([]string{a.URL, a.Method}, a.Headers...) {
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return nil, fmt.Errorf("%q contains control characters; write it on one line", text)
		}
	}
	u := &askedURL{text: a.URL}
	scheme, rest, found := strings.Cut(a.URL, "://")
	u.scheme = strings.ToLower(scheme)
	if !found || !slices.Contains([]string{"http", "https", "tcp", "ssh"}, u.scheme) {
		return nil, fmt.Errorf("%q is not a URL that weir can explain; write http://HOST/PATH, https://HOST/PATH, tcp://HOST:PORT or ssh://HOST:PORT", a.URL)
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, target := rest[:end], rest[end:]
	if err := u.setAuthority(authority); err != nil {
		return nil, err
	}
	if a.Client != "" {
		client, err := netip.ParseAddr(a.Client)
		if err != nil {
			return nil, fmt.Errorf("the client %q is not an IP address; write one such as 192.0.2.1", a.Client)
		}
		u.client = client.Unmap()
	}
	if u.scheme == "tcp" || u.scheme == "ssh" {
		if target != "" && target != "/" || a.Method != "" || len(a.Headers) > 0 {
			return nil, fmt.Errorf("%s is a connection without requests: leave out the path, --method and --header", a.URL)
		}
		return u, nil
	}
	return u, u.setHead(a, authority, target)
}

// splitAuthority splits a host and its port. Without a port, host is the whole text.
func splitAuthority(authority string) (host, port string) {
	if i := strings.LastIndexByte(authority, ':'); i >= 0 && !strings.HasSuffix(authority, "]") {
		return authority[:i], authority[i+1:]
	}
	return authority, ""
}

func (u *askedURL) setAuthority(authority string) error {
	host, port := splitAuthority(authority)
	if host != authority {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("%s: %q is not a port from 1 to 65535", u.text, port)
		}
		u.port = int(n)
	}
	u.host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if u.host == "" && u.scheme != "tcp" && u.scheme != "ssh" {
		return fmt.Errorf("%q has no host; write it such as %s://shop.example/cart", u.text, u.scheme)
	}
	return nil
}

// setHead writes the request as a client sends it.
func (u *askedURL) setHead(a Asked, authority, target string) error {
	target, _, _ = strings.Cut(target, "#") // clients do not send it
	if !strings.HasPrefix(target, "/") {
		target = "/" + target
	}
	method := a.Method
	if method == "" {
		method = http.MethodGet
	}
	if !message.ValidToken([]byte(method)) {
		return fmt.Errorf("%q is not a method; write one such as POST", method)
	}
	var fields strings.Builder
	hosts := 0
	for _, h := range a.Headers {
		name, value, found := strings.Cut(h, ":")
		if !found || !message.ValidToken([]byte(name)) {
			return fmt.Errorf("%q is not a header; write it as 'Name: value'", h)
		}
		if strings.EqualFold(name, "Host") {
			hosts++
			u.named, _ = splitAuthority(strings.TrimSpace(value))
		}
		fields.WriteString(name + ": " + strings.TrimSpace(value) + "\r\n")
	}
	if hosts == 0 {
		fields.WriteString("Host: " + authority + "\r\n")
	}
	u.head = method + " " + target + " HTTP/1.1\r\n" + fields.String() + "\r\n"
	return nil
}

// read reads the request with the codec that reads requests of clients. It returns the refusal
// of a request that weir does not accept from clients either.
func (u *askedURL) read(req *message.Request, limits config.Limits, l *config.Listener) (*message.Refusal, error) {
	var codec http1.Server
	codec.Init(struct {
		io.Reader
		io.Writer
	}{bytes.NewReader([]byte(u.head)), io.Discard}, http1.Limits{HeadBytes: limits.HeadBytes, Fields: limits.HeadFields})
	codec.Tolerate(backend.LenientOf(l.Lenient))
	req.Reset()
	err := codec.ReadHead(req)
	var refusal *message.Refusal
	switch {
	case errors.As(err, &refusal):
		return refusal, nil
	case err != nil:
		return nil, fmt.Errorf("reading the request for %s: %w", u.text, err)
	}
	return nil, nil
}

// listener returns the listener that gets the connection: by the port, and by the address if
// the host is one.
func (u *askedURL) listener(cfg *config.Config) (*config.Listener, error) {
	var fit, all []*config.Listener
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if !u.speaks(l) {
			continue
		}
		all = append(all, l)
		if u.reaches(l) {
			fit = append(fit, l)
		}
	}
	switch {
	case len(all) == 0:
		return nil, fmt.Errorf("%s: the configuration has no listener for %s; it has %s", u.text, u.scheme, listenersIn(pointersTo(cfg.Listeners)))
	case len(fit) == 0 && u.port == 0 && len(all) == 1:
		return all[0], nil // it is behind a load balancer that has the usual port
	case len(fit) == 0 && u.isAddress():
		return nil, fmt.Errorf("%s: no listener for %s has this address and port; there are %s", u.text, u.scheme, listenersIn(all))
	case len(fit) == 0 && u.port == 0:
		return nil, fmt.Errorf("%s: several listeners fit; write the port of one of them into the URL: %s", u.text, listenersIn(all))
	case len(fit) == 0:
		return nil, fmt.Errorf("%s: no listener for %s has this port; there are %s", u.text, u.scheme, listenersIn(all))
	case len(fit) > 1:
		return nil, fmt.Errorf("%s: several listeners have this port (%s); write the address of one of them as the host and its port, and the name in --header 'Host: NAME'", u.text, listenersIn(fit))
	}
	return fit[0], nil
}

// speaks returns true if clients use the scheme with the listener.
func (u *askedURL) speaks(l *config.Listener) bool {
	switch u.scheme {
	case "http":
		return l.Protocol == config.ProtocolHTTP
	case "https":
		return l.Protocol == config.ProtocolTLS
	case "tcp":
		return l.Protocol == config.ProtocolTCP
	}
	return true // ssh
}

// reaches returns true if the port is that of the listener, and the address fits.
func (u *askedURL) reaches(l *config.Listener) bool {
	host, port, err := net.SplitHostPort(l.Address)
	if err != nil || l.Network != "tcp" {
		return false
	}
	want := u.port
	if want == 0 {
		want = map[string]int{"http": 80, "https": 443, "ssh": 22}[u.scheme]
	}
	if n, _ := strconv.Atoi(port); want != n && want != l.PublicPort {
		return false
	}
	asked, errAsked := netip.ParseAddr(u.host)
	mine, errMine := netip.ParseAddr(host)
	return errAsked != nil || errMine != nil || mine.IsUnspecified() || asked.Unmap() == mine.Unmap()
}

func listenersIn(all []*config.Listener) string {
	var names []string
	for _, l := range all {
		names = append(names, fmt.Sprintf("%s (%s, %s)", l.Name, l.Protocol, l.Address))
	}
	return strings.Join(names, ", ")
}

func pointersTo(all []config.Listener) (out []*config.Listener) {
	for i := range all {
		out = append(out, &all[i])
	}
	return out
}
