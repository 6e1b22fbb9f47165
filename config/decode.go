package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A draft is a configuration during decoding and validation. Its elements are pointers,
// because the map of their places uses the pointers as keys.
type draft struct {
	*decoder
	inUse        InUse // see Reload
	node, zone   string
	user         string
	landlock     bool
	seccomp      bool
	adminToken   bool // the file has admin.token or admin.token_file, valid or not
	listeners    []*Listener
	headers      []*HeaderPolicy
	certificates []*Certificate
	policies     []*TLSPolicy
	routes       []*Route
	backends     []*Backend
	health       *Health
	admin        *Admin
	metrics      *Metrics
	drain        Drain
	log          Log
	accessLog    *AccessLog
	limits       Limits
	headSize     int64
	shared       Secret // the storage of the top level
	echKeys      []*ECHKey
	kubernetes   *Kubernetes

	groups map[hostOn]*group      // TLS settings of routes, by listener and host
	names  map[string]bool        // of all certificates
	inFile map[*Certificate]keyed // certificates that were read from files
	unread bool                   // weir could not read a certificate file, so its names are unknown
}

const (
	day         = 24 * time.Hour
	maxNumber   = 10_000_000
	defaultNode = "localhost" // if the machine has no name
)

// decode fills v from the document's root, and sets defaults first.
func (v *draft) decode(root *yaml.Node) {
	v.landlock, v.seccomp = true, true
	v.admin = &Admin{Network: "tcp", Address: "127.0.0.1:8087"}
	v.drain = Drain{LameDuck: 30 * time.Second, Timeout: 2 * time.Minute}
	v.log = Log{Level: "info", Format: "auto"}
	v.limits = Limits{Pending: 16384, PendingPerSource: 1024, HeadFields: 128, Loop: 3, Clients: ClientLimits{PrefixIPv4: 32, PrefixIPv6: 64}}
	v.headSize = 64 << 10
	there := v.section(root, path{}, []field{
		{"node", v.text(&v.node)},
		{"zone", v.text(&v.zone)},
		{"user", func(n *yaml.Node, p path) {
			if n.ShortTag() == "!!int" {
				n.Tag = "!!str" // a UID
			}
			parsed(v.decoder, &v.user, "a user", parseUser)(n, p)
		}},
		{"landlock", v.truth(&v.landlock)},
		{"seccomp", v.truth(&v.seccomp)},
		{"listeners", v.each(v.listener)},
		{"proxy_protocol", v.each(v.headerPolicy)},
		{"certificates", v.every(v.certificate)},
		{"tls_policies", v.each(v.tlsPolicy)},
		{"ech", v.ech},
		{"routes", v.every(v.route)},
		{"backends", v.each(v.backend)},
		{"health", v.healthPort},
		{"admin", v.adminPort},
		{"metrics", v.metricsPort},
		{"drain", v.drainPhases},
		{"log", v.logs},
		{"access_log", v.accessLogs},
		{"limits", v.allLimits},
		{"storage", v.storage(&v.shared)},
		{"kubernetes", v.kubernetesSource},
	}...)
	if v.health == nil && v.kubernetes == nil && !v.given(&v.drain.LameDuck) {
		v.drain.LameDuck = 0 // neither a load balancer nor the cluster sees the drain
	}
	v.require(there, root, path{}, "listeners", `"listeners: {web: {address: \":8080\", protocol: http}}"`)
}

// parseUser checks only the form: whether the user exists depends on the machine.
func parseUser(s string) (string, error) {
	name, group, withGroup := strings.Cut(s, ":")
	if name == "" || withGroup && group == "" || strings.ContainsAny(s, " \t/") || strings.Contains(group, ":") {
		return "", errors.New("is not a user; write a name such as weir, a name and a group such as weir:weir, or their numbers such as 65532:65532")
	}
	return s, nil
}

// each decodes a mapping of names.
func (v *draft) each(one func(name string, key, n *yaml.Node, p path)) setter {
	return func(n *yaml.Node, p path) { v.named(n, p, one) }
}

// every decodes a list of sections.
func (v *draft) every(one setter) setter {
	return func(n *yaml.Node, p path) {
		for i, e := range v.elements(n, p) {
			one(e, p.index(i))
		}
	}
}

