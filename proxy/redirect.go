package proxy

import (
	"bytes"
	"net/http"
	"strconv"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

var (
	refuseNoHost = &message.Refusal{Status: http.StatusBadRequest, Reason: "no_host",
		Detail: "the request has no Host header, so weir cannot redirect it"}
	refuseNoChallenge = &message.Refusal{Status: http.StatusNotFound, Reason: "no_challenge",
		Detail: "no certificate is being requested with this ACME challenge"}
)

// cameByHTTPS reports whether the client used https, perhaps to a load balancer that terminates
// TLS. Weir knows that from its own TLS, from the PROXY header, or from the X-Forwarded-Proto of
// a trusted sender, if all its values agree. Traefik sends wss for WebSockets.
func (x *exchange) cameByHTTPS() bool {
	if x.secure() {
		return true
	}
	if x.trusts&trustProto == 0 {
		return false
	}
	said := false
	for i := range x.req.Fields {
		f := &x.req.Fields[i]
		if f.ID != message.XForwardedProto || f.Dropped {
			continue
		}
		if proto := x.req.Value(i); !bytes.EqualFold(proto, []byte("https")) && !bytes.EqualFold(proto, []byte("wss")) {
			return false
		}
		said = true
	}
	return said
}

// redirect answers a request with its own URL over https. The host and the target come from the
// request. The codec has checked both: neither can end the HTTP header, and the target cannot
// replace the host.
func (x *exchange) redirect(to *config.Redirect) {
	req := &x.req
	if bytes.HasPrefix(req.Bytes(req.Path), challengePath) {
		x.reply(refuseNoChallenge) // an authority would follow the redirect, and report a misleading error
		return
	}
	host := hostOf(req.Bytes(req.Host))
	if len(host) == 0 {
		x.ended = true // as when the codec finds no host
		x.reply(refuseNoHost)
		return
	}
	x.beginReply(to.Status, "redirect")
	res := &x.res
	var buf [512]byte
	location := append(buf[:0], "https://"...)
	location = append(location, host...)
	if to.Port != 443 {
		location = append(location, ':')
		location = strconv.AppendInt(location, int64(to.Port), 10)
	}
	if target := req.Bytes(req.Target); target[0] == '/' { // "*" is not a path: it means the host
		location = append(location, target...)
	}
	res.AddSpans(res.StoreString("Location"), res.Store(location))
	x.endReply("this is served over https\n")
}

// hostOf removes the port from an authority; an IPv6 address keeps its brackets.
func hostOf(authority []byte) []byte {
	end := bytes.IndexByte(authority, ']') + 1 // 0: no bracket
	if colon := bytes.IndexByte(authority[end:], ':'); colon >= 0 {
		return authority[:end+colon]
	}
	return authority
}

// hstsValue returns the value of Strict-Transport-Security (RFC 6797, section 6.1); nil: none.
func hstsValue(h *config.HSTS) []byte {
	if h == nil {
		return nil
	}
	b := strconv.AppendInt([]byte("max-age="), int64(h.MaxAge/time.Second), 10)
	if h.IncludeSubdomains {
		b = append(b, "; includeSubDomains"...)
	}
	if h.Preload {
		b = append(b, "; preload"...)
	}
	return b
}
