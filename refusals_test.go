package weir

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// setting matches words of the configuration: its keys with an underscore, the beginnings of others, and what it
// configures. Names of frames and codes of HTTP/2 are in capitals.
var setting = regexp.MustCompile(`\b[a-z]+_[a-z_]+\b|\b(limits|timeouts|listeners|backends|queue)\.[a-z]|\b(listener|backend|the route|its route)s?\b`)

// fromElsewhere are the expressions that may stand in place of a text that weir sends to clients, each with the reason
// why it contains nothing of the configuration.
var fromElsewhere = map[string]string{
	"refuseUndecided.Detail":                 "a text that this test checks",
	"r.Detail":                               "the same",
	"refuseBusy.Detail + \"\\n\"":            "the same",
	"strings.TrimSpace(body)":                "the text of a response over gRPC, which is one of them",
	"text":                                   "one of two texts, which the tests of the proxy check",
	"failureText(o.status, o.reason, o.err)": "one of a few texts, or the Detail of a refusal",
	"e.Detail":                               "the end of a stream to an endpoint: failureText replaces it",
	"strings.TrimPrefix(err.Error(), \"http2: \")": "what a header list of a request has too much; without settings",
	"detail":                           "the argument of refusal, whose calls this test checks",
	"string(body)":                     "the body of the auth server",
	"body":                             "the same",
	"r.body":                           "the body of respond",
	"authorization":                    "the key authorization of an ACME challenge",
	"string(step.text.append(nil, x))": "the text of a snippet",
}

// What weir answers to strangers has no words of the configuration. They belong into the Hint of a refusal, for the log.
func TestRefusalsTellNothingOfTheConfiguration(t *testing.T) {
	texts := 0
	check := func(files *token.FileSet, e ast.Expr) {
		text, err := "", error(nil)
		if l, ok := e.(*ast.BasicLit); ok {
			text, err = strconv.Unquote(l.Value)
		} else if fromElsewhere[types.ExprString(e)] == "" {
			t.Errorf("%s: weir sends %s to clients, which this test does not know", files.Position(e.Pos()), types.ExprString(e))
		}
		if texts++; err != nil || setting.MatchString(text) {
			t.Errorf("%s: %q tells strangers about the configuration (%v)", files.Position(e.Pos()), text, err)
		}
	}
	err := filepath.WalkDir("proxy", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "proxy/trace/") {
			return err
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			for _, e := range sentBy(n) {
				check(files, e)
			}
			return true
		})
		return nil
	})
	if err != nil || texts < 70 {
		t.Errorf("%d texts, %v", texts, err)
	}
}

// sentBy returns the texts in a node that weir sends to clients: details of refusals, and bodies of filters.
func sentBy(n ast.Node) (all []ast.Expr) {
	switch n := n.(type) {
	case *ast.CompositeLit:
		if n.Type == nil || !strings.HasSuffix(types.ExprString(n.Type), "Refusal") {
			return nil
		}
		for _, e := range n.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok && types.ExprString(kv.Key) == "Detail" {
				all = append(all, kv.Value)
			}
		}
	case *ast.CallExpr:
		switch name := types.ExprString(n.Fun); {
		case name == "refusal" && len(n.Args) == 3:
			return n.Args[2:]
		case name == "x.Send" && len(n.Args) == 1:
			return n.Args
		}
	}
	return all
}
