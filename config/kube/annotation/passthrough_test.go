package annotation

import (
	"maps"
	"testing"
)

func TestPassthrough(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "false": false, "yes": false} {
		i := ingressOf(nil, "ssl-passthrough: "+value)
		if got := SettingsOf(i).Passthrough; got != want {
			t.Errorf("%q sets %v", value, got)
		}
		if all := Rate(i); len(all) != 1 || (all[0].Rating == Near) != want || all[0].Guard {
			t.Errorf("%q is %+v", value, all)
		}
	}
}

func init() {
	maps.Copy(samples, map[string][]sample{"ssl-passthrough": {{"`true`", "true", false}, {"`false`", "false", false}}})
}
