package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Effective returns the configuration in effect as YAML: defaults are filled in, and
// variables of the environment are replaced. It names key files but does not show their
// content. "(hidden)" replaces secrets; the first line then says so. Without secrets,
// weir can load the text again. Effective omits the default of node.
func (c *Config) Effective() []byte {
	s := shower{}
	text := c.render(&s)
	if s.hid {
		text = append([]byte("# "+placeholder+" replaces secrets; put the secrets back before you load this file.\n"), text...)
	}
	return text
}

// EffectiveBeside returns what c has in addition to the file that it was merged with: the
// configuration made from a cluster's objects, in the format of a file. It is not part of
// any file.
func (c *Config) EffectiveBeside(file *Config) []byte {
	root, s := tree{}, shower{}
	putNames(&root, "listeners", c.Listeners[len(file.Listeners):], func(v Listener) string { return v.Name }, Listener.tree)
	putNames(&root, "proxy_protocol", c.HeaderPolicies[len(file.HeaderPolicies):], func(v HeaderPolicy) string { return v.Name }, HeaderPolicy.tree)
	var pairs []tree
	for _, v := range c.Certificates {
		if v.Pair != nil {
			pairs = append(pairs, v.tree(&s))
		}
	}
	root.items("certificates", pairs)
	root.items("routes", c.routeTrees(c.Routes[len(file.Routes):]))
	putNames(&root, "backends", c.Backends[len(file.Backends):], func(v Backend) string { return v.Name }, Backend.tree)
	if len(root.content) == 0 {
		return nil
	}
	return root.yaml()
}

// A shower writes secrets, or only the part that others are allowed to see.
type shower struct {
	reveal reveal
	hid    bool // it left out a part of a secret
}

// reveal is how much of a secret the shower writes.
type reveal uint8

const (
	revealPublic  reveal = iota // what operators may see: the user of a storage, but not its password
	revealNothing               // nothing that helps a stranger to guess a secret
	revealAll                   // the secrets themselves
)

func (s *shower) key(k Secret) string {
	if s.reveal == revealAll {
		return string(k)
	}
	s.hid = true
	return k.String()
}

func (s *shower) storage(k Secret) string {
	shown := k.withoutPassword()
	switch {
	case s.reveal == revealAll:
		return string(k)
	case s.reveal == revealNothing:
		return k.withoutUser()
	case shown == string(k):
		return shown
	}
	s.hid = true
	return shown
}

// url writes a URL that weir requests. Its query may contain a secret.
func (s *shower) url(text string) string {
	if s.reveal == revealNothing {
		text, _, _ = strings.Cut(text, "?")
	}
	return text
}

