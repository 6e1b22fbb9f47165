package config_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

const oneRoute = "routes: [{listeners: [secure], hosts: [app.example.org], backend: app}]\n"

// certified returns the configuration small with other certificates.
func certified(certificates string) string {
	return strings.Replace(small, "certificates: [{self_signed: {hosts: [a.example, b.example, c.example]}}]\n", "certificates:\n"+certificates, 1)
}

func TestIssuerAllows(t *testing.T) {
	c := mustParse(t, certified(`- acme:
    directory: https://ca.internal/dir
    issuer: {name: public, allow: [{namespaces: [shop], hosts: ["*.shop.example", "**.deep.example", own.example]}, {namespaces: [ops]}, {namespaces: ["*"], hosts: [all.example]}]}
- self_signed: {hosts: [a.example]}
`)+"kubernetes: {kubeconfig: testdata/ca.pem, gateways: {addresses: {pool: [192.0.2.0/28]}}}\n")
	a := c.Certificates[0].ACME
	if len(a.Hosts) > 0 {
		t.Errorf("the entry of an issuer has the hosts %q", a.Hosts)
	}
	for _, x := range []struct {
		namespace, host string
		allowed         bool
	}{
		{"shop", "a.shop.example", true}, {"shop", "a.b.shop.example", false}, {"shop", "shop.example", false}, {"shop", "own.example", true},
		{"shop", "a.b.deep.example", true}, {"shop", "deep.example", false}, {"shop", "notdeep.example", false}, {"shop", "all.example", true},
		{"shop", "*.shop.example", false}, // it needs dns
		{"other", "a.shop.example", false}, {"other", "all.example", true}, {"ops", "any.example", true}, {"", "own.example", false},
	} {
		if err := a.Refuses(x.namespace, x.host); (err == nil) != x.allowed {
			t.Errorf("%s may order %s: %v, want %v (%v)", x.namespace, x.host, err == nil, x.allowed, err)
		}
	}
	a.DNS = &config.DNSChallenge{}
	if err := a.Refuses("shop", "*.shop.example"); err != nil {
		t.Error(err)
	}
	if err := a.Refuses("shop", "*.a.shop.example"); err == nil {
		t.Error("a wildcard covers the wildcard below it")
	}
}

