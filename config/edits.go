package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirproxy/weir/proxy/message"
)

// HeaderEdits are changes of the HTTP headers of a request or a response. weir first removes
// headers, then sets headers, and then adds headers.
type HeaderEdits struct {
	// Remove has names. A name that ends in a star means every header that begins with the
	// text before the star.
	Remove []string
	Set    []HeaderValue // replace all headers with these names; in alphabetical order
	Add    []HeaderValue // stand beside the headers with these names; in alphabetical order
}

// HeaderValue is an HTTP header that a route writes.
type HeaderValue struct {
	Name  string
	Value Template
}

// editable are the names of the HTTP headers that a route may change.
type editable struct{ removed, written kind[string] }

// newEditable returns the names of headers without those that refuse refuses: it returns why a
// header with this id cannot be changed, or "".
func newEditable(refuse func(message.ID) string) *editable {
	return &editable{removedHeader(refuse), headerName(refuse)}
}

var ofRequests, ofResponses = newEditable(refuseRequestEdit), newEditable(refuseResponseEdit)

// editsKey is the value of a key with changes of HTTP headers.
func editsKey(dst **HeaderEdits, names *editable) value {
	return optional(dst, func() *HeaderEdits { return &HeaderEdits{} }, func(e *HeaderEdits) section {
		return section{object: dst, rules: editsRules, check: checkSomeEdits, keys: []key{
			{"remove", list(&e.Remove, names.removed.bind), "Names of HTTP headers that weir removes first. A name may end in a star: X-Internal-* stands for all headers that begin with X-Internal-."},
			{"set", headerValues(&e.Set, &names.written), "HTTP headers that weir sets then. Each replaces all headers of its name. Values may have variables such as {client}."},
			{"add", headerValues(&e.Add, &names.written), "HTTP headers that weir adds last, beside those of the same name. Values may have variables such as {client}."},
		}}
	})
}

func checkSomeEdits(v *draft, there keySet, n *Tree, p path) {
	if len(there) == 0 && n.Shape == ShapeMapping && len(n.Parts) == 0 {
		v.fail(n, p, "is empty; give it set, add or remove, or take the key out")
	}
}

// refuseRequestEdit returns why a route cannot change the request header with this id.
func refuseRequestEdit(id message.ID) string {
	switch {
	case id == message.Host:
		return "is changed by rewrite; write rewrite: {host: ...}"
	case id.Class() == message.Framing:
		return "describes the connection or the framing of the request, and weir writes it itself; take it out"
	case id.Class() == message.Written:
		return "is written by weir, so that endpoints can rely on it; take it out"
	case id.Class() == message.Refused:
		return "is never forwarded to an endpoint; take it out"
	}
	return ""
}

// CheckRequestHeader returns why objects of a cluster cannot set a request header of this name, or
// nil. The error follows the name.
func CheckRequestHeader(name string) error {
	_, err := headerName(refuseRequestEdit).parse(name)
	return err
}

// CheckAuthHeader returns why objects of a cluster cannot set a header of this name in requests to a server that
// authenticates clients, or nil. The error follows the name.
func CheckAuthHeader(name string) error {
	_, err := headerName(refuseAuthHeader).parse(name)
	return err
}

// refuseAuthHeader returns why objects cannot set the header with this id for a server that authenticates clients. They
// may replace what weir tells it about the request.
func refuseAuthHeader(id message.ID) string {
	if id.Class() == message.Framing {
		return "describes the host, the connection or the framing of the request, and weir writes it itself; take it out"
	}
	return ""
}

// CheckResponseHeader is CheckRequestHeader for a response header.
func CheckResponseHeader(name string) error {
	_, err := headerName(refuseResponseEdit).parse(name)
	return err
}

// refuseResponseEdit returns why a route cannot change the response header with this id.
func refuseResponseEdit(id message.ID) string {
	if id.Class() == message.Framing {
		return "describes the connection or the framing of the response, and weir writes it itself; take it out"
	}
	return ""
}

