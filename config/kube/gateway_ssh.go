package kube

import (
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// ssh makes the route for SSH beside TLS: connections that begin with SSH-, on all ports with TLS, become
// tunnels to the Service that the Gateway names.
func (c *gatewayConversion) ssh() {
	own := &c.Own
	var listeners []string
	for _, l := range c.Listeners {
		for _, name := range c.ports[l.Port] {
			if l.TLSPort() && !slices.Contains(listeners, name) {
				listeners = append(listeners, name)
			}
		}
	}
	if own.SSH.Name == "" || len(listeners) == 0 {
		return
	}
	b, err := c.serving(own.SSH, claim.Port{Number: own.SSHPort})
	if err != nil {
		c.LacksBackend(gateway.AnnotationSSH, err)
	}
	b.Name += "/tcp"
	b.Protocol = config.ProtocolTCP
	c.routes = append(c.routes, &config.Route{Name: "gateway/" + gateway.NameOf(c.Object).String() + "/ssh", Namespace: c.Object.Namespace, Listeners: listeners,
		TLS: config.TLSTerminate, TLSPolicy: config.DefaultTLSPolicy, FirstBytes: "ssh", Backend: c.keep(b)})
}
