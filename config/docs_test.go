package config_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
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
    issuer: {name: public, allow: [{namespaces: [shop]}]}
tls_policies: {p: {client_auth: {mode: require, ca: testdata/ca.pem}}}
ech: {keys: [ech.pem]}
rate_limits: {a: {rate: 1/s}}
auth:
  a: {basic: {file: users, realm: a}}
  b: {forward: {url: "http://a/"}}
  c: {jwt: {issuer: a, audience: [a], keys: keys}}
routes:
- {listeners: [web], backend: app, match: {methods: [POST]}}
- {listeners: [web], backend: app, cors: {origins: ['*']}, request: {set: {A: b}}, rewrite: {host: a}, response: {remove: [A]}, mirror: [{backend: app}]}
- {listeners: [web], backend: app, clients: {deny: [10.0.0.0/8]}, in_flight: {most: 1}}
- {listeners: [web], respond: {status: 200}, errors: [{status: [404], backend: app, path: /}]}
- {listeners: [web], hosts: [w.example], backends: [{name: app}], timeouts: {try: 1s}, retries: {attempts: 2}}
- {listeners: [web], redirect: {port: 443}, hsts: {max_age: 8760h}}
backends:
  app:
    endpoints: [{address: "a:1"}]
    protocol: https
    health_check: {http: {path: /}}
    ejection: {failures: 1, share: 0.5}
    queue: {size: 1}
    sticky: {cookie: a}
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
access_log: {path: stdout, filter: {retries: true}}
traces: {otlp: {url: "http://a:4318"}}
limits: {pending: 1, clients: {prefix: {ipv4: 24}, except: [192.0.2.0/24]}}
kubernetes: {tcp: {config_map: a/b}, hosts: [{namespaces: [a], hosts: [a.example]}], ingress_nginx: {config_map: a/b, default_backend: a/b}, gateways: {addresses: {service: {replicas: a/b}}}, publish: {nodes: internal}, metrics: {routes_per_namespace: 5}, timeouts: {read: 5s}}
`

// knownKeys returns the keys that the loader knows, in the form listeners.NAME.address.
func knownKeys(t *testing.T) []string {
	t.Helper()
	doc, err := file.Read("weir.yaml", []byte(everyKey), environment)
	if err != nil {
		t.Fatal(err)
	}
	keys, errs := config.KnownKeys(doc)
	if len(errs) > 0 {
		t.Fatal(errs)
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

// row is a row of a table in the documentation.
type row struct{ types, fallback, meaning, example string }

// documentedKeys returns the rows of the documentation, by the key in the form
// listeners.NAME.address.
func documentedKeys(t *testing.T) map[string]row {
	t.Helper()
	data, err := os.ReadFile(documentation)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]row{}
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
		key := config.Key(section, m[1])
		if _, twice := documented[key]; twice {
			t.Errorf("%s: %s is documented twice", documentation, key)
		}
		cells := strings.Split(m[2], "|")
		if len(cells) != 4 {
			t.Errorf("%s: %s has %d cells behind its name, want type, default, meaning and example", documentation, key, len(cells))
			cells = make([]string, 4)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		documented[key] = row{cells[0], cells[1], cells[2], cells[3]}
	}
	return documented
}

// TestDocumentation: every key that the loader knows is in the documentation,
// with a type, a default if there is one, a meaning and an example. The documentation has
// no other keys.
func TestDocumentation(t *testing.T) {
	documented := documentedKeys(t)
	for _, key := range knownKeys(t) {
		row, is := documented[key]
		if !is {
			t.Errorf("%s does not have the key %s", documentation, key)
			continue
		}
		if row.types == "" || row.meaning == "" || row.example == "" {
			t.Errorf("%s: %s has no type, no meaning or no example: %+v", documentation, key, row)
		}
		delete(documented, key)
	}
	for _, key := range slices.Sorted(maps.Keys(documented)) {
		t.Errorf("%s has the key %s, which the loader does not know", documentation, key)
	}
}

var (
	// defaultCode matches a default in the documentation.
	defaultCode = regexp.MustCompile("^`([^`]*)`")
	// documentedBounds matches bounds in the documentation, and those in a description.
	documentedBounds = regexp.MustCompile(`\b([0-9]\w*) to ([0-9]\w*)\b`)
	describedBounds  = regexp.MustCompile(`[Ff]rom ([0-9]\w*) to ([0-9]\w*)\.`)
)

// TestDocumentedDefaultsAndBounds compares the documentation with the table of keys.
func TestDocumentedDefaultsAndBounds(t *testing.T) {
	documented, defaults, bounds := documentedKeys(t), 0, 0
	for key, one := range describedKeys(t) {
		row := documented[key]
		if one.Default != nil {
			defaults++
			m := defaultCode.FindStringSubmatch(row.fallback)
			if m == nil || !equalTexts(strings.Trim(m[1], `"`), fmt.Sprint(one.Default)) {
				t.Errorf("%s: the default of %s is %v, and the page has %q", documentation, key, one.Default, row.fallback)
			}
		}
		if m := describedBounds.FindStringSubmatch(one.Description); m != nil {
			bounds++
			is := documentedBounds.FindStringSubmatch(row.types + " " + row.meaning)
			if is == nil || !equalTexts(is[1], m[1]) || !equalTexts(is[2], m[2]) {
				t.Errorf("%s: the bounds of %s are %s to %s, and the page has %q and %q", documentation, key, m[1], m[2], row.types, row.meaning)
			}
		}
	}
	if defaults < 75 || bounds < 50 {
		t.Errorf("only %d defaults and %d bounds were compared", defaults, bounds)
	}
}

// equalTexts compares values; durations and sizes may be written in different ways.
func equalTexts(a, b string) bool {
	durationA, errA := time.ParseDuration(a)
	durationB, errB := time.ParseDuration(b)
	sizeA, wrongA := config.ParseSize(a)
	sizeB, wrongB := config.ParseSize(b)
	return a == b || errA == nil && errB == nil && durationA == durationB || wrongA == nil && wrongB == nil && sizeA == sizeB
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

// Pages that name the default address of the admin port name the right one.
func TestDefaultOfTheAdminPortInDocuments(t *testing.T) {
	want := mustParse(t, "listeners: {web: {address: ':80', protocol: http}}\nroutes: [{listeners: [web], respond: {status: 200}}]\n").Admin.Address
	claim, found := regexp.MustCompile("admin port on `([^`]+)`, which is the default"), 0
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range claim.FindAllSubmatch(data, -1) {
			if found++; string(m[1]) != want {
				t.Errorf("%s: the default is %s, not %s", page, want, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("no page names the default")
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
			c, err := file.Load(f, func(string) (string, bool) { return "", false })
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
