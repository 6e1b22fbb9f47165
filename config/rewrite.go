package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/expression"
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
			{"path", pathTemplate.at(&w.Path), "Replaces the whole path. The query stays. The text may have variables such as {path}, and $1 to $9 for the groups of an expression in paths."},
			{"host", hostField.at(&w.Host), "Replaces the Host header. X-Forwarded-Host keeps the client's host."},
		}}
	})
}

func (w *Rewrite) check(v *draft, there keySet, n *Tree, p path) {
	switch {
	case there.has("prefix") && there.has("path"):
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

// badGroup matches numbers of groups as other proxies have them, and weir does not.
var badGroup = regexp.MustCompile(`\$(0|\{[0-9])`)

// backslashGroup matches numbers of groups as sed and HAProxy have them.
var backslashGroup = regexp.MustCompile(`\\[0-9]`)

// groupNumber matches the number of a group. A digit after it is literal, as in nginx.
var groupNumber = regexp.MustCompile(`\$[1-9]`)

// PathParts returns the parts of the template of a path, in order. $1 to $9 are the groups of the
// expression that the route's path matched.
func (t Template) PathParts() (parts []TemplatePart) {
	for _, p := range t.Parts() {
		if p.Variable != "" {
			parts = append(parts, p)
			continue
		}
		at := 0
		for _, group := range groupNumber.FindAllStringIndex(p.Text, -1) {
			if group[0] > at {
				parts = append(parts, TemplatePart{Text: p.Text[at:group[0]]})
			}
			parts = append(parts, TemplatePart{Group: int(p.Text[group[0]+1] - '0')})
			at = group[1]
		}
		if at < len(p.Text) {
			parts = append(parts, TemplatePart{Text: p.Text[at:]})
		}
	}
	return parts
}

// checkGroups reports numbers of groups that an expression of the route does not have, and groups in
// the URL of a redirect, where they would be literal.
func (v *draft) checkGroups(r *Route) {
	if r.Rewrite != nil {
		v.checkGroupsOf(r, &r.Rewrite.Path)
	}
	if r.Redirect != nil {
		v.checkGroupsOf(r, &r.Redirect.Path)
		if group := groupNumber.FindString(string(r.Redirect.To)); group != "" {
			v.failAt(v.places[&r.Redirect.To], `has %[1]s, and only the key path of a redirect may have groups of an expression; write host and path in place of to, as in "redirect: {scheme: https, host: www.example.org, path: '/new/%[1]s'}"`, group)
		}
	}
}

func (v *draft) checkGroupsOf(r *Route, to *Template) {
	most := 0
	for _, p := range to.PathParts() {
		most = max(most, p.Group)
	}
	if most == 0 {
		return
	}
	at := v.places[to]
	if len(r.Paths) == 0 {
		v.failAt(at, `has $%d, a group of an expression, and the route has no paths; give it a path such as "~/v([0-9]+)/"`, most)
		return
	}
	for i := range r.Paths {
		p := &r.Paths[i]
		switch {
		case p.Value == "": // reported already
		case !p.Expression:
			v.failAt(at, `has $%d, a group of an expression, and %s is none; begin it with "~", or give it a route of its own`, most, v.mention("the path", p, p.String()))
			return
		default:
			compiled, _, err := expression.Compile(p.Value, expression.Start)
			if err == nil && compiled.NumSubexp() < most {
				v.failAt(at, "has $%d, and %s has only %d groups; put a part of it in parentheses", most, v.mention("the path", p, p.String()), compiled.NumSubexp())
				return
			}
		}
	}
}

// pathTemplate is a path with variables. weir also checks each result.
var pathTemplate = kind[Template]{what: "a path with variables such as {path}", format: same[Template], pattern: `[/{]([!"%->@-\[\]-~]|\$+[!"%-/1->@-\[\]-z|}~])*\$*`,
	parse: func(s string) (Template, error) {
		if group := badGroup.FindString(s); group != "" {
			return "", fmt.Errorf("has %s, and the groups of an expression are $1 to $9; write one of these, or {path} for the whole path", group)
		}
		if group := backslashGroup.FindString(s); group != "" {
			return "", fmt.Errorf("has %s, and the groups of an expression are $1 to $9; write $%s", group, group[1:])
		}
		if _, err := parseTemplate(s); err != nil {
			return "", err
		}
		literal := ""
		for i, p := range Template(s).PathParts() {
			switch {
			case slices.Contains(notInPaths, p.Variable):
				return "", fmt.Errorf("has the variable {%s}, whose value is more than a path; write {path}: the query stays as it is", p.Variable)
			case p.Variable == VariablePath && i == 0:
				literal += "/x" // its value begins with a slash
			case p.Variable != "" || p.Group != 0:
				literal += "x"
			}
			literal += p.Text
		}
		return Template(s), checkNewPath(literal)
	}}

// warnRewrites warns of routes that rewrite into a path that another route guards: weir refuses their
// requests.
func (v *draft) warnRewrites() {
	var byPath map[pathOn]*Route
	for _, r := range v.routes {
		pause.IfDue()
		dst, to := r.rewritesTo()
		if to == "" {
			continue
		}
		if byPath == nil {
			byPath = v.routesByPath()
		}
		for _, l := range r.Listeners {
			for _, h := range v.hostsOf(r) {
				if g := guardOf(byPath, pathOn{hostOn{l, h}, to}); g != nil && r.LessGuarded(g) && r.sharesBackend(g) {
					v.warnAt(v.places[dst], "route %q restricts this path for the same backend, so requests that the route rewrites into it get 400 (guarded_path); give the route the same guards, or another backend", g.Name)
				}
			}
		}
	}
}

// rewritesTo returns the path into which the route rewrites all its requests, or with which all the new
// paths begin, and the setting that has it; "": it depends on the request.
func (r *Route) rewritesTo() (dst any, path string) {
	switch w := r.Rewrite; {
	case w == nil:
	case w.Prefix != "" && w.Prefix != "/":
		return &w.Prefix, w.Prefix
	case w.Path != "":
		if parts := w.Path.PathParts(); len(parts) == 1 && parts[0].Variable == "" && parts[0].Group == 0 {
			return &w.Path, parts[0].Text
		}
	}
	return nil, ""
}

// pathOn is a path of a host on a listener.
type pathOn struct {
	hostOn
	path string
}

// routesByPath returns the routes without conditions by each of their paths. A route without paths is
// under "/".
func (v *draft) routesByPath() map[pathOn]*Route {
	all := make(map[pathOn]*Route)
	for _, r := range v.routes {
		pause.IfDue()
		for _, l := range r.Listeners {
			for _, h := range v.hostsOf(r) {
				if r.Match == nil && len(r.Paths) == 0 {
					all[pathOn{hostOn{l, h}, "/"}] = r
				}
				for _, p := range r.Paths {
					if r.Match == nil && !p.Expression {
						all[pathOn{hostOn{l, h}, p.Value}] = r
					}
				}
			}
		}
	}
	return all
}

// guardOf returns the route of a path: that with the longest prefix; nil: no path of a route covers it.
func guardOf(byPath map[pathOn]*Route, at pathOn) *Route {
	for at.path != "" {
		if r := byPath[at]; r != nil {
			return r
		}
		at.path = at.path[:max(strings.LastIndexByte(at.path, '/'), 0)]
	}
	return nil
}

// sharesBackend reports whether both routes lead to the same backend, r perhaps by a mirror.
func (r *Route) sharesBackend(other *Route) bool {
	names := r.BackendNames()
	for i := range r.Mirror {
		names = append(names, r.Mirror[i].Backend)
	}
	return slices.ContainsFunc(other.BackendNames(), func(name string) bool { return slices.Contains(names, name) })
}
