package filter

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// forward lets another server decide on each request (auth.forward). It follows the conventions of
// Traefik (X-Forwarded-*) and of nginx (X-Original-*).
type forward struct {
	server   Decider
	target   string
	patience time.Duration
	names    []string       // of the HTTP headers for the endpoint
	asserted *message.Names // the same
	signIn   []string       // the URL, split at {url}; empty: none
}

// mostDenial limits the body of a response that goes to the client, in bytes.
const mostDenial = 64 << 10

var refuseUndecided = &message.Refusal{Status: 503, Reason: "auth_unavailable", Detail: "the server that decides about this request failed or did not answer"}

func newForward(c *config.Auth, server Decider) (authenticator, error) {
	_, target, err := config.BackendOfURL("", c.Forward.URL)
	if err != nil {
		return nil, fmt.Errorf("auth.%s: forward.url %w", c.Name, err)
	}
	f := &forward{server: server, target: target, patience: c.Forward.Timeout, names: c.Forward.Headers, asserted: message.NewNames(c.Forward.Headers)}
	if c.Forward.SignIn != "" {
		f.signIn = strings.Split(c.Forward.SignIn, config.SignInURL)
	}
	return f, nil
}

// hidesCredentials returns false: the server may decide by cookies, so Authorization may be for the
// endpoint.
func (f *forward) hidesCredentials() bool { return false }

// authenticate asks the server.
func (f *forward) authenticate(x Exchange) (id *Identity) {
	dropAsserted(x.Request(), f.asserted)
	err := x.Ask(&Question{Decider: f.server, Path: f.target, Patience: f.patience, Most: mostDenial,
		Write: func(req *message.Request) { writeCheck(req, x) },
		Read:  func(res *message.Response, body []byte) { id = f.decide(x, res, body) }})
	if err != nil {
		x.GuardFailed(authGuard, refuseUndecided, err)
	}
	return id
}

// dropAsserted drops the HTTP headers that only the authentication server may set from the client's
// request. Forwarding.DropAsserted did so before the route was chosen, but a reload since then may
// have added names.
func dropAsserted(req *message.Request, asserted *message.Names) {
	for i := range req.Fields {
		if asserted.HasAlike(req.Name(i)) {
			req.Fields[i].Dropped = true
		}
	}
}

// decide acts on the response of the server. It returns nil if it has answered the request.
func (f *forward) decide(x Exchange, res *message.Response, body []byte) *Identity {
	switch status := res.Status; {
	case status >= 200 && status < 300:
		return f.identity(res)
	case status == http.StatusUnauthorized && len(f.signIn) > 0 && wantsPage(x.Request()):
		f.redirect(x)
	case status >= 300 && status < 500:
		deny(x, res, body)
	default:
		x.GuardFailed(authGuard, refuseUndecided, fmt.Errorf("the server that decides answered %d", status))
	}
	return nil
}

// identity returns what a 2xx response tells about the sender. The codec has checked the values.
func (f *forward) identity(res *message.Response) *Identity {
	id := new(Identity)
	for i := range res.Fields {
		if res.Fields[i].Dropped {
			continue
		}
		name := res.Name(i)
		if message.EqualFold(name, "set-cookie") {
			id.Cookies = append(id.Cookies, string(res.Value(i)))
		}
		for _, known := range f.names {
			if len(res.Value(i)) > 0 && message.EqualFold(name, strings.ToLower(known)) {
				id.Fields = append(id.Fields, IdentityField{known, string(res.Value(i))})
			}
		}
	}
	return id
}

// deny answers with the response of the server.
func deny(x Exchange, from *message.Response, body []byte) {
	x.SetCause(fmt.Errorf("the server that decides answered %d", from.Status))
	res := x.Begin(from.Status, "auth_denied")
	for i := range res.Fields {
		res.Fields[i].Dropped = true
	}
	for i := range from.Fields {
		if f := &from.Fields[i]; !f.Dropped && f.ID != message.ContentLength && f.ID != message.Trailer {
			res.AddSpans(res.Store(from.Name(i)), res.Store(from.Value(i)))
		}
	}
	x.Send(string(body))
}

