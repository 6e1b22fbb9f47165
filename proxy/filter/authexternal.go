package filter

import (
	"fmt"
	"net/http"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// external lets another server decide on each request, as the filter ExternalAuth of the Gateway API
// demands (GEP-1494, HTTP). The server gets the method and the path of the request. 200 lets the
// request pass; 3xx and 4xx go to the client. Only objects of a cluster make such entries of auth.
type external struct {
	settings *config.ExternalAuth
	server   Decider
	passed   *message.Names // headers of the client for the server
	asserted *message.Names // headers of the server for the endpoint; nil: all
}

// newExternal makes the authenticator of an entry. before is the authenticator in effect; newExternal
// returns it if nothing has changed.
func newExternal(c *config.Auth, before authenticator, server Decider) authenticator {
	if c.External.GRPC {
		return newExternalGRPC(c.External, before, server)
	}
	if b, is := before.(*external); is && b.settings == c.External && b.server == server {
		return b
	}
	e := &external{settings: c.External, server: server, passed: message.NewNames(c.External.Request)}
	if len(c.External.Response) > 0 {
		e.asserted = message.NewNames(c.External.Response)
	}
	return e
}

// hidesCredentials returns false: the server may decide by cookies, so Authorization may be for the
// endpoint.
func (e *external) hidesCredentials() bool { return false }

// authenticate asks the server.
func (e *external) authenticate(x Exchange) (id *Identity) {
	req := x.Request()
	method, target := string(req.Bytes(req.Method)), string(req.Bytes(req.Target))
	if method == "CONNECT" { // a WebSocket over HTTP/2, which is a GET over HTTP/1.1
		method = "GET"
	}
	if target == "" || target[0] != '/' {
		target = "/"
	}
	body, ok := holdBody(x, e.settings)
	if !ok {
		return nil
	}
	err := x.Ask(&Question{Decider: e.server, Method: method, Path: e.settings.Prefix + target, Patience: e.settings.Timeout, Most: mostDenial, Body: body,
		Write: func(to *message.Request) { e.write(to, x) },
		Read:  func(res *message.Response, body []byte) { id = e.decide(x, res, body) }})
	if err != nil {
		x.GuardFailed(authGuard, refuseUndecided, err)
	}
	return id
}

// holdBody returns the body of a request if the server gets it. ok is false if the request has been
// answered.
func holdBody(x Exchange, settings *config.ExternalAuth) (body []byte, ok bool) {
	if settings.MaxBody == 0 {
		return nil, true
	}
	return x.HoldBody(settings.MaxBody)
}

// write writes the HTTP headers of the request to the server: the client's headers that the filter
// lists, Authorization, and headers of weir about the client.
func (e *external) write(to *message.Request, x Exchange) {
	id := x.RequestID()
	from := x.Request()
	for i := range from.Fields {
		f, name := &from.Fields[i], from.Name(i)
		switch {
		case f.ID == message.CDNLoop: // it stops loops
		case e.settings.MaxBody > 0 && describesBody.Has(name) && e.passed.Has(name):
		case f.Dropped || !passesToCheck(f.ID, name) || f.ID != message.Authorization && !e.passed.Has(name):
			continue
		}
		to.AddSpans(to.Store(name), to.Store(from.Value(i)))
	}
	client := string(appendAddr(nil, x.Client().Addr()))
	to.AddField("X-Forwarded-For", client)
	to.AddField("X-Forwarded-Proto", schemeOf(x))
	to.AddField("X-Forwarded-Host", string(from.Bytes(from.Host)))
	to.AddField("X-Request-Id", string(id))
}

// describesBody has the headers about a body that a server needs to read it.
var describesBody = message.NewNames([]string{"Content-Type", "Content-Encoding"})

// decide acts on the response of the server. It returns nil if it has answered the request.
func (e *external) decide(x Exchange, res *message.Response, body []byte) *Identity {
	switch status := res.Status; {
	case status == http.StatusOK:
		return e.identity(x, res)
	case status >= 300 && status < 500:
		deny(x, res, body)
	case status > 200 && status < 300: // only 200 permits
		x.SetCause(fmt.Errorf("the server that decides answered %d, and only 200 lets a request pass", status))
		x.Begin(http.StatusForbidden, "auth_denied")
		x.Send("access denied\n")
	default:
		x.GuardFailed(authGuard, refuseUndecided, fmt.Errorf("the server that decides answered %d", status))
	}
	return nil
}

// identity returns the headers of the server for the endpoint. It drops headers of the client with the
// same names.
func (e *external) identity(x Exchange, res *message.Response) *Identity {
	id := new(Identity)
	var names []string
	for i := range res.Fields {
		f, name, value := &res.Fields[i], res.Name(i), string(res.Value(i))
		switch {
		case f.Dropped:
		case message.EqualFold(name, "set-cookie"):
			id.Cookies = append(id.Cookies, value)
		case value != "" && e.forEndpoint(f.ID, name):
			id.Fields = append(id.Fields, IdentityField{string(name), value})
			names = append(names, string(name))
		}
	}
	asserted := e.asserted
	if asserted == nil {
		asserted = message.NewNames(names)
	}
	dropAsserted(x.Request(), asserted)
	return id
}

// forEndpoint reports whether the endpoint gets a header of the server.
func (e *external) forEndpoint(id message.ID, name []byte) bool {
	if e.asserted != nil {
		return e.asserted.Has(name)
	}
	return id.Class() == message.Passed && !message.BeginsAlike(name, "content-") && !onlyInResponses.HasAlike(name) && config.CheckRequestHeader(string(name)) == nil
}

// onlyInResponses has headers that mean nothing in a request.
var onlyInResponses = message.NewNames([]string{"Date", "Server", "Age", "Allow", "Accept-Ranges", "ETag", "Expires", "Last-Modified", "Location", "Retry-After",
	"Vary", "WWW-Authenticate", "Alt-Svc", "Strict-Transport-Security"})

// claims reports whether only the server may set a header of this name, so that weir drops it from the
// trailers of clients.
func (e *external) claims(name []byte) bool { return e.asserted == nil || e.asserted.HasAlike(name) }
