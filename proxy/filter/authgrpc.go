package filter

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/extauthz"
	"github.com/weirproxy/weir/proxy/message"
)

// externalGRPC lets another server decide on each request by Envoy's protocol for external
// authorization (ext_authz, version 3), as the filter ExternalAuth of the Gateway API demands. Only
// objects of a cluster make such entries of auth.
type externalGRPC struct {
	settings *config.ExternalAuth
	server   Decider
	passed   *message.Names // headers of the client for the server; nil: all
}

func newExternalGRPC(c *config.ExternalAuth, before authenticator, server Decider) authenticator {
	if b, is := before.(*externalGRPC); is && b.settings == c && b.server == server {
		return b
	}
	return &externalGRPC{settings: c, server: server, passed: message.NewNames(c.Request)}
}

// hidesCredentials returns false: the server removes Authorization itself if it wants to.
func (e *externalGRPC) hidesCredentials() bool { return false }

// claims returns true: the server may set any header, so clients set none in trailers.
func (e *externalGRPC) claims([]byte) bool { return true }

// authenticate asks the server.
func (e *externalGRPC) authenticate(x Exchange) *Identity {
	body, ok := holdBody(x, e.settings)
	if !ok {
		return nil
	}
	var answer *extauthz.Response
	var failed error
	err := x.Ask(&Question{Decider: e.server, Method: "POST", Host: e.settings.Host, Path: extauthz.Path, Patience: e.settings.Timeout, Most: mostDenial,
		Whole: true, Body: e.request(x, body), Write: func(req *message.Request) { e.write(req, x) },
		Read: func(res *message.Response, body []byte) { answer, failed = readCall(res, body) }})
	var id *Identity
	switch {
	case err != nil || failed != nil:
		err = cmp.Or(err, failed)
	case answer.Allows():
		id, err = allow(x, answer)
	default:
		err = refuse(x, answer)
	}
	if err != nil {
		x.GuardFailed(authGuard, refuseUndecided, err)
		return nil
	}
	return id
}

// request returns the message of the call, with its prefix (gRPC over HTTP/2, "Length-Prefixed-Message").
func (e *externalGRPC) request(x Exchange, body []byte) []byte {
	id, req := x.RequestID(), x.Request()
	r := extauthz.Request{
		ID: string(id), Method: string(req.Bytes(req.Method)), Path: targetText(req), Host: string(req.Bytes(req.Host)), Scheme: schemeOf(x),
		Protocol: x.Protocol(), Received: x.Started(), Source: x.Client(), Destination: x.Origin().Local, Size: req.Length, Body: body,
	}
	for i := range req.Fields {
		f, name := &req.Fields[i], req.Name(i)
		if !f.Dropped && (f.ID.Class() == message.Passed || f.ID == message.ContentLength) && (e.passed == nil || e.passed.Has(name)) {
			r.Headers = append(r.Headers, extauthz.Header{Name: string(name), Value: string(req.Value(i))})
		}
	}
	client := string(appendAddr(nil, x.Client().Addr()))
	for _, own := range []extauthz.Header{{Name: "x-forwarded-for", Value: client}, {Name: "x-forwarded-proto", Value: r.Scheme},
		{Name: "x-forwarded-host", Value: r.Host}, {Name: "x-request-id", Value: r.ID}} {
		if e.passed == nil || e.passed.Has([]byte(own.Name)) {
			r.Headers = append(r.Headers, own)
		}
	}
	b := r.Append(make([]byte, messagePrefix, messagePrefix+512+len(body)))
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-messagePrefix))
	return b
}

// targetText returns the target as text that a message may contain: bytes that are not UTF-8 are percent-encoded.
func targetText(req *message.Request) string {
	target := req.Bytes(req.Target)
	if !utf8.Valid(target) {
		target = message.AppendURL(nil, target)
	}
	return string(target)
}

// messagePrefix is the length of the prefix of a message: whether it is compressed, and its length.
const messagePrefix = 5

// write writes the HTTP headers of a call. The server may get the call twice, as it only decides.
func (e *externalGRPC) write(to *message.Request, x Exchange) {
	from := x.Request()
	for i := range from.Fields {
		if from.Fields[i].ID == message.CDNLoop { // it stops loops
			to.Add(message.CDNLoop, from.Value(i))
		}
	}
	to.AddField("Content-Type", "application/grpc")
	to.AddField("Grpc-Timeout", strconv.FormatInt(e.settings.Timeout.Milliseconds(), 10)+"m")
	to.AddField("X-Request-Id", string(x.RequestID()))
	to.AcceptsTrailers, to.Idempotent = true, true
}

