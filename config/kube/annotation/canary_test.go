package annotation

import (
	"maps"
	"testing"
)

func TestCanary(t *testing.T) {
	f := checkSetting(t, func(s Settings) Canary { return s.Canary })
	f("canary: true", Canary{Is: true}, Near)
	f("canary: 1", Canary{Is: true}, Near)
	f("canary: false", Canary{}, Exact)
	f("canary: yes", Canary{}, Exact) // no value for strconv.ParseBool
	f("canary-by-header: X-Canary", Canary{Header: "X-Canary"}, Exact)
	f("canary-by-header: X Canary", Canary{}, No)
	f("canary-by-header: X/Canary", Canary{}, No)
	f("canary-by-header: $x", Canary{}, No)
	f("canary-by-header-value: some value", Canary{Value: "some value"}, Exact)
	f("canary-by-header-value: a=b", Canary{}, No)
	f("canary-by-header-pattern: ^(a|b)+$", Canary{Pattern: "^(a|b)+$"}, Exact)
	f("canary-by-header-pattern: a(?=b)", Canary{Pattern: "a(?=b)"}, No)
	f("canary-by-header-pattern: [][**da?$&*", Canary{Pattern: "[][**da?$&*"}, No)
	f("canary-by-cookie: tester", Canary{Cookie: "tester"}, Exact)
	f("canary-by-cookie: a:b", Canary{}, No)
	f("canary-weight: 20", Canary{Weight: 20}, Exact)
	f("canary-weight: -20", Canary{}, Exact)
	f("canary-weight: 20.5", Canary{}, No)
	f("canary-weight-total: 1000", Canary{Total: 1000}, Exact)
	f("canary-weight-total: 50", Canary{Total: 100}, Exact)
	f("canary-weight-total: 1000001", Canary{}, No)
	f("canary-weight-total: x", Canary{}, No)
}

func init() {
	word := []sample{{"words that ingress-nginx accepts", "a", false}, {"a name that nothing can have", "a/b", false}, {"other values", "$a", false}}
	number := []sample{{"numbers", "1", false}, {"other values", "a", false}}
	maps.Copy(samples, map[string][]sample{
		"canary":                   {{"`true`", "true", false}, {"`false`", "false", false}},
		"canary-by-header":         word,
		"canary-by-cookie":         word,
		"canary-by-header-value":   {{"words that ingress-nginx accepts", "a", false}, {"other values", "$a", false}},
		"canary-by-header-pattern": {{"an expression of RE2", "^a", false}, {"other values", "a(?=b)", false}},
		"canary-weight":            number,
		"canary-weight-total":      {{"numbers up to 1000000", "100", false}, {"larger numbers", "1000001", false}, {"other values", "a", false}},
	})
}
