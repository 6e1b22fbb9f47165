package config_test

import (
	"cmp"
	"crypto/tls"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

// small is the beginning of a valid configuration.
const small = `listeners:
  web: {address: ":80", protocol: http}
  secure: {address: ":443", protocol: tls}
backends:
  app: {endpoints: ["127.0.0.1:9001"]}
  raw: {endpoints: ["127.0.0.1:9022"], protocol: tcp}
certificates: [{self_signed: {hosts: [a.example, b.example, c.example]}}]
tls_policies:
  old: {min_version: "1.0"}
  new: {min_version: "1.3"}
`

func mustParse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := file.Parse("weir.yaml", []byte(text), environment)
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	accepts(t, []byte(text))
	return c
}

// The project guarantees that this file loads. This copy of it is never edited.
func TestAcceptance(t *testing.T) {
	c, err := file.Load("testdata/acceptance.yaml", func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	if c.Node != "node-a" || !c.NodeExplicit {
		t.Errorf("node is %q, explicit %v", c.Node, c.NodeExplicit)
	}
	routes := map[string]*config.Route{}
	for _, r := range c.Routes {
		routes[r.Name] = r
	}
	for name, want := range map[string]config.Route{
		"web/app.example.org":           {TLS: config.TLSTerminate, TLSPolicy: "default", Backend: "app", Listeners: []string{"web", "websecure"}, Hosts: []string{"app.example.org", "*.dev.example.org"}},
		"websecure/app.example.org/api": {TLS: config.TLSTerminate, TLSPolicy: "default", Backend: "api", Listeners: []string{"websecure"}, Hosts: []string{"app.example.org"}, Paths: []config.Path{{Value: "/api"}, {Exact: true, Value: "/status"}}},
		"websecure/legacy.example.org":  {TLS: config.TLSTerminate, TLSPolicy: "partners", Backend: "app", Listeners: []string{"websecure"}, Hosts: []string{"legacy.example.org"}},
		"websecure/vault.example.org":   {TLS: config.TLSPassthrough, TLSPolicy: "default", Backend: "vault", Listeners: []string{"websecure"}, Hosts: []string{"vault.example.org"}},
		"git-over-443":                  {TLS: config.TLSTerminate, TLSPolicy: "default", Backend: "gitea-ssh", Listeners: []string{"websecure"}, FirstBytes: "ssh"},
		"ssh":                           {TLS: config.TLSTerminate, TLSPolicy: "default", Backend: "gitea-ssh", Listeners: []string{"ssh"}},
	} {
		got := routes[name]
		got.Position, want.Name = config.Position{}, name
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("route %s is\n%+v, want\n%+v", name, got, want)
		}
	}
	if len(c.Routes) != 6 || len(c.Listeners) != 3 || len(c.Backends) != 4 || len(c.TLSPolicies) != 2 {
		t.Errorf("%d routes, %d listeners, %d backends, %d policies", len(c.Routes), len(c.Listeners), len(c.Backends), len(c.TLSPolicies))
	}
	gitea := c.Backends[3]
	if gitea.SendProxy != 2 || !gitea.HealthCheck.TCP || gitea.HealthCheck.SendProxy != 2 || gitea.HealthCheck.Timeout != 2*time.Second || gitea.Endpoints[0].Node != "node-a" {
		t.Errorf("backend gitea-ssh is %+v, its check %+v", gitea, gitea.HealthCheck)
	}
	if got := c.Backends[0].Endpoints[1]; got.Weight != 2 || got.Node != "node-b" {
		t.Errorf("endpoint is %+v", got)
	}
	if got, want := c.HeaderPolicies[0].Rules[1], (config.HeaderRule{[]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}, config.HeaderOptional, false}); !reflect.DeepEqual(got, want) {
		t.Errorf("rule is %+v", got)
	}
	if len(c.Warnings) != 2 || !strings.HasPrefix(c.Warnings[0].Error(), "testdata/acceptance.yaml:25:17: proxy_protocol.edge.rules[1].header: on the tcp listener \"ssh\"") ||
		!strings.HasPrefix(c.Warnings[1].Error(), "testdata/acceptance.yaml:52:17: routes[2].tls_policy: clients without SNI never get this policy on listener \"websecure\"") {
		t.Errorf("warnings are %v", c.Warnings)
	}
}

