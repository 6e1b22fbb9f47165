package kube

import (
	"cmp"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// defaultSend is the time that an endpoint has to read more of a request, as ingress-nginx and
// weir have it by default.
const defaultSend = time.Minute

// waits are the timeouts of a route, and how long its tunnels may be idle. nginx applies the
// timeout for reading to tunnels as well, and to silent streams.
func waits(own annotation.Timeouts, k config.KubernetesTimeouts) (*config.RouteTimeouts, time.Duration) {
	connect, read, send := cmp.Or(own.Connect, k.Connect), cmp.Or(own.Read, k.Read), cmp.Or(own.Send, k.Send)
	if connect == 0 && read == 0 && send == 0 {
		return nil, 0
	}
	if read != 0 {
		send = cmp.Or(send, defaultSend) // otherwise it is the same as read
	}
	return &config.RouteTimeouts{Connect: connect, ResponseHead: read, BodyIdle: read, StreamIdle: read, Send: send}, read
}

// defaultTries is how often ingress-nginx tries a request by default.
const defaultTries = 3

// retries are the retries of a route; nil: those of its backend.
func retries(s annotation.Retries) *config.RouteRetries {
	switch {
	case s.Off:
		return &config.RouteRetries{Attempts: 1}
	case s.When == nil && s.Attempts == 0 && s.Within == 0:
		return nil
	}
	when := []config.RetryCause{config.RetryReset, config.RetryTimeout}
	if s.When != nil {
		when = when[:0]
		for _, cause := range s.When {
			when = append(when, config.RetryCause(cause))
		}
	}
	return &config.RouteRetries{Attempts: cmp.Or(s.Attempts, defaultTries), When: when, NonIdempotent: s.NonIdempotent, Within: s.Within}
}
