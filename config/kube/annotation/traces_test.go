package annotation

import (
	"maps"
	"testing"
)

func TestTraces(t *testing.T) {
	f := func(value string, untraced bool, rating Rating) {
		t.Helper()
		i := ingressOf(nil, "enable-opentelemetry: "+value)
		if got := SettingsOf(i).Untraced; got != untraced {
			t.Errorf("%s turns traces off: %v", value, got)
		}
		if all := Rate(i); len(all) != 1 || all[0].Rating != rating || all[0].Guard {
			t.Errorf("%s is %+v, want %s", value, all, rating)
		}
	}
	f("true", false, Near)
	f("false", true, Exact)
	f("0", true, Exact)
	f("off", false, No)
}

func init() {
	maps.Copy(samples, map[string][]sample{
		"enable-opentelemetry": {{"`true`", "true", false}, {"`false`", "false", false}, {"other values", "off", false}},
	})
}
