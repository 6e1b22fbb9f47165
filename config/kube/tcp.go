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

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// port is one entry of the ConfigMap for raw TCP: a port to listen on, and its Service.
type port struct {
	number        int
	source        config.ObjectName
	to            claim.Port
	header, sends bool // the suffixes PROXY: clients send a PROXY header; weir sends one to the Service
}

// parsePort reads an entry as ingress-nginx does: the port, and
// namespace/service:port[:PROXY[:PROXY]].
func parsePort(key, value string) (port, error) {
	number, err := strconv.ParseUint(key, 10, 16)
	if err != nil || number == 0 {
		return port{}, fmt.Errorf("has the key %q, which is not a port; write a number from 1 to 65535", key)
	}
	parts := strings.Split(value, ":")
	if len(parts) < 2 || len(parts) > 4 {
		return port{}, fmt.Errorf("is %q; write namespace/service:port, followed by :PROXY if clients send a PROXY header", value)
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
			return port{}, fmt.Errorf("is %q, and its suffix %q is unknown; write PROXY, or remove the suffix", value, suffix)
		case i == 0:
			p.header = true
		default:
			p.sends = true
		}
	}
	return p, nil
}

// tcp makes a listener and its route for each entry.
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
			v.event(at, event.ReasonPort, "The entry %s %v.", key, err)
		case taken[p.number]:
			v.event(at, event.ReasonPort, "The entry %s has the same port as another entry; remove one of them.", key)
		default:
			taken[p.number] = true
			v.open(at, m, p)
		}
	}
}

// Unavailable is the event for a listener of r that weir could not bind. Its object is the Gateway
// that has the listener, or else the ConfigMap.
func (r *Routing) Unavailable(listener string, err error) event.Event {
	object, at := r.Ports, listener
	if r.Gateways != nil {
		for _, l := range r.Gateways.Listeners {
			if l.Name == listener {
				object, at = r.Gateways.ownerOf(listener), l.Address
			}
		}
	}
	if host, port, err := net.SplitHostPort(at); err == nil {
		at = port + " of " + host
	} else {
		at = at[strings.LastIndexByte(at, '/')+1:]
	}
	return event.Event{Object: object, Reason: event.ReasonPortInUse, Message: fmt.Sprintf("weir cannot listen on port %s, and will try again: %v.", at, err)}
}

// open makes the listener of one port, if it is free.
func (v *conversion) open(at corev1.ObjectReference, m *corev1.ConfigMap, p port) {
	l := config.NewListener(fmt.Sprintf("%s/%d", m.Name, p.number))
	l.Network, l.Protocol, l.Address = "tcp", config.ProtocolTCP, net.JoinHostPort(v.address(), strconv.Itoa(p.number))
	if whose := v.occupant(l.Address); whose != "" {
		v.event(at, event.ReasonTaken, "Port %d is in use by %s of weir's configuration; choose another port.", p.number, whose)
		return
	}
	if p.header {
		l.HeaderPolicy = v.headerPolicy(at, m, p)
	}
	b, err := v.serving(p.source, p.to)
	if err != nil {
		v.event(at, reasonOf(err), "The backend of port %d is %v.", p.number, err)
	}
	b.Name += "/tcp"
	b.Protocol = config.ProtocolTCP
	if p.sends {
		b.Name += "+proxy"
		b.SendProxy = 1
	}
	v.out.Listeners = append(v.out.Listeners, l)
	v.routes = append(v.routes, &config.Route{
		Name: m.Namespace + "/" + l.Name, Namespace: m.Namespace, Listeners: []string{l.Name}, Backend: v.keep(b),
		TLS: config.TLSTerminate, TLSPolicy: config.DefaultTLSPolicy,
	})
}

// address is the IP address that all listeners for Ingresses share, so that raw TCP
// and HTTPS have the same address; empty for all addresses.
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

// occupant names the user of the address in the file; empty: there is none.
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
	if m := v.file.Metrics; m != nil && m.Address != "" && config.Collide("tcp", address, m.Network, m.Address) {
		return "the metrics port"
	}
	return ""
}

// headerPolicy names the PROXY header policy of a port: the one in the configuration,
// or the one of the listeners for Ingresses, which are behind the same load balancer.
// If there is none, every peer must send a PROXY header.
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
	v.event(at, event.ReasonOpen, "Port %d requires a PROXY header, but no policy limits who may send it, so any client can forge its address; name a policy in kubernetes.tcp.proxy_protocol in weir's configuration.", p.number)
	name = m.Namespace + "/" + m.Name
	if len(v.out.HeaderPolicies) == 0 {
		everybody := []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
		v.out.HeaderPolicies = []config.HeaderPolicy{{Name: name, HeaderTimeout: config.DefaultHeaderTimeout,
			Rules: []config.HeaderRule{{From: everybody, Mode: config.HeaderRequire}}}}
	}
	return name
}
