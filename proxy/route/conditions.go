package route

import (
	"bytes"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/weirproxy/weir/proxy/expression"
	"github.com/weirproxy/weir/proxy/message"
)

// conditions are the compiled conditions of a match, apart from its path.
type conditions struct {
	methods []string
	headers []condition // names are in lower case
	cookies []condition
	query   []condition
	clients []netip.Prefix
}

type condition struct {
	name  string
	id    message.ID // of a header's name
	kind  ValueKind
	equal string
	like  *regexp.Regexp
}

// newConditions compiles the conditions of m; nil: it has none.
func newConditions(m *Match) (c *conditions, err error) {
	if len(m.Methods)+len(m.Headers)+len(m.Cookies)+len(m.Query)+len(m.Clients) == 0 {
		return nil, nil
	}
	c = &conditions{methods: m.Methods, clients: m.Clients}
	for _, method := range m.Methods {
		if !message.ValidToken([]byte(method)) {
			return nil, fmt.Errorf("compiling the conditions for methods: %q is not a method; write one such as GET", method)
		}
	}
	for _, network := range m.Clients {
		if !network.IsValid() {
			return nil, fmt.Errorf("compiling the conditions for clients: a network is invalid; write one such as 192.0.2.0/24")
		}
	}
	if c.headers, err = compileAll(m.Headers, "header", func(name string) bool { return message.ValidToken([]byte(name)) }); err != nil {
		return nil, err
	}
	for i := range c.headers {
		h := &c.headers[i]
		h.name = strings.ToLower(h.name)
		h.id = message.Lookup([]byte(h.name))
	}
	if c.cookies, err = compileAll(m.Cookies, "cookie", func(name string) bool { return message.ValidToken([]byte(name)) }); err != nil {
		return nil, err
	}
	c.query, err = compileAll(m.Query, "query parameter", func(name string) bool { return name != "" })
	return c, err
}

// compileAll compiles conditions for headers, cookies or query parameters. what names one of
// them in errors.
func compileAll(all []Condition, what string, valid func(name string) bool) (compiled []condition, err error) {
	for _, one := range all {
		c := condition{name: one.Name, kind: one.Kind, equal: one.Value}
		if !valid(one.Name) {
			return nil, fmt.Errorf("compiling the condition for the %s %q: this is not the name of a %s", what, one.Name, what)
		}
		if one.Kind == Like {
			if c.like, _, err = expression.Compile(one.Value, expression.Whole); err != nil {
				return nil, fmt.Errorf("compiling the condition for the %s %q: %w", what, one.Name, err)
			}
		}
		compiled = append(compiled, c)
	}
	return compiled, nil
}

// hold reports whether a request fulfils all conditions. c may be nil.
func (c *conditions) hold(r *Request) bool { return c == nil || c.holdAll(r) }

func (c *conditions) holdAll(r *Request) bool {
	if len(r.Preflight) > 0 {
		return c.holdMethod(r) && c.holdQuery(r) && c.holdClient(r)
	}
	return c.holdMethod(r) && c.holdHeaders(r) && c.holdCookies(r) && c.holdQuery(r) && c.holdClient(r)
}

func (c *conditions) holdMethod(r *Request) bool {
	if len(c.methods) == 0 {
		return true
	}
	method := r.Head.Bytes(r.Head.Method)
	if len(r.Preflight) > 0 {
		method = r.Preflight
	}
	for _, m := range c.methods {
		if string(method) == m {
			return true
		}
	}
	return false
}

func (c *conditions) holdHeaders(r *Request) bool {
	for i := range c.headers {
		if !c.headers[i].holdHeader(r.Head) {
			return false
		}
	}
	return true
}

// holdHeader reports whether the first header of the name fulfils the condition. Headers that
// weir does not forward, because Connection names them, do not count.
func (c *condition) holdHeader(req *message.Request) bool {
	if c.id == message.Upgrade { // a hop-by-hop header, but weir forwards requests to upgrade
		return req.Upgrade.Len() > 0 && c.accepts(req.Bytes(req.Upgrade))
	}
	if c.id != message.Other && !req.HasAny(message.SetOf(c.id)) {
		return false
	}
	for i := range req.Fields {
		if !req.Fields[i].Dropped && message.EqualFold(req.Name(i), c.name) {
			return c.accepts(req.Value(i))
		}
	}
	return false
}

func (c *condition) accepts(value []byte) bool {
	switch c.kind {
	case Present:
		return true
	case Like:
		return c.like.Match(value)
	}
	return string(value) == c.equal
}

func (c *conditions) holdCookies(r *Request) bool {
	for i := range c.cookies {
		if !c.cookies[i].holdCookie(r.Head) {
			return false
		}
	}
	return true
}

// holdCookie reports whether the first cookie of the name fulfils the condition.
func (c *condition) holdCookie(req *message.Request) bool {
	value, found := req.Cookie(c.name)
	return found && c.accepts(value)
}

var equals, ampersand = []byte("="), []byte("&")

func (c *conditions) holdQuery(r *Request) bool {
	if len(c.query) == 0 {
		return true
	}
	query := r.Head.Bytes(r.Head.Target)[r.Head.Path.Len():]
	if len(query) > 0 {
		query = query[1:] // the question mark
	}
	for i := range c.query {
		if !c.query[i].holdParameter(query) {
			return false
		}
	}
	return true
}

// holdParameter reports whether the first query parameter of the name fulfils the condition.
func (c *condition) holdParameter(query []byte) bool {
	for len(query) > 0 {
		var pair []byte
		pair, query, _ = bytes.Cut(query, ampersand)
		name, value, _ := bytes.Cut(pair, equals)
		if !equalDecoded(name, c.name) {
			continue
		}
		if c.kind == Equal {
			return equalDecoded(value, c.equal)
		}
		return c.accepts(decoded(value))
	}
	return false
}

// decodeQuery is message.DecodeByte for a query, in which a plus sign is a space.
func decodeQuery(b []byte) (c byte, width int) {
	if b[0] == '+' {
		return ' ', 1
	}
	return message.DecodeByte(b)
}

// equalDecoded reports whether b is want after decoding.
func equalDecoded(b []byte, want string) bool {
	for i := range len(want) {
		if len(b) == 0 {
			return false
		}
		c, width := decodeQuery(b)
		if c != want[i] {
			return false
		}
		b = b[width:]
	}
	return len(b) == 0
}

// decoded returns b after decoding. It allocates only if b is encoded.
func decoded(b []byte) []byte {
	if !bytes.ContainsAny(b, "%+") {
		return b
	}
	plain := make([]byte, 0, len(b))
	for len(b) > 0 {
		c, width := decodeQuery(b)
		plain, b = append(plain, c), b[width:]
	}
	return plain
}

func (c *conditions) holdClient(r *Request) bool {
	if len(c.clients) == 0 {
		return true
	}
	client := r.Client.Unmap().WithZone("") // no network contains an address with a zone
	for _, network := range c.clients {
		if network.Contains(client) {
			return true
		}
	}
	return false
}
