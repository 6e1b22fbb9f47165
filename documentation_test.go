package weir_test

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	configfile "github.com/weirproxy/weir/config/file"
)

const operations = "docs/operations.md"

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// text returns the string of e if e is a literal.
func text(e ast.Expr) (string, bool) {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		s, err := strconv.Unquote(l.Value)
		return s, err == nil
	}
	return "", false
}

var metricName = regexp.MustCompile(`\bweir_[a-z0-9_]+\b`)

// metrics returns the metrics and their labels. A metric is created by a call of package prometheus that
// contains its name, and its labels as a list of strings.
func metrics(t *testing.T) map[string][]string {
	found := map[string][]string{}
	for _, f := range goFiles(t) {
		ast.Inspect(f.File, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			fun, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || lastName(fun.X) != "prometheus" || !strings.HasPrefix(fun.Sel.Name, "New") {
				return true
			}
			name, labels := metricOf(call)
			if name != "" {
				found[name] = labels
			}
			return name == ""
		})
	}
	return found
}

func metricOf(call *ast.CallExpr) (name string, labels []string) {
	labels = []string{}
	for _, arg := range call.Args {
		if list, ok := arg.(*ast.CompositeLit); ok {
			if _, isList := list.Type.(*ast.ArrayType); isList {
				for _, e := range list.Elts {
					if label, ok := text(e); ok {
						labels = append(labels, label)
					}
				}
				continue
			}
		}
		ast.Inspect(arg, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				if s, ok := text(e); ok && metricName.FindString(s) == s && s != "" {
					name = s
				}
			}
			return true
		})
	}
	return name, labels
}

var metricRow = regexp.MustCompile("(?m)^\\| `(weir_[a-z0-9_]+)` \\| (?:counter|gauge|histogram) \\| ([^|]*)\\|")

func TestMetricsAreDocumented(t *testing.T) {
	inCode := metrics(t)
	if len(inCode) < 15 {
		t.Fatalf("only %d metrics were found in the code", len(inCode))
	}
	inDocs := map[string]bool{}
	for _, row := range metricRow.FindAllStringSubmatch(read(t, operations), -1) {
		name, labels := row[1], strings.Trim(strings.ReplaceAll(row[2], ", ", " "), " ")
		inDocs[name] = true
		want, ok := inCode[name]
		if !ok {
			t.Errorf("%s has a row for %s, which no code makes", operations, name)
			continue
		}
		if want := strings.Join(quoted(want), " "); labels != want {
			t.Errorf("%s says that %s has the labels %s; it has %s", operations, name, labels, want)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(inCode)) {
		if !inDocs[name] {
			t.Errorf("%s has no row for %s", operations, name)
		}
	}
	for _, document := range documents(t) {
		for _, name := range metricName.FindAllString(read(t, document), -1) {
			if _, ok := inCode[strings.TrimSuffix(name, "_bucket")]; !ok {
				t.Errorf("%s mentions %s, which does not exist", document, name)
			}
		}
	}
}

func quoted(words []string) (quoted []string) {
	for _, w := range words {
		quoted = append(quoted, "`"+w+"`")
	}
	return quoted
}

// The table of proxy/accesslog/fields.go alone names the fields of the access log.
func TestAccessLogIsDocumented(t *testing.T) {
	docs := section(t, operations, "## The access log")
	fields := 0
	for _, f := range goFiles(t) {
		if f.path != "proxy/accesslog/fields.go" {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			row, ok := n.(*ast.CompositeLit)
			if !ok || len(row.Elts) == 0 {
				return true
			}
			name, ok := text(row.Elts[0])
			if !ok {
				return true
			}
			fields++
			if !strings.Contains(docs, "`"+name+"`") {
				t.Errorf("%s does not name the access log's field %s", operations, name)
			}
			return true
		})
	}
	if fields < 50 {
		t.Errorf("only %d fields were found in the code", fields)
	}
}

// section returns the text under a heading of a document.
func section(t *testing.T, document, heading string) string {
	t.Helper()
	_, after, ok := strings.Cut(read(t, document), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", document, heading)
	}
	level, _, _ := strings.Cut(heading, " ")
	under, _, _ := strings.Cut(after, "\n"+level+" ")
	return under
}

func TestReasonsAreDocumented(t *testing.T) {
	docs := section(t, operations, "## What each reason means")
	found := reasons(t)
	if len(found) < 50 {
		t.Errorf("only %d reasons were found in the code", len(found))
	}
	for reason, where := range found {
		if !strings.Contains(docs, "`"+reason+"`") {
			t.Errorf("%s does not say what the reason %s means, which %s gives", operations, reason, where)
		}
	}
}

