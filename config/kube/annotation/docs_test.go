package annotation

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// sample is one value of an annotation.
type sample struct {
	words, value string
	hasTLS       bool // the Ingress has spec.tls
}

// others are the other annotations of the Ingress in samples, by their words.
var others = map[string]map[string]string{}

// keysOf are the keys of the ConfigMap in samples, by their words.
var keysOf = map[string]map[string]string{}

func (s sample) context() context {
	return context{hasTLS: s.hasTLS, paths: pathsCalled[s.words], wide: strings.Contains(s.words, "wildcard"), loose: looseIn(s.words), values: others[s.words], keys: keysOf[s.words]}
}

// looseIn is the loose path of samples with such paths: all kinds of them.
func looseIn(words string) *loosePath {
	if !strings.Contains(words, "with other paths") {
		return nil
	}
	return &loosePath{"the Ingress has a path of special characters, or a regular expression that RE2 does not know or that has a bar outside of parentheses",
		"write paths of type Prefix or Exact, or regular expressions with use-regex"}
}

var update = flag.Bool("update", false, "write the tables of annotations into docs/migrate-*.md")

// samples are values of annotations for which the rating depends on the value, and their
// names in the documentation. The name of a page before an annotation makes them its own.
//
// A family of annotations with a file of its own adds its samples in the test file beside it.
var samples = map[string][]sample{
	"traefik whitelist-source-range": {{"`0.0.0.0/0,::/0`", "0.0.0.0/0,::/0", false}, {"`0.0.0.0/0`", "0.0.0.0/0", false}, {"other lists", "10.0.0.0/8", false}},
	"proxy-buffer-size":              {{"up to `64k`", "16k", false}, {"larger", "128k", false}},
	"router.entrypoints":             {{"`web`, `http`, with or without `websecure`, `https`", "web,websecure", false}, {"only `websecure`, `https`", "websecure", false}, {"other values", "internal", false}},
	"frontend-entry-points":          {{"`web`, `http`, with or without `websecure`, `https`", "http", false}, {"only `websecure`, `https`", "https", false}, {"other values", "internal", false}},
	"use-regex":                      {{"`false`", "false", false}, {"`true`", "true", false}, {"`true`, with a path that RE2 does not know", "true", false}},
	"rewrite-target":                 {{"a path, also with `$1` to `$9`", "/$2", false}, {"a URL with a fixed host, also with `$1` to `$9`", "https://a.example/$1", false}, {"another URL", "https://$host/$1", false}, {"with another variable", "/$host/$1", false}, {"a path without a slash at its beginning", "app/$1", false}, {"other values", "/a b", false}},
	"router.pathmatcher":             {{"`PathPrefix`", "PathPrefix", false}, {"`Path`", "Path", false}, {"other values", "PathRegexp", false}},
	"router.priority":                {{"a number above 0", "7", false}, {"other values", "first", false}},
	"service.sticky.cookie.name":     {{"letters, digits, `-`, `_` and dots", "shop", false}, {"other values", "a;b", false}},
	"service.sticky.cookie.path":     {{"a path", "/", false}, {"other values", "a;b", false}},
	"service.sticky.cookie.domain":   {{"a name", "a.example", false}, {"other values", "a;b", false}},
	"service.sticky.cookie.maxage":   {{"a number of seconds", "60", false}, {"other values", "1h", false}},
	"router.tls":                     {{"`true`", "true", false}, {"`false`", "false", false}},
	"service.serversscheme":          {{"`http`", "http", false}, {"`https`", "https", false}, {"`h2c`", "h2c", false}},
}

// pathsCalled are the paths of the Ingress in samples.
var pathsCalled = map[string]paths{"`true`, with a path that RE2 does not know": unreadable}

var ratingWords = map[Rating]string{Exact: "exact", Near: "near", No: "not yet", guard: "not yet: 503"}

// row is a line of the documentation. Annotations never share a line, so a change of one
// annotation changes only its own lines.
type row struct {
	name        string
	rating, why string
}

// rowsOf returns the rows of one annotation.
func rowsOf(t *testing.T, page, name string, j judge) (rows []row) {
	add := func(suffix string, r Rating, why string) {
		rows = append(rows, row{"`" + name + "`" + suffix, ratingWords[r], why})
	}
	if j.look == nil {
		if len(j.exact) > 0 {
			add(": "+strings.ReplaceAll("`"+strings.Join(j.exact, "`, `")+"`", "``", "empty"), Exact, "")
		}
		add("", j.rating, j.why)
		return rows
	}
	all := samples[page+" "+name]
	if len(all) == 0 {
		all = samples[name]
	}
	if len(all) == 0 {
		t.Errorf("%s is looked at closely, and this test has no samples of its values", name)
	}
	for _, s := range all {
		r, why := j.look(s.value, s.context())
		add(": "+s.words, r, why)
	}
	return rows
}

// table returns Markdown: the annotations in alphabetical order, the worst rating of each
// first.
func table(t *testing.T, page string, judges map[string]judge) string {
	order := []string{ratingWords[guard], ratingWords[No], ratingWords[Near], ratingWords[Exact]}
	var text strings.Builder
	text.WriteString("| annotation and value | weir | how it differs, or what to do |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(judges)) {
		rows := rowsOf(t, page, name, judges[name])
		slices.SortStableFunc(rows, func(a, b row) int { return slices.Index(order, a.rating) - slices.Index(order, b.rating) })
		for _, r := range rows {
			fmt.Fprintf(&text, "| %s | %s | %s |\n", r.name, r.rating, strings.ReplaceAll(r.why, "|", `\|`))
		}
	}
	return text.String()
}

// TestMigrationPages checks that the tables of the migration pages equal the ratings of
// weir lint.
func TestMigrationPages(t *testing.T) {
	const begin, end = "<!-- Made by go test ./config/kube/annotation -update -->\n", "<!-- end -->\n"
	for file, judges := range map[string]map[string]judge{"ingress-nginx": nginx, "traefik": traefik} {
		path := "../../../docs/migrate-" + file + ".md"
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		before, rest, ok1 := strings.Cut(string(text), begin)
		got, after, ok2 := strings.Cut(rest, end)
		if !ok1 || !ok2 {
			t.Errorf("%s has no place for the table: %q, and then %q", path, begin, end)
			continue
		}
		want := table(t, file, judges)
		if got == want {
			continue
		}
		if !*update {
			t.Errorf("the table in %s is not what the ratings say; go test ./config/kube/annotation -update makes it anew", path)
			continue
		}
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Error(err)
		}
	}
}
