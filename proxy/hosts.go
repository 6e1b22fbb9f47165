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

func (e *edge) all() (list []*host) {
	for _, h := range e.hosts {
		list = append(list, h)
	}
	for _, h := range e.wildcards {
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
	for _, path := range h.paths {
		if !slices.Contains(s.Routes, path.route.name) {
			s.Routes = append(s.Routes, path.route.name)
		}
	}
	slices.Sort(s.Routes)
	return s
}
