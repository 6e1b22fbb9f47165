package config

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Two configurations with one hash look equal to an operator who compares nodes. This test
// changes every field of a Config, so it also covers keys that are added later.
func TestEveryKeyIsHashed(t *testing.T) {
	var c Config
	var all leaves
	all.collect(reflect.ValueOf(&c).Elem(), "Config")
	for _, l := range all {
		base := hashAs(c, l.path)
		was := reflect.New(l.value.Type()).Elem()
		was.Set(l.value)
		l.change()
		same := hashAs(c, l.path) == base
		l.value.Set(was)
		if want := unhashed.MatchString(l.path); same != want {
			t.Errorf("%s: a change of it changes the hash: %t, wanted %t; see its section's table of keys", l.path, !same, !want)
		}
	}
}

// The hash of a configuration is that of its printed text, although it is computed in pieces.
func TestHashIsThatOfTheText(t *testing.T) {
	var c Config
	var all leaves
	all.collect(reflect.ValueOf(&c).Elem(), "Config")
	for _, empty := range []bool{false, true} {
		if empty {
			c = Config{}
		}
		sum := sha256.Sum256(c.print(&shower{reveal: revealNothing}).appendTo(nil))
		if want := hex.EncodeToString(sum[:8]); c.hash() != want {
			t.Errorf("empty %t: the hash is %s, want %s", empty, c.hash(), want)
		}
	}
}

// A field that is zero prints nothing, or its key does not say that it has the field (see lazily).
func TestZeroFieldsPrintNothing(t *testing.T) {
	f := func(object any, keys []key) {
		t.Helper()
		for _, k := range keys {
			if k.value.field == nil {
				continue
			}
			if n := k.value.bind(object).print(&shower{}); n != nil || !isZero(k.value.field(object)) {
				t.Errorf("%T, %s: prints %v", object, k.name, n)
			}
		}
	}
	f(new(Route), routeKeys)
	f(new(Backend), backendKeys)
	f(new(Endpoint), endpointKeys)
}

// unhashed matches fields that are no part of the hash: positions, fields that follow from
// others, the contents of files, and fields that no file can set.
var unhashed = regexp.MustCompile(strings.Join([]string{
	`\.Position\.`, `^Config\.(Hash|Warnings|Source|Included)`,
	`^Config\.Listeners\[\]\.UnknownPolicy$`, `^Config\.TLSPolicies\[\]\.(Owned|Ask|ClientAuthDepth|ClientAuthLists.*)$`, `^Config\.Routes\[\]\.(CORS\.AsNginx$|(Limits|Script|Reverse|ClientCert)\.|Errors\[\]\.(AsNginx|OnlyOwn|Report))`, `^Config\.Auth\[\]\.(Basic\.Object$|(Subrequest|External)\.)`, // only of objects
	`\.Network$`, `^Config\.Backends\[\]\.Secure$`, // part of the address, and of the protocol
	`^Config\.(Drain\.IfAsked|Admin\.Implied)$`, // whether the file has lame_duck, and an address of the admin port
	`PEM\[\]$`, `(CA|Auth)Pool\[\]$`,
	`^Config\.Routes\[\]\.(Canary|Fallback|Sticky|HashBy\[\])\.`, `(HashSubset|Backends\[\]\.Group)$`, // only of objects
	`^Config\.(Routes|Backends)\[\].*\.(Namespace|Ingress|IngressHost|Closed|Missing|Begins|Among|Closure\.\w+|Order\.\w+|Redirect\.(Always|DropQuery)|Mirror\[\]\.(Of|Path|KeepQuery|Host|NoBody)|Retries\.Unshared|Terminating|Foreign)$`,
	`^Config\.Routes\[\]\.(CORS\.Echo|Backends\[\]\.Request\..*)$`, `^Config\.Backends\[\]\.TLS\.(Names|URIs)\[\]$`, // of the Gateway API
}, "|"))