// render returns the configuration as YAML; s decides how it writes secrets.
func (c *Config) render(s *shower) []byte {
	root := tree{}
	root.text("node", c.Node, c.NodeExplicit)
	root.text("zone", c.Zone, c.Zone != "")
	root.text("user", c.User, c.User != "")
	root.truth("landlock", c.Landlock)
	root.truth("seccomp", c.Seccomp)
	putNames(&root, "listeners", c.Listeners, func(v Listener) string { return v.Name }, Listener.tree)
	putNames(&root, "proxy_protocol", c.HeaderPolicies, func(v HeaderPolicy) string { return v.Name }, HeaderPolicy.tree)
	root.items("certificates", trees(c.Certificates, func(v Certificate) tree { return v.tree(s) }))
	putNames(&root, "tls_policies", c.TLSPolicies, func(v TLSPolicy) string { return v.Name }, TLSPolicy.tree)
	if len(c.ECHKeys) > 0 {
		root.section("ech", func(t *tree) { t.texts("keys", trees(c.ECHKeys, func(k ECHKey) string { return k.File })) })
	}
	root.items("routes", c.routeTrees(c.Routes))
	putNames(&root, "backends", c.Backends, func(v Backend) string { return v.Name }, Backend.tree)
	if h := c.Health; h != nil {
		root.section("health", func(t *tree) {
			t.text("address", address(h.Network, h.Address), true)
			t.texts("require_local", h.RequireLocal)
			t.texts("from", prefixTexts(h.From))
		})
	}
	root.section("admin", func(t *tree) { c.Admin.fill(t, s) })
	if m := c.Metrics; m != nil {
		root.section("metrics", func(t *tree) { t.text("address", address(m.Network, m.Address), true) })
	}
	root.section("drain", func(t *tree) {
		t.duration("lame_duck", c.Drain.LameDuck)
		t.duration("timeout", c.Drain.Timeout)
	})
	root.section("log", func(t *tree) {
		t.text("level", c.Log.Level, true)
		t.text("format", c.Log.Format, true)
	})
	if c.AccessLog != nil {
		root.section("access_log", func(t *tree) {
			t.text("path", c.AccessLog.Path, true)
			t.texts("redact", c.AccessLog.Redact)
		})
	}
	root.section("limits", func(t *tree) {
		t.number("max_connections", c.Limits.MaxConnections)
		t.number("pending", c.Limits.Pending)
		t.number("pending_per_source", c.Limits.PendingPerSource)
		t.section("clients", func(t *tree) {
			t.section("prefix", func(t *tree) {
				t.number("ipv4", c.Limits.Clients.PrefixIPv4)
				t.number("ipv6", c.Limits.Clients.PrefixIPv6)
			})
		})
		t.text("memory", formatSize(c.Limits.Memory), c.Limits.Memory != 0)
		t.text("head_size", formatSize(int64(c.Limits.HeadBytes)), true)
		t.number("head_fields", c.Limits.HeadFields)
		t.number("loop", c.Limits.Loop)
	})
	root.text("storage", s.storage(c.Storage), c.Storage != "")
	if c.Kubernetes != nil {
		root.section("kubernetes", c.Kubernetes.fill)
	}
	return root.yaml()
}

// hash identifies the effective configuration without its secrets: everybody who can read
// metrics sees the hash, and could try a list of passwords on it. weir computes it with the
// file paths as they were written, so that it does not depend on the folder, and before it
// adds defaults that come from the machine or from files.
func (c *Config) hash() string {
	sum := sha256.Sum256(c.render(&shower{reveal: revealNothing}))
	return hex.EncodeToString(sum[:8])
}

func (l Listener) tree() (t tree) {
	t.text("address", address(l.Network, l.Address), true)
	t.text("protocol", string(l.Protocol), true)
	if l.PublicPort != 0 {
		t.number("public_port", l.PublicPort)
	}
	t.text("tls_policy", l.TLSPolicy, l.TLSPolicy != "")
	t.text("proxy_protocol", l.HeaderPolicy, l.HeaderPolicy != "")
	t.number("max_connections", l.MaxConnections)
	t.texts("trust_forwarded", prefixTexts(l.TrustForwarded))
	t.texts("trust", trees(l.Trust, func(trust Trust) string { return string(trust) }))
	t.texts("drop_headers", l.DropHeaders)
	t.texts("keep_headers", l.KeepHeaders)
	if l.Protocol != ProtocolTCP {
		t.section("http2", func(t *tree) {
			if l.Protocol == ProtocolTLS {
				t.truth("offer", l.HTTP2.Offer)
			} else {
				t.truth("prior_knowledge", l.HTTP2.PriorKnowledge)
			}
			t.number("max_streams", l.HTTP2.MaxStreams)
		})
	}
	t.section("timeouts", func(t *tree) {
		t.duration("handshake", l.Timeouts.Handshake)
		t.duration("request_head", l.Timeouts.RequestHead)
		t.duration("body_idle", l.Timeouts.BodyIdle)
		t.text("body_min_rate", formatSize(l.Timeouts.BodyMinRate), true)
		t.duration("keep_alive", l.Timeouts.KeepAlive)
		t.duration("tunnel_idle", l.Timeouts.TunnelIdle)
	})
	return t
}

func (h HeaderPolicy) tree() (t tree) {
	t.duration("header_timeout", h.HeaderTimeout)
	t.items("rules", trees(h.Rules, func(r HeaderRule) (t tree) {
		t.texts("from", prefixTexts(r.From))
		t.text("header", string(r.Mode), true)
		return t
	}))
	return t
}

