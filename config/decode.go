package config

import (
	"net/netip"
	"time"

	"go.yaml.in/yaml/v3"
)

// A draft is a configuration while it is decoded and validated. Everything in
// it is held by pointer: its places are keyed by them.
type draft struct {
	*decoder
	inUse        func(cert, key string) (names []string, ok bool) // see Reload; nil: nothing is in use
	node, zone   string
	listeners    []*Listener
	headers      []*HeaderPolicy
	certificates []*Certificate
	policies     []*TLSPolicy
	routes       []*Route
	backends     []*Backend
	health       *Health
	admin        *Admin
	drain        Drain
	log          Log
	accessLog    *AccessLog
	limits       Limits
	headSize     int64
	shared       Secret // the top level's storage
	echKeys      []*ECHKey
	kubernetes   *Kubernetes

	groups map[hostOn]*group // what the routes say of TLS, by listener and host
	names  map[string]bool   // of all certificates
	unread bool              // the names of a certificate file are not known
}

const (
	day         = 24 * time.Hour
	maxNumber   = 10_000_000
	defaultNode = "localhost" // where the machine cannot say its own name
)

// decode fills v from the document's root; defaults first.
func (v *draft) decode(root *yaml.Node) {
	v.admin = &Admin{Network: "tcp", Address: "127.0.0.1:8087"}
	v.drain = Drain{LameDuck: 30 * time.Second, Timeout: 2 * time.Minute}
	v.log = Log{Level: "info", Format: "json"}
	v.limits = Limits{Pending: 16384, PendingPerSource: 1024, HeadFields: 128}
	v.headSize = 64 << 10
	there := v.section(root, path{}, []field{
		{"node", v.text(&v.node)},
		{"zone", v.text(&v.zone)},
		{"listeners", v.each(v.listener)},
		{"proxy_protocol", v.each(v.headerPolicy)},
		{"certificates", v.every(v.certificate)},
		{"tls_policies", v.each(v.tlsPolicy)},
		{"ech", v.ech},
		{"routes", v.every(v.route)},
		{"backends", v.each(v.backend)},
		{"health", v.healthPort},
		{"admin", v.adminPort},
		{"drain", v.drainPhases},
		{"log", v.logs},
		{"access_log", v.accessLogs},
		{"limits", v.allLimits},
		{"storage", v.storage(&v.shared)},
		{"kubernetes", v.kubernetesSource},
	}...)
	v.require(there, root, path{}, "listeners", `"listeners: {web: {address: \":8080\", protocol: http}}"`)
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

// NewListener is a listener with the defaults of the file, and no address.
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
		{"proxy_protocol", v.text(&l.HeaderPolicy)},
		{"max_connections", v.number(&l.MaxConnections, 0, maxNumber)},
		{"trust_forwarded", v.prefixes(&l.TrustForwarded)},
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

func (d *decoder) listenerProtocol(dst *Protocol) setter {
	known := choice(d, dst, ProtocolHTTP, ProtocolTLS, ProtocolTCP)
	return func(n *yaml.Node, p path) {
		if n.Value == "https" && !d.hidden[n] {
			d.mark(dst, n, p)
			d.fail(n, p, `"https" is what a backend speaks; a listener that opens TLS, or passes it through, is "tls"`)
			return
		}
		known(n, p)
	}
}

// listenerHTTP2 takes a truth value for one of "offer".
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

func (v *draft) adminPort(n *yaml.Node, p path) {
	v.admin.Position = v.at(n)
	v.section(n, p, field{"address", func(n *yaml.Node, p path) {
		if n.Value == "off" {
			v.admin.Network, v.admin.Address = "", ""
			return
		}
		v.listenAddress(&v.admin.Network, &v.admin.Address)(n, p)
	}})
}

func (v *draft) drainPhases(n *yaml.Node, p path) {
	v.section(n, p, []field{
		{"lame_duck", v.duration(&v.drain.LameDuck, 0, time.Hour)},
		{"timeout", v.duration(&v.drain.Timeout, time.Second, day)},
	}...)
}

func (v *draft) logs(n *yaml.Node, p path) {
	v.section(n, p, []field{
		{"level", choice(v.decoder, &v.log.Level, "debug", "info", "warn", "error")},
		{"format", choice(v.decoder, &v.log.Format, "json", "console")},
	}...)
}

func (v *draft) accessLogs(n *yaml.Node, p path) {
	v.accessLog = &AccessLog{Path: "stdout"}
	v.section(n, p, field{"path", v.text(&v.accessLog.Path)})
}

func (v *draft) allLimits(n *yaml.Node, p path) {
	l := &v.limits
	v.section(n, p, []field{
		{"max_connections", v.number(&l.MaxConnections, 0, maxNumber)},
		{"pending", v.number(&l.Pending, 1, maxNumber)},
		{"pending_per_source", v.number(&l.PendingPerSource, 1, maxNumber)},
		{"head_size", v.size(&v.headSize, 1<<10, 1<<20)},
		{"head_fields", v.number(&l.HeadFields, 8, 10_000)},
	}...)
}
