package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The metric weir_config_hash is readable without access to secrets. If secrets counted,
// a reader of the metric could try a list of passwords. This test sets every field of a
// Config, so it also covers the secrets of keys that are added later.
func TestSecretsAreNeitherHashedNorShown(t *testing.T) {
	f := filler{}
	var c Config
	f.fill(reflect.ValueOf(&c).Elem(), "Config")
	if len(f.secrets) < 5 {
		t.Fatalf("only %d secrets were found: %v", len(f.secrets), f.secrets)
	}
	c.TLSPolicies = nil // numbers of versions contain no secrets
	pair, acme := c.Certificates[0], c.Certificates[0]
	acme.Pair, acme.SelfSigned = nil, nil // an entry has only one of these three
	c.Certificates = []Certificate{pair, acme}
	base := c.hash()
	for path, v := range f.secrets {
		for _, storage := range []bool{false, true} {
			if strings.HasSuffix(path, "Storage") != storage {
				continue
			}
			before := v.String()
			for _, secret := range []string{"hunter2", "correcthorse"} {
				value := secret
				if storage {
					value = "redis://user-" + secret + ":" + secret + "@redis.example.org/1"
				}
				v.SetString(value)
				if c.hash() != base {
					t.Errorf("%s: the hash is another one with another secret; write it through a shower in print.go", path)
				}
				shown := string(publicly(&c))
				if strings.Contains(strings.ReplaceAll(shown, "user-"+secret, ""), secret) {
					t.Errorf("%s: it is shown; write it through a shower in print.go", path)
				}
				if text := fmt.Sprintf("%v %+v %#v", v.Interface(), v.Interface(), v.Interface()); strings.Contains(text, secret) {
					t.Errorf("%s: printing shows it", path)
				}
			}
			v.SetString(before)
		}
	}
	for path := range f.texts {
		if secretive.MatchString(path[strings.LastIndexByte(path, '.')+1:]) && !known[path] {
			t.Errorf("%s sounds like a secret and is a string; make it a Secret, or add it to known in this test with the reason", path)
		}
	}
}

// publicly returns what operators may see.
func publicly(c *Config) []byte {
	all, _ := c.Print()
	return all.appendTo(nil)
}

// secretive matches the names of fields that may hold a secret.
var secretive = regexp.MustCompile(`(?i)secret|token|passw|credential|bearer|key|mac$|hmac|cookie|salt|user`)

// known are fields that match secretive, but hold no secret.
var known = map[string]bool{
	"Config.User":                                         true, // a user name
	"Config.Certificates[].KeyFile":                       true, // the path of a file
	"Config.Certificates[].ACME.KeyType":                  true, // an algorithm
	"Config.Certificates[].ACME.ExternalAccount.KeyID":    true, // a name: the key is MACKey
	"Config.Certificates[].ACME.DNS.RFC2136.KeyName":      true, // a name: the key is Key
	"Config.Certificates[].ACME.DNS.RFC2136.KeyAlgorithm": true,
	"Config.ECHKeys[].File":                               true, // the path of a file
	"Config.Backends[].Sticky.Cookie":                     true, // the name of a cookie
	"Config.Routes[].Canary.Cookie":                       true, // the name of a cookie
	"Config.Routes[].HashBy[].Cookie":                     true, // the name of a cookie
	"Config.Backends[].TLS.KeyFile":                       true, // the path of a file
	"Config.Auth[].JWT.Keys":                              true, // the path of a file, or a URL
	"Config.Admin.TokenFile":                              true, // the path of a file
	"Config.Admin.TLS.KeyFile":                            true, // the path of a file
	"Config.Kubernetes.NamespaceLabels[].Key":             true, // a label's name
}

// A filler sets every field of a value, and records where texts are.
type filler struct {
	secrets map[string]reflect.Value
	texts   map[string]bool
}

func (f *filler) fill(v reflect.Value, path string) {
	if f.secrets == nil {
		f.secrets, f.texts = map[string]reflect.Value{}, map[string]bool{}
	}
	if !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), path)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(v.Index(0), path+"[]")
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	case reflect.String:
		if v.Type() == reflect.TypeFor[Secret]() {
			f.secrets[path] = v
			v.SetString("redis://first@redis.example.org/1")
			return
		}
		f.texts[path] = true
		v.SetString("a")
	}
}

func TestWithoutPassword(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := Secret(in).withoutPassword(); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
	f("/var/lib/weir", "/var/lib/weir")
	f("redis://redis:6379/0", "redis://redis:6379/0")
	f("redis://weir@redis:6379", "redis://weir@redis:6379")
	f("redis://weir:hunter2@redis:6379/0?prefix=a@b", "redis://weir:(hidden)@redis:6379/0?prefix=a@b")
	f("rediss://:hun@ter:2@redis", "rediss://:(hidden)@redis")
	f("redis://weir:hunter2@redis?prefix=a:b@c", "redis://weir:(hidden)@redis?prefix=a:b@c")
	f("redis://redis?prefix=a:b@c", "redis://redis?prefix=a:b@c")
}