// readCall reads the response of a call that has one message.
func readCall(res *message.Response, body []byte) (*extauthz.Response, error) {
	if res.Status != http.StatusOK || !strings.HasPrefix(string(res.GetName("content-type")), "application/grpc") {
		return nil, fmt.Errorf("the server that decides answered %d without gRPC", res.Status)
	}
	of := &res.Trailers
	if of.GetName("grpc-status") == nil {
		of = &res.Head // a response without a message
	}
	if status := string(of.GetName("grpc-status")); status != "0" {
		return nil, fmt.Errorf("the server that decides answered with the gRPC status %q: %.200q", status, of.GetName("grpc-message"))
	}
	if len(body) < messagePrefix || body[0] != 0 || uint64(binary.BigEndian.Uint32(body[1:])) != uint64(len(body)-messagePrefix) {
		return nil, errors.New("the server that decides sent no message, a compressed one, or several")
	}
	return extauthz.ParseResponse(body[messagePrefix:])
}

// allow does to the request what the server demands. It returns what is left to do.
func allow(x Exchange, r *extauthz.Response) (*Identity, error) {
	if r.Query {
		return nil, errors.New("the server that decides changes the query of the request, which weir does not support")
	}
	if err := cmp.Or(checkChanges(r.Headers, config.CheckRequestHeader), checkChanges(r.ResponseHeaders, config.CheckResponseHeader)); err != nil {
		return nil, err
	}
	req, id := x.Request(), new(Identity)
	dropAsserted(req, message.NewNames(removable(r.Remove)))
	var gone []string
	for i := range r.Headers {
		c := &r.Headers[i]
		there := hasAlike(req, c.Name)
		if c.Action == extauthz.Overwrite || c.Action == extauthz.OverwriteIfExists {
			gone = append(gone, c.Name)
		}
		if c.Value != "" && !(c.Action == extauthz.AddIfAbsent && there) && !(c.Action == extauthz.OverwriteIfExists && !there) {
			id.Fields = append(id.Fields, IdentityField{c.Name, c.Value})
		}
	}
	dropAsserted(req, message.NewNames(gone))
	id.Response = r.ResponseHeaders
	return id, nil
}

// removable returns the names of headers that a server may remove from a request.
func removable(names []string) (all []string) {
	for _, name := range names {
		if config.CheckRequestHeader(name) == nil {
			all = append(all, name)
		}
	}
	return all
}

// hasAlike reports whether a request has a header with a name that an endpoint may take for this one.
func hasAlike(req *message.Request, name string) bool {
	names := message.NewNames([]string{name})
	for i := range req.Fields {
		if !req.Fields[i].Dropped && names.HasAlike(req.Name(i)) {
			return true
		}
	}
	return false
}

// checkChanges returns an error if the server sets a header that weir writes itself, or that would not
// be one header.
func checkChanges(all []extauthz.Change, check func(string) error) error {
	for i := range all {
		c := &all[i]
		err := check(c.Name)
		if err == nil && !message.ValidValue([]byte(c.Value)) {
			err = errors.New("has a value that HTTP headers cannot have")
		}
		if err != nil {
			return fmt.Errorf("the server that decides sets the header %.100q, which %w", c.Name, err)
		}
	}
	return nil
}

// refuse answers the request as the server demands: by 403, unless it says otherwise.
func refuse(x Exchange, r *extauthz.Response) error {
	if err := checkChanges(r.Headers, config.CheckResponseHeader); err != nil {
		return err
	}
	status := int(r.Status)
	if r.Status < 200 || r.Status > 599 {
		status = http.StatusForbidden
	}
	x.SetCause(fmt.Errorf("the server that decides refused the request with the code %d: %.200q", r.Code, r.Message))
	res := x.Begin(status, "auth_denied")
	for i := range r.Headers {
		setHeader(&res.Head, &r.Headers[i])
	}
	body := r.Body
	if message.BodyForbidden(status) {
		body = ""
	}
	x.Send(body)
	return nil
}

// setHeader changes a response as a server demands. Cookies never replace each other.
func setHeader(head *message.Head, c *extauthz.Change) {
	cookie := strings.EqualFold(c.Name, "set-cookie")
	there := false
	for i := range head.Fields {
		if f := &head.Fields[i]; !f.Dropped && message.EqualFold(head.Name(i), strings.ToLower(c.Name)) {
			there = true
			f.Dropped = !cookie && (c.Action == extauthz.Overwrite || c.Action == extauthz.OverwriteIfExists)
		}
	}
	if c.Value != "" && !(c.Action == extauthz.AddIfAbsent && there) && !(c.Action == extauthz.OverwriteIfExists && !there) {
		head.AddField(c.Name, c.Value)
	}
}
