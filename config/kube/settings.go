package kube

import (
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// applySettings gives a route of a claim what the annotations of its Ingress set. k has the
// defaults. Each family of annotations has a file of its own.
func applySettings(r *config.Route, c *claim.Claim, s annotation.Settings, k *config.Kubernetes) {
	r.MaxBody, r.Clients = s.MaxBody, nil
	if len(s.Allow)+len(s.Deny) > 0 {
		r.Clients = &config.Clients{Allow: s.Allow, Deny: s.Deny}
	}
	r.Timeouts, r.TunnelIdle = waits(s.Timeouts, k.Timeouts)
	r.Retries = retries(s.Retries)
	r.CORS = corsOf(&s.CORS)
	r.Reverse, r.Unlogged = reverseOf(s.Reverse, s.Redirects.Relative), s.Unlogged
	r.Rewrite = rewriteOf(c, s.Rewrite, s.Forward.Host)
	r.Sticky = cookieOf(c, s.Affinity)
	r.HashBy = hashOf(s.Balance.HashBy)
	r.Untraced = s.Untraced
}
