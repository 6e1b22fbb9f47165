package kube

import (
	"fmt"
	"strings"

	"github.com/weirproxy/weir/config"
)

// showGuards shows the timeouts, guards and headers of a route.
func showGuards(r *config.Route) string {
	var b strings.Builder
	if t := r.Timeouts; t != nil {
		fmt.Fprintf(&b, " timeouts connect %v head %v body %v send %v tunnel %v", t.Connect, t.ResponseHead, t.BodyIdle, t.Send, r.TunnelIdle)
	}
	if t := r.Retries; t != nil {
		fmt.Fprintf(&b, " retries %d %v within %v non_idempotent %v", t.Attempts, t.When, t.Within, t.NonIdempotent)
	}
	return b.String()
}
