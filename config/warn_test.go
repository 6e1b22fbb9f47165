package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// TestWarningOfRequireLocal: without health checks a backend never makes the node
// unhealthy.
func TestWarningOfRequireLocal(t *testing.T) {
	f := func(check string, want ...string) {
		t.Helper()
		c := mustParse(t, `listeners: {web: {address: ":80", protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ["127.0.0.1:9001"]`+check+`}}
health: {address: ":8086", require_local: [app]}
`)
		var got []string
		for _, w := range c.Warnings {
			got = append(got, w.Error())
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f("", `weir.yaml:4:44: health.require_local[0]: backend "app" has no health_check, so its endpoints count as ready even if they fail, and the health port keeps answering 200; give the backend a health_check`)
	f(", health_check: {tcp: {}}")
}

// A backend without an endpoint on this node makes the node permanently unhealthy.
func TestWarningOfRequireLocalElsewhere(t *testing.T) {
	f := func(node, endpoints string, warned bool) {
		t.Helper()
		c := mustParse(t, node+`listeners: {web: {address: ":80", protocol: http}}
routes: [{listeners: [web], backend: app}]
health: {address: ":8086", require_local: [app]}
backends: {app: {health_check: {tcp: {}}, endpoints: `+endpoints+`}}
`)
		if is := len(c.Warnings) == 1 && strings.Contains(c.Warnings[0].Message, "no endpoint of backend \"app\" is on this node (node: \"a\")"); is != warned || !warned && len(c.Warnings) > 0 {
			t.Errorf("%s%s: the warnings are %v, want one: %v", node, endpoints, c.Warnings, warned)
		}
	}
	f("node: a\n", `["127.0.0.1:1"]`, true) // the file names the node, so addresses do not count
	f("node: a\n", `[{address: "192.0.2.1:1", node: b}]`, true)
	f("node: a\n", `["192.0.2.2:1", {address: "192.0.2.1:1", node: a}]`, false)
	f("", `["192.0.2.2:1"]`, false) // another machine may have this address
}

func TestWarningOfNodeTaints(t *testing.T) {
	f := func(more string, warned bool) {
		t.Helper()
		c := mustParse(t, more+`listeners: {web: {address: ":80", protocol: http}}
health: {address: ":8086", node_taints: [example.com/drain, "example.com/drain=now:NoExecute"]}
`)
		is := slices.ContainsFunc(c.Warnings, func(w config.Error) bool { return strings.Contains(w.Error(), "so node_taints has no effect") })
		if is != warned {
			t.Errorf("%q: the warnings are %v, want one: %v", more, c.Warnings, warned)
		}
	}
	f("", true)
	f("node: a\n", true)
	f("kubernetes: {}\n", true)
	f("node: a\nkubernetes: {}\n", false)
}

// A guard that no route names guards nothing.
func TestWarningsOfUnusedGuards(t *testing.T) {
	c := mustParse(t, `listeners: {web: {address: ":80", protocol: http}}
auth:
  own: {forward: {url: "http://127.0.0.1:1/"}}
  used: {forward: {url: "http://127.0.0.1:1/"}}
rate_limits:
  few: {rate: 1/s}
  many: {rate: 9/s}
routes: [{listeners: [web], auth: used, rate_limit: many, respond: {status: 204}}]
`)
	want := []string{
		`weir.yaml:3:3: auth.own: no route names this, so it guards nothing; write "auth: own" in the routes that it is for, or take it out`,
		`weir.yaml:6:3: rate_limits.few: no route names this, so it guards nothing; write "rate_limit: few" in the routes that it is for, or take it out`,
	}
	if len(c.Warnings) != len(want) || c.Warnings[0].Error() != want[0] || c.Warnings[1].Error() != want[1] {
		t.Errorf("got\n%v\nwant\n%v", c.Warnings, want)
	}
}

func TestWarnings(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		var got []string
		for _, w := range mustParse(t, text).Warnings {
			got = append(got, w.Error())
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	f(`listeners:
  web: {address: ":80", protocol: http}
  idle: {address: ":81", protocol: http}
  secure: {address: ":443", protocol: tls}
  raw: {address: ":22", protocol: tcp, proxy_protocol: p}
proxy_protocol:
  p: {rules: [{from: [10.0.0.0/8], header: optional}]}
  q: {rules: [{from: [10.0.0.0/8], header: optional}]}
certificates: [{self_signed: {hosts: [a.example, "*.b.example"]}}]
tls_policies: {unused: {}, default: {}}
routes:
  - {listeners: [web], paths: [/api/*], backend: app, errors: [{status: [500], backend: pages, path: /x}], mirror: [{backend: copies}]}
  - {listeners: [secure], hosts: [a.example, b.example, x.b.example, "*.b.example", "*.example"], backend: app}
  - {listeners: [raw], backend: raw}
backends:
  app: {endpoints: ["a:1"], protocol: https, tls: {insecure_skip_verify: true}}
  raw: {endpoints: ["a:1"], protocol: tcp, queue: {size: 5}}
  spare: {endpoints: ["a:1"]}
  pages: {endpoints: ["a:1"]}
  copies: {endpoints: ["a:1"], sticky: {}}
admin: {address: ":8087", token: 0123456789abcdef}
`,
		`weir.yaml:3:3: listeners.idle: no route names this listener, so it answers everything with 404`,
		`weir.yaml:7:44: proxy_protocol.p.rules[0].header: on the tcp listener "raw", clients without a PROXY header must send the first bytes; a server that sends first, such as SSH, gets no connection before that`,
		`weir.yaml:8:3: proxy_protocol.q: nothing uses this policy`,
		`weir.yaml:10:16: tls_policies.unused: nothing uses this policy`,
		`weir.yaml:12:32: routes[0].paths[0]: the star is an ordinary character here; a prefix matches everything below it without a star`,
		`weir.yaml:13:46: routes[1].hosts[1]: no certificate names this host, so its clients get the first certificate`,
		`weir.yaml:13:85: routes[1].hosts[4]: no certificate names this host, so its clients get the first certificate`,
		`weir.yaml:16:74: backends.app.tls.insecure_skip_verify: an attacker who impersonates the endpoint can read and change everything`,
		`weir.yaml:17:51: backends.raw.queue: the queue is never used, because max_connections is not set`,
		`weir.yaml:18:3: backends.spare: nothing uses this backend`,
		`weir.yaml:20:40: backends.copies.sticky: there is no key, so a restart of weir moves all clients, and replicas do not know the cookies of each other; set key, or storage at the top level`,
		`weir.yaml:21:18: admin.address: the token goes over the network unencrypted, and a machine that reads it can drain this node; set admin.tls, or keep the admin port on loopback`,
	)
}

// Gateways name policies of the file, and the file does not know the Gateways. On listeners of the file, only TLS
// policies can be chosen.
func TestNoWarningAboutPoliciesForGateways(t *testing.T) {
	for _, test := range []struct{ addresses, want string }{
		{"pool: [192.0.2.0/28]", ""},
		{"service: {replicas: weir/weir}", ""},
		{"shared: [web]", "weir.yaml:2:18: proxy_protocol.lb: nothing uses this policy"},
	} {
		c := mustParse(t, `listeners: {web: {address: ":80", protocol: http}}
proxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}}
tls_policies: {modern: {min_version: "1.3"}}
kubernetes: {publish: {addresses: [192.0.2.1]}, gateways: {addresses: {`+test.addresses+`}}}
`)
		var got []string
		for _, w := range c.Warnings {
			got = append(got, w.Error())
		}
		if strings.Join(got, "\n") != test.want {
			t.Errorf("with %s the warnings are %q, want %q", test.addresses, got, test.want)
		}
	}
}

func TestWarningsOfRewrites(t *testing.T) {
	f := func(route string, want bool) {
		t.Helper()
		c := mustParse(t, `listeners: {web: {address: ":80", protocol: http}, other: {address: ":81", protocol: http}}
rate_limits: {some: {rate: 1/s}}
routes:
  - {name: guarded, listeners: [web], hosts: [a.test], paths: [/admin, =/only], rate_limit: some, backend: app}
  - {name: conditional, listeners: [web], hosts: [a.test], paths: [/cart], match: {methods: [POST]}, rate_limit: some, backend: app}
  - {name: open, listeners: [web, other], hosts: [a.test], paths: [/admin/open], backend: app}
  - {listeners: [web], hosts: [a.test], paths: [/x], `+route+`}
backends: {app: {endpoints: ["127.0.0.1:9001"]}, new: {endpoints: ["127.0.0.1:9002"]}}
`)
		if got := len(c.Warnings) > 0 && strings.Contains(c.Warnings.Error(), `route "guarded" restricts this path`); got != want {
			t.Errorf("%s: the warnings are %v", route, c.Warnings)
		}
	}
	f("rewrite: {prefix: /admin}, backend: app", true)
	f("rewrite: {prefix: /admin/x/y/}, backend: app", true)
	f("rewrite: {path: /only}, backend: app", true)
	f("rewrite: {path: /admin/x}, backends: [{name: new}, {name: app}]", true)
	f("rewrite: {path: /admin/x}, mirror: [{backend: app}], backend: new", true)
	f("rewrite: {path: /admin/x}, backend: new", false)
	f("rewrite: {path: /admin/x}, rate_limit: some, backend: app", false)
	f("rewrite: {path: '/admin/{host}'}, backend: app", false)
	f("rewrite: {prefix: /admin/open/x}, backend: app", false)
	f("rewrite: {prefix: /administrator}, backend: app", false)
	f("rewrite: {prefix: /cart}, backend: app", false)
	f("rewrite: {prefix: /}, backend: app", false)
	f("rewrite: {host: b.test}, backend: app", false)
}

func TestWarningsOfTrust(t *testing.T) {
	f := func(listener string, want ...string) {
		t.Helper()
		c := mustParse(t, strings.Replace(`listeners: {web: {address: ":80", protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ["127.0.0.1:9001"]}}
`, "protocol: http", "protocol: http"+listener, 1))
		var got []string
		for _, w := range c.Warnings {
			got = append(got, w.Error())
		}
		ok := len(got) == len(want)
		for i := range got {
			ok = ok && strings.Contains(got[i], want[i])
		}
		if !ok {
			t.Errorf("%s: got\n%s\nwant\n%s", listener, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		reloads(t, c)
	}
	f("")
	f(", trust_forwarded: [10.0.0.0/8], trust: [for, proto]")
	f(", trust_forwarded: [10.0.0.0/8], trust: [client_cert], drop_headers: [X-User, Proxy, True-Client-IP], keep_headers: [x-original-url]")
	// This file was written for a version without the key trust.
	f(", trust_forwarded: [10.0.0.0/8]", `trust_forwarded: weir keeps only X-Forwarded-For and X-Forwarded-Proto of these senders`)
	f(", trust: [for]", "trust: it has no effect, because trust_forwarded is not set")
	f(`, trust_forwarded: [10.0.0.0/8, "::/0"], trust: [for]`, "trust_forwarded[1]: weir trusts every client")
}

// TestWarningOfDiscard: weir discards the PROXY headers of a sender. So all clients
// behind it share one limit, which the file does not set.
func TestWarningOfDiscard(t *testing.T) {
	f := func(limits, header string, want string) {
		t.Helper()
		c := mustParse(t, `listeners: {web: {address: ":80", protocol: http, proxy_protocol: p}}
proxy_protocol: {p: {rules: [{from: [10.0.0.0/8], header: `+header+`}]}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ["127.0.0.1:9001"]}}
`+limits)
		got := ""
		if len(c.Warnings) > 0 {
			got = c.Warnings.Error()
		}
		if got == "" != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s, %s: %q, want %q", header, limits, got, want)
		}
	}
	f("", "discard", "proxy_protocol.p.rules[0].header: all clients behind such a sender count as one client network now")
	f("limits: {pending: 100}", "discard", "at most 1024 of their connections may be pending")
	f("limits: {pending_per_source: 1024}", "discard", "")
	f("", "require", "")
}

// TestWarningOfSilence: a rule with header: optional closes clients that wait for the banner.
func TestWarningOfSilence(t *testing.T) {
	f := func(header, silence, want string) {
		t.Helper()
		c := mustParse(t, `listeners: {web: {address: ":80", protocol: http, proxy_protocol: p}}
proxy_protocol: {p: {rules: [{from: [10.0.0.0/8], header: require}, {from: [10.1.0.0/16], header: `+header+`}]}}
routes: [{listeners: [web], backend: app}, {listeners: [web], first_bytes: ssh, backend: ssh`+silence+`}]
backends: {app: {endpoints: ["127.0.0.1:9001"]}, ssh: {protocol: tcp, endpoints: ["127.0.0.1:22"]}}
`)
		got := ""
		if len(c.Warnings) > 0 {
			got = c.Warnings.Error()
		}
		if got == "" != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s%s: %q, want %q", header, silence, got, want)
		}
	}
	f("optional", ", silent_after: 2s", `routes[1].silent_after: where proxy_protocol.p has "header: optional", a client without a PROXY header must send first`)
	f("optional", "", "")
	f("none", ", silent_after: 2s", "")
}

func TestWarningsOfCertificates(t *testing.T) {
	f := func(listeners, rest string, want ...string) {
		t.Helper()
		var got []string
		text := "listeners: " + listeners + "\nbackends: {app: {endpoints: ['a:1']}, raw: {endpoints: ['a:1'], protocol: tcp}}\n" + rest
		for _, w := range mustParse(t, text).Warnings {
			if !strings.Contains(w.Message, "nothing uses this backend") && !strings.Contains(w.Message, "no route names this listener") {
				got = append(got, w.Error())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s\ngot\n%s\nwant\n%s", text, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	const (
		web    = "{w: {address: ':80', protocol: http}}"
		secure = "{s: {address: ':443', protocol: tls}}"
		both   = "{w: {address: ':80', protocol: http}, s: {address: ':443', protocol: tls}}"
		raw    = "{r: {address: ':22', protocol: tcp}}\nroutes: [{listeners: [r], backend: raw}]"
		hosts  = "certificates: [{acme: {hosts: [a.example.org], "
	)
	f(both, hosts+"}}]\n")
	f(secure, hosts+"}}]\n")
	f(web, hosts+"}}]\n")
	f(both, hosts+"challenges: [http-01]}}]\n")
	f(raw, hosts+"dns: {rfc2136: {server: 'a:53', key_name: a, key: aGk=}}}}]\n")
	f(secure, hosts+"challenges: [http-01]}}]\n",
		"weir.yaml:3:60: certificates[0].acme.challenges: the authority sends http-01 to port 80, and no listener has protocol http, so only another weir with the same storage could answer it")
	f(web, hosts+"challenges: [tls-alpn-01]}}]\n",
		"weir.yaml:3:60: certificates[0].acme.challenges: no listener has the protocol (http or tls) that the challenges need, so only another weir with the same storage could answer them")
	f(raw, hosts+"}}]\n",
		"weir.yaml:4:23: certificates[0].acme: no listener has the protocol (http or tls) that the challenges need, so only another weir with the same storage could answer them")
	f(both, hosts+"}}]\nroutes: [{listeners: [s], hosts: ['*.example.org'], tls: passthrough, backend: raw}]\n",
		`weir.yaml:3:32: certificates[0].acme.hosts[0]: the route on line 4 passes this host's TLS through on listener "s", so weir does not answer tls-alpn-01 for it there; use http-01 or dns-01`)
	f(both, hosts+"challenges: [http-01]}}]\nroutes: [{listeners: [s], hosts: ['*.example.org'], tls: passthrough, backend: raw}]\n")
	// Names with on-demand certificates count as certified.
	f(both, "certificates: [{acme: {on_demand: {hosts: ['*.example.org']}, directory: 'https://ca/'}}]\nroutes: [{listeners: [s], hosts: ['*.example.org'], backend: app}]\n")
	f(both, "certificates: [{acme: {on_demand: {ask: 'http://[::1]/'}}}]\nroutes: [{listeners: [s], hosts: ['*.example.org'], backend: app}]\n")
	f(both, "certificates: [{acme: {hosts: [a.example.org], on_demand: {hosts: ['*.example.org']}}}]\nroutes: [{listeners: [s], hosts: [b.example], backend: app}]\n",
		"weir.yaml:4:35: routes[0].hosts[0]: no certificate names this host, so its clients get the first certificate")

	const storage = "private keys go to this storage over the network unencrypted; use rediss:// unless the network is yours alone"
	f(both, hosts+"storage: 'redis://:hunter2@redis.example.org'}}]\n", "weir.yaml:3:57: certificates[0].acme.storage: "+storage)
	f(both, "storage: redis://redis.example.org\n"+hosts+"}}]\n", "weir.yaml:3:10: storage: "+storage)
	f(both, "storage: redis://localhost:6379\n"+hosts+"storage: 'rediss://redis.example.org'}}]\n")
	f(both, hosts+"}}]\ntls_policies: {default: {sha1_signatures: true}}\n",
		"weir.yaml:4:43: tls_policies.default.sha1_signatures: this policy applies to all hosts without another, so weir uses SHA-1 signatures with every client that offers nothing better; give the hosts that need SHA-1 a policy of their own")
}

// Guards for some methods alone: other methods get another route to the same backend.
func TestWarningsOfMethods(t *testing.T) {
	const staff = "match: {methods: [GET]}, clients: {allow: [192.0.2.0/24]}, backend: app}"
	f := func(warned bool, routes ...string) {
		t.Helper()
		text := "listeners: {web: {address: ':80', protocol: http}}\nbackends: {app: {endpoints: ['a:1']}, other: {endpoints: ['b:1']}}\nroutes:\n"
		for i, r := range routes {
			text += "- {name: r" + string(rune('0'+i)) + ", listeners: [web], " + r + "\n"
		}
		text += "- {name: unrelated, listeners: [web], hosts: [x.test], backend: other}\n"
		const want = `routes[0].match.methods: requests with other methods than GET get route "r1", which leads to the same backend without clients of this route; list all methods here, or give that route methods too`
		got := mustParse(t, text).Warnings
		if len(got) > 1 || warned != (len(got) == 1) || warned && got[0].Message != want {
			t.Errorf("%s\n%q, want a warning: %t", text, got, warned)
		}
	}
	f(true, "paths: [/admin], "+staff, "paths: [/], backend: app}")
	f(true, "paths: [/admin], "+staff, "backend: app}")
	f(true, staff, "backend: app}")
	f(true, "paths: [/admin/a], "+staff, "paths: [/admin], backend: app}", "paths: [/], clients: {allow: [192.0.2.0/24]}, backend: app}")
	f(true, "paths: ['~/admin/[0-9]+'], "+staff, "backend: app}")
	f(true, "hosts: [a.test], paths: [/admin], "+staff, "hosts: [a.test, b.test], backend: app}")
	f(false, "paths: [/admin], "+staff)
	f(false, "paths: [/admin], "+staff, "paths: [/other], backend: app}")
	f(false, "paths: [/admin], "+staff, "paths: [/admin], clients: {allow: [192.0.2.0/24]}, backend: app}", "paths: [/], backend: app}")
	f(false, "paths: [/admin], "+staff, "paths: [/], match: {methods: [GET, POST]}, backend: app}") // listed
	f(false, "paths: [/admin], "+staff, "paths: [/], backend: other}")
	f(false, "paths: [/admin], "+staff, "paths: [/], respond: {status: 403}}")
	f(false, "hosts: [a.test], paths: [/admin], "+staff, "hosts: [b.test], backend: app}")
	f(false, "paths: [/admin], match: {methods: [GET]}, max_body: 1KiB, backend: app}", "paths: [/], backend: app}")
}
