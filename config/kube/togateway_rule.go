package kube

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/proxy/script"
)

// This file writes what weir does for a path of an Ingress as rules of a HTTPRoute. An error means that the Gateway API
// has nothing equal; it follows the name of the Ingress.

// written is an object of the API, or a part of one.
type written = map[string]any

// asRules is the conversion of one route to rules.
type asRules struct {
	of       *toGateway
	route    *config.Route
	overTLS  bool // all requests of the host come over TLS
	filters  []any
	request  headerChanges
	response headerChanges
	notes    []string
}

// convert returns the rules of the route.
func (a *asRules) convert() (rules []any, err error) {
	r := a.route
	if r.Closure != nil {
		return nil, errors.New(r.Closure.Why)
	}
	if err := a.checkRest(); err != nil {
		return nil, err
	}
	at, err := matchOf(r)
	if err == nil && at.kind != "RegularExpression" && !plainPath.MatchString(at.value) {
		err = fmt.Errorf("the Gateway API does not accept the path %s", at.value)
	}
	if err != nil {
		return nil, err
	}
	if at.loose {
		a.notes = append(a.notes, fmt.Sprintf("the path %s is a regular expression, which also matches in another case and within a path element; the route has the %s %s, and that path itself", r.Paths[0].Value, at.kind, at.value))
	}
	rule := written{"matches": []any{written{"path": written{"type": at.kind, "value": at.value}}}}
	if r.Redirect != nil {
		filter, err := a.redirect(r.Redirect, at)
		rule["filters"] = []any{filter}
		return []any{rule}, err
	}
	bare, err := a.rewrite(at)
	for _, step := range []func() error{a.cors, a.headers} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		return nil, err
	}
	a.timeouts(rule)
	if rules, err = a.destinations(rule, a.filters); err != nil || bare == nil {
		return rules, err
	}
	first := written{"matches": []any{written{"path": written{"type": "Exact", "value": at.value}}}}
	a.timeouts(first)
	more, err := a.destinations(first, append(slices.Clip(slices.DeleteFunc(slices.Clone(a.filters), isRewrite)), bare))
	return append(more, rules...), err
}

func isRewrite(filter any) bool { return filter.(written)["type"] == "URLRewrite" }