// The table lists exactly the reasons of events in the code.
func TestEventReasonsAreDocumented(t *testing.T) {
	docs := section(t, "docs/kubernetes.md", "## What events say")
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(docs, -1) {
		documented[m[1]] = true
	}
	for _, f := range goFiles(t) {
		if f.path != "config/kube/event/event.go" {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || !calledReason.MatchString(v.Names[0].Name) || len(v.Values) == 0 {
				return true
			}
			if reason, _ := text(v.Values[0]); !documented[reason] {
				t.Errorf("docs/kubernetes.md does not have the reason %s", reason)
			} else {
				delete(documented, reason)
			}
			return true
		})
	}
	for reason := range documented {
		t.Errorf("docs/kubernetes.md has the reason %s, which no event gives", reason)
	}
}

// reasons returns the words that the data path uses as reasons or results, and their places. It finds strings
// and constants with such a name, and arguments of functions that take a reason.
func reasons(t *testing.T) map[string]string {
	found := map[string]string{}
	for _, f := range goFiles(t) {
		if !slices.Contains([]string{"listener", "proxy", "proxy/filter", "proxy/http1", "proxy/tunnel", "tls/policy"}, f.folder) {
			continue
		}
		note := func(e ast.Expr) {
			if s := value(t, f, e); word.MatchString(s) {
				found[s] = f.path
			}
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if slices.Contains([]string{"refusal", "fail", "lost", "refuse"}, lastName(n.Fun)) {
					for _, arg := range n.Args {
						note(arg)
					}
				}
			case *ast.KeyValueExpr:
				if lastName(n.Key) == "Reason" {
					note(n.Value)
				}
			case *ast.AssignStmt:
				for i, left := range n.Lhs {
					if calledReason.MatchString(lastName(left)) && i < len(n.Rhs) {
						note(n.Rhs[i])
					}
				}
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if !calledReason.MatchString(name.Name) || i >= len(n.Values) {
						continue
					}
					note(n.Values[i])
					if list, ok := n.Values[i].(*ast.CompositeLit); ok {
						for _, e := range list.Elts {
							note(e)
						}
					}
				}
			}
			return true
		})
	}
	return found
}

var (
	word         = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]*)*$`)
	calledReason = regexp.MustCompile(`^(Reason|Result|reason|result)(Names|[A-Z]\w*)?$`)
)

// value returns the string of an expression: a literal, the first part of a sum, or a constant of f's
// package.
func value(t *testing.T, f file, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := text(e)
		return s
	case *ast.BinaryExpr:
		return value(t, f, e.X)
	case *ast.Ident:
		for _, other := range goFiles(t) {
			for _, d := range other.Decls {
				c, ok := d.(*ast.GenDecl)
				if !ok || c.Tok != token.CONST || other.folder != f.folder {
					continue
				}
				for _, spec := range c.Specs {
					spec := spec.(*ast.ValueSpec)
					for i, name := range spec.Names {
						if name.Name == e.Name && i < len(spec.Values) {
							s, _ := text(spec.Values[i])
							return s
						}
					}
				}
			}
		}
	}
	return ""
}

func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// documents returns the Markdown files of the project.
func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "deploy/*.md", "docs/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	slugOut = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// anchors returns the link targets of the headings of a document.
func anchors(t *testing.T, document string) (all []string) {
	for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(read(t, document), ""), -1) {
		slug := slugOut.ReplaceAllString(strings.ToLower(h[1]), "")
		all = append(all, strings.ReplaceAll(slug, " ", "-"))
	}
	return all
}

func TestLinksLeadSomewhere(t *testing.T) {
	for _, document := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, document), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			to, anchor, _ := strings.Cut(m[1], "#")
			if to = filepath.Join(filepath.Dir(document), to); strings.HasPrefix(m[1], "#") {
				to = document
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which does not exist", document, m[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(t, to), anchor) {
				t.Errorf("%s links to %s: %s has no such heading", document, m[1], to)
			}
		}
	}
}

// glossaryRow is a row of the table of words that the code uses in a special sense: words, one meaning, places.
var glossaryRow = regexp.MustCompile("(?m)^\\| ([a-z, ]+) \\| [^|]+ \\| (`[^|]+`) \\|$")

// TestGlossaryWordsAreUsed: the code has each word of the glossary in each place that the row names.
func TestGlossaryWordsAreUsed(t *testing.T) {
	const page = "docs/architecture.md"
	_, rest, _ := strings.Cut(read(t, page), "The code uses the following words in a special sense.")
	rest, _, _ = strings.Cut(rest, "\n## ")
	rows := glossaryRow.FindAllStringSubmatch(rest, -1)
	if lines := strings.Count(rest, "\n| ") - 1; len(rows) < 50 || len(rows) != lines {
		t.Fatalf("%s: %d of %d rows of the glossary are words, a meaning, and files or packages in code style", page, len(rows), lines)
	}
	for _, row := range rows {
		for place := range strings.SplitSeq(row[2], ", ") {
			code, place := "", strings.Trim(place, "`")
			for _, f := range goFiles(t) {
				if f.path == place || f.folder == place {
					code += strings.ToLower(read(t, f.path))
				}
			}
			for word := range strings.SplitSeq(row[1], ", ") {
				if !strings.Contains(code, word) {
					t.Errorf("%s: %s does not use the word %q of the glossary", page, place, word)
				}
			}
		}
	}
}

var testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+\b`)

const evidence = "docs/evidence.md"

// forContributors are the pages that may name tests. Names of tests mean nothing to users.
var forContributors = []string{evidence, "docs/architecture.md", "CONTRIBUTING.md", "CHANGELOG.md"}

func TestNamedTestsExist(t *testing.T) {
	exist := tests(t)
	for _, document := range documents(t) {
		for _, name := range testName.FindAllString(read(t, document), -1) {
			if !slices.Contains(forContributors, document) {
				t.Errorf("%s names the test %s: name it in %s, beside the claim that it proves", document, name, evidence)
			}
			if !exist[name] {
				t.Errorf("%s names the test %s, which does not exist", document, name)
			}
		}
	}
}

// tests returns the names of all tests, fuzz targets and benchmarks.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	all, err := source()
	if err != nil {
		t.Fatal(err)
	}
	exist := map[string]bool{}
	for _, f := range all {
		for _, d := range f.Decls {
			if fun, ok := d.(*ast.FuncDecl); ok && f.test && fun.Recv == nil {
				exist[fun.Name.Name] = true
			}
		}
	}
	return exist
}

var evidenceRow = regexp.MustCompile("^\\| [^|]+ \\| \\[[^]]+\\]\\([^)]+\\) \\| (`[^`|]+`(?:, `[^`|]+`)*) \\|$")

// Each row of the table has a claim, a link to its page, and existing tests or commands.
func TestEvidence(t *testing.T) {
	exist, rows := tests(t), 0
	for line := range strings.Lines(read(t, evidence)) {
		line = strings.TrimRight(line, "\n")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| claim |") {
			continue
		}
		m := evidenceRow.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%s: this row is not a claim, a link to a page, and tests or commands in code style: %s", evidence, line)
			continue
		}
		rows++
		for _, proof := range strings.Split(m[1], ", ") {
			if proof = strings.Trim(proof, "`"); !exist[proof] && !strings.HasPrefix(proof, "go ") {
				t.Errorf("%s: %s is neither a test that exists nor a command that begins with go", evidence, proof)
			}
		}
	}
	if rows < 50 {
		t.Errorf("only %d claims were found", rows)
	}
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")

const recipes = "docs/recipes.md"

// Each recipe is loaded and exercised by a test, which names its heading.
func TestRecipesAreTested(t *testing.T) {
	tests, headings := read(t, "e2e/recipes_test.go")+read(t, "e2e/recipes_features_test.go"), 0
	for _, m := range regexp.MustCompile("(?m)^## (.*)$").FindAllStringSubmatch(read(t, recipes), -1) {
		headings++
		if !strings.Contains(tests, strconv.Quote(m[1])) {
			t.Errorf("no test in e2e/recipes_*test.go reads the recipe %q", m[1])
		}
	}
	if headings < 10 {
		t.Errorf("only %d recipes", headings)
	}
}

// Complete configurations in documents load. Parts of a configuration load together with the rest of one.
func TestYAMLInDocumentsLoads(t *testing.T) {
	const rest = `
listeners: {web: {address: ":8080", protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ["127.0.0.1:9001"]}}
`
	loaded := map[string]int{}
	for _, document := range documents(t) {
		for _, m := range yamlBlock.FindAllStringSubmatch(read(t, document), -1) {
			whole := m[1]
			if !strings.Contains("\n"+whole, "\nlisteners:") {
				whole += rest
			}
			// Some pages name certificates and other files. TestRecipe… and TestFrom… in e2e load them with such files.
			elsewhere := document == recipes || strings.HasPrefix(document, "docs/from-")
			if _, err := configfile.Parse(document, []byte(whole), os.LookupEnv); err != nil && !elsewhere {
				t.Errorf("this configuration in %s does not load:\n%s\n%v", document, m[1], err)
			}
			validates(t, document, whole)
			loaded[document]++
		}
	}
	if loaded["README.md"] < 4 || loaded["docs/tls.md"] < 2 {
		t.Errorf("there were so many configurations: %v", loaded)
	}
}

// Each Go file that docs/architecture.md names exists. A name may leave out the first folders.
func TestNamedFilesExist(t *testing.T) {
	all, err := source()
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z0-9_/]+\\.go)`").FindAllStringSubmatch(read(t, "docs/architecture.md"), -1)
	if len(named) < 50 {
		t.Errorf("found only %d names of files", len(named))
	}
	for _, n := range named {
		if !slices.ContainsFunc(all, func(f file) bool { return f.path == n[1] || strings.HasSuffix(f.path, "/"+n[1]) }) {
			t.Errorf("docs/architecture.md names %s, which does not exist", n[1])
		}
	}
}
