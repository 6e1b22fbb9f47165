package kube

import (
	"cmp"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// applySettings gives a route of a claim what the annotations of its Ingress set.
func applySettings(r *config.Route, c *claim.Claim, s annotation.Settings) {
	r.MaxBody, r.Clients = s.MaxBody, nil
	r.Rewrite = rewriteOf(c, s.Rewrite)
	if len(s.Allow)+len(s.Deny) > 0 {
		r.Clients = &config.Clients{Allow: s.Allow, Deny: s.Deny}
	}
}

// rewriteOf is how requests of a claim get another path; nil: they keep theirs. A default backend
// without rules keeps it as well, as in ingress-nginx.
func rewriteOf(c *claim.Claim, w annotation.Rewrite) *config.Rewrite {
	if w.Path == "" || w.Path == cmp.Or(c.Written, "/") || c.Implicit && c.Host == "" {
		return nil
	}
	return &config.Rewrite{Path: config.Template(w.Path)}
}
