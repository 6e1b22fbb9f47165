package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirproxy/weir/proxy/message"
)

// Trust is a kind of information about the client that weir accepts from senders in
// Listener.TrustForwarded.
type Trust string

// The kinds of trust.
const (
	TrustFor        Trust = "for"         // X-Forwarded-For, and HTTP headers of content delivery networks that contain the client's address
	TrustProto      Trust = "proto"       // X-Forwarded-Proto
	TrustHost       Trust = "host"        // X-Forwarded-Host
	TrustPort       Trust = "port"        // X-Forwarded-Port
	TrustClientCert Trust = "client_cert" // Client-Cert, X-Client-Cert-* and similar HTTP headers
	TrustOther      Trust = "other"       // all other X-Forwarded-*
)

// Trusts returns true if weir accepts t from senders in TrustForwarded.
func (l *Listener) Trusts(t Trust) bool { return slices.Contains(l.Trust, t) }

var trust = oneOf(TrustFor, TrustProto, TrustHost, TrustPort, TrustClientCert, TrustOther)

// headerName is the name of an HTTP header. refuse returns why a name with this id is not
// allowed here, or "".
func headerName(refuse func(id message.ID) string) kind[string] {
	parse := func(s string) (string, error) {
		if strings.Contains(s, "*") {
			return "", fmt.Errorf("has a star, which would be an ordinary character of one name; write each name out, such as X-Client-Id")
		}
		if !message.ValidToken([]byte(s)) || len(s) > maxHeaderName {
			return "", fmt.Errorf("is not the name of an HTTP header, such as X-Client-Id")
		}
		if why := refuse(message.Lookup([]byte(s))); why != "" {
			return "", fmt.Errorf("%s", why)
		}
		return s, nil
	}
	return kind[string]{what: "the name of an HTTP header", parse: parse, format: same[string], pattern: "[!#%&'+.^_`|~0-9A-Za-z-]{1,256}"}
}

// maxHeaderName limits names in the configuration, in bytes.
const maxHeaderName = 256

var droppedHeader = headerName(func(id message.ID) string {
	switch id.Class() {
	case message.Framing:
		return "is needed to read the request, and cannot be dropped; take it out"
	case message.Written:
		return "is written by weir in the place of what the client sent; take it out"
	}
	return ""
})

var keptHeader = headerName(func(id message.ID) string {
	switch {
	case id == message.Misspelt:
		return "is another spelling of a name that weir knows, and such spellings are always dropped; write the name with hyphens, or take it out"
	case id.Class() == message.Passed:
		return "is not dropped anyway; take it out"
	case id.Class() == message.Framing:
		return "is read by weir, and written anew for the endpoint; take it out"
	case id.Class() == message.Written:
		return "is written by weir; to keep it from proxies before weir, list their networks in trust_forwarded, and what they set in trust"
	}
	return ""
})

// checkForwarded reports settings for request headers that do not fit the listener or each
// other.
func (v *draft) checkForwarded(l *Listener) {
	if l.Protocol == ProtocolTCP {
		for _, dst := range []any{&l.PublicPort, &l.TrustForwarded, &l.Trust, &l.DropHeaders, &l.KeepHeaders, &l.Lenient} {
			if v.given(dst) {
				v.failAt(v.places[dst], "a tcp listener has no HTTP headers; take this out")
			}
		}
		return
	}
	switch {
	case len(l.TrustForwarded) == 0:
		l.Trust = nil
	case !v.given(&l.Trust):
		l.Trust = []Trust{TrustFor, TrustProto} // proxies usually write these two themselves, and pass on all others from their clients
	}
	for i := range l.KeepHeaders {
		keep := &l.KeepHeaders[i]
		if *keep != "" && slices.ContainsFunc(l.DropHeaders, func(drop string) bool { return strings.EqualFold(*keep, drop) }) {
			v.failAt(v.places[keep], "%s is in drop_headers as well; take it out of one of them", v.quote(keep, *keep))
		}
	}
}

// warnForwarded warns of settings of trust_forwarded that are probably not intended.
func (v *draft) warnForwarded(l *Listener) {
	switch {
	case v.given(&l.Trust) && !v.given(&l.TrustForwarded):
		v.warnAt(v.places[&l.Trust], "it has no effect, because trust_forwarded is not set")
	case v.given(&l.TrustForwarded) && !v.given(&l.Trust):
		v.warnAt(v.places[&l.TrustForwarded], "weir keeps only X-Forwarded-For and X-Forwarded-Proto of these senders, and drops their X-Forwarded-Host, X-Forwarded-Port, other X-Forwarded-* and client certificates; "+
			"the client is the rightmost address in X-Forwarded-For outside these networks; "+
			`write "trust: [for, proto]" to confirm this, or add what the senders always set themselves (host, port, client_cert, other)`)
	}
	for i := range l.TrustForwarded {
		if p := &l.TrustForwarded[i]; p.IsValid() && p.Bits() == 0 {
			v.warnAt(v.places[p], "weir trusts every client, so each can choose its own address; list only the networks of the proxies in front of weir")
		}
	}
}