// The position of an object with a name is the position of the name.
func TestPositions(t *testing.T) {
	c := mustParse(t, small)
	if got, want := c.Listeners[1].Position, (config.Position{"weir.yaml", 3, 3}); got != want {
		t.Errorf("the listener is at %s, want %s", got, want)
	}
	if got, want := c.Certificates[0].Position, (config.Position{"weir.yaml", 7, 16}); got != want {
		t.Errorf("the certificate is at %s, want %s", got, want)
	}
}

// EffectiveBeside contains only the objects of a cluster.
func TestEffectiveBeside(t *testing.T) {
	base := mustParse(t, small)
	c := *base
	c.Certificates = append(slices.Clone(c.Certificates), config.Certificate{Pair: &config.Pair{Name: "a/b", Hosts: []string{"c.example"}}})
	c.Backends = append(slices.Clone(c.Backends), new(config.NewBackend("a/web/80")))
	text := string(file.EffectiveBeside(&c, base))
	if !strings.HasPrefix(text, "certificates:\n  - secret: a/b\n    hosts: [c.example]\n    missing: true\nbackends:\n  a/web/80:\n    protocol: http\n") ||
		strings.Contains(text, "\nadmin:") {
		t.Errorf("it is\n%s", text)
	}
	if text := file.EffectiveBeside(base, base); text != nil {
		t.Errorf("beside itself it is\n%s", text)
	}
}

func TestDefaults(t *testing.T) {
	c := mustParse(t, "listeners: {web: {address: \":80\", protocol: http}}\nroutes: [{listeners: [web], backend: app}]\nbackends: {app: {endpoints: [\"a:1\"], health_check: {http: {}}}}\n")
	want := &config.Config{
		Landlock:       true,
		Seccomp:        true,
		UpgradeTimeout: time.Minute, Reload: config.ReloadWatch,
		Listeners:   []config.Listener{{Name: "web", Network: "tcp", Address: ":80", Protocol: config.ProtocolHTTP, HTTP2: config.ListenerHTTP2{MaxStreams: 100}, Timeouts: config.ListenerTimeouts{10 * time.Second, 10 * time.Second, time.Minute, time.Hour, 240, 6 * time.Minute, time.Hour}}},
		TLSPolicies: []config.TLSPolicy{{Name: "default", MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13, CipherSuites: config.SecureSuites()}},
		Routes:      []*config.Route{{Name: "web/*", Listeners: []string{"web"}, TLSPolicy: "default", TLS: config.TLSTerminate, Backend: "app"}},
		Backends: []*config.Backend{{
			Name: "app", Protocol: config.ProtocolHTTP, Endpoints: []config.Endpoint{{Address: "a:1", Weight: 1}}, ResolveInterval: 30 * time.Second, Balance: config.LeastRequests,
			HealthCheck: &config.HealthCheck{HTTP: &config.HTTPCheck{Path: "/", StatusMin: 200, StatusMax: 399}, Interval: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3},
			Ejection:    config.Ejection{Failures: 5, For: 10 * time.Second, Minimum: 20, Within: 10 * time.Second}, Queue: config.Queue{128, 5 * time.Second}, MaxIdle: 256, MaxInterim: 16,
			TLS:      config.BackendTLS{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13},
			Timeouts: config.BackendTimeouts{5 * time.Second, 5 * time.Minute, time.Minute, time.Hour, time.Minute}, Retries: config.Retries{3, 0.2},
		}},
		Admin:  config.Admin{Network: "tcp", Address: "127.0.0.1:8087", Implied: true},
		Drain:  config.Drain{IfAsked: true, Timeout: 2 * time.Minute},
		Log:    config.Log{"info", "auto"},
		Limits: config.Limits{0, 16384, 1024, config.ClientLimits{PrefixIPv4: 32, PrefixIPv6: 64}, 0, 64 << 10, 256, 3},
	}
	if c.Node == "" || c.NodeExplicit || len(c.Hash) != 16 {
		t.Errorf("node %q, explicit %v, hash %q", c.Node, c.NodeExplicit, c.Hash)
	}
	got := *c
	got.Node, got.Hash, got.Source = "", "", want.Source
	got.Listeners[0].Position, got.Routes[0].Position, got.Backends[0].Position, got.Backends[0].Endpoints[0].Position = config.Position{}, config.Position{}, config.Position{}, config.Position{}
	if !reflect.DeepEqual(&got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", &got, want)
	}
}

