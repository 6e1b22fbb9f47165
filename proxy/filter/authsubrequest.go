package filter

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/script"
)

// subrequest lets another server decide on each request, as ngx_http_auth_request_module does it in
// the configuration of ingress-nginx. Only objects of a cluster make such entries of auth.
type subrequest struct {
	entry     *config.Auth
	settings  *config.Subrequest
	server    Decider
	target    template
	add       []headerValue
	own       *message.Names // the headers that only weir sets for the server
	signIn    template
	hasSignIn bool
	asserted  *message.Names // the headers for the endpoint
	key       template       // of the cache
	cache     *decisions
}

// newSubrequest makes the authenticator of an entry. It returns before, the one in effect, if nothing
// has changed.
func (s *Shared) newSubrequest(c *config.Auth, before authenticator, server Decider) authenticator {
	if b, is := before.(*subrequest); is && b.settings == c.Subrequest && b.server == server {
		return b
	}
	if s.decisions == nil {
		s.decisions = newDecisions(mostDecisionBytes)
	}
	q := c.Subrequest
	a := &subrequest{entry: c, settings: q, server: server, target: newTemplate(q.Path), signIn: newTemplate(q.SignIn), hasSignIn: q.SignIn != "",
		asserted: message.NewNames(q.Headers), key: newTemplate(q.CacheBy), cache: s.decisions}
	own := []string{"X-Sent-From"}
	for _, h := range q.Add {
		a.add = append(a.add, headerValue{[]byte(h.Name), newTemplate(h.Value)})
		own = append(own, h.Name)
	}
	a.own = message.NewNames(own)
	return a
}

// claims reports whether the server sets a header like this one.
func (a *subrequest) claims(name []byte) bool { return a.asserted.HasAlike(name) }

// hidesCredentials returns false: nginx forwards Authorization.
func (a *subrequest) hidesCredentials() bool { return false }

func (a *subrequest) authenticate(x Exchange) *Identity { return a.authenticateFor(x, "") }

// authenticateFor returns who sent a request for a route, by the response of the server or a response
// that weir remembers. It returns nil if it has answered the request.
func (a *subrequest) authenticateFor(x Exchange, route string) *Identity {
	var key decisionKey
	if a.settings.CacheBy != "" {
		key = decisionKeyOf(a.entry.Name, a.settings.Backend, string(a.settings.Path), a.settings.Method, x.Host(), route, string(a.key.appendText(nil, x)))
		if d := a.cache.get(key); d != nil {
			return a.act(x, d)
		}
	}
	var d *decision
	path := string(a.target.appendText(nil, x))
	err := x.Ask(&Question{Decider: a.server, Method: a.settings.Method, Host: a.settings.Host, Path: path, Patience: a.settings.Timeout, Discard: true,
		Write: func(req *message.Request) { a.write(req, x) },
		Read: func(res *message.Response, _ []byte) {
			d = a.decide(res)
			if a.settings.CacheBy != "" {
				a.cache.add(key, d, keepFor(res, a.settings.Cache))
			}
		}})
	if err != nil {
		x.GuardFailed(authGuard, refuseNoDecision, err)
		return nil
	}
	return a.act(x, d)
}

// refuseNoDecision has the status of nginx.
var refuseNoDecision = &message.Refusal{Status: http.StatusInternalServerError, Reason: refuseUndecided.Reason, Detail: refuseUndecided.Detail}

// decision is what weir knows of a response of the server. It never changes.
type decision struct {
	status     int
	id         *Identity // of a 2xx response; otherwise it has only the cookies
	challenges []string  // values of WWW-Authenticate
}

// decide reads a response of the server.
func (a *subrequest) decide(res *message.Response) *decision {
	d := &decision{status: res.Status, id: &Identity{OnlyGood: !a.settings.AlwaysCookies}}
	if slices.Contains(a.settings.Keep, script.AnswerStatus) {
		d.id.Kept = append(d.id.Kept, IdentityField{script.AnswerStatus, strconv.Itoa(res.Status)})
	}
	for i := range res.Fields {
		if res.Fields[i].Dropped {
			continue
		}
		name := res.Name(i)
		switch {
		case message.EqualFold(name, "set-cookie"):
			value := string(res.Value(i))
			d.id.Cookies = append(d.id.Cookies, value)
			if name, rest, _ := strings.Cut(value, "="); slices.Contains(a.settings.Keep, script.AnswerCookie+name) && d.id.kept(script.AnswerCookie+name) == "" {
				text, _, _ := strings.Cut(rest, ";")
				d.id.Kept = append(d.id.Kept, IdentityField{script.AnswerCookie + name, text})
			}
		case message.EqualFold(name, "www-authenticate"):
			d.challenges = append(d.challenges, string(res.Value(i)))
		}
		for _, kept := range a.settings.Keep {
			if message.EqualFold(name, kept) {
				d.id.Kept = append(d.id.Kept, IdentityField{kept, string(res.Value(i))})
			}
		}
		for _, known := range a.settings.Headers {
			if d.good() && message.EqualFold(name, strings.ToLower(known)) && len(res.Value(i)) > 0 {
				d.id.Fields = append(d.id.Fields, IdentityField{known, string(res.Value(i))})
			}
		}
	}
	return d
}

