package message

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// text returns the fields of a head, with dropped fields in brackets.
func text(h *Head) string {
	var b strings.Builder
	for i := range h.Fields {
		line := string(h.Name(i)) + ": " + string(h.Value(i))
		if h.Fields[i].Dropped {
			line = "[" + line + "]"
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

func TestHead(t *testing.T) {
	want := func(what string, h *Head, want string) {
		t.Helper()
		if got := text(h); got != want {
			t.Errorf("%s:\n%swant\n%s", what, got, want)
		}
	}
	var h Head
	want("a new head", &h, "")
	if h.Find(Host) != -1 || h.Get(Host) != nil || h.GetName("host") != nil {
		t.Error("an empty head has fields")
	}

	in, offset := h.Load([]byte("....Host:a"))
	if string(in) != "....Host:a" || offset != 0 {
		t.Errorf("loaded %q at %d", in, offset)
	}
	if f := h.AddSpans(h.Range(offset+4, offset+8), h.Range(offset+9, offset+10)); f.ID != Host {
		t.Errorf("the id is %s", f.ID)
	}
	if _, offset = h.Load([]byte("x")); offset != 10 {
		t.Errorf("loaded at %d", offset)
	}
	h.Add(XRealIP, []byte("10.0.0.1"))
	h.AddField("x-real-ip", "2")
	h.AddField("Other", "")
	h.Append(XForwardedFor, func(b []byte) []byte { return append(b, "10.0.0.2"...) })
	want("filled", &h, "Host: a\nX-Real-IP: 10.0.0.1\nx-real-ip: 2\nOther: \nX-Forwarded-For: 10.0.0.2\n")

	h.SetValue(0, []byte("another host"))
	h.SetValue(2, h.Value(0)) // a value of its own
	want("changed", &h, "Host: another host\nX-Real-IP: 10.0.0.1\nx-real-ip: another host\nOther: \nX-Forwarded-For: 10.0.0.2\n")
	if h.Find(XRealIP) != 1 || string(h.Get(XRealIP)) != "10.0.0.1" || string(h.GetName("other")) != "" || h.GetName("other") == nil {
		t.Error("a field is not found")
	}
	if s := h.ValueSpan(0); s.Len() != len("another host") || string(h.Bytes(s)) != "another host" {
		t.Errorf("a span of %d", s.Len())
	}

	h.Fields[1].Dropped = true
	if h.Find(XRealIP) != 2 || string(h.GetName("x-real-ip")) != "another host" {
		t.Error("a dropped field is found, or the next one is not")
	}
	h.Drop(XRealIP)
	h.Drop(Other)
	want("dropped", &h, "Host: another host\n[X-Real-IP: 10.0.0.1]\n[x-real-ip: another host]\n[Other: ]\nX-Forwarded-For: 10.0.0.2\n")
	if h.Find(XRealIP) != -1 || h.Get(XRealIP) != nil || h.GetName("x-real-ip") != nil || h.GetName("other") != nil {
		t.Error("a dropped field is found")
	}
	h.Reset()
	want("reset", &h, "")
}

// An append to a slice of the arena must not change the head. Growth of the arena must not
// change the slices.
func TestSlicesOfTheArena(t *testing.T) {
	var h Head
	h.AddField("A", "one")
	h.AddField("B", "two")
	_ = append(h.Value(0), "overwrites"...)
	_ = append(h.Name(0), "overwrites"...)
	if got := text(&h); got != "A: one\nB: two\n" {
		t.Errorf("%s", got)
	}
	b := h.Value(0)
	for range 100 {
		h.AddField(strings.Repeat("n", 100), "v")
	}
	if string(b) != "one" || string(h.Value(0)) != "one" {
		t.Errorf("%q, %q", b, h.Value(0))
	}
}

func TestResetKeepsOrdinaryMemory(t *testing.T) {
	var r Request
	f := func(size int, kept bool) {
		t.Helper()
		r.Load(bytes.Repeat([]byte{'x'}, size))
		r.Trailers.Load(bytes.Repeat([]byte{'x'}, size))
		r.AddField("A", "b")
		r.Reset()
		if (cap(r.arena) > 0) != kept || (cap(r.Trailers.arena) > 0) != kept {
			t.Errorf("after %d bytes: capacities %d and %d", size, cap(r.arena), cap(r.Trailers.arena))
		}
		if len(r.arena) != 0 || len(r.Fields) != 0 || len(r.Trailers.arena) != 0 {
			t.Error("something is left")
		}
	}
	f(1000, true)
	f(100000, false)
	f(1000, true)
}

func TestResetForgetsEverything(t *testing.T) {
	r := Request{Length: 5, Idempotent: true, IsHead: true, Close: true, ExpectContinue: true, AcceptsTrailers: true}
	r.Method, r.Target, r.Path, r.Host, r.Upgrade = r.StoreString("m"), r.StoreString("t"), r.StoreString("p"), r.StoreString("h"), r.StoreString("u")
	r.Trailers.AddField("A", "b")
	if !r.HasBody() {
		t.Error("5 bytes are a body")
	}
	r.Reset()
	for _, s := range []Span{r.Method, r.Target, r.Path, r.Host, r.Upgrade} {
		if s.Len() != 0 {
			t.Errorf("%q is left", r.Bytes(s))
		}
	}
	if r.Minor != 1 || r.HasBody() || r.Idempotent || r.IsHead || r.Close || r.ExpectContinue || r.AcceptsTrailers || len(r.Trailers.Fields) != 0 {
		t.Errorf("%+v", r)
	}
	s := Response{Status: 200, Length: 5, Close: true, Trails: true}
	s.Reason, s.Upgrade = s.StoreString("r"), s.StoreString("u")
	s.Trailers.AddField("A", "b")
	s.Reset()
	if s.Status != 0 || s.Length != 0 || s.Close || s.Trails || s.Reason.Len() != 0 || s.Upgrade.Len() != 0 || len(s.Trailers.Fields) != 0 {
		t.Errorf("%+v", s)
	}
}

func TestStatuses(t *testing.T) {
	f := func(status int, informational, forbidden bool) {
		t.Helper()
		r := Response{Status: status}
		if r.Informational() != informational || BodyForbidden(status) != forbidden {
			t.Errorf("%d: informational %v, body forbidden %v", status, r.Informational(), BodyForbidden(status))
		}
	}
	f(100, true, true)
	f(101, false, true)
	f(103, true, true)
	f(199, true, true)
	f(200, false, false)
	f(204, false, true)
	f(205, false, false)
	f(304, false, true)
	f(500, false, false)
}

func TestRefusalIsAnError(t *testing.T) {
	var err error = &Refusal{Status: 431, Reason: "head_too_large", Detail: "the head is too large"}
	var r *Refusal
	if !errors.As(err, &r) || err.Error() != "431: the head is too large" {
		t.Error(err)
	}
}

// The URL of a redirect has nothing that browsers read in another way.
func TestAppendURL(t *testing.T) {
	for in, want := range map[string]string{"/a%5Cb%zz?c=%zz\\": "/a%5Cb%25zz?c=%zz\\", `/\evil.example`: "/%5Cevil.example", "/\xc3\xa4%": "/%C3%A4%25", "/a%4": "/a%254",
		"https://a/b c\r\n#d": "https://a/b%20c%0D%0A#d", "/a%20b%2fc//;d": "/a%20b%2fc//;d"} {
		if got := string(AppendURL(nil, []byte(in))); got != want {
			t.Errorf("%q becomes %q, not %q", in, got, want)
		}
	}
}

// A route may give the endpoint another target. It passes the same check as a client's, and the
// request keeps its own.
func TestRewrite(t *testing.T) {
	var r Request
	f := func(target string, ok bool) {
		t.Helper()
		r.Reset()
		r.SetMethod(r.StoreString("GET"))
		if err := r.SetTarget(r.StoreString("/theirs?a")); err != nil || string(r.EndpointTarget()) != "/theirs?a" {
			t.Fatalf("%v, and the endpoint gets %q", err, r.EndpointTarget())
		}
		want := "/theirs?a"
		if ok {
			want = target
		}
		if err := r.Rewrite(r.StoreString(target)); (err == nil) != ok || string(r.EndpointTarget()) != want || string(r.Bytes(r.Target)) != "/theirs?a" {
			t.Errorf("%q: %v, and the endpoint gets %q", target, err, r.EndpointTarget())
		}
	}
	f("/", true)
	f("/a//b?c", true)
	f("/a?//b/../c", true)
	for _, bad := range []string{"", "a", "*", "?a", "//a", "//", "/../a", "/a/%2e%2e", "/a\\b", "/%5c", "/%00", "/%", "/a b", "/a\r\nX: y", "/a\x00", "/ä", "/a#b", "http://a/"} {
		f(bad, false)
	}
	for target, ok := range map[string]bool{"/a\\b": true, "/%5c%": true, "/ä?ö": true, "/\\a": false, "//a": false, "/a\\..": false, "/a b": false} {
		r.Reset()
		r.RawTargets = true
		if err := r.Rewrite(r.StoreString(target)); (err == nil) != ok {
			t.Errorf("with raw targets %q: %v", target, err)
		}
	}
}
