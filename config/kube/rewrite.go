package kube

import (
	"cmp"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// rewriteOf is how requests of a claim get another path, and another host; nil: they keep theirs. A
// default backend without rules keeps its path as well, as in ingress-nginx.
func rewriteOf(c *claim.Claim, w annotation.Rewrite, host string) *config.Rewrite {
	one := config.Rewrite{Host: hostFor(c, host)}
	if w.Scheme == "" && w.Path != "" && w.Path != cmp.Or(c.Written, "/") && !(c.Implicit && c.Host == "") {
		one.Path = config.Template(w.Path)
	}
	if one == (config.Rewrite{}) {
		return nil
	}
	return &one
}
