package config

import (
	"net/netip"
	"slices"
)

// ObjectLimits are the limits of ingress-nginx for the requests of a client. All routes of an
// Ingress share them. Only objects of a cluster have them.
type ObjectLimits struct {
	Name       string // of the object whose routes share the limits
	Rates      []ObjectRate
	RateStatus int
	InFlight   int // 0: no limit
	OpenStatus int // of a refusal because of InFlight
	Except     []netip.Prefix
}

// ObjectRate is a rate, and how many requests beyond it are admitted at once.
type ObjectRate struct {
	Rate
	Burst int // at least 0
}

func (l *ObjectLimits) equal(o *ObjectLimits) bool {
	if l == nil || o == nil {
		return l == o
	}
	return l.Name == o.Name && slices.Equal(l.Rates, o.Rates) && l.RateStatus == o.RateStatus && l.InFlight == o.InFlight &&
		l.OpenStatus == o.OpenStatus && slices.Equal(l.Except, o.Except)
}

// covers reports whether l refuses whatever o refuses; each may be nil.
func (l *ObjectLimits) covers(o *ObjectLimits) bool { return o == nil || l.equal(o) }
