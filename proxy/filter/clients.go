package filter

import (
	"net/http"
	"net/netip"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// clients refuses clients by their addresses (clients of a route).
type clients struct {
	allow, deny networks
	all         bool // clients that are not in deny need not be in allow
	onlyDeny    bool // another guard asks whether the client is in allow
}

// newClients makes the guard. With onlyDeny it refuses only clients in deny. Another guard then
// calls allows, and decides what happens to the others.
func newClients(c *config.Clients, onlyDeny bool) *clients {
	return &clients{allow: newNetworks(c.Allow), deny: newNetworks(c.Deny), all: len(c.Allow) == 0, onlyDeny: onlyDeny}
}

var refuseClient = &message.Refusal{Status: http.StatusForbidden, Reason: "client_denied",
	Detail: "access from this address is denied", Hint: "clients of the route"}

// GuardName returns the key of a route that refuses clients.
func (c *clients) GuardName() string { return "clients" }

// Answer refuses a request of a client that may not use the route.
func (c *clients) Answer(x Exchange) bool {
	if !c.refuses(x.Client().Addr()) {
		return false
	}
	x.Refuse(refuseClient)
	return true
}

// GuardTunnel refuses a connection of a client that may not use the route.
func (c *clients) GuardTunnel(client netip.AddrPort, _ *State) *message.Refusal {
	if !c.refuses(client.Addr()) {
		return nil
	}
	return refuseClient
}

func (c *clients) refuses(a netip.Addr) bool {
	return c.deny.contain(a) || !c.onlyDeny && !c.all && !c.allow.contain(a)
}

// allows reports whether allow contains the client, and deny does not. It returns false for all
// clients if the route has no allow.
func (c *clients) allows(a netip.Addr) bool { return c.allow.contain(a) && !c.deny.contain(a) }
