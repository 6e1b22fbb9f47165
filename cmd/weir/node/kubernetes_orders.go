package node

import (
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/gateway"
	"github.com/weirproxy/weir/tls/acme"
)

// orderWithin is how long the status of a Gateway does not say that a certificate is missing: weir may
// have it in the storage, or may get it soon.
const orderWithin = 10 * time.Second

// ordered are the certificates that issuers order for Gateways.
type ordered struct {
	since   map[string]time.Time                // when weir first missed each of them, by the TLS policy that has it
	told    map[*gateway.Status]*gateway.Status // see kube.GatewayRouting.WithOrders
	waiting bool                                // a timer will call tellSoon
}

// withOrders returns r, whose statuses of Gateways also say which certificates are missing, or could not be
// renewed. r does not change. s.change is held.
func (c *cluster) withOrders(r *kube.Routing) *kube.Routing {
	orders := c.orders(r.Gateways)
	gateways := r.Gateways.WithOrders(orders, &c.ordered.told)
	if gateways == r.Gateways {
		return r
	}
	next := *r
	next.Gateways = gateways
	return &next
}

// orders returns the orders of which something is to be told, by the TLS policies that have the certificates. s.change
// is held.
func (c *cluster) orders(r *kube.GatewayRouting) map[string]gateway.Order {
	before, now := c.ordered.since, time.Now()
	c.ordered.since = nil
	var entries []*config.ACME
	if r != nil {
		for i := range r.Certificates {
			if a := r.Certificates[i].ACME; a != nil {
				entries = append(entries, a)
			}
		}
	}
	if len(entries) == 0 {
		return nil
	}
	c.ordered.since = map[string]time.Time{}
	all, unknown := map[string]gateway.Order{}, false
	for i, ends := range c.s.acme.Ends(entries) {
		a := entries[i]
		o := gateway.Order{Issuer: a.Issuer.Name, Host: a.Hosts[0], Ends: ends, Failure: failureOf(c.s.issuing.of(a.Hosts[0], a.Directory), ends)}
		if !ends.IsZero() {
			if o.Failure != "" {
				all[a.Owner] = o
			}
			continue
		}
		since, known := before[a.Owner]
		if !known {
			since = now
		}
		c.ordered.since[a.Owner] = since
		o.Unknown = o.Failure == "" && now.Sub(since) < c.s.orderWithin
		unknown = unknown || o.Unknown
		all[a.Owner] = o
	}
	if unknown && !c.ordered.waiting {
		c.ordered.waiting = true
		time.AfterFunc(c.s.orderWithin, c.tellOrders)
	}
	return all
}

// tellOrders tells of the orders whose state was unknown.
func (c *cluster) tellOrders() {
	c.s.change.Lock()
	c.ordered.waiting = false
	c.s.change.Unlock()
	c.s.tellSoon()
}

// failureOf is why an attempt failed, for authors of Gateways; empty: it did not. Errors of the storage are for
// the operator alone: they are in the log. They do not matter while there is a certificate.
func failureOf(e acme.Event, ends time.Time) string {
	switch {
	case e.Err == nil:
		return ""
	case e.Kind != acme.StorageError:
		return e.Err.Error()
	case ends.IsZero():
		return "the certificate storage of weir does not work"
	}
	return ""
}
