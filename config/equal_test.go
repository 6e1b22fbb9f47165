package config

import (
	"net/netip"
	"reflect"
	"testing"
)

// Each field of a route or backend, also of a new one, makes a difference to Equal.
func TestEqual(t *testing.T) {
	if a, b := filled[Route](t), filled[Route](t); !a.Equal(b) {
		t.Error("equal routes are different")
	}
	if a, b := filled[Backend](t), filled[Backend](t); !a.Equal(b) {
		t.Error("equal backends are different")
	}
	differ(t, func(b *Route) bool { return filled[Route](t).Equal(b) })
	differ(t, func(b *Backend) bool { return filled[Backend](t).Equal(b) })
}

// differ changes each field of a filled value, and calls equal with the value.
func differ[T any](t *testing.T, equal func(*T) bool) {
	t.Helper()
	n := 0
	for {
		v := filled[T](t)
		left := n
		name := changeOne(reflect.ValueOf(v).Elem(), &left, reflect.TypeFor[T]().Name())
		if name == "" {
			break
		}
		if equal(v) {
			t.Errorf("Equal ignores %s", name)
		}
		n++
	}
	if n < 10 {
		t.Errorf("only %d fields were changed", n)
	}
}

// filled returns a value in which every field is set.
func filled[T any](t *testing.T) *T {
	v := new(T)
	fill(t, reflect.ValueOf(v).Elem())
	return v
}

func fill(t *testing.T, v reflect.Value) {
	if v.Type() == reflect.TypeFor[netip.Prefix]() {
		v.Set(reflect.ValueOf(netip.MustParsePrefix("192.0.2.0/24")))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	default:
		t.Fatalf("a field of the kind %s", v.Kind())
	}
}

// changeOne sets the field with this number to zero, and returns its name; empty: there are
// fewer fields.
func changeOne(v reflect.Value, n *int, name string) string {
	network := v.Type() == reflect.TypeFor[netip.Prefix]()
	if v.Kind() != reflect.Struct || network {
		if *n == 0 {
			v.SetZero()
			return name
		}
		*n--
	}
	switch kind := v.Kind(); {
	case network:
	case kind == reflect.Struct:
		for i := range v.NumField() {
			if found := changeOne(v.Field(i), n, name+"."+v.Type().Field(i).Name); found != "" {
				return found
			}
		}
	case kind == reflect.Pointer:
		return changeOne(v.Elem(), n, name)
	case kind == reflect.Slice:
		return changeOne(v.Index(0), n, name+"[0]")
	}
	return ""
}