// NewListener returns a listener with the defaults of the file, and without an address.
func NewListener(name string) Listener {
	return Listener{Name: name, HTTP2: ListenerHTTP2{MaxStreams: 100}, Timeouts: ListenerTimeouts{
		Handshake:   10 * time.Second,
		RequestHead: 10 * time.Second,
		BodyIdle:    time.Minute,
		BodyMinRate: 240,
		KeepAlive:   6 * time.Minute,
		TunnelIdle:  time.Hour,
	}}
}

func (v *draft) listener(name string, key, n *yaml.Node, p path) {
	l := new(Listener)
	*l = NewListener(name)
	l.Position = v.at(key)
	v.mark(l, key, p)
	v.listeners = append(v.listeners, l)
	there := v.section(n, p, []field{
		{"address", v.listenAddress(&l.Network, &l.Address)},
		{"protocol", v.listenerProtocol(&l.Protocol)},
		{"public_port", v.number(&l.PublicPort, 1, 65535)},
		{"tls_policy", v.text(&l.TLSPolicy)},
		{"proxy_protocol", v.headerPolicyName(&l.HeaderPolicy)},
		{"max_connections", v.number(&l.MaxConnections, 0, maxNumber)},
		{"trust_forwarded", v.prefixes(&l.TrustForwarded)},
		{"trust", list(v.decoder, &l.Trust, v.trust)},
		{"drop_headers", list(v.decoder, &l.DropHeaders, v.droppedHeader)},
		{"keep_headers", list(v.decoder, &l.KeepHeaders, v.keptHeader)},
		{"http2", v.listenerHTTP2(l)},
		{"timeouts", func(n *yaml.Node, p path) {
			t := &l.Timeouts
			v.section(n, p, []field{
				{"handshake", v.duration(&t.Handshake, time.Second, 5*time.Minute)},
				{"request_head", v.duration(&t.RequestHead, time.Second, 10*time.Minute)},
				{"body_idle", v.duration(&t.BodyIdle, time.Second, day)},
				{"body_min_rate", v.size(&t.BodyMinRate, 0, 1<<20)},
				{"keep_alive", v.duration(&t.KeepAlive, time.Second, day)},
				{"tunnel_idle", v.duration(&t.TunnelIdle, time.Second, 30*day)},
			}...)
		}},
	}...)
	v.require(there, n, p, "address", `":443"`)
	v.require(there, n, p, "protocol", "http, tls or tcp")
}

// headerPolicyName decodes the name of a PROXY header policy. In nginx and HAProxy a single
// word turns PROXY headers on, so true and similar words get an error that explains it.
func (d *decoder) headerPolicyName(dst *string) setter {
	name := d.text(dst)
	return func(n *yaml.Node, p path) {
		if d.hidden[n] || n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
			name(n, p)
			return
		}
		d.mark(dst, n, p)
		if n.Value == "false" {
			d.fail(n, p, "has to be the name of a policy; without one weir reads no PROXY headers, so take the key out")
			return
		}
		d.fail(n, p, `has to be the name of a policy, which says who sends PROXY headers; write "proxy_protocol: lb" here, and at the top level "proxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}}" with the networks of your load balancer`)
	}
}

func (d *decoder) listenerProtocol(dst *Protocol) setter {
	known := choice(d, dst, ProtocolHTTP, ProtocolTLS, ProtocolTCP)
	return func(n *yaml.Node, p path) {
		if n.Value == "https" && !d.hidden[n] {
			d.mark(dst, n, p)
			d.fail(n, p, `"https" is a protocol of backends; for a listener that terminates TLS, or passes it through, write "tls"`)
			return
		}
		known(n, p)
	}
}

// listenerHTTP2 accepts a boolean as a short form of "offer".
func (v *draft) listenerHTTP2(l *Listener) setter {
	return func(n *yaml.Node, p path) {
		v.mark(&l.HTTP2, n, p)
		if n.Kind == yaml.ScalarNode {
			v.truth(&l.HTTP2.Offer)(n, p)
			return
		}
		v.section(n, p, []field{
			{"offer", v.truth(&l.HTTP2.Offer)},
			{"prior_knowledge", v.truth(&l.HTTP2.PriorKnowledge)},
			{"max_streams", v.number(&l.HTTP2.MaxStreams, 1, 1000)},
		}...)
	}
}

func (d *decoder) prefixes(dst *[]netip.Prefix) setter { return list(d, dst, d.prefix) }

