package kube

import (
	"cmp"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// rewriteOf is how requests of a claim get another path; nil: they keep theirs. A default backend
// without rules keeps it as well, as in ingress-nginx.
func rewriteOf(c *claim.Claim, w annotation.Rewrite) *config.Rewrite {
	if w.Path == "" || w.Path == cmp.Or(c.Written, "/") || c.Implicit && c.Host == "" {
		return nil
	}
	return &config.Rewrite{Path: config.Template(w.Path)}
}
