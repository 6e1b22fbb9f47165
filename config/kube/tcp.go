package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
)

// port is one entry of the ConfigMap of raw TCP: a port to listen on, and where it leads.
type port struct {
	number        int
	source        config.ObjectName
	to            networkingv1.ServiceBackendPort
	header, sends bool // the suffixes PROXY: clients send a header; the Service is sent one
}

// parsePort reads an entry as ingress-nginx does: the port, and
// namespace/service:port[:PROXY[:PROXY]].
func parsePort(key, value string) (port, error) {
	number, err := strconv.ParseUint(key, 10, 16)
	if err != nil || number == 0 {
		return port{}, fmt.Errorf("has the key %q, which is no port; write a number from 1 to 65535", key)
	}
	parts := strings.Split(value, ":")
	if len(parts) < 2 || len(parts) > 4 {
		return port{}, fmt.Errorf("is %q; write namespace/service:port, and :PROXY behind it where clients send a header", value)
	}
	source, err := config.ParseObjectName(parts[0])
	if err != nil || parts[1] == "" {
		return port{}, fmt.Errorf("is %q; write namespace/service:port", value)
	}
	p := port{number: int(number), source: source}
	if n, err := strconv.ParseUint(parts[1], 10, 16); err == nil {
		p.to.Number = int32(n)
	} else {
		p.to.Name = parts[1]
	}
	for i, suffix := range parts[2:] {
		switch {
		case suffix == "":
		case !strings.EqualFold(suffix, "PROXY"):
			return port{}, fmt.Errorf("is %q, whose suffix %q means nothing; there is PROXY alone", value, suffix)
		case i == 0:
			p.header = true
		default:
			p.sends = true
		}
	}
	return p, nil
}

// tcp makes a listener and its route of each entry.
func (v *conversion) tcp() {
	m := v.o.TCP
	if m == nil || v.settings.TCP == nil {
		return
	}
	at := reference("v1", "ConfigMap", &m.ObjectMeta)
	v.out.Ports = at
	taken := map[int]bool{}
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		p, err := parsePort(key, m.Data[key])
		switch {
		case err != nil:
			v.event(at, ReasonPort, "The entry %s %v.", key, err)
		case taken[p.number]:
			v.event(at, ReasonPort, "The entry %s is for a port that another entry has; take one out.", key)
		default:
			taken[p.number] = true
			v.open(at, m, p)
		}
	}
}

// Unavailable is the event of a listener of r that could not be bound.
func (r *Routing) Unavailable(listener string, err error) Event {
	return Event{r.Ports, ReasonPortInUse, fmt.Sprintf("Port %s cannot be listened on: %v; it is tried again.", listener[strings.LastIndexByte(listener, '/')+1:], err)}
}

// open makes the listener of one port, if it is free.
func (v *conversion) open(at corev1.ObjectReference, m *corev1.ConfigMap, p port) {
	l := config.NewListener(fmt.Sprintf("%s/%d", m.Name, p.number))
	l.Network, l.Protocol, l.Address = "tcp", config.ProtocolTCP, net.JoinHostPort(v.address(), strconv.Itoa(p.number))
	if whose := v.occupant(l.Address); whose != "" {
		v.event(at, ReasonTaken, "Port %d is %s of weir's configuration; choose another.", p.number, whose)
		return
	}
	if p.header {
		l.HeaderPolicy = v.headerPolicy(at, m, p)
	}
	b, err := v.serving(p.source, p.to)
	if err != nil {
		v.event(at, reasonOf(err), "The backend of port %d %v.", p.number, err)
	}
	b.Name += "/tcp"
	b.Protocol = config.ProtocolTCP
	if p.sends {
		b.Name += "+proxy"
		b.SendProxy = 1
	}
	v.out.Listeners = append(v.out.Listeners, l)
	v.routes = append(v.routes, config.Route{
		Name: m.Namespace + "/" + l.Name, Listeners: []string{l.Name}, Backend: v.keep(b),
		TLS: config.TLSTerminate, TLSPolicy: config.DefaultTLSPolicy,
	})
}

// address is the IP address that all listeners for Ingresses share, so that raw
// TCP is found where HTTPS is; empty for all addresses.
func (v *conversion) address() (shared string) {
	for i, l := range slices.Concat(v.plain, v.secure) {
		host, _, _ := net.SplitHostPort(l.Address)
		if i > 0 && host != shared || l.Network != "tcp" {
			return ""
		}
		shared = host
	}
	return shared
}

// occupant says what the file has at the address.
func (v *conversion) occupant(address string) string {
	for _, l := range v.file.Listeners {
		if config.Collide("tcp", address, l.Network, l.Address) {
			return "the listener " + l.Name
		}
	}
	if h := v.file.Health; h != nil && config.Collide("tcp", address, h.Network, h.Address) {
		return "the health port"
	}
	if a := v.file.Admin; config.Collide("tcp", address, a.Network, a.Address) {
		return "the admin port"
	}
	return ""
}

// headerPolicy names the policy of a port where clients send a header: what the
// configuration says, or that of the listeners for Ingresses, which the same
// load balancer leads to. Where nothing says who may, everybody has to.
func (v *conversion) headerPolicy(at corev1.ObjectReference, m *corev1.ConfigMap, p port) string {
	if name := v.settings.TCP.HeaderPolicy; name != "" {
		return name
	}
	var name string
	for _, l := range slices.Concat(v.plain, v.secure) {
		name = cmp.Or(name, l.HeaderPolicy)
	}
	if name != "" {
		return name
	}
	v.event(at, ReasonOpen, "Port %d wants a PROXY header, and nothing says of whom, so whoever reaches it can claim any address; name a policy in kubernetes.tcp.proxy_protocol in weir's configuration.", p.number)
	name = m.Namespace + "/" + m.Name
	if len(v.out.HeaderPolicies) == 0 {
		everybody := []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
		v.out.HeaderPolicies = []config.HeaderPolicy{{Name: name, HeaderTimeout: config.DefaultHeaderTimeout,
			Rules: []config.HeaderRule{{From: everybody, Mode: config.HeaderRequire}}}}
	}
	return name
}