// wantsPage reports whether a browser that shows a page sent the request.
func wantsPage(req *message.Request) bool {
	if method := string(req.Bytes(req.Method)); method != "GET" && method != "HEAD" {
		return false
	}
	for i := range req.Fields {
		if !req.Fields[i].Dropped && message.EqualFold(req.Name(i), "accept") && acceptsHTML(req.Value(i)) {
			return true
		}
	}
	return false
}

// acceptsHTML reports whether a value of Accept has text/html.
func acceptsHTML(accept []byte) bool {
	for element := range bytes.SplitSeq(accept, []byte{','}) {
		kind, _, _ := bytes.Cut(element, []byte{';'})
		if message.EqualFold(bytes.TrimSpace(kind), "text/html") {
			return true
		}
	}
	return false
}

// redirect sends a browser to the page where its user signs in.
func (f *forward) redirect(x Exchange) {
	res := x.Begin(http.StatusFound, "auth_sign_in")
	requested := appendURL(nil, x)
	location := []byte(f.signIn[0])
	for _, part := range f.signIn[1:] {
		location = append(appendEncoded(location, requested), part...)
	}
	res.AddField("Location", string(location))
	x.Send("sign in first\n")
}

// appendURL appends the URL that the client requested. Its host is the one that has the route.
func appendURL(b []byte, x Exchange) []byte {
	req := x.Request()
	scheme := schemeOf(x)
	b = appendHost(append(append(b, scheme...), "://"...), x)
	if port, _ := strconv.Atoi(string(portOf(req.Bytes(req.Host)))); port != 0 && !(port == 80 && scheme == "http" || port == 443 && scheme == "https") {
		b = strconv.AppendInt(append(b, ':'), int64(port), 10)
	}
	return append(b, req.Bytes(req.Target)...)
}

// appendEncoded appends text with each byte percent-encoded that is not unreserved (RFC 3986,
// section 2.3).
func appendEncoded(b, text []byte) []byte {
	const digits = "0123456789ABCDEF"
	for _, c := range text {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_', c == '~':
			b = append(b, c)
		default:
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}

// writeCheck writes the HTTP headers of the request to the server: those of the client, without
// those that are about its body, its connection or a part of the response, and what weir knows.
func writeCheck(to *message.Request, x Exchange) {
	id := x.RequestID()
	from := x.Request()
	for i := range from.Fields {
		if f := &from.Fields[i]; (!f.Dropped || f.ID == message.CDNLoop) && passesToCheck(f.ID, from.Name(i)) {
			to.AddSpans(to.Store(from.Name(i)), to.Store(from.Value(i)))
		}
	}
	method, target, host := string(from.Bytes(from.Method)), string(from.Bytes(from.Target)), string(from.Bytes(from.Host))
	scheme, client := schemeOf(x), string(appendAddr(nil, x.Client().Addr()))
	to.AddField("X-Forwarded-Method", method)
	to.AddField("X-Forwarded-Proto", scheme)
	to.AddField("X-Forwarded-Host", host)
	to.AddField("X-Forwarded-Uri", target)
	to.AddField("X-Forwarded-For", client)
	to.AddField("X-Real-IP", client)
	to.AddField("X-Original-URL", scheme+"://"+host+target)
	to.AddField("X-Original-Method", method)
	to.AddField("X-Request-Id", string(id))
}

// passesToCheck reports whether the server gets a header of the client.
func passesToCheck(id message.ID, name []byte) bool {
	if id == message.CDNLoop {
		return true
	}
	return id.Class() == message.Passed && !ofWeir.HasAlike(name) && !notForCheck.HasAlike(name) && !message.BeginsAlike(name, "content-")
}

// ofWeir has the headers that weir writes for the server, apart from those with an id. notForCheck
// has those that would change what the response of the server means.
var (
	ofWeir = message.NewNames([]string{"X-Forwarded-Method", "X-Forwarded-Uri", "X-Original-URL", "X-Original-URI", "X-Original-Method",
		"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"})
	notForCheck = message.NewNames([]string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
		"Digest", "Repr-Digest", "Trailer", "Prefer"})
)
