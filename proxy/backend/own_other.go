//go:build !linux

package backend

import "net/netip"

// onThisHost returns true if an address belongs to this host.
func onThisHost(a netip.Addr) (bool, error) { return sourceIs(a) }
