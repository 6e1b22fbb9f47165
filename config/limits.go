package config

import "net/netip"

// ClientLimits define the client networks, and limit the connections of each.
type ClientLimits struct {
	// Connections limits the open connections of a client network; 0: no limit.
	Connections int
	// Rate limits the new connections of a client network; zero: no limit.
	Rate Rate
	// Burst is how many new connections Rate admits at once from rest; 0: as many as
	// Rate.Number.
	Burst int
	// Except are networks whose connections are not counted.
	Except []netip.Prefix
	// PrefixIPv4 (0 to 32) and PrefixIPv6 (0 to 128) are the prefix lengths of client
	// networks. 0: all clients of the family are one network.
	PrefixIPv4, PrefixIPv6 int
}

// Limits protect the process as a whole.
type Limits struct {
	// MaxConnections limits client connections over all listeners; 0: only descriptors
	// limit them.
	MaxConnections int
	// Pending limits connections whose PROXY header or handshake is not complete, in
	// total and per client network.
	Pending          int
	PendingPerSource int
	// Clients defines the client networks, and limits the connections of each.
	Clients ClientLimits
	// Memory limits the memory that client connections make weir hold, in bytes; 0: a share
	// of the available memory.
	Memory int64
	// HeadBytes and HeadFields limit a request or response head.
	HeadBytes  int
	HeadFields int
	// Loop is how often a request or a tunnel's connection may visit this process, at
	// least 1.
	Loop int
}

var clientLimitsRules = []*schema{when(has("burst"), has("rate"))}

// checkClientLimits reports a burst without a rate.
func (v *draft) checkClientLimits() {
	c := &v.limits.Clients
	if v.given(&c.Burst) && !v.given(&c.Rate) {
		v.failAt(v.places[&c.Burst], "has no effect without rate; write limits.clients.rate beside it, such as 400/s")
	}
}
