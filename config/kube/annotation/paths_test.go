package annotation

import (
	"slices"
	"strings"
	"testing"
)

func TestRewriteTarget(t *testing.T) {
	for value, want := range map[string]struct {
		target   string
		rating   Rating
		patterns bool
	}{
		"/": {"/", Exact, true}, "/$1": {"/$1", Exact, true}, "$1": {"$1", Exact, true}, "/a/$2/b.$1": {"/a/$2/b.$1", Exact, true}, "/$10": {"/$10", Exact, true},
		" /a ": {"/a", Exact, true}, "": {"", Exact, false}, "/app": {"/app", Exact, false}, // the path itself
		"/a?b=c": {"", No, false}, "/a b": {"", No, false}, "/{a}": {"", No, false}, "/caf\u00e9": {"", No, false}, // ingress-nginx ignores them
		"https://a.example/$1": {"/$1", Exact, true}, "$scheme://a.example": {"", No, true}, "https://$host/a": {"", No, true}, "https://a.example/$host": {"", No, true},
		"https://a.example//x": {"", No, true}, "https://a.example:99999/x": {"", No, true}, "https://": {"", No, true}, "https:///x": {"", No, true},
		"/$host/$1": {"", No, true}, "/$0": {"", No, true}, "/$": {"", No, true}, "a/$1": {"", No, true}, "//a": {"", No, true},
	} {
		i := ingressOf([]string{"/app"}, "rewrite-target: "+value)
		if got := SettingsOf(i).Rewrite.Path; got != want.target {
			t.Errorf("%q makes the path %q, want %q", value, got, want.target)
		}
		checkRating(t, i, want.rating)
		if got := UsesPatterns(i); got != want.patterns {
			t.Errorf("with %q the paths are regular expressions: %v", value, got)
		}
	}
}

func TestRewriteTargetURL(t *testing.T) {
	for value, want := range map[string]Rewrite{
		"https://a.example/$1":       {Scheme: "https", Host: "a.example", Path: "/$1"},
		"http://a.example:8080/x/$2": {Scheme: "http", Host: "a.example", Port: 8080, Path: "/x/$2"},
		"https://a.example":          {Scheme: "https", Host: "a.example", Path: "/"},
		"https://a.example$1":        {Scheme: "https", Host: "a.example", Path: "/$1"},
	} {
		if got := SettingsOf(ingressOf([]string{"/app"}, "rewrite-target: "+value)).Rewrite; got != want {
			t.Errorf("%q sets %+v, want %+v", value, got, want)
		}
	}
}

func TestUseRegex(t *testing.T) {
	f := func(value string, paths []string, want Rating, patterns bool) {
		t.Helper()
		i := ingressOf(paths, "use-regex: "+value)
		checkRating(t, i, want)
		if got := UsesPatterns(i); got != patterns {
			t.Errorf("with %q the paths are regular expressions: %v", value, got)
		}
	}
	f("true", []string{"/a(/|$)(.*)", "/b"}, Exact, true)
	f("true", nil, Exact, true)
	f("1", []string{"/a.*"}, Exact, true)
	f("false", []string{"/a(?=b)"}, Exact, false)
	f("yes", []string{"/a"}, Exact, false) // no value for strconv.ParseBool
	f("true", []string{"/a(?=b)"}, No, true)
	f("true", []string{"/a", "/(a)\\1"}, No, true)
	f("true", []string{"/a++"}, No, true)
	f("true", []string{"/" + strings.Repeat("a", 2000)}, No, true)
	f("true", []string{"/(a{1000}){1000}"}, No, true)
}

// The beginnings decide which tenant may take the requests of another one.
func TestBeginningsOfPatterns(t *testing.T) {
	for path, want := range map[string][]string{
		"/": {"/"}, "/Api/V1": {"/api/v1"}, "/api(/|$)(.*)": {"/api/", "/api"}, "/(api|auth)/.*": {"/api/", "/auth/"}, "/(a|b)/x": {"/a/x", "/b/x"},
		"/.*": {"/"}, "/a.c": {"/a"}, "/ab?c": {"/a"}, "/ab+c": {"/ab"}, "/a|/b": {"/a", "/b"}, "^/a$": {"/a"}, "/a\\.b": {"/a.b"}, "/[ab]x": {"/ax", "/bx"}, "/[a-z]x": {"/"},
		"(?i)/a": {"/a"}, "(/a)?/b": {""}, "/caf\u00e9": {"/caf"}, "/v[0-9]+/x": {"/v0", "/v1", "/v2", "/v3", "/v4", "/v5", "/v6", "/v7", "/v8", "/v9"},
	} {
		got, err := CompilePattern(path)
		if slices.Sort(got); err != nil || !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("%q begins with %q, %v, want %q", path, got, err, want)
		}
	}
	if got, err := CompilePattern("/" + strings.Repeat("(a|bb|c)", 6)); err != nil || len(got) > 100 {
		t.Errorf("there are %d beginnings, %v", len(got), err)
	}
}
