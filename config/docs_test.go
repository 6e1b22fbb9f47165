package config

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// everyKey is a configuration with every section.
const everyKey = `listeners:
  web: {address: ":80", protocol: http, http2: {max_streams: 5}, timeouts: {handshake: 5s}}
proxy_protocol: {p: {rules: [{from: [10.0.0.0/8], header: require}]}}
certificates:
- self_signed: {hosts: [a.example]}
- acme:
    external_account: {key_id: a, mac_key: aGk}
    dns: {rfc2136: {server: "192.0.2.53:53", key_name: a, key: aGk=}}
    on_demand: {ask: "https://a.example/"}
tls_policies: {p: {client_auth: {mode: require, ca: testdata/ca.pem}}}
ech: {keys: [ech.pem]}
routes:
- {listeners: [web], backend: app}
- {listeners: [web], redirect: {port: 443}, hsts: {max_age: 8760h}}
backends:
  app:
    endpoints: [{address: "a:1"}]
    protocol: https
    health_check: {http: {path: /}}
    ejection: {failures: 1}
    queue: {size: 1}
    tls: {server_name: a}
    timeouts: {connect: 1s}
    retries: {attempts: 1}
  raw:
    endpoints: ["a:1"]
    health_check: {tcp: {}}
  rpc:
    endpoints: ["a:1"]
    protocol: grpc
    health_check: {grpc: {service: a}}
health: {address: ":8086"}
admin: {address: ":8087", tls: {cert: a.pem, key: a.key}}
metrics: {address: ":8088"}
drain: {lame_duck: 1s}
log: {level: info}
access_log: {path: stdout}
limits: {pending: 1, clients: {prefix: {ipv4: 24}}}
kubernetes: {tcp: {config_map: a/b}, publish: {nodes: internal}, metrics: {routes_per_namespace: 5}}
`

// knownKeys returns the keys that the loader knows, in the form listeners.NAME.address.
func knownKeys(t *testing.T) []string {
	t.Helper()
	d := newDecoder("weir.yaml", environment)
	root := d.document([]byte(everyKey))
	v := draft{decoder: d}
	v.decode(root)
	if len(d.errs) > 0 {
		t.Fatal(d.errs)
	}
	var keys []string
	for section, names := range d.known {
		for _, name := range names {
			keys = append(keys, path{section, section}.key(name).pattern)
		}
	}
	slices.Sort(keys)
	return keys
}

var (
	heading = regexp.MustCompile(`^## (.*)$`)
	keyRow  = regexp.MustCompile("^\\| `([a-z_0-9]+)` \\|(.*)\\|$")
	fenced  = regexp.MustCompile("(?s)```yaml\n(.*?)```")
)

const documentation = "../docs/configuration.md"

// TestDocumentation: every key that the loader knows is in the documentation,
// with a type, a default if there is one, a meaning and an example. The documentation has
// no other keys.
func TestDocumentation(t *testing.T) {
	data, err := os.ReadFile(documentation)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	section := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			section = strings.TrimSuffix(m[1], "Top level")
		}
		m := keyRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		key := path{section, section}.key(m[1]).pattern
		if documented[key] {
			t.Errorf("%s: %s is documented twice", documentation, key)
		}
		documented[key] = true
		cells := strings.Split(m[2], "|")
		if len(cells) != 4 {
			t.Errorf("%s: %s has %d cells behind its name, want type, default, meaning and example", documentation, key, len(cells))
			continue
		}
		for i, what := range []string{"type", "default", "meaning", "example"} {
			if what != "default" && strings.TrimSpace(cells[i]) == "" {
				t.Errorf("%s: %s has no %s", documentation, key, what)
			}
		}
	}
	for _, key := range knownKeys(t) {
		if !documented[key] {
			t.Errorf("%s does not have the key %s", documentation, key)
		}
		delete(documented, key)
	}
	for _, key := range slices.Sorted(maps.Keys(documented)) {
		t.Errorf("%s has the key %s, which the loader does not know", documentation, key)
	}
}

func TestDocumentedFilesLoad(t *testing.T) {
	data, err := os.ReadFile(documentation)
	if err != nil {
		t.Fatal(err)
	}
	blocks := fenced.FindAllStringSubmatch(string(data), -1)
	if len(blocks) == 0 {
		t.Fatalf("%s shows no configuration", documentation)
	}
	for _, b := range blocks {
		mustParse(t, b[1])
	}
}

// TestExamples: every example loads unchanged, and without warnings.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("found %d examples, %v", len(files), err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			c, err := Load(f, func(string) (string, bool) { return "", false })
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Warnings) > 0 {
				t.Errorf("warnings:\n%v", c.Warnings)
			}
			reloads(t, c)
		})
	}
}
