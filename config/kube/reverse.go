package kube

import (
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// reverseOf is how names in the responses of Services change; nil: they stay. relative: redirects to
// paths stay so.
func reverseOf(r annotation.Reverse, relative bool) *config.Reverse {
	if r == (annotation.Reverse{}) {
		return nil
	}
	return &config.Reverse{Location: config.Replacement(r.Location), Relative: relative,
		CookieDomain: config.Replacement(r.CookieDomain), CookiePath: config.Replacement(r.CookiePath)}
}
