package policy

import (
	"crypto/tls"
	"strings"
	"sync"
)

// offers are the variants of a policy that offer protocols other than HTTP, by protocols.
// Offering makes each variant at its first use.
type offers struct {
	attach func(*tls.Config) // sets the session ticket keys
	mu     sync.Mutex
	made   map[string]*Policy
}

// Offering returns the variant of p that offers these protocols by ALPN instead of HTTP.
// With an empty list, no protocol is negotiated, whatever the client offers.
func (p *Policy) Offering(protocols []string) *Policy {
	key := strings.Join(protocols, "\x00") // a name may contain a comma
	o := p.others
	o.mu.Lock()
	defer o.mu.Unlock()
	with := o.made[key]
	if with == nil {
		other := *p
		other.http2 = nil
		other.Config = p.Config.Clone()
		other.Config.NextProtos = protocols
		o.attach(other.Config)
		with = &other
		o.made[key] = with
	}
	return with
}