func (v *draft) headerPolicy(name string, key, n *yaml.Node, p path) {
	h := &HeaderPolicy{Name: name, Position: v.at(key), HeaderTimeout: DefaultHeaderTimeout}
	v.mark(h, key, p)
	v.headers = append(v.headers, h)
	there := v.section(n, p, []field{
		{"header_timeout", v.duration(&h.HeaderTimeout, time.Second, 5*time.Minute)},
		{"rules", func(n *yaml.Node, p path) {
			elements := v.elements(n, p)
			h.Rules = make([]HeaderRule, len(elements))
			for i, e := range elements {
				v.headerRule(&h.Rules[i], e, p.index(i))
			}
		}},
	}...)
	v.require(there, n, p, "rules", `"rules: [{from: [10.0.0.0/8], header: require}]"`)
}

func (v *draft) headerRule(r *HeaderRule, n *yaml.Node, p path) {
	there := v.section(n, p, []field{
		{"from", v.prefixes(&r.From)},
		{"header", choice(v.decoder, &r.Mode, HeaderRequire, HeaderOptional, HeaderDiscard, HeaderNone, HeaderDeny)},
	}...)
	v.require(there, n, p, "from", "[10.0.0.0/8]")
	v.require(there, n, p, "header", "require")
}

func (v *draft) healthPort(n *yaml.Node, p path) {
	v.health = &Health{Position: v.at(n)}
	v.mark(v.health, n, p)
	there := v.section(n, p, []field{
		{"address", v.listenAddress(&v.health.Network, &v.health.Address)},
		{"require_local", v.texts(&v.health.RequireLocal)},
		{"from", v.prefixes(&v.health.From)},
	}...)
	v.require(there, n, p, "address", `":8086"`)
}

func (d *decoder) texts(dst *[]string) setter { return list(d, dst, d.text) }

func (v *draft) drainPhases(n *yaml.Node, p path) {
	v.section(n, p, []field{
		{"lame_duck", v.duration(&v.drain.LameDuck, 0, time.Hour)},
		{"timeout", v.duration(&v.drain.Timeout, time.Second, day)},
	}...)
}

func (v *draft) logs(n *yaml.Node, p path) {
	v.section(n, p, []field{
		{"level", choice(v.decoder, &v.log.Level, "debug", "info", "warn", "error")},
		{"format", choice(v.decoder, &v.log.Format, "auto", "json", "console")},
	}...)
}

func (v *draft) accessLogs(n *yaml.Node, p path) {
	v.accessLog = &AccessLog{Path: "stdout"}
	v.section(n, p, []field{
		{"path", v.text(&v.accessLog.Path)},
		{"redact", func(n *yaml.Node, p path) {
			list(v.decoder, &v.accessLog.Redact, v.parameter)(n, p)
			if len(v.accessLog.Redact) > maxRedact {
				v.fail(n, p, "has %d names; %d are the most", len(v.accessLog.Redact), maxRedact)
			}
		}},
	}...)
}

// Limits of access_log.redact.
const (
	maxRedact    = 64
	maxParameter = 128
)

// parameter decodes the name of a query parameter.
func (d *decoder) parameter(dst *string) setter {
	return parsed(d, dst, "the name of a query parameter", func(s string) (string, error) {
		if s == "" || len(s) > maxParameter || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("&;=?#%+", r) }) {
			return "", fmt.Errorf("is not the name of a query parameter; write it decoded and without \"=\", such as token, with %d bytes at most", maxParameter)
		}
		return strings.ToLower(s), nil
	})
}

func (v *draft) allLimits(n *yaml.Node, p path) {
	l := &v.limits
	v.section(n, p, []field{
		{"max_connections", v.number(&l.MaxConnections, 0, maxNumber)},
		{"pending", v.number(&l.Pending, 1, maxNumber)},
		{"pending_per_source", v.number(&l.PendingPerSource, 1, maxNumber)},
		{"clients", v.clientLimits(&l.Clients)},
		{"memory", v.size(&l.Memory, 1<<20, 1<<50)},
		{"head_size", v.size(&v.headSize, 1<<10, 1<<20)},
		{"head_fields", v.number(&l.HeadFields, 8, 10_000)},
		{"loop", v.number(&l.Loop, 1, 100)},
	}...)
}

func (v *draft) clientLimits(l *ClientLimits) setter {
	return func(n *yaml.Node, p path) {
		v.section(n, p, field{"prefix", func(n *yaml.Node, p path) {
			v.section(n, p, []field{
				{"ipv4", v.number(&l.PrefixIPv4, 0, 32)},
				{"ipv6", v.number(&l.PrefixIPv6, 0, 128)},
			}...)
		}})
	}
}