func (d *decision) good() bool { return d.status >= 200 && d.status < 300 }

// act answers the request by the decision, or returns who sent it.
func (a *subrequest) act(x Exchange, d *decision) *Identity {
	switch {
	case d.good():
		dropAsserted(x.Request(), a.asserted) // the server got what the client sent
		return d.id
	case d.status == http.StatusUnauthorized && a.hasSignIn:
		res := x.Begin(http.StatusFound, "auth_sign_in")
		res.AddSpans(res.StoreString("Location"), res.Store(message.AppendURL(nil, a.signIn.appendText(nil, x))))
		for _, value := range d.id.Cookies {
			res.AddField("Set-Cookie", value)
		}
		x.Send("sign in first\n")
	case d.status == http.StatusUnauthorized, d.status == http.StatusForbidden:
		x.SetCause(fmt.Errorf("the server that decides answered %d", d.status))
		res := x.Begin(d.status, "auth_denied")
		if d.status == http.StatusUnauthorized {
			for _, value := range d.challenges {
				res.AddField("WWW-Authenticate", value)
			}
		}
		if d.id.givesCookies(d.status) {
			for _, value := range d.id.Cookies {
				res.AddField("Set-Cookie", value)
			}
		}
		x.Send("access denied\n")
	default:
		x.GuardFailed(authGuard, refuseNoDecision, fmt.Errorf("the server that decides answered %d", d.status))
	}
	return nil
}

// write writes the HTTP headers of the request to the server: those of the client, without those
// about its body, its connection or a part of the response; what ingress-nginx adds; and what the
// object adds, which replaces others of the same name.
func (a *subrequest) write(to *message.Request, x Exchange) {
	id := x.RequestID()
	from := x.Request()
	for i := range from.Fields {
		f, name := &from.Fields[i], from.Name(i)
		if (!f.Dropped || f.ID == message.CDNLoop) && (passesToCheck(f.ID, name) || message.EqualFold(name, "content-type")) && !a.own.HasAlike(name) {
			to.AddSpans(to.Store(name), to.Store(from.Value(i)))
		}
	}
	method, target, host := string(from.Bytes(from.Method)), string(from.Bytes(from.Target)), string(from.Bytes(from.Host))
	scheme, client := schemeOf(x), string(appendAddr(nil, x.Client().Addr()))
	if a.settings.Method != "" {
		to.AddField("X-Original-URI", target)
		to.AddField("X-Scheme", scheme)
	}
	to.AddField("X-Original-URL", scheme+"://"+host+target)
	to.AddField("X-Original-Method", method)
	to.AddField("X-Sent-From", "nginx-ingress-controller")
	to.AddField("X-Real-IP", client)
	to.AddField("X-Forwarded-For", client)
	to.AddField("X-Request-Id", string(id))
	if rules := x.State().cert; rules != nil {
		rules.write(&to.Head, x)
	}
	for i := range a.add {
		h := &a.add[i]
		for j := range to.Fields {
			if message.EqualFold(to.Name(j), strings.ToLower(string(h.name))) {
				to.Fields[j].Dropped = true
			}
		}
		if value := h.value.appendText(nil, x); len(value) > 0 {
			to.AddSpans(to.Store(h.name), to.Store(value))
		}
	}
}

// keepFor returns how long weir may remember a response; 0: not at all. As in nginx, the response
// may say so, and one with cookies is not kept. Responses that depend on further headers of the
// request are not kept either.
func keepFor(res *message.Response, rules []config.CacheTime) time.Duration {
	rule := slices.IndexFunc(rules, func(r config.CacheTime) bool { return len(r.Statuses) == 0 || slices.Contains(r.Statuses, res.Status) })
	var keep time.Duration
	if rule >= 0 {
		keep = rules[rule].For
	}
	for i := range res.Fields {
		if res.Fields[i].Dropped {
			continue
		}
		switch name := res.Name(i); {
		case message.EqualFold(name, "set-cookie"), message.EqualFold(name, "vary"), message.EqualFold(name, "expires"), message.EqualFold(name, "x-accel-expires"):
			return 0
		case message.EqualFold(name, "cache-control"):
			// no-cache, no-store, private and max-age: the server knows caches, so weir leaves it to them.
			return 0
		}
	}
	return keep
}
