package annotation

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of annotations into docs/migrate-*.md")

// samples are values of annotations for which the rating depends on the value, and their
// names in the documentation. The name of a page before an annotation makes them its own.
var samples = map[string][]struct {
	words, value string
	hasTLS       bool
}{
	"backend-protocol":               {{"`HTTP`, `GRPC`, `GRPCS`", "GRPC", false}, {"`HTTPS`", "HTTPS", false}, {"`AUTO_HTTP`", "AUTO_HTTP", false}, {"`FCGI`", "FCGI", false}},
	"allowlist-source-range":         {{"networks and addresses", "10.0.0.0/8", false}, {"networks and addresses, with other paths than `Prefix`, `Exact` or `/`", "10.0.0.0/8", false}, {"other values", "office", false}},
	"denylist-source-range":          {{"networks and addresses", "10.0.0.0/8", false}, {"networks and addresses, with other paths than `Prefix`, `Exact` or `/`", "10.0.0.0/8", false}, {"other values", "office", false}},
	"whitelist-source-range":         {{"networks and addresses", "10.0.0.0/8", false}, {"networks and addresses, with other paths than `Prefix`, `Exact` or `/`", "10.0.0.0/8", false}, {"other values", "office", false}},
	"traefik whitelist-source-range": {{"`0.0.0.0/0,::/0`", "0.0.0.0/0,::/0", false}, {"`0.0.0.0/0`", "0.0.0.0/0", false}, {"other lists", "10.0.0.0/8", false}},
	"ssl-redirect":                   {{"`true`", "true", true}, {"`false`, without `tls`", "false", false}, {"`false`, with `tls`", "false", true}},
	"force-ssl-redirect":             {{"`false`", "false", false}, {"`true`, with `tls`", "true", true}, {"`true`, without `tls`", "true", false}},
	"proxy-body-size":                {{"numbers, also with `k`, `m` or `g`", "8m", false}, {"other values", "8mb", false}},
	"proxy-buffer-size":              {{"up to `64k`", "16k", false}, {"larger", "128k", false}},
	"configuration-snippet":          {{"only HTTP headers of responses, HTTP headers of requests that weir also sets, compression, sizes, timeouts and logs", "add_header A b;", false}, {"other values", "deny all;", false}},
	"server-snippet":                 {{"only HTTP headers of responses, HTTP headers of requests that weir also sets, compression, sizes, timeouts and logs", "add_header A b;", false}, {"other values", "deny all;", false}},
	"router.entrypoints":             {{"`web`, `http`, with or without `websecure`, `https`", "web,websecure", false}, {"only `websecure`, `https`", "websecure", false}, {"other values", "internal", false}},
	"frontend-entry-points":          {{"`web`, `http`, with or without `websecure`, `https`", "http", false}, {"only `websecure`, `https`", "https", false}, {"other values", "internal", false}},
	"use-regex":                      {{"`false`", "false", false}, {"`true`, with paths of special characters", "true", false}, {"`true`, with paths without special characters", "true", false}, {"`true`, with the path `/` alone", "true", false}},
	"router.pathmatcher":             {{"`PathPrefix`", "PathPrefix", false}, {"`Path`", "Path", false}, {"other values", "PathRegexp", false}},
	"router.tls":                     {{"`true`", "true", false}, {"`false`", "false", false}},
	"service.serversscheme":          {{"`http`", "http", false}, {"`https`", "https", false}, {"`h2c`", "h2c", false}},
}

// pathsCalled are the paths of the Ingress in samples.
var pathsCalled = map[string]paths{"`true`, with paths without special characters": onlyPlain, "`true`, with the path `/` alone": onlyRoot}

var ratingWords = map[Rating]string{Exact: "exact", Near: "near", No: "not yet", guard: "not yet: 503"}

// row is the part of the documentation that several annotations may share.
type row struct {
	names       []string
	rating, why string
}

// rowsOf returns the rows of one annotation.
func rowsOf(t *testing.T, page, name string, j judge) (rows []row) {
	add := func(suffix string, r Rating, why string) {
		rows = append(rows, row{[]string{"`" + name + "`" + suffix}, ratingWords[r], why})
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
		r, why := j.look(s.value, context{s.hasTLS, pathsCalled[s.words], strings.Contains(s.words, "with other paths")})
		add(": "+s.words, r, why)
	}
	return rows
}

// table returns Markdown: annotations with the same rating and reason share a row, the
// worst first.
func table(t *testing.T, page string, judges map[string]judge) string {
	var rows []row
	for name, j := range judges {
		for _, r := range rowsOf(t, page, name, j) {
			i := slices.IndexFunc(rows, func(other row) bool { return other.rating == r.rating && other.why == r.why })
			if i < 0 {
				rows = append(rows, r)
			} else {
				rows[i].names = append(rows[i].names, r.names...)
			}
		}
	}
	order := []string{ratingWords[guard], ratingWords[No], ratingWords[Near], ratingWords[Exact]}
	for i := range rows {
		slices.Sort(rows[i].names)
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(slices.Index(order, a.rating)-slices.Index(order, b.rating), strings.Compare(a.names[0], b.names[0]))
	})
	text := "| annotation and value | weir | how it differs, or what to do |\n|---|---|---|\n"
	for _, r := range rows {
		text += fmt.Sprintf("| %s | %s | %s |\n", strings.Join(r.names, ", "), r.rating, strings.ReplaceAll(r.why, "|", `\|`))
	}
	return text
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