func (c Certificate) tree(s *shower) (t tree) {
	if p := c.Pair; p != nil {
		t.text("secret", p.Name, true)
		t.texts("hosts", p.Hosts)
		if p.Default {
			t.truth("default", true)
		}
		if len(p.CertPEM) == 0 {
			t.truth("missing", true)
		}
		return t
	}
	t.text("cert", c.CertFile, c.CertFile != "")
	t.text("key", c.KeyFile, c.KeyFile != "")
	if c.SelfSigned != nil {
		t.section("self_signed", func(t *tree) { t.texts("hosts", c.SelfSigned) })
		return t
	}
	if c.ACME != nil {
		t.section("acme", func(t *tree) { c.ACME.fill(t, s) })
	}
	t.truth("ocsp", !c.NoOCSP)
	return t
}

func (a *ACME) fill(t *tree, s *shower) {
	t.texts("hosts", a.Hosts)
	t.text("email", a.Email, a.Email != "")
	t.text("directory", s.url(a.Directory), true)
	t.text("ca", a.CAFile, a.CAFile != "")
	t.text("key_type", a.KeyType, true)
	if e := a.ExternalAccount; e != nil {
		t.section("external_account", func(t *tree) {
			t.text("key_id", e.KeyID, true)
			t.text("mac_key", s.key(e.MACKey), true)
		})
	}
	t.texts("challenges", trees(a.Challenges, func(c Challenge) string { return string(c) }))
	if a.DNS != nil {
		t.section("dns", func(t *tree) { a.DNS.fill(t, s) })
	}
	if o := a.OnDemand; o != nil {
		t.section("on_demand", func(t *tree) {
			t.text("ask", s.url(o.Ask), o.Ask != "")
			t.texts("hosts", o.Hosts)
			t.duration("timeout", o.Timeout)
			t.number("concurrent", o.Concurrent)
		})
	}
	t.text("storage", s.storage(a.Storage), a.Storage != "")
}

func (c *DNSChallenge) fill(t *tree, s *shower) {
	t.section("rfc2136", func(t *tree) {
		t.text("server", c.RFC2136.Server, true)
		t.text("key_name", c.RFC2136.KeyName, true)
		t.text("key_algorithm", c.RFC2136.KeyAlgorithm, true)
		t.text("key", s.key(c.RFC2136.Key), true)
	})
	t.texts("resolvers", c.Resolvers)
	t.duration("propagation_delay", c.PropagationDelay)
	if c.PropagationTimeout < 0 {
		t.text("propagation_timeout", "off", true)
	} else {
		t.duration("propagation_timeout", c.PropagationTimeout)
	}
}

func (p TLSPolicy) tree() (t tree) {
	t.text("min_version", versionName(p.MinVersion), true)
	t.text("max_version", versionName(p.MaxVersion), true)
	t.texts("cipher_suites", p.offer().suiteNames())
	t.texts("curves", trees(p.Curves, curveName))
	if p.ClientAuth != ClientAuthNone {
		t.section("client_auth", func(t *tree) {
			t.text("mode", string(p.ClientAuth), true)
			t.text("ca", p.ClientAuthCA, true)
			t.texts("crl", p.ClientAuthCRL)
			t.put("forward", textsNode(trees(p.ClientAuthForward, func(f ClientCertField) string { return string(f) })))
		})
	}
	t.truth("sha1_signatures", p.SHA1)
	t.texts("from", prefixTexts(p.From))
	return t
}

// routeTrees joins the Routes that were made from one route of the file. It omits
// settings in which they differ: Load lets the hosts inherit these again.
func (c *Config) routeTrees(routes []Route) (all []tree) {
	for i := 0; i < len(routes); {
		r := routes[i]
		r.Listeners, r.Hosts = slices.Clone(r.Listeners), slices.Clone(r.Hosts)
		if r.FirstBytes != "" || !c.hasTLS(r) {
			r.TLS, r.TLSPolicy = "", ""
		}
		for i++; i < len(routes) && routes[i].Name == r.Name; i++ {
			part := routes[i]
			r.Listeners, r.Hosts = union(r.Listeners, part.Listeners), union(r.Hosts, part.Hosts)
			if part.TLSPolicy != r.TLSPolicy {
				r.TLSPolicy = ""
			}
			if part.TLS != r.TLS {
				r.TLS = ""
			}
		}
		all = append(all, r.tree())
	}
	return all
}

