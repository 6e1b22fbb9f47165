package certs

import (
	"crypto/tls"
	"slices"
	"time"
)

// Ending is a certificate and its end.
type Ending struct {
	Names    []string
	Source   string // the file, "acme" or "self-signed"
	NotAfter time.Time
	Due      bool // it should have been renewed
}

// warnBefore is the remaining life from which on weir warns of a certificate.
const warnBefore = 14 * 24 * time.Hour

// Ending lists the certificates that should have been renewed before now.
func (s *Store) Ending(now time.Time) (all []Ending) {
	return slices.DeleteFunc(s.All(now), func(e Ending) bool { return !e.Due })
}

// All lists all certificates.
func (s *Store) All(now time.Time) (all []Ending) {
	for _, e := range s.table.Load().entries {
		switch {
		case e.managed != nil:
			for _, c := range e.managed.All() {
				all = append(all, Ending{namesOf(c.Leaf), "acme", c.Leaf.NotAfter, now.After(dueOf(c, true))})
			}
		default:
			source := e.source.CertFile
			switch {
			case e.source.Pair != nil:
				source = e.source.Pair.Name
			case source == "":
				source = "self-signed"
			}
			if c := e.first(""); c != nil {
				all = append(all, Ending{e.names, source, e.notAfter, now.After(dueOf(c, false))})
			}
		}
	}
	return all
}

// dueOf returns the time by which a certificate should have been renewed: 14 days before
// its end. A certificate with a life of 28 days or less is due in its last third. If weir
// got it from an authority, it is due in its last quarter: weir renews it in its last
// third, so by then something is wrong.
func dueOf(c *tls.Certificate, managed bool) time.Time {
	before := warnBefore
	if life := c.Leaf.NotAfter.Sub(c.Leaf.NotBefore); life <= 2*warnBefore {
		if before = life / 3; managed {
			before = life / 4
		}
	}
	return c.Leaf.NotAfter.Add(-before)
}
