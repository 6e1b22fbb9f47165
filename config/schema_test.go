package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

// compiled returns the schema for validation.
var compiled = sync.OnceValue(func() *jsonschema.Schema {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(config.Schema()))
	if err != nil {
		panic(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("weir.schema.json", doc); err != nil {
		panic(err)
	}
	return c.MustCompile("weir.schema.json")
})

// jsonValue converts YAML as an editor does (YAML 1.2, core schema).
func jsonValue(n *yaml.Node, depth int) (any, error) {
	if depth > 100 {
		return nil, fmt.Errorf("line %d: too deep, or an alias in itself", n.Line)
	}
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.MappingNode:
		all := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("line %d: a key that is not text", n.Line)
			}
			v, err := jsonValue(n.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			all[n.Content[i].Value] = v
		}
		return all, nil
	case yaml.SequenceNode:
		all := []any{}
		for _, e := range n.Content {
			v, err := jsonValue(e, depth+1)
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
		return all, nil
	}
	switch n.Tag {
	case "!!null", "!!bool", "!!int", "!!float":
		var v any
		err := n.Decode(&v)
		return v, err
	}
	return n.Value, nil
}

// accepts reports a valid configuration that the schema refuses: an editor would show an
// error where there is none.
func accepts(t testing.TB, text []byte) {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	v, err := jsonValue(doc.Content[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled().Validate(v); err != nil {
		t.Errorf("the schema refuses a valid configuration: %v\nin\n%s", err, text)
	}
}

// The schema accepts all configurations of the project, and both forms of the effective
// configuration.
func TestSchemaAcceptsEverythingThatLoads(t *testing.T) {
	n := 0
	f := func(name string, text []byte) {
		t.Helper()
		c, err := file.Parse(name, text, func(name string) (string, bool) {
			value, ok := map[string]string{"NODE_NAME": "a"}[name]
			return value, ok
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		accepts(t, text)
		accepts(t, file.Effective(c))
		accepts(t, file.Encode(config.PrintAll(c)))
		n++
	}
	for _, pattern := range []string{"../examples/*.yaml", "../deploy/debian/*.yaml", "../deploy/kustomize/*/weir.yaml", "../deploy/kustomize/components/*/weir.yaml", "testdata/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: found %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			f(file, data)
		}
	}
	if n < 14 {
		t.Errorf("only %d configurations were found", n)
	}
}

// beyond has the reasons why a schema cannot express some entries of rejected.txt. The keys
// are the names of the entries. Two entries may have the same name.
var beyond = map[string][]string{
	"it is not JSON: the editor itself reports it": {
		"empty file", "only comments", "not YAML", "a list that is not closed", "a list that is not closed before the next key", "a mapping in a list that is not closed",
		"a mapping that is not closed before the end", "a quote that is not closed, and no bracket", "tab indent", "unclosed quote", "unknown anchor", "alias in itself",
		"key that is a list", "tabs that indent, where the parser says something else", "a port that YAML does not read", "an IPv6 address that YAML does not read",
		"a wildcard that YAML does not read", "a variable that YAML does not read", "indentation",
	},
	"JSON has neither repeated keys nor several documents":                     {"two documents", "key twice", "name twice"},
	"JSON has no dates and no tags, so these are texts":                        {"text is a date", "custom tag"},
	"JSON has one number for 1, which weir refuses, and 1.0, which it accepts": {"a TLS version without its dot"},
	"the name of a header, in any case, decides about its value":               {"a Location that clients choose"},
	"the values come from the environment": {
		"environment: unset", "environment: value is never printed", "an admin port off loopback whose token is missing in the environment", "storage of another kind",
	},
	"a pattern cannot compute: bits outside a mask, bounds of durations with several units, one duration or port above another": {
		"an error behind an alias is one for each use", "header_timeout under a second", "drain", "health_check: timeout over interval", "a large range of ports for Gateways",
	},
	"a schema cannot look up a name, or compare values, in another section": {
		"address: taken", "address: every address and one", "address: socket taken", "address: taken by the health port and admin", "address: the default of admin", "metrics where a listener is",
		"listener dangling policy", "listener dangling policy, none there", "dangling names", "network in two rules",
		"tls listener without certificates", "tls listener without certificates and routes", "kubernetes without a listener for it", "kubernetes with a default backend in a namespace that weir does not read", "an issuer without Gateways", "listeners that Gateways cannot share",
		"client_auth and plain HTTP, same host", "client_auth and plain HTTP, every host", "client_auth and plain HTTP, several routes", "client_auth and plain HTTP, wildcard below", "client_auth and plain HTTP, wildcard above",
		"client_auth and plain HTTP, in one route", "client certificates and a redirect of another path",
		"same conditions twice", "groups of an expression in a new path", "default names that are equal", "same match twice", "same match twice: every path is the path /", "first_bytes twice", "name twice", "name like a default one", "two policies for a host",
		"passthrough inherited", "passthrough on http", "passthrough on http and tls", "passthrough to an http backend", "tls_policy without tls listener", "first_bytes to an http backend", "first_bytes on tcp",
		"two routes on tcp", "weighted backends that do not fit", "http to a tcp backend", "http beside a tunnel whose tls is opened", "requests of a tunnel whose tls is opened", "tcp with hosts and paths, to http", "tcp without route", "a tunnel to a grpc backend",
		"acme hosts twice", "acme hosts of routes twice", "acme hosts of routes that need dns", "acme without any host", "suites for another kind of key than the certificate of an authority has",
	},
	"a pattern cannot check expressions, and it ignores no case": {"an expression that is wrong", "expressions that match no path", "a method in lower case", "the header Host in a match"},
	"a schema cannot look at files": {
		"certificate files that are not there", "certificate that is a folder", "client_auth with a ca that is not there", "client_auth of default", "tls files", "acme with a broken certificate file beside it",
		"an access log in a folder that is missing", "an access log in a folder of the environment that is missing", "an access log below a file",
	},
}

// The schema refuses every entry of rejected.txt, except those that no schema can express.
func TestSchemaRefusesWhatItCanExpress(t *testing.T) {
	unexpressed := map[string]int{}
	for _, names := range beyond {
		for _, name := range names {
			unexpressed[name]++
		}
	}
	data, err := os.ReadFile("testdata/rejected.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range strings.Split(string(data), "=== ")[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		in, _, _ := strings.Cut(rest, "--- errors\n")
		switch refused := schemaRefuses(in); {
		case !refused && unexpressed[name] == 0:
			t.Errorf("the schema accepts %q: express the condition, in the table or in rules.go, or add the entry to beyond with the reason", name)
		case !refused:
			unexpressed[name]--
		}
	}
	for name, left := range unexpressed {
		if left > 0 {
			t.Errorf("the schema refuses %q, or there is no such entry: take it out of beyond", name)
		}
	}
}

// schemaRefuses returns false for a text that is no JSON, because then there is nothing to
// compare with the schema.
func schemaRefuses(text string) bool {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil || doc.Kind == 0 {
		return false
	}
	v, err := jsonValue(doc.Content[0], 0)
	return err == nil && compiled().Validate(v) != nil
}

// Each rule refuses what weir refuses, alone.
func TestRules(t *testing.T) {
	const head = "listeners: {web: {address: ':80', protocol: http}, t: {address: ':81', protocol: tcp}, s: {address: ':443', protocol: tls}}\n"
	const tail = "routes: [{listeners: [t], backend: raw}, {listeners: [web, s], backend: app}]\n" +
		"backends: {app: {endpoints: ['a:1']}, raw: {endpoints: ['a:1'], protocol: tcp}}\ncertificates: [{self_signed: {hosts: [a.example]}}]\n"
	f := func(old, new string) {
		t.Helper()
		text := strings.Replace(head+tail, old, new, 1)
		if text == head+tail {
			t.Fatalf("%q is not in the configuration", old)
		}
		if _, err := file.Parse("weir.yaml", []byte(text), environment); err == nil {
			t.Errorf("weir accepts %s", new)
		}
		if !schemaRefuses(text) {
			t.Errorf("the schema accepts %s", new)
		}
	}
	mustParse(t, head+tail)
	const tcp, http, tls, app, raw, route = "protocol: tcp}, s", "protocol: http}", "protocol: tls}", "app: {", "raw: {", "backend: app}"
	f(tcp, "public_port: 5, "+tcp)
	f(tcp, "http2: true, "+tcp)
	f(http, "tls_policy: default, "+http)
	f(http, "http2: true, "+http)
	f(http, "http2: {offer: true}, "+http)
	f(tls, "http2: {prior_knowledge: true}, "+tls)
	f(app, "app: {tls: {}, ")
	f(app, "app: {http2: true, ")
	f(app, "app: {tls: {alpn: [a]}, protocol: https, ")
	f(raw, "raw: {host: a, ")
	f(raw, "raw: {lenient: [bare_lf], ")
	f(raw, "raw: {tls: {cert: a}, ")
	f(route, "first_bytes: ssh, hosts: [a.example], "+route)
	f(route, "tls: passthrough, paths: [/], "+route)
	f(route, "tls: passthrough, match: {methods: [GET]}, "+route)
	f(route, "first_bytes: ssh, match: {methods: [GET]}, "+route)
	for _, match := range []string{"{}", "[GET]", "{method: [GET]}", "{methods: []}", "{methods: [A B]}", "{headers: {}}", "{headers: {X Y: a}}", "{cookies: {a;b: c}}", "{query: {'': a}}", "{query: {a: 1}}", "{clients: [192.0.2.1]}"} {
		f(route, "match: "+match+", "+route)
	}
	f(route, "paths: ['~'], "+route)
	f(route, "hosts: ['***.a'], "+route)
	f(route, "hosts: ['**'], "+route)
	f(route, "redirect: {port: 8443}, max_body: 1MiB}")
	f(route, "redirect: https, clients: {deny: [192.0.2.0/24]}}")
	for _, clients := range []string{"{}", "{allow: []}", "{allow: [192.0.2.1]}", "[192.0.2.0/24]"} {
		f(route, "clients: "+clients+", "+route)
	}
	for _, limit := range []string{"{}", "{burst: 1}", "{rate: 1}", "{rate: 0/s}", "{rate: 1/d}", "{rate: 1/s, burst: 0}", "{rate: 1/s, per: host}", "{rate: 1/s, status: 200}"} {
		f("routes: [", "rate_limits: {a: "+limit+"}\nroutes: [")
	}
	f(route, "redirect: https, rate_limit: a}")
	f(route, "redirect: https, in_flight: {most: 1}}")
	for _, most := range []string{"{}", "{most: 0}", "{most: 1, per: 'header:X'}", "{most: 1, status: 200}"} {
		f(route, "in_flight: "+most+", "+route)
	}
	f(route, "name: a}")
	f(route, "hsts: {max_age: 8760h, preload: true}, "+route)
	f("certificates: [", "certificates: [{acme: {challenges: [dns-01]}}, ")
	f("certificates: [", "certificates: [{acme: {hosts: ['*.example.org']}}, ")
	f("certificates: [", "certificates: [{acme: {staging: true, directory: 'https://a.example/'}}, ")
	f("certificates: [", "certificates: [{acme: {hosts: [a.example.org], challenges: [http-01], dns: {rfc2136: {server: 'a:53', key_name: a, key: aGk=}}}}, ")
	f("hosts: [a.example]}", "hosts: [a.example]}, ocsp: false")
	f(app, "app: {timeouts: {connect: -1s}, ")
	f(app, "app: {ramp_up: -500ms, ")
	f("endpoints: ['a:1']}, raw", "endpoints: ['a b:1']}, raw")
	f(route, "hosts: ['[a.example'], "+route)
	f(http, "trust_forwarded: [10.0.0.0/33], "+http)
	f(http, "trust_forwarded: [300.0.0.0/8], "+http)
	f(http, "trust_forwarded: ['1::2::3/64'], "+http)
	f("routes: [", "admin: {address: ':8087'}\nroutes: [")
	for _, policy := range []string{"max_version: '1.1'", "max_version: '1.0', min_version: '1.1'", "max_version: 1.2, min_version: 1.3", "min_version: '1.3', cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]",
		"min_version: '1.3', sha1_signatures: true", "min_version: '1.0', max_version: '1.1', sha1_signatures: true", "min_version: '1.0', cipher_suites: [TLS_RSA_WITH_AES_128_GCM_SHA256]",
		"min_version: '1.1', max_version: '1.1', cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA, TLS_RSA_WITH_AES_128_GCM_SHA256]", "curves: [X25519MLKEM768]"} {
		f("routes: [", "tls_policies: {p: {"+policy+"}}\nroutes: [")
	}
	f("routes: [", "tls_policies: {default: {from: [10.0.0.0/8]}}\nroutes: [")
	f("routes: [", "tls_policies: {acme-tls-alpn-01: {}}\nroutes: [")
}

// Editors suggest keys from every schema that has them under "properties". The rules contain conditions and
// no descriptions, so an editor must not find keys in them. Earlier an editor wrote "http2: http2".
func TestRulesAreNotSuggested(t *testing.T) {
	var root any
	if err := json.Unmarshal(config.Schema(), &root); err != nil {
		t.Fatal(err)
	}
	conditions := 0
	var f func(v any, at string)
	f = func(v any, at string) {
		switch v := v.(type) {
		case []any:
			for _, one := range v {
				f(one, at)
			}
		case map[string]any:
			properties, _ := v["properties"].(map[string]any)
			for key, one := range properties {
				one := one.(map[string]any)
				switch {
				case one["doNotSuggest"] == true:
					conditions++
				case one["description"] == nil:
					t.Errorf("%s.%s has neither a description nor doNotSuggest", at, key)
				}
			}
			for key, one := range v {
				f(one, at+"."+key)
			}
		}
	}
	f(root, "")
	if conditions < 20 {
		t.Errorf("only %d conditions were found", conditions)
	}
}