// hasTLS reports whether one of r's listeners has TLS to which the TLS keys of r apply.
func (c *Config) hasTLS(r Route) bool {
	return slices.ContainsFunc(c.Listeners, func(l Listener) bool {
		return l.Protocol == ProtocolTLS && slices.Contains(r.Listeners, l.Name)
	})
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

func (r Route) tree() (t tree) {
	t.text("name", r.Name, true)
	t.texts("listeners", r.Listeners)
	t.texts("hosts", r.Hosts)
	t.texts("paths", trees(r.Paths, Path.String))
	t.text("tls_policy", r.TLSPolicy, r.TLSPolicy != "" && r.TLS != TLSPassthrough)
	t.text("tls", string(r.TLS), r.TLS != "")
	t.texts("alpn", r.ALPN)
	t.text("first_bytes", r.FirstBytes, r.FirstBytes != "")
	t.text("backend", r.Backend, r.Backend != "")
	if d := r.Redirect; d != nil {
		t.section("redirect", func(t *tree) {
			t.text("scheme", "https", true)
			t.number("port", d.Port)
			t.number("status", d.Status)
		})
	}
	if h := r.HSTS; h != nil {
		t.section("hsts", func(t *tree) {
			t.duration("max_age", h.MaxAge)
			t.truth("include_subdomains", h.IncludeSubdomains)
			t.truth("preload", h.Preload)
		})
	}
	t.text("max_body", formatSize(r.MaxBody), r.MaxBody != 0)
	if r.MaxLifetime != 0 {
		t.duration("max_lifetime", r.MaxLifetime)
	}
	if r.TunnelIdle != 0 {
		t.duration("tunnel_idle", r.TunnelIdle)
	}
	return t
}

func (b Backend) tree() (t tree) {
	t.text("protocol", string(b.Protocol), true)
	t.items("endpoints", trees(b.Endpoints, func(e Endpoint) (t tree) {
		t.text("address", e.Address, true)
		t.text("node", e.Node, e.Node != "")
		t.text("zone", e.Zone, e.Zone != "")
		t.number("weight", e.Weight)
		return t
	}))
	t.duration("resolve_interval", b.ResolveInterval)
	t.text("balance", string(b.Balance), true)
	t.truth("prefer_local", b.PreferLocal)
	t.duration("ramp_up", b.RampUp)
	t.text("send_proxy", proxyVersion(b.SendProxy), true)
	t.text("host", b.Host, b.Host != "")
	if b.HealthCheck != nil {
		t.section("health_check", b.HealthCheck.fill)
	}
	t.section("ejection", func(t *tree) {
		t.number("failures", b.Ejection.Failures)
		t.duration("for", b.Ejection.For)
	})
	t.number("max_connections", b.MaxConnections)
	t.section("queue", func(t *tree) {
		t.number("size", b.Queue.Size)
		t.duration("timeout", b.Queue.Timeout)
	})
	t.number("max_idle", b.MaxIdle)
	if b.Protocol == ProtocolHTTPS {
		t.truth("http2", b.HTTP2)
	}
	t.texts("lenient", trees(b.Lenient, func(l Leniency) string { return string(l) }))
	if b.UsesTLS() {
		t.section("tls", b.TLS.fill)
	}
	t.section("timeouts", func(t *tree) {
		t.duration("connect", b.Timeouts.Connect)
		t.duration("response_head", b.Timeouts.ResponseHead)
		t.duration("body_idle", b.Timeouts.BodyIdle)
		t.duration("keep_alive", b.Timeouts.KeepAlive)
	})
	t.section("retries", func(t *tree) {
		t.number("attempts", b.Retries.Attempts)
		t.plain("share", strconv.FormatFloat(b.Retries.Share, 'g', -1, 64))
	})
	return t
}

func (h HealthCheck) fill(t *tree) {
	if h.HTTP != nil {
		t.section("http", func(t *tree) {
			t.text("path", h.HTTP.Path, true)
			t.text("host", h.HTTP.Host, h.HTTP.Host != "")
			t.text("status", fmt.Sprintf("%d-%d", h.HTTP.StatusMin, h.HTTP.StatusMax), true)
		})
	}
	if h.GRPC != nil {
		t.section("grpc", func(t *tree) { t.text("service", h.GRPC.Service, h.GRPC.Service != "") })
	}
	if h.TCP {
		t.section("tcp", func(*tree) {})
	}
	t.duration("interval", h.Interval)
	t.duration("timeout", h.Timeout)
	t.number("rise", h.Rise)
	t.number("fall", h.Fall)
	if h.Port != 0 {
		t.number("port", h.Port)
	}
	t.text("send_proxy", proxyVersion(h.SendProxy), true)
}

func (b BackendTLS) fill(t *tree) {
	t.text("server_name", b.ServerName, b.ServerName != "")
	t.text("ca", b.CAFile, b.CAFile != "")
	t.text("cert", b.CertFile, b.CertFile != "")
	t.text("key", b.KeyFile, b.KeyFile != "")
	t.texts("alpn", b.ALPN)
	t.truth("insecure_skip_verify", b.InsecureSkipVerify)
	t.text("min_version", versionName(b.MinVersion), true)
	t.text("max_version", versionName(b.MaxVersion), true)
	t.texts("cipher_suites", b.offer().suiteNames())
	t.truth("sha1_signatures", b.SHA1)
}

func proxyVersion(v int) string { return []string{"none", "v1", "v2"}[v] }

// address returns an address as the file has it.
func address(network, a string) string {
	if network == "unix" {
		return "unix:" + a
	}
	return a
}

func prefixTexts(all []netip.Prefix) []string { return trees(all, netip.Prefix.String) }

// trees calls one for each element.
func trees[T, R any](all []T, one func(T) R) (out []R) {
	for _, v := range all {
		out = append(out, one(v))
	}
	return out
}

// A tree is a YAML mapping under construction; keys stay in order.
type tree struct{ content []*yaml.Node }

func (t *tree) put(key string, value *yaml.Node) {
	t.content = append(t.content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
}

// text writes s if written is true. It doubles each $: otherwise the loader would take it
// for the beginning of a variable.
func (t *tree) text(key, s string, written bool) {
	if written {
		t.put(key, textNode(s))
	}
}

func textNode(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: strings.ReplaceAll(s, "$", "$$")}
}

func (t *tree) texts(key string, all []string) {
	if len(all) > 0 {
		t.put(key, textsNode(all))
	}
}

func textsNode(all []string) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle, Content: trees(all, textNode)}
}

