package proxy

import (
	"reflect"
	"testing"
	"unsafe"
)

// A value that remains in a session of the pool would be visible to the next client. After forget,
// only the functions that are bound to the session are set, and of the messages only empty memory
// remains.
func TestForget(t *testing.T) {
	s := http1Sessions.New().(*http1Session)
	fill(reflect.ValueOf(s).Elem())
	step, mayPark, relay := s.step, s.mayPark, s.relay
	s.step, s.mayPark, s.relay = func() bool { return true }, func() bool { return true }, func() bool { return true }
	s.forget()
	if s.step == nil || s.mayPark == nil || s.relay == nil {
		t.Error("the bound functions are gone")
	}
	s.step, s.mayPark, s.relay = nil, nil, nil
	wantEmpty(t, "session", reflect.ValueOf(s).Elem())
	s.step, s.mayPark, s.relay = step, mayPark, relay
}

// fill sets every field in v that can have a value, also unexported fields.
func fill(v reflect.Value) {
	v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		for i := range 3 {
			fill(v.Index(i))
		}
	case reflect.Pointer:
		if v.Type().Elem().Size() > 0 {
			v.Set(reflect.New(v.Type().Elem()))
		}
	case reflect.String:
		v.SetString("left over")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64, reflect.Int32, reflect.Int16, reflect.Int8:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint64, reflect.Uint32, reflect.Uint16, reflect.Uint8, reflect.Uintptr:
		v.SetUint(7)
	case reflect.Interface:
		if v.Type() == reflect.TypeFor[error]() {
			v.Set(reflect.ValueOf(errClientGone))
		}
	}
}

// wantEmpty fails for every value that is set in v; slices may keep their memory.
func wantEmpty(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			wantEmpty(t, path+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case reflect.Slice:
		if v.Len() > 0 {
			t.Errorf("%s has %d elements", path, v.Len())
		}
	case reflect.Int, reflect.Int64:
		if n := v.Int(); n != 0 && !(path == "session.exchange.req.Minor" && n == 1) {
			t.Errorf("%s is %d", path, n)
		}
	default:
		if !v.IsZero() {
			t.Errorf("%s is set", path)
		}
	}
}
