package config_test

import "testing"

// A setting is one line that the configuration file could have.
func TestSetting(t *testing.T) {
	c := mustParse(t, small+
		"routes:\n- {listeners: [web], hosts: [a.example], paths: [/x, =/y], match: {methods: [PUT], headers: {A: 'b: c'}, clients: [192.0.2.0/24]}, max_body: 1KiB, backend: app}\n")
	f := func(key, want string) {
		t.Helper()
		if got := c.Routes[0].Setting(key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	f("hosts", "[a.example]")
	f("paths", "[/x, =/y]")
	f("match", `{methods: [PUT], headers: {A: "b: c"}, clients: [192.0.2.0/24]}`)
	f("match.methods", "[PUT]")
	f("max_body", "1KiB")
	f("hsts", "")
	f("none", "")
}