// plain writes a number or a boolean.
func (t *tree) plain(key, s string) {
	t.put(key, &yaml.Node{Kind: yaml.ScalarNode, Value: s})
}

func (t *tree) truth(key string, v bool) { t.plain(key, strconv.FormatBool(v)) }

func (t *tree) number(key string, v int) { t.plain(key, strconv.Itoa(v)) }

func (t *tree) duration(key string, v time.Duration) { t.text(key, short(v), true) }

func (t *tree) section(key string, fill func(*tree)) {
	var inner tree
	fill(&inner)
	t.put(key, inner.node())
}

func (t *tree) items(key string, all []tree) {
	if len(all) > 0 {
		t.put(key, &yaml.Node{Kind: yaml.SequenceNode, Content: trees(all, tree.node)})
	}
}

// putNames writes a mapping of names in alphabetical order, because the order in the file
// has no meaning.
func putNames[T any](t *tree, key string, all []T, name func(T) string, one func(T) tree) {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b T) int { return strings.Compare(name(a), name(b)) })
	var inner tree
	for _, v := range sorted {
		inner.put(name(v), one(v).node())
	}
	if len(sorted) > 0 {
		t.put(key, inner.node())
	}
}

func (t tree) node() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Content: t.content} }

func (t *tree) yaml() []byte {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(t.node()); err != nil { // a tree of scalars always encodes
		panic(fmt.Sprintf("encoding the effective configuration: %v", err))
	}
	return b.Bytes()
}
