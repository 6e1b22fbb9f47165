package gateway

import (
	"crypto/x509"
	"encoding/pem"
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// readClientCheck finds how weir checks the certificates of the clients of an HTTPS listener. If
// weir cannot check them, the listener serves nothing.
func (v *View) readClientCheck(g *gatewayv1.Gateway, l *Listener) {
	spec := validationFor(g, l.Port)
	if spec == nil {
		return
	}
	cas, firstProblem := []byte(nil), (*Problem)(nil)
	for i := range spec.CACertificateRefs {
		ca, p := v.bundleOf(KindGateway, g.Namespace, &spec.CACertificateRefs[i])
		firstProblem = orElse(firstProblem, p)
		cas = append(cas, ca...)
	}
	l.refs = orElse(l.refs, firstProblem)
	switch {
	case len(cas) == 0:
		message := "tls.frontend names no certificate of an authority."
		if firstProblem != nil {
			message = firstProblem.Message
		}
		l.accept = problem(gatewayv1.ListenerReasonNoValidCACertificate, "weir cannot check the certificates of clients. %s", message)
	case spec.Mode == gatewayv1.AllowInsecureFallback:
		l.Clients.Ask = true
	default:
		l.Clients = ClientCheck{Required: true, CAs: cas}
	}
}

// validationFor returns how a Gateway wants the clients of a port to be checked; nil: not at all.
func validationFor(g *gatewayv1.Gateway, port int) *gatewayv1.FrontendTLSValidation {
	if g.Spec.TLS == nil || g.Spec.TLS.Frontend == nil {
		return nil
	}
	f := g.Spec.TLS.Frontend
	for i := range f.PerPort {
		if int(f.PerPort[i].Port) == port {
			return f.PerPort[i].TLS.Validation
		}
	}
	return f.Default.Validation
}

// insecureFallback reports whether a Gateway lets clients without a valid certificate in.
func insecureFallback(g *gatewayv1.Gateway) bool {
	if g.Spec.TLS == nil || g.Spec.TLS.Frontend == nil {
		return false
	}
	insecure := func(c *gatewayv1.TLSConfig) bool {
		return c.Validation != nil && c.Validation.Mode == gatewayv1.AllowInsecureFallback
	}
	f := g.Spec.TLS.Frontend
	return insecure(&f.Default) || slices.ContainsFunc(f.PerPort, func(p gatewayv1.TLSPortConfig) bool { return insecure(&p.TLS) })
}

// bundleOf returns the certificates of authorities in the ConfigMap that an object names.
func (v *View) bundleOf(kind, namespace string, ref *gatewayv1.ObjectReference) ([]byte, *Problem) {
	name := config.ObjectName{Namespace: string(value(ref.Namespace, gatewayv1.Namespace(namespace))), Name: string(ref.Name)}
	if ref.Group != "" || ref.Kind != "ConfigMap" {
		return nil, problem(gatewayv1.ListenerReasonInvalidCACertificateKind, "The certificate of an authority %s is of the kind %s, but weir supports only ConfigMaps.", name, kindName(string(ref.Group), string(ref.Kind)))
	}
	if !v.permits(kind, namespace, "ConfigMap", name) {
		return nil, problem(gatewayv1.ListenerReasonRefNotPermitted, noGrant, name.Namespace, kind, namespace, "ConfigMap", name.Name)
	}
	m := v.bundle(name)
	if m == nil {
		return nil, problem(gatewayv1.ListenerReasonInvalidCACertificateRef, "The ConfigMap %s does not exist; create it, or name another.", name)
	}
	cas := []byte(m.Data["ca.crt"])
	if !hasCertificates(cas) {
		return nil, problem(gatewayv1.ListenerReasonInvalidCACertificateRef, "The ConfigMap %s has no certificate in PEM under the key ca.crt.", name)
	}
	return append(slices.Clip(cas), '\n'), nil
}

// hasCertificates reports whether all blocks of a text in PEM are certificates, and there are some.
func hasCertificates(data []byte) bool {
	found := false
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return found
		}
		if _, err := x509.ParseCertificate(block.Bytes); block.Type != "CERTIFICATE" || err != nil {
			return false
		}
		found, data = true, rest
	}
}
