package config_test

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// described is a part of the schema, as a reader of the printed text sees it.
type described struct {
	Description          string                `json:"description"`
	Default              any                   `json:"default"`
	Properties           map[string]*described `json:"properties"`
	AdditionalProperties json.RawMessage       `json:"additionalProperties"`
	Items                *described            `json:"items"`
	AnyOf                []*described          `json:"anyOf"`
}

// keysOf collects the keys below s, in the form listeners.NAME.address.
func (s *described) keysOf(t *testing.T, at string, all map[string]*described) {
	for name, one := range s.Properties {
		key := config.Key(at, name)
		all[key] = one
		one.keysOf(t, key, all)
	}
	for _, one := range s.AnyOf {
		one.keysOf(t, at, all)
	}
	if s.Items != nil {
		s.Items.keysOf(t, at+"[]", all)
	}
	if len(s.AdditionalProperties) > 0 && s.AdditionalProperties[0] == '{' {
		one := new(described)
		if err := json.Unmarshal(s.AdditionalProperties, one); err != nil {
			t.Fatal(err)
		}
		one.keysOf(t, at+".NAME", all)
	}
}

// describedKeys returns the keys that the schema has.
func describedKeys(t *testing.T) map[string]*described {
	t.Helper()
	var root described
	if err := json.Unmarshal(config.Schema(), &root); err != nil {
		t.Fatal(err)
	}
	all := map[string]*described{}
	root.keysOf(t, "", all)
	return all
}

// TestSchemaHasTheKeysThatAreRead: the schema has every key that the loader knows, and no
// other.
func TestSchemaHasTheKeysThatAreRead(t *testing.T) {
	all, known := describedKeys(t), knownKeys(t)
	for _, key := range known {
		if all[key] == nil {
			t.Errorf("the schema does not have %s", key)
		}
		delete(all, key)
	}
	for key := range all {
		t.Errorf("the schema has %s, which the loader does not know", key)
	}
	if len(known) < 150 {
		t.Errorf("only %d keys were found", len(known))
	}
}

// TestKeysAreDescribed: each description is made of sentences.
func TestKeysAreDescribed(t *testing.T) {
	sentences := regexp.MustCompile(`^\S.*[^.]\.$`)
	all := describedKeys(t)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		text := all[key].Description
		if doc, _, _ := strings.Cut(text, " Default: "); !sentences.MatchString(doc) || strings.Contains(text, "  ") || !strings.HasSuffix(text, ".") {
			t.Errorf("the description of %s is not made of sentences: %q", key, text)
		}
	}
}

// An editor shows the description alone, so it has the conditions that the page has.
func TestDescriptionsHaveTheConditions(t *testing.T) {
	all := describedKeys(t)
	for key, condition := range map[string]string{
		"admin":                                 "on without this section",
		"backends.NAME.tls.sha1_signatures":     "Only if the versions include TLS 1.2",
		"health.from":                           "closes the connection if another network sends one",
		"kubernetes.tcp.proxy_protocol":         "every peer must send a PROXY header",
		"listeners.NAME.timeouts.body_min_rate": "Not for gRPC",
		"routes[].alpn":                         "refuses clients that offer only other protocols",
		"tls_policies.NAME.from":                "Not together with client_auth",
		"tls_policies.NAME.sha1_signatures":     "every policy with client_auth needs",
	} {
		if one := all[key]; one == nil || !strings.Contains(one.Description, condition) {
			t.Errorf("the description of %s does not say %q: %+v", key, condition, one)
		}
	}
}