// removedHeader is the name of an HTTP header, or the beginning of names and a star. The star
// stands for no header that refuse refuses.
func removedHeader(refuse func(message.ID) string) kind[string] {
	name := headerName(refuse)
	parse := name.parse
	name.parse = func(s string) (string, error) {
		begins, star := strings.CutSuffix(s, "*")
		switch {
		case !star:
			return parse(s)
		case begins == "":
			return "", fmt.Errorf("would remove every header; write the beginning of the names before the star, such as X-Internal-*")
		case strings.Contains(begins, "*") || !message.ValidToken([]byte(begins)) || len(s) > maxHeaderName:
			return "", fmt.Errorf("is not the beginning of the name of an HTTP header and a star, such as X-Internal-*")
		}
		return s, nil
	}
	name.what, name.pattern = "the name of an HTTP header, perhaps with a star at its end", name.pattern+`|`+name.pattern+`\*`
	return name
}

// headerValues is the value of a key with a mapping of names of HTTP headers to their values. The
// order of the names has no meaning, so they are kept in alphabetical order.
func headerValues(dst *[]HeaderValue, name *kind[string]) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			v.mark(dst, n, p)
			first := map[string]int{}
			v.mapping(n, p, func(key, value *Tree) {
				if one, ok := v.headerValue(key, value, p, name, first); ok {
					*dst = append(*dst, one)
				}
			})
			if n.Shape == ShapeMapping && len(n.Parts) == 0 {
				v.fail(n, p, "is empty; give it an entry, or take the key out")
			}
			slices.SortFunc(*dst, func(a, b HeaderValue) int { return strings.Compare(a.Name, b.Name) })
		},
		print: func(*shower) *Tree {
			all := &Tree{Shape: ShapeMapping}
			for _, one := range *dst {
				all.put(one.Name, textTree(string(one.Value)))
			}
			return all.unlessEmpty()
		},
		schema: func() *schema {
			return &schema{Type: "object", MinProperties: 1, PropertyNames: &schema{Pattern: "^(" + name.pattern + ")$"},
				AdditionalProperties: headerTemplate.at(new(Template)).schema()}
		},
	}
}

// headerValue reads one header. first has the lines of the names before it, in lower case.
func (v *draft) headerValue(key, n *Tree, p path, name *kind[string], first map[string]int) (one HeaderValue, ok bool) {
	var err error
	if one.Name, err = name.parse(key.Text); err != nil {
		v.fail(key, p, "%q %v", shorten(key.Text), err)
		return one, false
	}
	lower := strings.ToLower(one.Name)
	if line, twice := first[lower]; twice {
		v.fail(key, p, "%q is given twice, first on line %d; the case of letters does not matter; keep one", one.Name, line)
		return one, false
	}
	first[lower] = key.Line
	v.set(headerTemplate.at(&one.Value), key, n, p.key(one.Name))
	if lower == "location" && !isSafeLocation(one.Value) {
		v.fail(n, p.key(one.Name), `begins with text that clients choose, or with two slashes, so it may lead to another host; write a whole URL such as "https://{host}{uri}", or begin it with a fixed path such as "/login?from={path}"`)
	}
	return one, one.Value != ""
}

// isSafeLocation reports whether clients cannot choose the host to which a Location leads. An empty
// value is not there.
func isSafeLocation(t Template) bool {
	parts := t.Parts()
	if len(parts) == 0 {
		return true
	}
	begin := parts[0].Text
	switch {
	case strings.HasPrefix(begin, "//") || strings.HasPrefix(begin, `/\`):
		return false
	case len(parts) == 1 && begin != "":
		return true // the configuration alone decides
	case strings.HasPrefix(begin, "?") || strings.HasPrefix(begin, "#") || strings.HasPrefix(begin, "/") && begin != "/":
		return true
	}
	_, err := newURL.parse(string(t))
	return err == nil
}

// checkEdits reports changes of requests that no endpoint gets, and of responses that none sends.
func (v *draft) checkEdits(r *Route) {
	for _, dst := range []any{&r.Request, &r.Rewrite, &r.Timeouts, &r.Retries, &r.Compress} {
		if !v.given(dst) || !r.Answers() {
			continue
		}
		v.failAt(v.places[dst], "no endpoint gets the requests of this route, so there is nothing to change; take this out")
	}
}

// requestSettings returns the fields of r that a route of tunnels must not set. Redirect and HSTS are not
// among them, because checkRedirect and checkHSTS report them.
func (r *Route) requestSettings() (fields []any) {
	for _, k := range requestKeys {
		if field := k.value.field(r); field != any(&r.Redirect) && field != any(&r.HSTS) {
			fields = append(fields, field)
		}
	}
	return fields
}