// checkRest returns an error for everything of the route that the rules do not have.
func (a *asRules) checkRest() error {
	rest := *a.route
	rest.Name, rest.Position, rest.Namespace, rest.Ingress, rest.IngressHost, rest.Order = "", config.Position{}, "", "", "", nil
	rest.Listeners, rest.Hosts, rest.Paths, rest.TLSPolicy, rest.TLS = nil, nil, nil, "", ""
	rest.Backend, rest.Backends, rest.Canary, rest.Redirect, rest.Rewrite, rest.Script = "", nil, nil, nil, nil, nil
	rest.CORS, rest.Request, rest.Response, rest.HSTS, rest.Timeouts, rest.TunnelIdle = nil, nil, nil, nil, nil, 0
	rest.MaxBody, rest.Retries, rest.Compress, rest.Unlogged, rest.Untraced = 0, nil, false, false, false // notes name these
	var names []string
	for v, n := reflect.ValueOf(rest), 0; n < v.NumField(); n++ {
		if !v.Field(n).IsZero() {
			names = append(names, v.Type().Field(n).Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("the Gateway API has nothing, or nothing equal, for what annotations or the ConfigMap of ingress-nginx set: %s", strings.Join(names, ", "))
}

// plainPath matches the paths that the Gateway API accepts, but for escapes, which it reads in another way.
var plainPath = regexp.MustCompile(`^/[-A-Za-z0-9/._~!$&'()*+,;=:@]*$`)

// place is where a rule matches.
type place struct {
	kind, value string
	tail
	loose bool // it is less than the expression of the Ingress
}

// tail is the end of an expression that begins with literal elements of a path.
type tail struct {
	groups int  // in the expression
	rest   int  // the number of the group with the rest of the path; 0: none
	slash  bool // the rest begins with a slash
	bare   bool // the expression also matches the literal elements alone, with an empty rest
}

// tails are the ends of expressions that are the same as a prefix.
var tails = map[string]tail{
	"": {}, "/?": {}, "/": {}, "/.*": {}, ".*": {}, "(/|$)": {groups: 1}, "(/|$).*": {groups: 1},
	"(.*)": {1, 1, true, false}, "(/.*)": {1, 1, true, false}, "(/.*)?": {1, 1, true, false}, "(/.*|$)": {1, 1, true, false},
	"/(.*)": {1, 1, false, false}, "/?(.*)": {1, 1, false, true}, "(/|$)(.*)": {2, 2, false, true}, "(?:/|$)(.*)": {1, 1, false, true},
}

// literalElements matches an expression of literal elements and a tail.
var literalElements = regexp.MustCompile(`^((?:/[-A-Za-z0-9_~.]*[-A-Za-z0-9_~])*)([^$]*(?:\|\$\)[^$]*)?)(\$?)$`)

func matchOf(r *config.Route) (at place, err error) {
	if len(r.Paths) == 0 {
		return place{kind: "PathPrefix", value: "/"}, nil
	}
	p := r.Paths[0]
	switch {
	case p.Exact:
		return place{kind: "Exact", value: p.Value}, nil
	case !p.Expression:
		return place{kind: "PathPrefix", value: p.Value}, nil
	}
	if m := literalElements.FindStringSubmatch(p.Value); m != nil {
		t, known := tails[m[2]]
		open := strings.HasSuffix(m[2], ".*") || strings.HasSuffix(m[2], ".*)")
		switch value := m[1]; {
		case !known:
		case m[3] == "" || open:
			if value == "" {
				value, t.bare = "/", false
			}
			return place{"PathPrefix", value, t, true}, nil
		case m[2] == "" && value != "":
			return place{"Exact", value, t, true}, nil
		}
	}
	if annotation.HasChoice(p.Value) {
		return at, fmt.Errorf("its path %q has alternatives, of which ingress-nginx matches only the first one at the beginning of a path", p.Value)
	}
	return place{kind: "RegularExpression", value: "(?i:" + p.Value + ").*", loose: true}, nil
}

// replace returns the new path of requests, and that of requests for the literal elements alone if it differs.
func (at place) replace(to config.Template) (path written, bare string, err error) {
	text, group := "", 0
	for _, p := range to.PathParts() {
		switch {
		case p.Variable != "" || p.Text != "" && group > 0:
			return nil, "", errors.New("has variables, or text after a group")
		case p.Group == 0:
			text += p.Text
		case p.Group > at.groups && at.kind != "RegularExpression":
		case p.Group != at.rest || group > 0:
			return nil, "", errors.New("has a group that is not the rest of the path")
		default:
			group = p.Group
		}
	}
	switch whole := strings.HasSuffix(text, "/"); {
	case group == 0 && !strings.HasPrefix(text, "/"), group > 0 && at.slash == whole, group > 0 && text != "" && text[0] != '/':
		return nil, "", errors.New("makes a path without one slash between its elements")
	case group == 0:
		return written{"type": "ReplaceFullPath", "replaceFullPath": text}, "", nil
	}
	prefix := strings.TrimSuffix(text, "/")
	if at.bare && prefix != "" {
		bare = text
	}
	if prefix == "" {
		prefix = "/"
	}
	return written{"type": "ReplacePrefixMatch", "replacePrefixMatch": prefix}, bare, nil
}

// rewrite adds the filter for the new path and host. bare is the filter for requests for the literal elements alone; nil:
// the same.
func (a *asRules) rewrite(at place) (bare any, err error) {
	w := a.route.Rewrite
	if w == nil {
		return nil, nil
	}
	change, single := written{}, written{}
	if w.Host != "" {
		if !plainHost.MatchString(w.Host) {
			return nil, fmt.Errorf("the Gateway API has no new Host %q, which is no name without port", w.Host)
		}
		change["hostname"], single["hostname"] = w.Host, w.Host
	}
	if w.Path != "" {
		path, text, err := at.replace(w.Path)
		if err != nil {
			return nil, fmt.Errorf("the Gateway API has nothing equal for rewrite-target %s with the path %s, because it %w", w.Path, a.route.Paths[0].Value, err)
		}
		change["path"] = path
		if text != "" {
			single["path"] = written{"type": "ReplaceFullPath", "replaceFullPath": text}
			bare = written{"type": "URLRewrite", "urlRewrite": single}
		}
	}
	a.filters = append(a.filters, written{"type": "URLRewrite", "urlRewrite": change})
	return bare, nil
}

// plainHost matches the names that the Gateway API accepts.
var plainHost = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// target matches the URL of a redirect.
var target = regexp.MustCompile(`^(https?|\{scheme\})://([^/{:]+|\{host\})(:[0-9]+)?(/[^{?#]*)?(\{uri\})?$`)

// redirect returns the filter for a redirect.
func (a *asRules) redirect(d *config.Redirect, at place) (any, error) {
	to := written{"statusCode": d.Status}
	scheme, host, port := d.Scheme, d.Host, d.Port
	keepsQuery := true
	switch m := target.FindStringSubmatch(string(d.To)); {
	case d.To == "" && d.Path != "":
		path, _, err := at.replace(d.Path)
		if err != nil {
			return nil, fmt.Errorf("the Gateway API has nothing equal for a redirect to %s, because it %w", d.Path, err)
		}
		to["path"] = path
	case d.To == "":
	case m == nil || m[5] != "" && m[4] != "" && at.kind != "PathPrefix":
		return nil, fmt.Errorf("the Gateway API has nothing equal for a redirect to %s", d.To)
	default:
		scheme, host = strings.Trim(m[1], "{}"), strings.Trim(m[2], "{}")
		if m[1] == "{scheme}" {
			scheme = ""
		}
		if m[2] == "{host}" {
			host = ""
		}
		port, _ = strconv.Atoi(strings.TrimPrefix(m[3], ":"))
		switch prefix := strings.TrimSuffix(m[4], "/"); {
		case m[5] == "":
			path, err := url.PathUnescape(m[4])
			if err != nil || path != m[4] {
				return nil, fmt.Errorf("the Gateway API has nothing equal for a redirect to %s, whose path has escapes", d.To)
			}
			if path == "" {
				path = "/"
			}
			to["path"], keepsQuery = written{"type": "ReplaceFullPath", "replaceFullPath": path}, false
		case prefix != "":
			to["path"] = written{"type": "ReplacePrefixMatch", "replacePrefixMatch": prefix + strings.TrimSuffix(at.value, "/")}
		}
	}
	if !keepsQuery || d.DropQuery {
		a.notes = append(a.notes, "its redirect drops the query of requests, and that of the route keeps it")
	}
	if host != "" && !plainHost.MatchString(host) {
		return nil, fmt.Errorf("the Gateway API has no redirect to the host %s", host)
	}
	for name, value := range map[string]string{"scheme": scheme, "hostname": host} {
		if value != "" {
			to[name] = value
		}
	}
	if port != 0 {
		to["port"] = port
	}
	return written{"type": "RequestRedirect", "requestRedirect": to}, nil
}

// timeouts sets the timeouts of a rule.
func (a *asRules) timeouts(rule written) {
	t := a.route.Timeouts
	if t == nil {
		return
	}
	if t.ResponseHead != 0 {
		rule["timeouts"] = written{"backendRequest": t.ResponseHead.String()}
		a.notes = append(a.notes, "proxy-read-timeout becomes timeouts.backendRequest, which weir applies until the response begins, and others may apply to the whole response")
	}
	if t.Connect != 0 || t.Send != 0 && t.Send != defaultSend {
		a.notes = append(a.notes, "the Gateway API has no proxy-connect-timeout and no proxy-send-timeout")
	}
}

// methodsOfCORS are the methods that the Gateway API accepts.
var methodsOfCORS = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*"}

// originOfCORS matches the origins that the Gateway API accepts.
var originOfCORS = regexp.MustCompile(`^https?://(\*\.)?([a-zA-Z0-9-]+\.)*[a-zA-Z0-9-]+(:[0-9]{1,5})?$`)

// cors adds the filter for the CORS protocol.
func (a *asRules) cors() error {
	c := a.route.CORS
	if c == nil {
		return nil
	}
	every := slices.Contains(c.Origins, "*")
	for _, o := range c.Origins {
		if o != "*" && !originOfCORS.MatchString(o) {
			return fmt.Errorf("the Gateway API has no origin %q", o)
		}
		if strings.Contains(o, "*.") {
			a.notes = append(a.notes, "the origin "+o+" stands for one label; of a route it stands for one label or more")
		}
	}
	if len(c.Origins) == 0 {
		return errors.New("its cors-allow-origin has no origin")
	}
	seconds := int64(max(c.MaxAge, time.Second) / time.Second)
	filter := written{"allowOrigins": c.Origins, "maxAge": min(seconds, 1<<31-1)}
	if c.Credentials && !every { // browsers send no credentials to a server that names every origin
		filter["allowCredentials"] = true
	}
	for name, values := range map[string][]string{"allowMethods": c.Methods, "allowHeaders": c.Headers, "exposeHeaders": c.Expose} {
		var all []string
		for _, word := range strings.FieldsFunc(strings.Join(values, ","), func(r rune) bool { return r == ',' || r == ' ' }) {
			if name == "allowMethods" {
				word = strings.ToUpper(word)
				if !slices.Contains(methodsOfCORS, word) {
					return fmt.Errorf("the Gateway API has no method %s for CORS", word)
				}
			}
			if !slices.Contains(all, word) {
				all = append(all, word)
			}
		}
		if slices.Contains(all, "*") {
			all = []string{"*"}
		}
		if len(all) > 0 {
			filter[name] = all
		}
	}
	a.filters = append(a.filters, written{"type": "CORS", "cors": filter})
	a.notes = append(a.notes, "weir answers every OPTIONS of an Ingress with enable-cors; of a route, only those that ask for the CORS protocol")
	return nil
}

// headerChanges are the changes of a header filter, in the order of the Gateway API: set, add, remove.
type headerChanges struct {
	set, add []any
	remove   []string
}

// put adds a change. It replaces an earlier one of the same name, as nginx does.
func (h *headerChanges) put(name, value string) {
	h.drop(name)
	if h.remove = slices.DeleteFunc(h.remove, func(n string) bool { return strings.EqualFold(n, name) }); value == "" {
		h.remove = append(h.remove, name)
	} else {
		h.set = append(h.set, written{"name": name, "value": value})
	}
}

func (h *headerChanges) drop(name string) {
	h.set = slices.DeleteFunc(h.set, func(one any) bool { return strings.EqualFold(one.(written)["name"].(string), name) })
}

// also adds a value beside others.
func (h *headerChanges) also(name, value string) error {
	if slices.ContainsFunc(h.add, func(one any) bool { return strings.EqualFold(one.(written)["name"].(string), name) }) {
		return fmt.Errorf("the Gateway API cannot add the HTTP header %s twice", name)
	}
	h.add = append(h.add, written{"name": name, "value": value})
	return nil
}

// maxHeaderChanges is the limit of the Gateway API for each list.
const maxHeaderChanges = 16

// filter returns the filter, or nil if there is no change.
func (h *headerChanges) filter(kind, field string) (any, error) {
	change := written{}
	if len(h.set) > 0 {
		change["set"] = h.set
	}
	if len(h.add) > 0 {
		change["add"] = h.add
	}
	if len(h.remove) > 0 {
		change["remove"] = h.remove
	}
	switch {
	case len(change) == 0:
		return nil, nil
	case max(len(h.set), len(h.add), len(h.remove)) > maxHeaderChanges:
		return nil, fmt.Errorf("a rule of the Gateway API changes at most %d HTTP headers", maxHeaderChanges)
	case slices.ContainsFunc(h.remove, func(name string) bool { return strings.HasSuffix(name, "*") }):
		return nil, errors.New("the Gateway API removes HTTP headers only by their whole names")
	}
	return written{"type": kind, field: change}, nil
}

// edits takes changes of a route.
func (h *headerChanges) edits(e *config.HeaderEdits) error {
	if e == nil {
		return nil
	}
	for _, name := range e.Remove {
		h.put(name, "")
	}
	for n, v := range slices.Concat(e.Set, e.Add) {
		var value string
		for _, p := range v.Value.Parts() {
			if value += p.Text; p.Variable != "" {
				return fmt.Errorf("the Gateway API has no variables, as the HTTP header %s needs them", v.Name)
			}
		}
		if n < len(e.Set) {
			h.put(v.Name, value)
		} else if err := h.also(v.Name, value); err != nil {
			return err
		}
	}
	return nil
}

// script takes the changes of a snippet.
func (h *headerChanges) script(edits []script.Edit) error {
	for _, e := range edits {
		value := ""
		for _, p := range e.Value {
			if value += p.Text; p.Variable != "" {
				return fmt.Errorf("the Gateway API has no variables, as its snippet has them for the HTTP header %s", e.Name)
			}
		}
		value = strings.TrimSpace(value)
		switch e.Kind {
		case script.Add, script.AddAlways:
			if value == "" {
				continue
			}
			if err := h.also(e.Name, value); err != nil {
				return err
			}
		case script.Replace:
			h.put(e.Name, value)
		default:
			h.put(e.Name, "")
		}
	}
	return nil
}

// headers adds the filters for changes of HTTP headers.
func (a *asRules) headers() error {
	r := a.route
	if r.HSTS != nil && a.overTLS {
		a.response.put("Strict-Transport-Security", hstsValue(r.HSTS))
	} else if r.HSTS != nil {
		a.notes = append(a.notes, "the route is also served without TLS, and sends no Strict-Transport-Security")
	}
	if err := a.request.edits(r.Request); err != nil {
		return err
	}
	if r.Script != nil {
		p, err := r.Script.Parse()
		if err != nil {
			return err
		}
		if p.MayRefuse() || len(p.Confs) != 1 {
			return errors.New("its snippet does more than change HTTP headers, for which the Gateway API has nothing")
		}
		if p.Confs[0].Expires != nil {
			return errors.New("its snippet has expires, which depends on the time of the response, and for which the Gateway API has nothing")
		}
		if len(p.Ignored) > 0 {
			a.notes = append(a.notes, fmt.Sprintf("neither weir nor the route does anything for %s of the snippet", strings.Join(p.Ignored, ", ")))
		}
		if err := a.request.script(p.Confs[0].Request); err != nil {
			return err
		}
		if err := a.response.script(p.Confs[0].Response); err != nil {
			return err
		}
		if slices.ContainsFunc(p.Confs[0].Response, func(e script.Edit) bool { return e.Kind == script.Add }) {
			a.notes = append(a.notes, "add_header leaves error responses out, and the route adds the HTTP headers to all responses")
		}
	}
	if err := a.response.edits(r.Response); err != nil {
		return err
	}
	for _, one := range []struct {
		kind, field string
		changes     *headerChanges
	}{{"RequestHeaderModifier", "requestHeaderModifier", &a.request}, {"ResponseHeaderModifier", "responseHeaderModifier", &a.response}} {
		filter, err := one.changes.filter(one.kind, one.field)
		if err != nil {
			return err
		}
		if filter != nil {
			a.filters = append(a.filters, filter)
		}
	}
	return nil
}

func hstsValue(h *config.HSTS) string {
	value := fmt.Sprintf("max-age=%d", h.MaxAge/time.Second)
	if h.IncludeSubdomains {
		value += "; includeSubDomains"
	}
	if h.Preload {
		value += "; preload"
	}
	return value
}

// destinations returns the rules that lead to the Services: one, and more for the header and the cookie of a canary.
func (a *asRules) destinations(rule written, filters []any) (rules []any, err error) {
	if len(filters) > 0 {
		rule["filters"] = filters
	}
	r := a.route
	if r.Canary == nil {
		ref, err := a.of.reference(r.Backend)
		rule["backendRefs"] = []any{ref}
		return []any{rule}, err
	}
	main, err := a.of.reference(r.Backends[0].Name)
	if err != nil {
		return nil, err
	}
	canary, err := a.of.reference(r.Backends[1].Name)
	if err != nil {
		return nil, err
	}
	a.notes = append(a.notes, "a canary without an endpoint gets no requests; its share of a route gets 503")
	path := rule["matches"].([]any)[0].(written)["path"]
	when := func(to written, header, kind, value string) {
		one := written{}
		for name, part := range rule {
			one[name] = part
		}
		one["matches"] = []any{written{"path": path, "headers": []any{written{"type": kind, "name": header, "value": value}}}}
		one["backendRefs"] = []any{to}
		rules = append(rules, one)
	}
	switch c := r.Canary; {
	case c.Header == "":
	case c.Value != "":
		when(canary, c.Header, "Exact", c.Value)
	case c.Pattern != "":
		when(canary, c.Header, "RegularExpression", ".*(?:"+c.Pattern+").*")
	default:
		when(canary, c.Header, "Exact", "always")
		when(main, c.Header, "Exact", "never")
	}
	if name := regexp.QuoteMeta(r.Canary.Cookie); name != "" {
		when(canary, "Cookie", "RegularExpression", `(?:.*;)? *`+name+`=always *(?:;.*)?`)
		when(main, "Cookie", "RegularExpression", `(?:.*;)? *`+name+`=never *(?:;.*)?`)
	}
	weighted := func(ref written, weight int) written {
		return written{"name": ref["name"], "port": ref["port"], "weight": weight}
	}
	rule["backendRefs"] = []any{main}
	if r.Backends[1].Weight > 0 {
		rule["backendRefs"] = []any{weighted(main, r.Backends[0].Weight), weighted(canary, r.Backends[1].Weight)}
	}
	return append(rules, rule), nil
}