func TestNearEndpoints(t *testing.T) {
	const text = `listeners: {web: {address: ":80", protocol: http}}
zone: eu-1a
routes: [{listeners: [web], backend: app}, {listeners: [web], hosts: [b.example], backend: plain}]
backends:
  app: {endpoints: [{address: "10.0.0.1:80", zone: eu-1a, node: a}], prefer_local: true, ramp_up: 30s}
  plain: {endpoints: ["10.0.0.1:80"]}
`
	c := mustParse(t, text)
	for _, c := range []*config.Config{c, mustParse(t, string(file.Effective(c)))} {
		near, plain := c.Backends[0], c.Backends[1]
		if c.Zone != "eu-1a" || !near.PreferLocal || near.RampUp != 30*time.Second || plain.PreferLocal || plain.RampUp != 0 {
			t.Errorf("zone %q, backends %+v", c.Zone, c.Backends)
		}
	}
	if len(c.Warnings) > 0 {
		t.Errorf("warnings %v", c.Warnings)
	}
	c = mustParse(t, strings.Replace(text, "zone: eu-1a\n", "", 1))
	if len(c.Warnings) != 1 || c.Warnings[0].Error() != "weir.yaml:4:84: backends.app.prefer_local: the zones of the endpoints have no effect, because zone is not set at the top level" {
		t.Errorf("warnings %v", c.Warnings)
	}
}

func TestListenerHTTP2(t *testing.T) {
	f := func(protocol, text string, want config.ListenerHTTP2) {
		t.Helper()
		c := mustParse(t, "listeners: {web: {address: \":80\", protocol: "+protocol+text+"}}\ncertificates: [{self_signed: {hosts: [a.example]}}]\nroutes: [{listeners: [web], backend: app}]\nbackends: {app: {endpoints: [\"a:1\"], protocol: http}}\n")
		if got := c.Listeners[0].HTTP2; got != want {
			t.Errorf("%s%s: %+v, want %+v", protocol, text, got, want)
		}
		again, err := file.Parse("again", file.Effective(c), environment)
		if err != nil {
			t.Fatal(err)
		}
		if got := again.Listeners[0].HTTP2; got != want {
			t.Errorf("%s%s: %+v from the effective configuration, want %+v", protocol, text, got, want)
		}
	}
	f("tls", "", config.ListenerHTTP2{true, false, 100})
	f("tls", ", http2: true", config.ListenerHTTP2{true, false, 100})
	f("tls", ", http2: false", config.ListenerHTTP2{false, false, 100})
	f("tls", ", http2: {offer: false, max_streams: 1000}", config.ListenerHTTP2{false, false, 1000})
	f("tls", ", http2: {max_streams: 1}", config.ListenerHTTP2{true, false, 1})
	f("http", "", config.ListenerHTTP2{false, false, 100})
	f("http", ", http2: false", config.ListenerHTTP2{false, false, 100})
	f("http", ", http2: {prior_knowledge: true}", config.ListenerHTTP2{false, true, 100})
}

