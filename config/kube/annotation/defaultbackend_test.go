package annotation

import (
	"maps"
	"testing"
)

func TestDefaultBackend(t *testing.T) {
	for value, want := range map[string]string{"errors": "errors", "e-1": "e-1", "a/b": "", "": "", "1a": "", "A": "", "a-": ""} {
		i := ingressOf(nil, "default-backend: "+value)
		if got := SettingsOf(i).DefaultBackend; got != want {
			t.Errorf("%q sets %q, want %q", value, got, want)
		}
		if all := Rate(i); len(all) != 1 || (all[0].Rating == Exact) != (want != "") || all[0].Guard {
			t.Errorf("%q is %+v", value, all)
		}
	}
}

func init() {
	maps.Copy(samples, map[string][]sample{"default-backend": {{"names of Services", "errors", false}, {"other values", "a/b", false}}})
}
