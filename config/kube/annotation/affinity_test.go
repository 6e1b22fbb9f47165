package annotation

import (
	"maps"
	"testing"
)

func TestAffinity(t *testing.T) {
	f := checkSetting(t, func(s Settings) Affinity { return s.Affinity })
	f("affinity: cookie", Affinity{Cookie: true}, Near)
	f("affinity: Cookie", Affinity{}, No)
	f("affinity-mode: persistent", Affinity{}, Exact)
	f("affinity-mode: balanced", Affinity{}, Near)
	f("affinity-mode: x", Affinity{}, No)
	f("affinity-canary-behavior: legacy", Affinity{Legacy: true}, Exact)
	f("affinity-canary-behavior: sticky", Affinity{}, Exact)
	f("affinity-canary-behavior: x", Affinity{}, No)
	f("session-cookie-name: route", Affinity{Name: "route"}, Exact)
	f("session-cookie-name: a b", Affinity{}, No)
	f("session-cookie-name: a:b", Affinity{}, No)
	f("session-cookie-path: /app", Affinity{Path: "/app"}, Exact)
	f("session-cookie-path: app", Affinity{}, No)
	f("session-cookie-path: /a;b", Affinity{}, No)
	f("session-cookie-domain: .a.example", Affinity{Domain: ".a.example"}, Exact)
	f("session-cookie-domain: a.example;Secure", Affinity{}, No)
	f("session-cookie-samesite: none", Affinity{SameSite: "None"}, Exact)
	f("session-cookie-samesite: LAX", Affinity{SameSite: "Lax"}, Exact)
	f("session-cookie-samesite: x", Affinity{}, No)
	f("session-cookie-conditional-samesite-none: true", Affinity{NoneIfKnown: true}, Exact)
	f("session-cookie-secure: true", Affinity{Secure: true}, Exact)
	f("session-cookie-secure: false", Affinity{}, Exact)
	f("session-cookie-change-on-failure: true", Affinity{Moves: true}, Exact)
	f("session-cookie-change-on-failure: false", Affinity{}, Near)
	f("session-cookie-expires: 3600", Affinity{Expires: Lifetime{true, 3600}}, Exact)
	f("session-cookie-max-age: -1", Affinity{MaxAge: Lifetime{true, -1}}, Exact)
	f("session-cookie-max-age: 0", Affinity{MaxAge: Lifetime{true, 0}}, Exact)
	f("session-cookie-max-age: 1h", Affinity{}, No)
	f("session-cookie-max-age: 99999999999", Affinity{}, No)
}

func init() {
	truth := []sample{{"`true`, `false`", "true", false}}
	seconds := []sample{{"numbers", "3600", false}, {"other values", "1h", false}}
	maps.Copy(samples, map[string][]sample{
		"affinity":                 {{"`cookie`", "cookie", false}, {"other values", "ip", false}},
		"affinity-mode":            {{"`persistent`", "persistent", false}, {"`balanced`", "balanced", false}, {"other values", "x", false}},
		"affinity-canary-behavior": {{"`sticky`, `legacy`", "sticky", false}, {"other values", "x", false}},
		"session-cookie-name":      {{"names of cookies", "a", false}, {"other values", "a:b", false}},
		"session-cookie-path":      {{"paths", "/a", false}, {"other values", "a", false}},
		"session-cookie-domain":    {{"hosts", "a.example", false}, {"other values", "a:b", false}},
		"session-cookie-samesite":  {{"`None`, `Lax`, `Strict`", "None", false}, {"other values", "x", false}},
		"session-cookie-secure":    truth, "session-cookie-conditional-samesite-none": truth,
		"session-cookie-change-on-failure": {{"`true`", "true", false}, {"`false`", "false", false}},
		"session-cookie-expires":           seconds, "session-cookie-max-age": seconds,
	})
}
