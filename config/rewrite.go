package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Rewrite changes the path and the host of requests for an endpoint.
type Rewrite struct {
	// Prefix replaces the part of the path that a prefix in Route.Paths matched; empty: none. It
	// has no slash at its end, unless it is "/".
	Prefix string
	Path   Template // replaces the whole path, and not the query; empty: none
	Host   string   // replaces the Host header; empty: none
}

func (r *Route) rewriteKey() value {
	return optional(&r.Rewrite, func() *Rewrite { return &Rewrite{} }, func(w *Rewrite) section {
		return section{object: &r.Rewrite, rules: rewriteRules, check: w.check, keys: []key{
			{"prefix", newPath.at(&w.Prefix), "Replaces the part of the path that the route matched: with paths: [/old] and prefix: /new, /old/a becomes /new/a."},
			{"path", pathTemplate.at(&w.Path), "Replaces the whole path. The query stays. The text may have variables such as {path}."},
			{"host", hostField.at(&w.Host), "Replaces the Host header. X-Forwarded-Host keeps the client's host."},
		}}
	})
}

func (w *Rewrite) check(v *draft, there map[string]bool, n *Tree, p path) {
	switch {
	case there["prefix"] && there["path"]:
		v.fail(n, p, "prefix replaces a part of the path, and path the whole path; take one of them out")
	case len(there) == 0 && n.Shape == ShapeMapping && len(n.Parts) == 0:
		v.fail(n, p, "is empty; give it prefix, path or host, or take the key out")
	}
}

// newPath is the beginning of a path that weir writes.
var newPath = kind[string]{what: "a path that begins with a slash", format: same[string], pattern: `/[!"%->@-\[\]-~]*`,
	parse: func(s string) (string, error) {
		if err := checkNewPath(s); err != nil {
			return "", err
		}
		if len(s) > 1 {
			s = strings.TrimSuffix(s, "/")
		}
		return s, nil
	}}

// checkNewPath refuses paths that weir would refuse in a request.
func checkNewPath(s string) error {
	if strings.HasPrefix(s, "//") {
		return fmt.Errorf("begins with two slashes, and an endpoint might read a host there; write one")
	}
	if !strings.HasPrefix(s, "/") {
		return fmt.Errorf("does not begin with a slash; write the new path, such as /new")
	}
	if _, err := parsePath(s); err != nil {
		return err
	}
	return nil
}

// notInPaths are variables whose values contain a query.
var notInPaths = []Variable{VariableURI, VariableQuery}

// groupNumber matches what other proxies fill in with a group of an expression.
var groupNumber = regexp.MustCompile(`\$\{?[0-9]`)

// pathTemplate is a path with variables. weir also checks each result.
var pathTemplate = kind[Template]{what: "a path with variables such as {path}", format: same[Template], pattern: `[/{][!"%->@-\[\]-~]*`,
	parse: func(s string) (Template, error) {
		if group := groupNumber.FindString(s); group != "" {
			return "", fmt.Errorf("has %s, and weir does not fill in groups of an expression yet; take it out", group)
		}
		parts, err := parseTemplate(s)
		if err != nil {
			return "", err
		}
		literal := ""
		for i, p := range parts {
			switch {
			case slices.Contains(notInPaths, p.Variable):
				return "", fmt.Errorf("has the variable {%s}, whose value is more than a path; write {path}: the query stays as it is", p.Variable)
			case p.Variable == VariablePath && i == 0:
				literal += "/x" // its value begins with a slash
			case p.Variable != "":
				literal += "x"
			}
			literal += p.Text
		}
		return Template(s), checkNewPath(literal)
	}}
