package kube

import (
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// applySettings gives a route what the annotations of its Ingress set.
func applySettings(r *config.Route, s annotation.Settings) {
	r.MaxBody, r.Clients = s.MaxBody, nil
	if len(s.Allow)+len(s.Deny) > 0 {
		r.Clients = &config.Clients{Allow: s.Allow, Deny: s.Deny}
	}
}
