package certs

import (
	"crypto/tls"
	"time"
)

// Ending is a certificate that ends soon, or has ended.
type Ending struct {
	Names    []string
	Source   string // the file, "acme" or "self-signed"
	NotAfter time.Time
}

// warnBefore is from when on a certificate's end is warned of.
const warnBefore = 14 * 24 * time.Hour

// Ending lists the certificates that end within 14 days of now. One that lives
// for 28 days or less counts in its last third, or from an authority in its
// last quarter: it is renewed in its last third, so something is wrong by then.
func (s *Store) Ending(now time.Time) (all []Ending) {
	for _, e := range s.table.Load().entries {
		switch {
		case e.managed != nil:
			for _, c := range e.managed.All() {
				if endsSoon(c, now, 4) {
					all = append(all, Ending{namesOf(c.Leaf), "acme", c.Leaf.NotAfter})
				}
			}
		default:
			source := e.source.CertFile
			switch {
			case e.source.Pair != nil:
				source = e.source.Pair.Name
			case source == "":
				source = "self-signed"
			}
			if c, err := e.candidates[0].get(); err == nil && c != nil && endsSoon(c, now, 3) {
				all = append(all, Ending{e.names, source, e.notAfter})
			}
		}
	}
	return all
}

func endsSoon(c *tls.Certificate, now time.Time, part time.Duration) bool {
	before := warnBefore
	if life := c.Leaf.NotAfter.Sub(c.Leaf.NotBefore); life <= 2*warnBefore {
		before = life / part
	}
	return c.Leaf.NotAfter.Sub(now) < before
}
