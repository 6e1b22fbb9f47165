package kube

import (
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// AnnotationProtocol is an annotation of ingress-nginx on Ingresses: the protocol of their Services.
const AnnotationProtocol = "nginx.ingress.kubernetes.io/backend-protocol"

// speech is the protocol that weir uses to a Service.
type speech struct {
	protocol config.Protocol
	secure   bool // over TLS, if the protocol allows both
}

// appProtocols are the values of appProtocol of Service ports. Names without a prefix
// are IANA's, those with kubernetes.io/ are from KEP-3726. No document defines grpc
// and grpcs, but they are common.
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

// suffixes distinguish backends whose protocol differs from appProtocol.
var suffixes = map[speech]string{
	annotated["HTTP"]: "/http", annotated["HTTPS"]: "/https", annotated["GRPC"]: "/grpc", annotated["GRPCS"]: "/grpcs",
}

// speak sets the protocol of b.
func (b *Backend) speak(s speech) {
	b.Protocol, b.HTTP2 = s.protocol, s.protocol == config.ProtocolHTTPS
	b.Secure = s.secure
	// Nothing defines which certificates to expect, and most Pods have self-signed
	// certificates. This is no worse than plain HTTP, which all other backends use.
	b.TLS.InsecureSkipVerify = b.UsesTLS()
}

// letSpeak sets the protocol of b, a backend of c, by what its object demands, or else by
// the appProtocol of the port. If the two differ, the object gets a backend of its own.
func (v *conversion) letSpeak(b *Backend, c *claim.Claim) {
	own := appProtocols[""]
	if found, err := portOf(v.service(b.Source), b.Port); err == nil {
		known := false
		if own, known = appProtocols[strings.ToLower(found.protocol)]; !known {
			own = appProtocols[""]
			v.on(c.Owner, event.ReasonProtocol, "The Service %s has the appProtocol %q, which weir does not support, so weir uses HTTP/1.1; write http, https, kubernetes.io/h2c, grpc or grpcs if the Service supports one of them.", b.Source, found.protocol)
		}
	}
	if s, given := traefikSpeech[v.traefikOf(b.Source).Scheme]; given {
		own = s
	}
	b.speak(own)
	if c.Backend.Protocol == nil {
		return
	}
	value := *c.Backend.Protocol
	s, known := annotated[strings.ToUpper(strings.TrimSpace(value))]
	switch {
	case !known:
		v.on(c.Owner, event.ReasonAnnotation, "The annotation %s is %q, which weir does not support; write HTTP, HTTPS, AUTO_HTTP, GRPC or GRPCS. Until then, weir uses the appProtocol of the Service's port, or else HTTP/1.1.", AnnotationProtocol, value)
	case s != own:
		b.speak(s)
		b.Name += suffixes[s]
	}
}