// hashAs returns the hash of c after the changes that the field at path needs in order to
// have an effect.
func hashAs(c Config, path string) string {
	cert := c.Certificates[0] // only one kind of certificate counts
	switch {
	case strings.HasPrefix(path, "Config.Certificates[].ACME."):
		one := *cert.ACME
		if one.Owner = ""; path == "Config.Certificates[].ACME.Owner" { // a listener's, see ACME.ordered
			one.Owner = cert.ACME.Owner
		}
		cert.Pair, cert.SelfSigned, cert.ACME = nil, nil, &one
	case strings.HasPrefix(path, "Config.Certificates[].SelfSigned"):
		cert.Pair = nil
	case !strings.HasPrefix(path, "Config.Certificates[].Pair."):
		cert.Pair, cert.SelfSigned, cert.ACME = nil, nil, nil
	}
	c.Certificates = []Certificate{cert}
	b := new(*c.Backends[0])
	if strings.HasPrefix(path, "Config.Backends[].TLS.") || path == "Config.Backends[].HTTP2" {
		b.Protocol = ProtocolHTTPS
	}
	c.Backends = []*Backend{b}
	l, r := c.Listeners[0], new(*c.Routes[0])
	if path == "Config.Listeners[].HTTP2.Offer" || strings.HasPrefix(path, "Config.Routes[].TLS") {
		l.Protocol, r.FirstBytes = ProtocolTLS, ""
	}
	if strings.HasPrefix(path, "Config.Routes[].Paths[].Ex") {
		p := r.Paths[0]
		p.Decoded, p.Expression = false, p.Expression && path != "Config.Routes[].Paths[].Exact"
		r.Paths = []Path{p}
	}
	c.Listeners, c.Routes = []Listener{l}, []*Route{r}
	return c.hash()
}

// leaf is a field that has no fields of its own.
type leaf struct {
	path  string
	value reflect.Value
}

type leaves []leaf

// collect gives every leaf in v a value, and every slice one element.
func (all *leaves) collect(v reflect.Value, path string) {
	if !v.CanSet() {
		return
	}
	switch v.Interface().(type) {
	case Secret:
		return // TestSecretsAreNeitherHashedNorShown tests these fields
	case netip.Prefix, netip.Addr, time.Time:
		*all = append(*all, leaf{path, v})
		leaf{path, v}.first()
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		all.collect(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		all.collect(v.Index(0), path+"[]")
	case reflect.Struct:
		for i := range v.NumField() {
			all.collect(v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	case reflect.Map, reflect.Func, reflect.Interface:
	default:
		*all = append(*all, leaf{path, v})
		leaf{path, v}.first()
	}
}

func (l leaf) first() {
	switch v := l.value; v.Interface().(type) {
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("192.0.2.0/24")))
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("192.0.2.1")))
	default:
		switch v.Kind() {
		case reflect.String:
			v.SetString("a")
		case reflect.Int:
			v.SetInt(1)
		case reflect.Int64, reflect.Int32:
			v.SetInt(7)
		case reflect.Uint16:
			v.SetUint(uint64(numbersOf(l.path)[0]))
		case reflect.Uint8, reflect.Uint32, reflect.Uint64:
			v.SetUint(1)
		case reflect.Float64:
			v.SetFloat(0.5)
		case reflect.Bool:
			v.SetBool(true)
		}
	}
}

func (l leaf) change() {
	switch v := l.value; v.Interface().(type) {
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("198.51.100.0/25")))
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("198.51.100.1")))
	default:
		switch v.Kind() {
		case reflect.String:
			v.SetString("b")
		case reflect.Int:
			v.SetInt(2)
		case reflect.Int64, reflect.Int32:
			v.SetInt(8)
		case reflect.Uint16:
			v.SetUint(uint64(numbersOf(l.path)[1]))
		case reflect.Uint8, reflect.Uint32, reflect.Uint64:
			v.SetUint(2)
		case reflect.Float64:
			v.SetFloat(0.25)
		case reflect.Bool:
			v.SetBool(!v.Bool())
		}
	}
}

// numbersOf returns two valid values of a field with a number of TLS, or with a port.
func numbersOf(path string) [2]uint16 {
	switch {
	case strings.Contains(path, "CipherSuites"):
		return [2]uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_256_CBC_SHA}
	case strings.Contains(path, "Curves"), strings.Contains(path, "Groups"):
		return [2]uint16{uint16(tls.X25519), uint16(tls.CurveP256)}
	}
	return [2]uint16{tls.VersionTLS10, tls.VersionTLS11}
}
