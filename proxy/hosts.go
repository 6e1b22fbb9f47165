package proxy

import (
	"cmp"
	"slices"

	"github.com/weirproxy/weir/config"
)

// HostRoutes is a host whose TLS a tls listener terminates, as in the current table.
type HostRoutes struct {
	Listener string `json:"listener"`
	// Host is the name in the routes; "*" for routes without hosts.
	Host string `json:"host"`
	// Policy is the TLS policy of the host; clients outside its `from` get the default policy.
	Policy string   `json:"policy"`
	Routes []string `json:"routes"`
}

// Hosts lists the hosts of tls listeners, except hosts with passthrough.
func (p *Proxy) Hosts() []HostRoutes {
	list := []HostRoutes{}
	t := p.table.Load()
	if t == nil {
		return list
	}
	for _, e := range t.edges {
		if e.protocol != config.ProtocolTLS {
			continue
		}
		for _, h := range e.all() {
			if h.passthrough == nil {
				list = append(list, h.shown(e))
			}
		}
	}
	slices.SortFunc(list, func(a, b HostRoutes) int {
		return cmp.Or(cmp.Compare(a.Listener, b.Listener), cmp.Compare(a.Host, b.Host))
	})
	return list
}

// all lists the hosts of the listener, in no order.
func (e *edge) all() (list []*host) {
	for _, h := range e.hosts.All() {
		list = append(list, h)
	}
	if e.any != nil {
		list = append(list, e.any)
	}
	return list
}

func (h *host) shown(e *edge) HostRoutes {
	p := h.policy
	if p == nil {
		p = e.fallback
	}
	s := HostRoutes{Listener: e.name, Host: h.name, Policy: p.Name}
	if h.tunnel != nil {
		s.Routes = []string{h.tunnel.name}
		return s
	}
	for r := range h.paths.All() {
		s.Routes = append(s.Routes, r.name)
	}
	slices.Sort(s.Routes)
	s.Routes = slices.Compact(s.Routes)
	return s
}