func TestACMEDefaults(t *testing.T) {
	got := mustParse(t, certified("- acme: {}\n")+oneRoute).Certificates[0].ACME
	want := &config.ACME{
		Hosts: []string{"app.example.org"}, Directory: "https://acme-v02.api.letsencrypt.org/directory", KeyType: "p256",
		Challenges: []config.Challenge{config.ChallengeHTTP01, config.ChallengeTLSALPN01}, Storage: "/home/weir/.local/share/weir/acme",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

func TestACMEValues(t *testing.T) {
	c := mustParse(t, certified(`- acme:
    hosts: [App.example.org., "*.dev.example.org"]
    email: ops@example.org
    directory: https://ca.internal:14000/dir
    ca: testdata/ca.pem
    key_type: rsa4096
    external_account: {key_id: kid-1, mac_key: "aHVudGVyMg=="}
    dns:
      rfc2136: {server: "ns1.example.org:53", key_name: Weir.example.org., key_algorithm: hmac-sha512, key: "${TSIG:-aHVudGVyMg==}"}
      resolvers: ["192.0.2.53:53", "[2001:db8::53]:53"]
      propagation_delay: 30s
      propagation_timeout: off
    on_demand: {ask: "http://127.0.0.1:9100/allowed?a=b@c", hosts: ["*.customers.example.org"], timeout: 20s, concurrent: 8}
    storage: rediss://weir:${SECRET}@redis.example.org/2?prefix=edge
  ocsp: false
- acme: {hosts: [app.example.org], staging: true}
- acme: {hosts: [localhost, 192.0.2.1, a_b], directory: "http://[::1]:14000/dir", staging: false, challenges: [tls-alpn-01]}
`)+"storage: state\n")
	folder, err := filepath.Abs("state")
	if err != nil {
		t.Fatal(err)
	}
	got := c.Certificates[0].ACME
	if !c.Certificates[0].NoOCSP || c.Certificates[1].NoOCSP {
		t.Error("ocsp is off for the wrong entries")
	}
	if len(got.CAPool) == 0 {
		t.Error("the CA was not read")
	}
	got.CAPool = nil
	want := &config.ACME{
		Hosts: []string{"app.example.org", "*.dev.example.org"}, Email: "ops@example.org",
		Directory: "https://ca.internal:14000/dir", CAFile: "testdata/ca.pem", KeyType: "rsa4096",
		ExternalAccount: &config.ExternalAccount{"kid-1", "aHVudGVyMg"}, Challenges: []config.Challenge{config.ChallengeDNS01},
		DNS: &config.DNSChallenge{
			RFC2136:            config.RFC2136{"ns1.example.org:53", "weir.example.org", "hmac-sha512", "aHVudGVyMg=="},
			Resolvers:          []string{"192.0.2.53:53", "[2001:db8::53]:53"},
			PropagationDelay:   30 * time.Second,
			PropagationTimeout: -1,
		},
		OnDemand: &config.OnDemand{"http://127.0.0.1:9100/allowed?a=b@c", []string{"*.customers.example.org"}, 20 * time.Second, 8},
		Storage:  "rediss://weir:hunter2@redis.example.org/2?prefix=edge",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	if got := c.Certificates[1].ACME; got.Directory != config.LetsEncryptStaging || got.Storage != config.Secret(folder) || c.Storage != config.Secret(folder) {
		t.Errorf("directory %s, storages %q and %q, want %s", got.Directory, string(got.Storage), string(c.Storage), folder)
	}
	reloads(t, c)
}

// An entry without hosts gets the hosts of routes that open TLS and for which there is no
// other certificate.
func TestRouteHosts(t *testing.T) {
	f := func(certificates, routes string, want ...string) {
		t.Helper()
		c := mustParse(t, certified(certificates)+"routes:\n"+routes)
		for _, one := range c.Certificates {
			if one.ACME != nil {
				if !slices.Equal(one.ACME.Hosts, want) {
					t.Errorf("%s%s\ngot %q, want %q", certificates, routes, one.ACME.Hosts, want)
				}
				break
			}
		}
		reloads(t, c)
	}
	const routes = `- {listeners: [web, secure], hosts: [app.example.org, www.example.org], backend: app}
- {listeners: [secure], hosts: [app.example.org], paths: [/api], backend: app}
- {listeners: [secure], hosts: [raw.example.org], tls: passthrough, backend: raw}
- {listeners: [web], hosts: [plain.example.org], redirect: https}
- {listeners: [secure], hosts: [old.example.org], redirect: {port: 8443}}
- {listeners: [secure], backend: app}
`
	f("- acme: {}\n", routes, "app.example.org", "www.example.org", "old.example.org")
	f("- acme: {}\n- self_signed: {hosts: [www.example.org]}\n", routes, "app.example.org", "old.example.org")
	f("- acme: {}\n- self_signed: {hosts: ['*.example.org', x.example]}\n- acme: {hosts: [app.example]}\n",
		"- {listeners: [secure], hosts: [app.example.org, app.example, a.b.example.org], backend: app}\n", "a.b.example.org")
	f("- acme: {key_type: rsa2048}\n- acme: {hosts: [www.example.org]}\n", routes, "app.example.org", "old.example.org")
	// Wildcards with DNS-01, and single names on demand.
	const wild = "- {listeners: [secure], hosts: ['*.example.org', app.example.org], backend: app}\n"
	f("- acme: {dns: {rfc2136: {server: 'a:53', key_name: a, key: aGk=}}}\n", wild, "*.example.org", "app.example.org")
	f("- acme: {on_demand: {hosts: ['*.example.org']}}\n", wild, "app.example.org")
	f("- acme: {on_demand: {ask: 'http://127.0.0.1/'}}\n", "- {listeners: [secure], backend: app}\n")
}

func TestACMEAccepted(t *testing.T) {
	f := func(certificates, rest string) {
		t.Helper()
		reloads(t, mustParse(t, certified(certificates)+rest))
	}
	f("- acme: {hosts: [a.example.org]}\n- acme: {hosts: [a.example.org], key_type: rsa2048}\n", "")
	f("- acme: {hosts: [a.example.org], challenges: [http-01], storage: 'redis://127.0.0.1:6379'}\n", "")
	f("- acme: {hosts: [a.example.org], storage: 'redis://:hunter2@[::1]:6379/?prefix=a:b'}\n", "")
	f("- acme: {hosts: ['*.corp'], directory: 'https://ca.corp/', dns: {rfc2136: {server: '[::1]:53', key_name: a, key: aGk=}, propagation_timeout: 1s}}\n", "")
}

func TestStorageDefaults(t *testing.T) {
	f := func(want string, env ...string) {
		t.Helper()
		all := map[string]string{}
		for i := 0; i < len(env); i += 2 {
			all[env[i]] = env[i+1]
		}
		c, err := file.Parse("/etc/weir.yaml", []byte(certified("- acme: {hosts: [a.example.org]}\n")), func(name string) (string, bool) {
			value, ok := all[name]
			return value, ok
		})
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "certificates[0].acme: there is no place to keep keys and certificates: ") {
				t.Errorf("with %q: %v", env, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := string(c.Certificates[0].ACME.Storage); got != want || c.Storage != "" {
			t.Errorf("with %q: %q, want %q; the top level has %q", env, got, want, string(c.Storage))
		}
	}
	f("/home/a/.local/share/weir/acme", "HOME", "/home/a")
	f("/data/weir/acme", "HOME", "/home/a", "XDG_DATA_HOME", "/data")
	f("/var/lib/weir", "HOME", "/home/a", "XDG_DATA_HOME", "/data", "STATE_DIRECTORY", "/var/lib/weir:/var/lib/other")
	f("/home/a/.local/share/weir/acme", "HOME", "/home/a", "XDG_DATA_HOME", "relative", "STATE_DIRECTORY", "")
	f("")
	f("", "HOME", "")
}

// Secrets count in the hash, but no output shows them.
func TestSecrets(t *testing.T) {
	text := certified(`- acme:
    hosts: [a.example.org]
    external_account: {key_id: kid-1, mac_key: aHVudGVyMg}
    dns: {rfc2136: {server: "192.0.2.53:53", key_name: weir, key: aHVudGVyMg==}}
    storage: redis://weir:hunter2@127.0.0.1/0
`) + "storage: rediss://:hunter2@redis.example.org\n"
	c := mustParse(t, text)
	shown := string(file.Effective(c))
	a := c.Certificates[0].ACME
	for _, s := range []string{shown, fmt.Sprintf("%+v %#v", c, c), fmt.Sprintf("%+v %#v %v %q %s", a, a, *a.ExternalAccount, a.Storage, a.DNS.RFC2136.Key), marshal(t, c)} {
		if strings.Contains(s, "hunter2") || strings.Contains(s, "aHVudGVyMg") {
			t.Errorf("a secret is shown:\n%s", s)
		}
	}
	for _, want := range []string{
		"# (hidden) replaces secrets; put the secrets back before you load this file.\n", "mac_key: (hidden)\n", "key: (hidden)\n",
		"storage: redis://weir:(hidden)@127.0.0.1/0\n", "storage: rediss://:(hidden)@redis.example.org\n",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not in\n%s", want, shown)
		}
	}
	if strings.Contains(string(file.Effective(mustParse(t, small+"storage: state\n"))), "hidden") {
		t.Error("something is hidden where there is no secret")
	}
	// The output itself explains why it does not load, once for each secret.
	_, err := file.Parse("effective.yaml", file.Effective(c), environment)
	errs, _ := err.(config.Errors)
	if len(errs) != 4 || strings.Count(err.Error(), "(hidden)") != 4 {
		t.Errorf("loading it says %v", err)
	}
	for _, change := range [][2]string{
		{"mac_key: aHVudGVyMg", "mac_key: aHVudGVyMw"}, {"key: aHVudGVyMg==", "key: aHVudGVyMw=="}, {"weir:hunter2@127", "weir:hunter3@127"}, {"rediss://:hunter2", "rediss://:hunter3"},
	} {
		if other := mustParse(t, strings.Replace(text, change[0], change[1], 1)); other.Hash != c.Hash {
			t.Errorf("the hash tells of a secret: it is another one with %s", change[1])
		}
	}
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The hash depends neither on the machine's default storage, nor on the folder.
func TestHashOfStorages(t *testing.T) {
	text := []byte(certified("- acme: {}\n") + oneRoute + "storage: state\n")
	other := strings.Replace(string(text), "storage: state\n", "", 1)
	hash := func(name string, text []byte, home string) string {
		c, err := file.Parse(name, text, func(string) (string, bool) { return home, true })
		if err != nil {
			t.Fatal(err)
		}
		return c.Hash
	}
	if hash("/a/weir.yaml", text, "/home/a") != hash("/b/weir.yaml", text, "/home/b") {
		t.Error("the hash depends on the folder")
	}
	if hash("/a/weir.yaml", []byte(other), "/home/a") != hash("/a/weir.yaml", []byte(other), "/home/b") {
		t.Error("the hash depends on the user's folder")
	}
}

func TestRedirectsAndHSTS(t *testing.T) {
	c := mustParse(t, small+`  corp: {client_auth: {mode: require, ca: testdata/ca.pem}}
routes:
- {listeners: [web], redirect: https}
- {listeners: [secure], hosts: [a.example], redirect: {port: 8443, status: 302}, hsts: 0s}
- {listeners: [web, secure], hosts: [b.example], backend: app, hsts: {max_age: 8760h, include_subdomains: true, preload: true}}
- {listeners: [secure], hosts: [c.example], tls_policy: corp, backend: app, hsts: 24h}
- {listeners: [web], hosts: [c.example], paths: [/x], redirect: {status: 301}}
`)
	var got []string
	for _, r := range c.Routes {
		s := r.Name + " " + r.Backend
		if d := r.Redirect; d != nil {
			s += fmt.Sprintf(" {Port:%d Status:%d}", d.Port, d.Status)
			if d.Scheme != "" || d.Moves() {
				t.Errorf("%s moves: %+v", r.Name, d)
			}
		}
		if r.HSTS != nil {
			s += fmt.Sprintf(" %+v", *r.HSTS)
		}
		got = append(got, s)
	}
	want := []string{
		"web/*  {Port:443 Status:308}",
		"secure/a.example  {Port:8443 Status:302} {MaxAge:0s IncludeSubdomains:false Preload:false}",
		"b.example app {MaxAge:8760h0m0s IncludeSubdomains:true Preload:true}",
		"secure/c.example app {MaxAge:24h0m0s IncludeSubdomains:false Preload:false}",
		"web/c.example/x  {Port:443 Status:301}",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	reloads(t, c)
}

func TestClientCertFields(t *testing.T) {
	f := func(auth string, want ...config.ClientCertField) {
		t.Helper()
		c := mustParse(t, small+"  corp: {client_auth: {mode: request, ca: testdata/ca.pem"+auth+"}}\n")
		if got := c.TLSPolicies[2].ClientAuthForward; !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", auth, got, want)
		}
		reloads(t, c)
	}
	f("", "subject", "san", "fingerprint", "certificate")
	f(", forward: []")
	f(", forward: [chain, certificate]", "chain", "certificate")
	c := mustParse(t, small)
	if c.TLSPolicies[0].ClientAuthForward != nil {
		t.Error("a policy without client_auth passes client certificates on")
	}
	if c := mustParse(t, small+"  sha: {min_version: '1.0', max_version: '1.2', cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA], sha1_signatures: true}\n"); !c.TLSPolicies[2].SHA1 {
		t.Error("sha1_signatures has no effect")
	}
}

// Secrets are in the cluster of the section kubernetes, or in another cluster.
func TestStorageInSecrets(t *testing.T) {
	f := func(storage, section, want string) {
		t.Helper()
		c := mustParse(t, small+"  p: {}\nstorage: \""+storage+"\"\n"+section)
		if c.Storage != config.Secret(want) {
			t.Errorf("%s with %q is %s, want %s", storage, section, string(c.Storage), want)
		}
	}
	const section, there = "kubernetes: {kubeconfig: testdata/ca.pem}\n", "kubeconfig=testdata%2Fca.pem"
	f("secrets://weir", "", "secrets://weir")
	f("secrets://weir?prefix=edge", "", "secrets://weir?prefix=edge")
	f("secrets://weir", "kubernetes: {}\n", "secrets://weir")
	f("secrets://weir", section, "secrets://weir?"+there)
	f("secrets://weir?kubeconfig=testdata/ca.pem", "", "secrets://weir?"+there)
	f("secrets://weir?kubeconfig=/k&prefix=edge", section, "secrets://weir?kubeconfig=%2Fk&prefix=edge")
}

// The query of a URL that weir requests may contain a secret, which readers of metrics
// could guess.
func TestHashWithoutQueries(t *testing.T) {
	text := certified("- acme: {email: a@example.org, on_demand: {ask: 'https://a.example/allowed?key=hunter2'}}\n") + oneRoute
	c, other := mustParse(t, text), mustParse(t, strings.Replace(text, "hunter2", "hunter3", 1))
	if c.Hash != other.Hash {
		t.Error("the query of ask is part of the hash")
	}
	if elsewhere := mustParse(t, strings.Replace(text, "a.example/allowed", "b.example/allowed", 1)); elsewhere.Hash == c.Hash {
		t.Error("another ask has the same hash")
	}
}
