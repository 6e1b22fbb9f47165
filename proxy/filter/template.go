package filter

import (
	"bytes"
	"encoding/base64"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// template is a compiled config.Template. The values of its variables come from a request that
// its codec has checked, or from weir itself: none of them has a control character.
type template struct {
	parts      []templatePart
	identifies bool // one of the parts is the request's id
}

// templatePart is literal text, or the value of a variable.
type templatePart struct {
	text  string
	value func(b []byte, x Exchange) []byte // appends the value; nil: text or group counts
	group int                               // the number of a group; 0: none. Only a path has groups
}

// variables append the values.
var variables = map[config.Variable]func(b []byte, x Exchange) []byte{
	config.VariableClient: func(b []byte, x Exchange) []byte { return appendAddr(b, x.Client().Addr()) },
	config.VariableScheme: func(b []byte, x Exchange) []byte { return append(b, schemeOf(x)...) },
	config.VariableHost:   appendHost,
	config.VariableURI:    func(b []byte, x Exchange) []byte { return append(b, x.Request().Bytes(x.Request().Target)...) },
	config.VariablePath:   func(b []byte, x Exchange) []byte { return append(b, x.Request().Bytes(x.Request().Path)...) },
	config.VariableQuery: func(b []byte, x Exchange) []byte {
		return append(b, bytes.TrimPrefix(queryOf(x.Request()), question)...)
	},
	config.VariableMethod:    func(b []byte, x Exchange) []byte { return append(b, x.Request().Bytes(x.Request().Method)...) },
	config.VariableAuthority: func(b []byte, x Exchange) []byte { return append(b, x.Request().Bytes(x.Request().Host)...) },
	config.VariableURIEncoded: func(b []byte, x Exchange) []byte {
		return appendEncoded(b, x.Request().Bytes(x.Request().Target))
	},
	config.VariableUser:      appendUser,
	config.VariableRequestID: func(b []byte, x Exchange) []byte { return append(b, x.RequestID()...) },
}

var question = []byte{'?'}

// valueOf returns the function that appends the value of a variable; nil: there is no such variable.
func valueOf(v config.Variable) func(b []byte, x Exchange) []byte {
	if known := variables[v]; known != nil {
		return known
	}
	if name, ok := strings.CutPrefix(string(v), config.VariableHeader); ok {
		return func(b []byte, x Exchange) []byte { return appendHeader(b, x.Request(), name) }
	}
	if name, ok := strings.CutPrefix(string(v), config.VariableCookie); ok {
		return func(b []byte, x Exchange) []byte {
			value, _ := x.Request().Cookie(name)
			return append(b, value...)
		}
	}
	if name, ok := strings.CutPrefix(string(v), config.VariableParam); ok {
		return func(b []byte, x Exchange) []byte { return appendParam(b, x.Request(), name) }
	}
	return nil
}

// appendHeader appends the values of a header of the client, whose name is in lower case. The
// headers about the client count only if its sender is trusted.
func appendHeader(b []byte, req *message.Request, name string) []byte {
	begin := len(b)
	for i := range req.Fields {
		f := &req.Fields[i]
		if !message.EqualFold(req.Name(i), name) || f.Dropped && f.ID.Class() != message.Passed {
			continue
		}
		if len(b) > begin {
			b = append(b, ", "...)
		}
		b = append(b, req.Value(i)...)
	}
	return b
}

// appendParam appends the value of the first query parameter of this name, as the client encoded
// it.
func appendParam(b []byte, req *message.Request, name string) []byte {
	for part := range bytes.SplitSeq(bytes.TrimPrefix(queryOf(req), question), []byte{'&'}) {
		key, value, found := bytes.Cut(part, []byte{'='})
		if found && message.EqualFold(key, name) {
			return append(b, value...)
		}
	}
	return b
}

// appendUser appends the user in the Authorization of the request; nothing: it has none.
func appendUser(b []byte, x Exchange) []byte {
	given, found := credentials(x.Request(), "basic", mostCredentials)
	if !found {
		return b
	}
	pair, err := base64.StdEncoding.AppendDecode(nil, given)
	user, _, found := bytes.Cut(pair, []byte(":"))
	if err != nil || !found || bytes.ContainsFunc(user, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return b
	}
	return append(b, user...)
}

// newTemplate compiles a template of the configuration.
func newTemplate(text config.Template) template { return newTemplateOf(text.Parts()) }

// newPathTemplate compiles the template of a path, which may have groups.
func newPathTemplate(text config.Template) template { return newTemplateOf(text.PathParts()) }

// appendText appends the text for a request, of which it does not change the head.
func (t *template) appendText(b []byte, x Exchange) []byte {
	if t.identifies {
		x.RequestID()
	}
	return t.append(b, x)
}

func newTemplateOf(parts []config.TemplatePart) (t template) {
	for _, p := range parts {
		t.parts = append(t.parts, templatePart{p.Text, valueOf(p.Variable), p.Group})
		t.identifies = t.identifies || p.Variable == config.VariableRequestID
	}
	return t
}

// store stores the text for a request in h, which may be the head of the request itself.
func (t *template) store(h *message.Head, x Exchange) message.Span {
	if t.identifies {
		x.RequestID() // it may change the request, which must not happen within Build
	}
	return h.Build(func(b []byte) []byte { return t.append(b, x) })
}

func (t *template) append(b []byte, x Exchange) []byte {
	for i := range t.parts {
		b = t.parts[i].append(b, x)
	}
	return b
}

// appendPath is append for a path. Where two parts meet it writes one slash instead of two, also
// if a value between them is empty. found are the groups of the request's path.
func (t *template) appendPath(b []byte, x Exchange, found captures) []byte {
	begin := len(b)
	for i := range t.parts {
		at := len(b)
		if group := t.parts[i].group; group > 0 {
			b = found.append(b, group)
		} else {
			b = t.parts[i].append(b, x)
		}
		if at > begin && at < len(b) && b[at-1] == '/' && b[at] == '/' {
			b = append(b[:at], b[at+1:]...)
		}
	}
	return b
}

func (p *templatePart) append(b []byte, x Exchange) []byte {
	if p.value != nil {
		return p.value(b, x)
	}
	return append(b, p.text...)
}

// schemeOf returns the scheme that the client used, perhaps to a load balancer.
func schemeOf(x Exchange) string {
	if cameByHTTPS(x) {
		return "https"
	}
	return "http"
}

// appendHost appends the host of the request in lower case, without port and trailing dot. Unlike
// Exchange.Host it keeps the brackets of an IPv6 address, because the text may be a URL.
func appendHost(b []byte, x Exchange) []byte {
	host := hostOf(x.Request().Bytes(x.Request().Host))
	for _, c := range bytes.TrimSuffix(host, dot) {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		b = append(b, c)
	}
	return b
}

var dot = []byte{'.'}

// queryOf returns the query of the request with its question mark; empty: it has none.
func queryOf(req *message.Request) []byte { return req.Bytes(req.Target)[req.Path.Len():] }
