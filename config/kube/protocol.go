package kube

import (
	"strings"

	"github.com/weirproxy/weir/config"
)

// AnnotationProtocol is ingress-nginx's, on Ingresses: what their Services speak.
const AnnotationProtocol = "nginx.ingress.kubernetes.io/backend-protocol"

// speech is what weir speaks to a Service.
type speech struct {
	protocol config.Protocol
	secure   bool // over TLS, where the protocol leaves that open
}

// appProtocols are those of Service ports. Names without a prefix are IANA's;
// those with one are Kubernetes' own (KEP-3726). grpc is nobody's, and many write it.
var appProtocols = map[string]speech{
	"": {protocol: config.ProtocolHTTP}, "http": {protocol: config.ProtocolHTTP}, "kubernetes.io/ws": {protocol: config.ProtocolHTTP},
	"https": {protocol: config.ProtocolHTTPS}, "kubernetes.io/wss": {protocol: config.ProtocolHTTPS},
	"kubernetes.io/h2c": {protocol: config.ProtocolH2C},
	"grpc":              {protocol: config.ProtocolGRPC}, "grpcs": {config.ProtocolGRPC, true},
}

// annotated are the values of AnnotationProtocol.
var annotated = map[string]speech{
	"HTTP": {protocol: config.ProtocolHTTP}, "HTTPS": {protocol: config.ProtocolHTTPS},
	"GRPC": {protocol: config.ProtocolGRPC}, "GRPCS": {config.ProtocolGRPC, true},
}

// suffixes are what backends are called by beside those that speak what their Service says.
var suffixes = map[speech]string{
	annotated["HTTP"]: "/http", annotated["HTTPS"]: "/https", annotated["GRPC"]: "/grpc", annotated["GRPCS"]: "/grpcs",
}

// speak makes b one that speaks s.
func (b *Backend) speak(s speech) {
	b.Protocol, b.HTTP2 = s.protocol, s.protocol == config.ProtocolHTTPS
	b.Secure = s.secure
	// Nothing says which certificates to expect, and Pods mostly show some that
	// they made themselves. It is no worse than the plain HTTP of all others.
	b.TLS.InsecureSkipVerify = b.UsesTLS()
}

// letSpeak sets what b, a backend of w, speaks: what the Ingress says of its
// Services, or else what the port says of itself. An Ingress that says something
// else than the port has a backend of its own.
func (v *conversion) letSpeak(b *Backend, w *want) {
	own := appProtocols[""]
	if found, err := portOf(v.services[b.Source], b.Port); err == nil {
		known := false
		if own, known = appProtocols[strings.ToLower(found.protocol)]; !known {
			own = appProtocols[""]
			v.on(w.by, ReasonProtocol, "Service %s has the appProtocol %q, which weir does not speak; it gets HTTP/1.1.", b.Source, found.protocol)
		}
	}
	b.speak(own)
	value, given := w.by.Annotations[AnnotationProtocol]
	if !given {
		return
	}
	s, known := annotated[strings.ToUpper(strings.TrimSpace(value))]
	switch {
	case !known:
		v.on(w.by, ReasonAnnotation, "The annotation %s is %q, which weir does not speak; write HTTP, HTTPS, GRPC or GRPCS. Services get what their ports say (appProtocol), or else HTTP/1.1.", AnnotationProtocol, value)
	case s != own:
		b.speak(s)
		b.Name += suffixes[s]
	}
}
