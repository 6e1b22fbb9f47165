package gateway

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// weir's own annotations of Gateways, and its option in tls.options of a listener. The configuration file has the
// policies, and an object names one of them. So the author of a Gateway can choose a policy, but cannot change it.
const (
	AnnotationHeaderPolicy = annotation.Own + "proxy-protocol"
	AnnotationSSH          = annotation.Own + "ssh"
	OptionTLSPolicy        = annotation.Own + "tls-policy"
	// Issuer is an annotation of Gateways and ListenerSets, for their own listeners, and an option of one listener.
	Issuer = annotation.Own + "issuer"
)

// Reasons of conditions: the configuration file has no policy or issuer of this name, or the issuer may not
// order the certificate.
const (
	ReasonPolicyNotFound   = "PolicyNotFound"
	ReasonIssuerNotFound   = "IssuerNotFound"
	ReasonIssuerNotAllowed = "IssuerNotAllowed"
)

// Own is what the annotations of a Gateway ask for.
type Own struct {
	// HeaderPolicy is the policy for PROXY headers on all ports of the Gateway; empty: none.
	HeaderPolicy string
	// SSH is the Service that gets connections that begin with SSH-, on all ports with TLS; no name: none.
	SSH     config.ObjectName
	SSHPort int32
}

// readOwn reads the annotations of a Gateway. An annotation that weir cannot apply rejects the Gateway: without
// a policy for PROXY headers, for example, all clients would seem to have the address of the load balancer.
func (v *View) readOwn(o *gatewayv1.Gateway) (own Own, p *Problem) {
	for _, name := range slices.Sorted(maps.Keys(o.Annotations)) {
		value := o.Annotations[name]
		switch {
		case name == AnnotationHeaderPolicy && !v.HasHeaderPolicy(value):
			p = orElse(p, problem(ReasonPolicyNotFound, "The annotation %s names the policy %q, but weir's configuration has no policy of this name under proxy_protocol; correct the name, or remove the annotation.", name, value))
		case name == AnnotationHeaderPolicy:
			own.HeaderPolicy = value
		case name == AnnotationSSH:
			service, port, err := parseServicePort(value)
			if err != nil {
				p = orElse(p, problem(gatewayv1.GatewayReasonInvalidParameters, "The annotation %s is %q; %v.", name, value, err))
			}
			own.SSH, own.SSHPort = config.ObjectName{Namespace: o.Namespace, Name: service}, port
		}
	}
	return own, p
}

// parseServicePort parses a Service of the same namespace with its port, such as gitea:22.
func parseServicePort(text string) (service string, port int32, err error) {
	service, number, found := strings.Cut(text, ":")
	n, err := strconv.ParseUint(number, 10, 16)
	if !found || service == "" || strings.Contains(service, "/") || err != nil || n == 0 {
		return "", 0, errors.New("write the name of a Service in the namespace of the Gateway, and its port, such as gitea:22")
	}
	return service, int32(n), nil
}

// readOptions reads tls.options of a listener. Options of other controllers have no effect.
func (v *View) readOptions(l *Listener, options map[gatewayv1.AnnotationKey]gatewayv1.AnnotationValue) {
	for _, name := range slices.Sorted(maps.Keys(options)) {
		value := string(options[name])
		switch {
		case !strings.HasPrefix(string(name), annotation.Own):
		case name == Issuer:
			l.Issuer = value
		case name != OptionTLSPolicy:
			l.accept = orElse(l.accept, problem(gatewayv1.ListenerReasonUnsupportedValue, "tls.options has %s, which weir does not know; write %s or %s, or remove it.", name, OptionTLSPolicy, Issuer))
		case !v.HasTLSPolicy(value):
			l.accept = orElse(l.accept, problem(ReasonPolicyNotFound, "tls.options names the policy %q (%s), but weir's configuration has no policy of this name under tls_policies; correct the name, or remove the option.", value, name))
		default:
			l.TLSPolicy = value
		}
	}
}

// readIssuer decides whether an issuer orders the certificate of a listener, and returns why it does not:
// nil also if none is named. Certificates in Secrets take precedence, so that a team can move to its own.
func (v *View) readIssuer(l *Listener) *Problem {
	if l.Issuer == "" || len(l.Secrets) > 0 {
		l.Issuer = ""
		return nil
	}
	name := l.Issuer
	l.Issuer = ""
	switch {
	case !v.HasIssuer(name):
		return problem(ReasonIssuerNotFound, "%s names the issuer %q, but weir's configuration has no issuer of this name (certificates[].acme.issuer.name); correct the name, or name a Secret in tls.certificateRefs.", Issuer, name)
	case l.Hostname == "":
		return problem(ReasonIssuerNotAllowed, "The issuer %s orders no certificate, because the listener has no hostname; give it one.", name)
	}
	if err := v.MayIssue(name, l.owner.Namespace, l.Hostname); err != nil {
		return problem(ReasonIssuerNotAllowed, "The issuer %s orders no certificate: %s %v.", name, l.Hostname, err)
	}
	l.Issuer = name
	return nil
}

// Owner is the object that has the listener: a Gateway or a ListenerSet.
func (l *Listener) Owner() (kind string, name config.ObjectName) { return l.kind(), l.owner }

// LoseIssuer says that the certificate of the listener is not ordered: its hostname belongs to an object of another
// namespace.
func (l *Listener) LoseIssuer(format string, args ...any) {
	p := problem(ReasonIssuerNotAllowed, "The issuer %s orders no certificate: %s", l.Issuer, fmt.Sprintf(format, args...))
	l.Issuer = ""
	l.lackCertificate(p)
}

// lackCertificate says why a listener without any certificate serves nothing.
func (l *Listener) lackCertificate(why *Problem) {
	l.refs = orElse(l.refs, why)
	l.program = problem(gatewayv1.ListenerReasonInvalid, "The listener has no usable certificate. %s", why.Message)
}

// LacksBackend says that the Service of an annotation cannot be used, because of err, which begins with its
// name.
func (g *Gateway) LacksBackend(annotation string, err error) {
	g.refs = orElse(g.refs, problem(gatewayv1.RouteReasonBackendNotFound, "The annotation %s names %v.", annotation, err))
}
