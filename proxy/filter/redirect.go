package filter

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

var (
	refuseNoHost = &message.Refusal{Status: http.StatusBadRequest, Reason: "no_host",
		Detail: "the request has no Host header, so weir cannot redirect it"}
	refuseNoChallenge = &message.Refusal{Status: http.StatusNotFound, Reason: "no_challenge",
		Detail: "no certificate is being requested with this ACME challenge"}
)

// redirect answers requests with their own URL over https (redirect_to_https of a route).
type redirect struct {
	to     config.Redirect
	always bool // the route has no backend: it also redirects requests that came over https
}

// Answer redirects a request. The host and the target come from the request. The codec has
// checked both: neither can end the HTTP header, and the target cannot replace the host.
func (r *redirect) Answer(x Exchange) bool {
	if !r.always && cameByHTTPS(x) {
		return false
	}
	req := x.Request()
	if bytes.HasPrefix(req.Bytes(req.Path), challengePath) && x.OrdersHTTP01() {
		x.Refuse(refuseNoChallenge) // an authority would follow the redirect, and report a misleading error
		return true
	}
	host := hostOf(req.Bytes(req.Host))
	if len(host) == 0 {
		x.Close() // as when the codec finds no host
		x.Refuse(refuseNoHost)
		return true
	}
	res := x.Begin(r.to.Status, "redirect")
	var buf [512]byte
	location := append(buf[:0], "https://"...)
	location = append(location, host...)
	if r.to.Port != 443 {
		location = append(location, ':')
		location = strconv.AppendInt(location, int64(r.to.Port), 10)
	}
	if target := req.Bytes(req.Target); target[0] == '/' { // "*" is not a path: it means the host
		location = message.AppendURL(location, target)
	}
	res.AddSpans(res.StoreString("Location"), res.Store(location))
	x.Send("this is served over https\n")
	return true
}

// cameByHTTPS reports whether the client used https, perhaps to a load balancer that terminates
// TLS. Weir knows that from its own TLS, from the PROXY header, or from the X-Forwarded-Proto of
// a trusted sender, if all its values agree. Traefik sends wss for WebSockets.
func cameByHTTPS(x Exchange) bool {
	if x.Secure() {
		return true
	}
	if x.Trusts()&TrustProto == 0 {
		return false
	}
	req, said := x.Request(), false
	for i := range req.Fields {
		f := &req.Fields[i]
		if f.ID != message.XForwardedProto || f.Dropped {
			continue
		}
		if proto := req.Value(i); !bytes.EqualFold(proto, []byte("https")) && !bytes.EqualFold(proto, []byte("wss")) {
			return false
		}
		said = true
	}
	return said
}

// hostOf removes the port from an authority; an IPv6 address keeps its brackets.
func hostOf(authority []byte) []byte {
	end := bytes.IndexByte(authority, ']') + 1 // 0: no bracket
	if colon := bytes.IndexByte(authority[end:], ':'); colon >= 0 {
		return authority[:end+colon]
	}
	return authority
}
