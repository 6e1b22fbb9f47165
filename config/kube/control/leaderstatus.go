package control

import (
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// Some of what the status of a Gateway says only the leader knows.
//
// A Gateway can have the addresses of its Service. If the API server refuses the Service, for example because
// of an address that it asks for, only the leader knows why. It writes the reason into the status of the
// Gateway.
//
// A Gateway can have the addresses of Ingresses. The leader finds these, see addresses.

// publishedAddresses are the addresses that Ingresses have. If they are not known, Gateways keep the addresses in
// their status.
type publishedAddresses struct {
	all   []string
	known bool
}

// notePublished notes the addresses that Ingresses have, for Gateways that have the same.
func (c *Control) notePublished(all []string, known bool) {
	c.mu.Lock()
	changed := c.shown.known != known || !slices.Equal(c.shown.all, all)
	c.shown = publishedAddresses{all, known}
	c.mu.Unlock()
	if changed {
		wake(c.gatewayWork)
	}
}

// publishedNow are the addresses that Ingresses have.
func (c *Control) publishedNow() publishedAddresses {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown
}

// or returns the published addresses, or those in the status of a Gateway while these are not known.
func (p *publishedAddresses) or(now []gatewayv1.GatewayStatusAddress) []string {
	if p.known {
		return p.all
	}
	var all []string
	for i := range now {
		all = append(all, now[i].Value)
	}
	return all
}

// noteRefusal notes whether the API server refused to write the Service of a Gateway. These are no refusals: the API
// server does not answer, the Service has changed meanwhile, or the cluster deletes the namespace.
func (c *Control) noteRefusal(s *gateway.Service, err error) {
	if s.Behind == nil || api.IsAway(err) || apierrors.IsConflict(err) || isLeaving(err) {
		return
	}
	var now *gateway.Problem
	if err != nil {
		now = &gateway.Problem{Reason: string(gatewayv1.GatewayReasonAddressNotAssigned), Message: "weir cannot keep the Service of the Gateway: " + err.Error() + "."}
		if s.Behind.Requested != "" && apierrors.IsInvalid(err) {
			now.Reason = string(gatewayv1.GatewayReasonAddressNotUsable)
		}
	}
	c.mu.Lock()
	before := c.refusals[s.Key]
	if now == nil {
		delete(c.refusals, s.Key)
	} else {
		c.refusals[s.Key] = *now
	}
	c.mu.Unlock()
	if now == nil && before != (gateway.Problem{}) || now != nil && before != *now {
		wake(c.gatewayWork)
	}
}

// forgetRefusals forgets the refusals of Services that are not wanted any more.
func (c *Control) forgetRefusals(wanted map[serviceKey]*gateway.Service) {
	keys := make(map[gateway.Key]bool, len(wanted))
	for _, s := range wanted {
		keys[s.Key] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.refusals, func(k gateway.Key, _ gateway.Problem) bool { return !keys[k] })
}

// refused are the Gateways whose Services the API server refuses, and why.
func (c *Control) refused() map[gateway.Key]gateway.Problem {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.refusals)
}
