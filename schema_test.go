package weir_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/config"
)

var schema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(config.Schema()))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("weir.schema.json", doc); err != nil {
		return nil, err
	}
	return c.Compile("weir.schema.json")
})

// validates checks that an editor shows no error in a configuration that weir accepts.
func validates(t *testing.T, name, text string) {
	t.Helper()
	s, err := schema()
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(doc); err != nil {
		t.Errorf("the schema refuses this configuration in %s: %v\n%s", name, err, text)
	}
}
