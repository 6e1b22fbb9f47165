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

// Ending lists the certificates that should have been renewed before now.
func (s *Store) Ending(now time.Time) (all []Ending) {
	for _, e := range s.table.Load().entries {
		switch {
		case e.managed != nil:
			for _, c := range e.managed.All() {
				if now.After(dueOf(c, true)) {
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
			if c := e.first(""); c != nil && now.After(dueOf(c, false)) {
				all = append(all, Ending{e.names, source, e.notAfter})
			}
		}
	}
	return all
}

// dueOf is when a certificate should have been renewed: 14 days before its end.
// One that lives for 28 days or less is due in its last third, or from an
// authority in its last quarter: weir renews it in its last third, so something
// is wrong by then.
func dueOf(c *tls.Certificate, managed bool) time.Time {
	before := warnBefore
	if life := c.Leaf.NotAfter.Sub(c.Leaf.NotBefore); life <= 2*warnBefore {
		if before = life / 3; managed {
			before = life / 4
		}
	}
	return c.Leaf.NotAfter.Add(-before)
}
