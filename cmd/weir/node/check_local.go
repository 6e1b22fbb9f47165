package node

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/weirproxy/weir/config"
)

// warnLocal returns a warning for each backend of health.require_local that has no endpoint
// on this machine, whose addresses are own; none: they are unknown. If the file names the
// node, package config warns.
func warnLocal(cfg *config.Config, own []netip.Addr) (warnings []string) {
	if cfg.Health == nil || cfg.NodeExplicit || len(own) == 0 {
		return nil
	}
	for _, name := range cfg.Health.RequireLocal {
		for i := range cfg.Backends {
			if b := cfg.Backends[i]; b.Name == name && !slices.ContainsFunc(b.Endpoints, func(e config.Endpoint) bool { return mayBeLocal(e, cfg.Node, own) }) {
				warnings = append(warnings, fmt.Sprintf("health.require_local: no endpoint of backend %q has an address of this machine, so the health port always answers 503 here; give the backend an endpoint on this machine, or take it out of require_local", name))
			}
		}
	}
	return warnings
}

// mayBeLocal reports whether e may be an endpoint on the node. It knows no address of a name.
func mayBeLocal(e config.Endpoint, node string, own []netip.Addr) bool {
	if e.Node != "" {
		return e.Node == node
	}
	at, err := netip.ParseAddrPort(e.Address)
	if err != nil { // a name, or a Unix socket
		return true
	}
	addr := at.Addr().Unmap()
	return addr.IsLoopback() || slices.Contains(own, addr.WithZone(""))
}

// addressesOfMachine returns none if the kernel does not tell them.
func addressesOfMachine() (own []netip.Addr) {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap())
		}
	}
	return own
}
