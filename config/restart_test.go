package config_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

func TestChangedByRestart(t *testing.T) {
	f := func(more string, want ...string) {
		t.Helper()
		if got := config.ChangedByRestart(mustParse(t, small), mustParse(t, small+more)); !slices.Equal(got, want) {
			t.Errorf("with %q changed are %q, want %q", more, got, want)
		}
	}
	f("")
	f("node: a\nlog: {level: warn}\n")
	f("user: weir\n", "user")
	f("log: {format: json}\nlandlock: false\nseccomp: false\n", "landlock", "seccomp", "log.format")
}

func TestLost(t *testing.T) {
	const before = `listeners: {web: {address: ":80", protocol: http}, one: {address: "127.0.0.1:81", protocol: http}, raw: {address: ":22", protocol: tcp}}
routes:
  - {listeners: [web], hosts: [a.example, b.example], backend: app}
  - {listeners: [web], hosts: [b.example], paths: [/b], backend: app}
  - {listeners: [one], backend: app}
  - {listeners: [raw], backend: raw}
backends: {app: {endpoints: ["10.0.0.1:80"]}, raw: {protocol: tcp, endpoints: ["10.0.0.1:22"]}}
`
	f := func(from, to string, want ...string) {
		t.Helper()
		after := strings.NewReplacer(from, to).Replace(before)
		if from != "" && after == before {
			t.Fatalf("%q is not in the configuration", from)
		}
		if got := config.Lost(mustParse(t, before), mustParse(t, after)); !slices.Equal(got, want) {
			t.Errorf("with %q in place of %q %q are lost, want %q", to, from, got, want)
		}
	}
	f("", "")
	f("[a.example, b.example]", "[b.example, c.example]", "the host a.example")
	f("  - {listeners: [web], hosts: [b.example], paths: [/b], backend: app}\n", "")
	f("hosts: [a.example, b.example]", "hosts: ['*.example', b.example]")
	f("hosts: [a.example, b.example]", "hosts: ['**.example', b.example]")
	f("hosts: [a.example, b.example]", "hosts: ['*.a.example', b.example]", "the host a.example")
	f("raw: {address: \":22\", protocol: tcp}}\nroutes:\n  - {listeners: [web], hosts: [a.example, b.example]", // a wildcard of another protocol
		"raw: {address: \":22\", protocol: tcp}, s: {address: \":443\", protocol: tls}}\ncertificates: [{self_signed: {hosts: ['*.example']}}]\nroutes:\n  - {listeners: [s], hosts: ['*.example'], backend: app}\n  - {listeners: [web], hosts: [b.example]", "the host a.example")
	f("one: {address: \"127.0.0.1:81\", protocol: http}, raw: {address: \":22\", protocol: tcp}", // they change places
		"one: {address: \":22\", protocol: http}, raw: {address: \"127.0.0.1:81\", protocol: tcp}", "the http listener one (127.0.0.1:81)", "the tcp listener raw (:22)")
	f("address: \"127.0.0.1:81\"", "address: \":81\"")
	f("address: \":80\"", "address: \"127.0.0.1:80\"", "the http listener web (:80)")
	f("  - {listeners: [one], backend: app}\n", "", "the http listener one (127.0.0.1:81)", "the routes without hosts")
	f("hosts: [a.example, b.example], ", "", "the host a.example")
	f("  - {listeners: [one], backend: app}\n", "  - {listeners: [one], hosts: [a.example], backend: app}\n", "the routes without hosts") // that of raw is no substitute
	if got := config.Lost(mustParse(t, before+"kubernetes: {}\n"), mustParse(t, before)); !slices.Equal(got, []string{"the objects of the cluster (kubernetes)"}) {
		t.Errorf("without kubernetes %q are lost", got)
	}
}

// The documentation and the table of keys agree about restarts and upgrades.
func TestDocumentedRestarts(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)\*\*Only a restart\*\* changes (.*?)[.;]\s`).FindSubmatch(page)
	if list == nil {
		t.Fatal("operations.md has no list of what only a restart changes")
	}
	var named []string
	for _, m := range regexp.MustCompile("`([a-z._]+)`").FindAllSubmatch(list[1], -1) {
		named = append(named, string(m[1]))
	}
	if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), "changes all of them but the first three.") || len(named) < 3 {
		t.Fatal("operations.md does not say which of them an upgrade changes")
	}
	const restart, upgrade = "Only a restart changes it.", "Only a restart or an upgrade changes it."
	keys, notByUpgrade := config.RestartKeys(), slices.Clone(named[:3])
	agrees := func(key, text string) bool {
		listed, fixed := slices.Contains(keys, key), slices.Contains(notByUpgrade, key)
		return strings.Contains(text, restart) == (listed && fixed) && strings.Contains(text, upgrade) == (listed && !fixed)
	}
	for key, row := range documentedKeys(t) {
		if !agrees(key, row.meaning) {
			t.Errorf("%s describes %s as %q", documentation, key, row.meaning)
		}
	}
	for key, one := range describedKeys(t) {
		if !agrees(key, one.Description) {
			t.Errorf("the schema describes %s as %q", key, one.Description)
		}
	}
	slices.Sort(named)
	if slices.Sort(keys); !slices.Equal(named, keys) {
		t.Errorf("operations.md names %q, and the keys are %q", named, keys)
	}
}
