package weir_test

import (
	"slices"
	"testing"
)

// decodesJSON are the files that may use json.NewDecoder, which does not notice what is behind a value, with
// their reasons.
var decodesJSON = map[string]string{
	"proxy/jwt/token.go":           "it has checked the whole text before",
	"config/kube/manifest.go":      "a text may have several values, and it reads to the end",
	"cmd/weir/node/upgradenote.go": "a stream of notes from the other process of the upgrade",
	"soak/workers.go":              "a stream of results from a process of the same run",
}

func TestJSONIsReadToItsEnd(t *testing.T) {
	allow(t, decodesJSON, "read the whole text and use json.Unmarshal, which refuses anything behind the value",
		"encoding/json/NewDecoder")
}

// allow checks that only the files in may use the names.
func allow(t *testing.T, may map[string]string, instead string, names ...string) {
	t.Helper()
	found := map[string]bool{}
	for _, f := range goFiles(t) {
		for _, name := range using(f, func(from, name string) bool { return slices.Contains(names, from+"/"+name) }) {
			found[f.path] = true
			if may[f.path] == "" {
				t.Errorf("%s uses %s: %s", f.path, name, instead)
			}
		}
	}
	for path := range may {
		if !found[path] {
			t.Errorf("%s does not use any of %q: take it from the exceptions", path, names)
		}
	}
}
