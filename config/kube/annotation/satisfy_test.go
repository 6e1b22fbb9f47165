package annotation

import (
	"maps"
	"testing"
)

func TestSatisfy(t *testing.T) {
	f := func(value, deny string, any bool, rating Rating) {
		t.Helper()
		i := ingressWith(map[string]string{"satisfy": value, "denylist-source-range": deny})
		if deny == "" {
			delete(i.Annotations, Nginx+"denylist-source-range")
		}
		all := Rate(i)
		if got := all[len(all)-1].Rating; got != rating || SettingsOf(i).Any != any {
			t.Errorf("%q with %q is %s, and means any: %v", value, deny, got, SettingsOf(i).Any)
		}
	}
	f("any", "", true, Exact)
	f("all", "", false, Exact)
	f("all", "10.0.0.0/8", false, Exact)
	f("Any", "", false, Exact)
	f("", "", false, Exact)
	f("any", "10.0.0.0/8", true, Near)
}

func init() {
	others["`any`, with `denylist-source-range`"] = map[string]string{"denylist-source-range": "10.0.0.0/8"}
	maps.Copy(samples, map[string][]sample{
		"satisfy": {{"`all`, `any`", "any", false}, {"`any`, with `denylist-source-range`", "any", false}},
	})
}
