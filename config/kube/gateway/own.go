package gateway

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// ownPrefix is the prefix of the names of weir's own annotations and options.
const ownPrefix = "weirproxy.github.io/"

// weir's own annotations of Gateways, and its option in tls.options of a listener. The configuration file has the
// policies, and an object names one of them. So the author of a Gateway can choose a policy, but cannot change it.
const (
	AnnotationHeaderPolicy = ownPrefix + "proxy-protocol"
	AnnotationSSH          = ownPrefix + "ssh"
	OptionTLSPolicy        = ownPrefix + "tls-policy"
)

// ReasonPolicyNotFound is the reason of a condition: the configuration file has no policy of this name.
const ReasonPolicyNotFound = "PolicyNotFound"

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
			p = orElse(p, problem(ReasonPolicyNotFound, "The annotation %s names the policy %q, which proxy_protocol in weir's configuration does not have; write one of its names, or remove the annotation.", name, value))
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
		case !strings.HasPrefix(string(name), ownPrefix):
		case name != OptionTLSPolicy:
			l.accept = orElse(l.accept, problem(gatewayv1.ListenerReasonUnsupportedValue, "tls.options has %s, which weir does not know; write %s, or remove it.", name, OptionTLSPolicy))
		case !v.HasTLSPolicy(value):
			l.accept = orElse(l.accept, problem(ReasonPolicyNotFound, "tls.options has %s: %q, and tls_policies in weir's configuration has no policy of this name; write one of its names, or remove the option.", name, value))
		default:
			l.TLSPolicy = value
		}
	}
}

// LacksBackend says that the Service of an annotation cannot be used, because of err, which begins with its
// name.
func (g *Gateway) LacksBackend(annotation string, err error) {
	g.refs = orElse(g.refs, problem(gatewayv1.RouteReasonBackendNotFound, "The annotation %s names %v.", annotation, err))
}