// A route without a policy has the policy of its host, for each host and listener
// separately.
func TestInheritance(t *testing.T) {
	f := func(routes string, want ...string) {
		t.Helper()
		var got []string
		for _, r := range mustParse(t, small+"routes:\n"+routes).Routes {
			hosts := strings.Join(r.Hosts, "+")
			got = append(got, strings.Join([]string{r.Name, strings.Join(r.Listeners, "+"), hosts, r.TLSPolicy, string(r.TLS)}, " "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s\ngot\n%s\nwant\n%s", routes, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	f("- {listeners: [secure], hosts: [a.example], tls_policy: old, backend: app}\n"+
		"- {listeners: [secure], hosts: [a.example], paths: [/x], backend: app}\n",
		"secure/a.example secure a.example old terminate",
		"secure/a.example/x secure a.example old terminate")
	// One route with two policies becomes two Routes of one name.
	f("- {listeners: [web, secure], hosts: [a.example, b.example, c.example], paths: [/x], backend: app, name: x}\n"+
		"- {listeners: [secure], hosts: [a.example, c.example], tls_policy: old, backend: app, name: y}\n",
		"x web a.example+b.example+c.example default terminate",
		"x secure a.example+c.example old terminate",
		"x secure b.example default terminate",
		"y secure a.example+c.example old terminate")
	// A wildcard and every host count as separate hosts.
	f("- {listeners: [secure], hosts: ['*.example'], tls_policy: old, backend: app}\n"+
		"- {listeners: [secure], hosts: [a.example], backend: app}\n"+
		"- {listeners: [secure], tls_policy: new, backend: app}\n",
		"secure/*.example secure *.example old terminate",
		"secure/a.example secure a.example default terminate",
		"secure/* secure  new terminate")
	f("- {listeners: [secure], hosts: [a.example], tls: passthrough, backend: raw}\n"+
		"- {listeners: [web], hosts: [a.example], backend: app}\n"+
		"- {listeners: [web, secure], first_bytes: ssh, backend: raw}\n",
		"secure/a.example secure a.example default passthrough",
		"web/a.example web a.example default terminate",
		"web/first_bytes=ssh web+secure  default terminate")
}

// Unusual but valid configurations.
func TestAccepted(t *testing.T) {
	f := func(text string) {
		t.Helper()
		mustParse(t, small+text)
	}
	f("admin: {address: off}\n")
	f("admin: {hosts: [weir.example], token: '0123456789abcdef'}\n")
	f("metrics: {address: ':8088'}\n")
	f("admin: {address: unix:/run/weir/admin.sock}\nhealth: {address: '[::1]:8086'}\n")
	f("node: 'a$$b'\nlimits: {head_size: '${SIZE:-32KiB}', head_fields: \"${PORT}\", pending: '${PORT}'}\n")
	f("routes:\n- {listeners: [secure], hosts: ['[::1]', 192.0.2.1], backend: app}\n")
	f("routes:\n- {listeners: [web], hosts: [a.example], paths: [/x, =/x, /x/, /a%2fb, //], backend: app}\n")
	f("proxy_protocol: {p: {header_timeout: 1s, rules: [{from: [10.0.0.0/8], header: require}, {from: [10.1.0.0/16, '::/0', 0.0.0.0/0], header: deny}]}}\n")
	f("access_log: {}\ndrain: {lame_duck: 0s}\n")
	f("log: &l {level: info}\nhealth: {address: ':8086', from: &nets [10.0.0.0/8]}\nroutes: [{listeners: &all [web, secure], backend: app}]\nproxy_protocol: {p: {rules: [{from: *nets, header: none}]}}\n")
	// One host requires client certificates, and others have plain HTTP.
	const auth = "  corp: {client_auth: {mode: require, ca: testdata/ca.pem}}\n"
	f(auth + "routes:\n- {listeners: [secure], hosts: [a.example], tls_policy: corp, backend: app}\n- {listeners: [web], hosts: [b.example], backend: app}\n")
	f(auth + "routes:\n- {listeners: [secure], hosts: ['*.example'], tls_policy: corp, backend: app}\n- {listeners: [web, secure], hosts: [b.example], backend: app}\n")
	f(auth + "routes:\n- {listeners: [secure], tls_policy: corp, backend: app}\n- {listeners: [web], first_bytes: ssh, backend: raw}\n")
}

func TestEnvironment(t *testing.T) {
	c := mustParse(t, small+"limits: {pending: '${PORT}', head_fields: \"${PORT}\"}\nnode: ${PORT}\n")
	if c.Limits.Pending != 9009 || c.Limits.HeadFields != 9009 || c.Node != "9009" {
		t.Errorf("limits %+v, node %q", c.Limits, c.Node)
	}
}

func TestHash(t *testing.T) {
	hash := func(text string) string { return mustParse(t, text).Hash }
	base := hash(small + "log: {level: info}\n")
	same := func(text string) {
		t.Helper()
		if got := hash(text); got != base {
			t.Errorf("hash %s, want %s, of\n%s", got, base, text)
		}
	}
	same(small)
	same("# a comment\n" + small + "\n\nlog: {format: auto}\n")
	same("log: {level: '${LEVEL:-info}'}\n" + small)
	if hash(small+"log: {level: warn}\n") == base {
		t.Error("another level has the same hash")
	}
	dir := t.TempDir()
	text := small + "access_log: {path: access.log}\n"
	c, err := file.Parse(filepath.Join(dir, "weir.yaml"), []byte(text), environment)
	if err != nil {
		t.Fatal(err)
	}
	if c.Hash != hash(text) {
		t.Error("the hash depends on the folder")
	}
	if want := filepath.Join(dir, "access.log"); c.AccessLog.Path != want {
		t.Errorf("access log is %s, want %s", c.AccessLog.Path, want)
	}
}

// reloads checks that the effective configuration loads again with the same effect.
func reloads(t *testing.T, c *config.Config) {
	t.Helper()
	text := file.Encode(config.PrintAll(c))
	again, err := file.Parse("effective.yaml", text, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatalf("the effective configuration does not load: %v\n%s", err, text)
	}
	if got := file.Encode(config.PrintAll(again)); string(got) != string(text) {
		t.Errorf("the effective configuration has another effect:\n%s\nwas\n%s", got, text)
	}
	if !reflect.DeepEqual(withoutPositions(c).Routes, withoutPositions(again).Routes) {
		t.Errorf("routes are\n%+v\nwere\n%+v", again.Routes, c.Routes)
	}
}

func withoutPositions(c *config.Config) config.Config {
	out := *c
	out.Routes = slices.Clone(c.Routes)
	for i, r := range out.Routes {
		own := *r
		own.Position = config.Position{}
		out.Routes[i] = &own
	}
	return out
}

func TestEffective(t *testing.T) {
	acceptance, err := os.ReadFile("testdata/acceptance.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		string(acceptance),
		`listeners: {web: {address: ":80", protocol: http}}
routes: [{listeners: [web], backend: a}, {listeners: [web], hosts: [b], backend: b}, {listeners: [web], hosts: [c], backend: c}]
backends:
  a: {protocol: grpc, endpoints: ["a:1"], tls: {}, health_check: {grpc: {}}}
  b: {protocol: https, endpoints: ["a:1"], http2: false, health_check: {grpc: {service: x.Y}}}
  c: {protocol: h2c, endpoints: ["a:1"]}
  d: {protocol: https, endpoints: ["a:1"], tls: {min_version: "1.0", max_version: "1.1", cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]}}
  e: {protocol: tcp, endpoints: ["a:1"], tls: {min_version: 1.0, sha1_signatures: true}}
  f: {protocol: https, endpoints: ["a:1"], tls: {min_version: "1.3"}}
`,
		small,
		small + "node: 'a$$b: #c'\nadmin: {address: off}\nroutes:\n- {listeners: [web, secure], hosts: [a.example, b.example], paths: [/x], backend: app, name: \"1.5\"}\n- {listeners: [secure], hosts: [b.example], tls_policy: old, backend: app, max_body: 1536KiB, max_lifetime: 90m, tunnel_idle: 1h0m1s}\n",
		small + "routes:\n- {listeners: [web], backend: app, request: {set: {B: '{client} {{', a: b}, add: {C: d}, remove: [E, F-*]}, response: {add: {Vary: a}}}\n- {listeners: [web], paths: [/x], max_body: 1KiB, respond: {status: 503, body: \"a\\nb {c\", type: text/html, headers: {A: '{uri}'}}}\n- {listeners: [web], paths: [/y], respond: {status: 204}}\n- {listeners: [web], paths: [/z], backend: app, rewrite: {prefix: /a/, host: 'b.example:80'}}\n- {listeners: [web], paths: [/p], backend: app, rewrite: {path: '/{host}{path}'}}\n- {listeners: [web], paths: [/q], redirect: {host: a.example, prefix: /x, scheme: http, status: 302}}\n- {listeners: [web, secure], paths: [/r], redirect: {to: 'https://a.example/b{uri}'}}\n- {listeners: [secure], paths: [/s], redirect: {path: /t, port: 444}}\n- {listeners: [web], paths: ['~/g/([^/]+)/(.*)'], backend: app, rewrite: {path: '/x/$2/$1'}, access_log: false, compress: true}\n- {listeners: [web], paths: [/c], backend: app, access_log: true, cors: {origins: ['https://App.test:443', 'https://**.app.test:8443'], methods: [GET, PUT], headers: [X-Token], expose: [X-Total], credentials: true, max_age: 10m}}\n- {listeners: [web], paths: [/d], backend: app, cors: {origins: ['*'], methods: ['*'], headers: ['*'], expose: ['*']}}\naccess_log: {sample: 0.25, format: ecs, fields: [default, path, \"request_header:X-A\"], omit: [host], filter: {kinds: [http], status: [404, \"500-599\"], min_duration: 1s, retries: true}, buffer: 1MiB, max_line: 4KiB}\n",
		small + "limits: {clients: {connections: 300, rate: 400/m, burst: 800, prefix: {ipv4: 24}, except: [192.0.2.0/24, '2001:db8::/32']}}\n",
		small + "limits: {clients: {rate: 1000000/h}}\n",
		small + "health: {address: unix:/h, from: ['::/0']}\nmetrics: {per_endpoint: false, buckets: [1ms, 1s], native_histograms: true}\ntraces: {otlp: {url: \"grpcs://a:4317\"}, sample: 1, service: edge}\naccess_log: {path: stderr, format: \"{time} {{ {status}\"}\n",
	} {
		reloads(t, mustParse(t, text))
	}
	if text := string(file.Effective(mustParse(t, small+"node: ${PORT}\n"))); !strings.Contains(text, "node: \"9009\"\n") {
		t.Errorf("the replaced node is not shown:\n%s", text)
	}
}

// TestUserIsNumber: a UID needs no quotes.
func TestUserIsNumber(t *testing.T) {
	for _, text := range []string{"1000", `"1000"`, "1000:1000"} {
		if c := mustParse(t, small+"  p: {}\nuser: "+text+"\n"); c.User != strings.Trim(text, `"`) {
			t.Errorf("user: %s is %q", text, c.User)
		} else {
			reloads(t, c)
		}
	}
}

func TestTrust(t *testing.T) {
	f := func(listener string, want ...config.Trust) {
		t.Helper()
		l := mustParse(t, strings.Replace(small, "protocol: http", "protocol: http"+listener, 1)).Listeners[0]
		for _, trust := range []config.Trust{config.TrustFor, config.TrustProto, config.TrustHost, config.TrustPort, config.TrustClientCert, config.TrustOther} {
			if got := l.Trusts(trust); got != slices.Contains(want, trust) {
				t.Errorf("%s: %s is trusted: %v", listener, trust, got)
			}
		}
		if l.HearsOfHTTPS() != slices.Contains(want, config.TrustProto) {
			t.Errorf("%s: it hears of https: %v", listener, l.HearsOfHTTPS())
		}
	}
	f("")
	f(", trust: [for, host]")
	f(", trust_forwarded: [10.0.0.0/8]", config.TrustFor, config.TrustProto)
	f(", trust_forwarded: [10.0.0.0/8], trust: [host, other]", config.TrustHost, config.TrustOther)
}

func TestNearest(t *testing.T) {
	f := func(s, want string, candidates ...string) {
		t.Helper()
		if got := config.Nearest(s, candidates); got != want {
			t.Errorf("nearest to %q is %q, want %q", s, got, want)
		}
	}
	f("adress", "address", "protocol", "address")
	f("lsiteners", "listeners", "listeners", "limits")
	f("wbe", "web", "web")
	f("app", "", "vault", "api-gateway")
	f("x", "", "a", "on", "ca") // for such a short key, every single letter would look similar
	f("c", "ca", "ca")
	f("cx", "ca", "ca")
	f("", "", "address")
	f("backend", "backends", "backends", "backs")
	f("roundrobin", "round_robin", "least_requests", "round_robin", "hash")
}

func TestKubernetes(t *testing.T) {
	f := func(section string, want config.Kubernetes) {
		t.Helper()
		c := mustParse(t, small+"  p: {}\nkubernetes: "+section+"\nproxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}}\n")
		c.Kubernetes.Position = config.Position{}
		want.HostOwnership = cmp.Or(want.HostOwnership, config.SharedHosts)
		if want.Metrics == (config.ObjectMetrics{}) {
			want.Metrics = config.DefaultObjectMetrics
		}
		if !reflect.DeepEqual(*c.Kubernetes, want) {
			t.Errorf("%s is\n%+v, want\n%+v", section, *c.Kubernetes, want)
		}
		reloads(t, c)
	}
	f("{}", config.Kubernetes{Controller: config.DefaultController, HTTPSRedirect: true, Listeners: []string{"web", "secure"}})
	f(`{class: nginx, controller: k8s.io/ingress-nginx, namespaces: [a, b], listeners: [secure], default_certificate: a/b.c, https_redirect: false}`,
		config.Kubernetes{Class: "nginx", Controller: "k8s.io/ingress-nginx", Namespaces: []string{"a", "b"}, Listeners: []string{"secure"}, DefaultCertificate: config.ObjectName{"a", "b.c"}})
	f(`{kubeconfig: testdata/ca.pem, namespace_labels: [a.example/b=c, d=], prefer_local: true, require_local: [a/b, c/d], tcp: {config_map: a/b, proxy_protocol: lb}, publish: {service: a/b}, lease: c/d}`,
		config.Kubernetes{Kubeconfig: "testdata/ca.pem", Controller: config.DefaultController, HTTPSRedirect: true, Listeners: []string{"web", "secure"},
			NamespaceLabels: []config.Label{{"a.example/b", "c"}, {"d", ""}}, PreferLocal: true, RequireLocal: []config.ObjectName{{"a", "b"}, {"c", "d"}},
			TCP: &config.KubernetesTCP{config.ObjectName{"a", "b"}, "lb"}, Publish: config.Publish{Balancer: config.ObjectName{"a", "b"}}, Lease: config.ObjectName{"c", "d"}})
	f(`{publish: {addresses: [203.0.113.7, "2001:db8::1", lb.example.org], keep: true}}`, config.Kubernetes{Controller: config.DefaultController, HTTPSRedirect: true,
		Listeners: []string{"web", "secure"}, Publish: config.Publish{Addresses: []string{"203.0.113.7", "2001:db8::1", "lb.example.org"}, Keep: true}})
	f(`{publish: none}`, config.Kubernetes{Controller: config.DefaultController, HTTPSRedirect: true, Listeners: []string{"web", "secure"}})
	f(`{host_ownership: namespace, operator_namespaces: [weir, "*"]}`, config.Kubernetes{Controller: config.DefaultController, HTTPSRedirect: true,
		Listeners: []string{"web", "secure"}, HostOwnership: config.OwnedByNamespace, OperatorNamespaces: []string{"weir", "*"}})
	f(`{host_ownership: listed, hosts: [{namespaces: [team-a], hosts: ["*.A.example.com"]}]}`, config.Kubernetes{Controller: config.DefaultController, HTTPSRedirect: true,
		Listeners: []string{"web", "secure"}, HostOwnership: config.OwnedByList, Hosts: []config.ListedHosts{{[]string{"team-a"}, []string{"*.a.example.com"}}}})
	f(`{operator_namespaces: []}`, config.Kubernetes{Controller: config.DefaultController, HTTPSRedirect: true, Listeners: []string{"web", "secure"}, OperatorNamespaces: []string{}})
}

// weir warns if the file does not set which namespaces may make a node unhealthy, and the
// health port depends on it.
func TestOperatorNamespaces(t *testing.T) {
	f := func(section, health string, warned bool, operators ...string) {
		t.Helper()
		c := mustParse(t, "listeners: {web: {address: ':80', protocol: http}}\nkubernetes: "+section+"\n"+health)
		if is := len(c.Warnings) == 1 && strings.Contains(c.Warnings[0].Message, "operator_namespaces"); is != warned || !warned && len(c.Warnings) > 0 {
			t.Errorf("of %s there are the warnings %v, want one: %v", section, c.Warnings, warned)
		}
		for _, namespace := range []string{"weir", "shop"} {
			if is := slices.Contains(operators, namespace); c.Kubernetes.IsOperator(namespace) != is {
				t.Errorf("with %s the namespace %s is an operator's: %v, want %v", section, namespace, !is, is)
			}
		}
	}
	const health = "health: {address: ':8086'}\n"
	f("{}", health, true, "weir", "shop")
	f("{}", "", false, "weir", "shop") // without a health port no node can be unhealthy
	f("{operator_namespaces: [weir]}", health, false, "weir")
	f("{operator_namespaces: []}", health, false)
	f("{operator_namespaces: ['*']}", health, false, "weir", "shop")
}

// A cluster may have certificates and routes for listeners, so the file need not have them.
func TestKubernetesServesListeners(t *testing.T) {
	c := mustParse(t, `listeners:
  web: {address: ":80", protocol: http}
  secure: {address: ":443", protocol: tls}
kubernetes: {require_local: [a/b], prefer_local: true}
`)
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].Message, "node is not set") {
		t.Errorf("warnings: %v", c.Warnings)
	}
}
