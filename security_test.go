package weir_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

const security = "SECURITY.md"

// schemaNode is the part of a JSON schema that names keys.
type schemaNode struct {
	Ref        string                 `json:"$ref"`
	Properties map[string]*schemaNode `json:"properties"`
	Additional json.RawMessage        `json:"additionalProperties"` // a schema or false
	Items      *schemaNode            `json:"items"`
	AnyOf      []*schemaNode          `json:"anyOf"`
	OneOf      []*schemaNode          `json:"oneOf"`
	AllOf      []*schemaNode          `json:"allOf"`
	Defs       map[string]*schemaNode `json:"$defs"`
}

// keysOfConfig returns the paths of all keys, such as "routes[].auth" and "auth.NAME.basic".
func keysOfConfig(t *testing.T) (all []string) {
	t.Helper()
	root := new(schemaNode)
	if err := json.Unmarshal(config.Schema(), root); err != nil {
		t.Fatal(err)
	}
	var walk func(n *schemaNode, at string)
	walk = func(n *schemaNode, at string) {
		if n == nil || strings.Count(at, ".") > 8 {
			return
		}
		if name, is := strings.CutPrefix(n.Ref, "#/$defs/"); is {
			walk(root.Defs[name], at)
		}
		for _, other := range slices.Concat(n.AnyOf, n.OneOf, n.AllOf) {
			walk(other, at)
		}
		for name, value := range n.Properties {
			path := strings.TrimPrefix(at+"."+name, ".")
			all = append(all, path)
			walk(value, path)
		}
		named := new(schemaNode)
		if json.Unmarshal(n.Additional, named) == nil {
			walk(named, at+".NAME")
		}
		walk(n.Items, at+"[]")
	}
	walk(root, "")
	slices.Sort(all)
	return slices.Compact(all)
}

// guardKeys returns the keys of a route with which it refuses requests.
func guardKeys() (keys []string) {
	for field := range reflect.TypeFor[config.Route]().Fields() {
		r := new(config.Route)
		switch value := reflect.ValueOf(r).Elem().FieldByIndex(field.Index); value.Kind() {
		case reflect.Pointer:
			value.Set(reflect.New(field.Type.Elem()))
		case reflect.String:
			value.SetString("any")
		case reflect.Int64:
			value.SetInt(1)
		default:
			continue
		}
		if r.Guarded() {
			keys = append(keys, "routes[]."+keyOf(field.Name))
		}
	}
	return keys
}

var capital = regexp.MustCompile(`([a-z])([A-Z])`)

func keyOf(field string) string { return strings.ToLower(capital.ReplaceAllString(field, "${1}_${2}")) }

var (
	// limiting are the keys besides the guards by which the configuration limits strangers, or knows them.
	limiting = regexp.MustCompile(`^(limits\.[a-z.0-9_]+|rate_limits|auth\.NAME\.[a-z]+|(listeners|backends)\.NAME\.(.*\.)?max_(connections|streams)|listeners\.NAME\.timeouts)$`)
	codeSpan = regexp.MustCompile("`([^`]+)`")
	// keyLike are words in code that are keys: with a dot or an underscore.
	keyLike = regexp.MustCompile(`^[a-z][a-z0-9]*([_.][a-zA-Z0-9\[\]]+)+$|^[a-z_]+\[\]\.[a-z_.]+$`)
)

// What SECURITY.md says about limits and authentication is about the keys that there are.
func TestSecurityNamesTheKeys(t *testing.T) {
	keys, named := keysOfConfig(t), map[string]bool{}
	for _, span := range codeSpan.FindAllStringSubmatch(read(t, security), -1) {
		name := span[1]
		named[name] = true
		if !keyLike.MatchString(name) || name == "no_new_privs" {
			continue
		}
		if !slices.ContainsFunc(keys, func(key string) bool { return key == name || strings.HasSuffix(key, "."+name) }) {
			t.Errorf("%s names %s, which is no key of the configuration", security, name)
		}
	}
	wanted := guardKeys()
	if len(wanted) < 5 {
		t.Fatalf("the guards are %q", wanted)
	}
	for _, key := range keys {
		if limiting.MatchString(key) {
			wanted = append(wanted, key)
		}
	}
	for _, key := range wanted {
		section := slices.ContainsFunc(keys, func(other string) bool { return strings.HasPrefix(other, key+".") }) && key != "rate_limits" && !strings.HasSuffix(key, "timeouts")
		above := named[key[:max(0, strings.LastIndex(key, "."))]] // such as prefix for ipv4 and ipv6
		switch {
		case named[key] || above:
		case !slices.Contains(keys, key): // only objects of a cluster set it
		case section && strings.HasPrefix(key, "limits."):
		default:
			t.Errorf("%s does not name %s: say what it limits, or whom it admits", security, key)
		}
	}
}
