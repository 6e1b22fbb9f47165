package policy

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
)

var (
	// ErrRevoked is in the error of a handshake if the client certificate, or the
	// certificate of a CA in its chain, is in a revocation list.
	ErrRevoked = errors.New("the client certificate is revoked")
	// ErrRevocationUnknown is in the error of a handshake if no valid revocation list
	// covers the client certificate, so that weir cannot know whether it is revoked.
	ErrRevocationUnknown = errors.New("the revocation status of the client certificate is unknown")
)

// revocation decides whether client certificates of one policy are revoked (RFC 5280,
// section 6.3). nil accepts all of them.
type revocation struct {
	anchors []*x509.Certificate // the certificates of client_auth.ca
	files   []*crlFile          // empty before Revoke: it refuses all certificates
}

// newRevocation returns nil if p has no lists.
func newRevocation(p config.TLSPolicy) (*revocation, error) {
	if p.ClientAuth == config.ClientAuthNone || len(p.ClientAuthCRL) == 0 {
		return nil, nil
	}
	anchors, err := config.Authorities(p.ClientAuthPool)
	if err != nil {
		return nil, fmt.Errorf("client_auth: the file %s named by ca %w", p.ClientAuthCA, err)
	}
	return &revocation{anchors: anchors}, nil
}

// Revoke sets the lists in client_auth.crl of p, from a plan. It must be called before p is
// used. Without it, p refuses every client certificate that would need a list.
func (p *Policy) Revoke(plan *CRLPlan, files []string) {
	if p.revoked == nil {
		return
	}
	p.revoked.files = nil
	for _, name := range files {
		p.revoked.files = append(p.revoked.files, plan.files[name])
	}
}

// check accepts a certificate if, in one of its chains, every certificate is known not to
// be revoked.
func (r *revocation) check(chains [][]*x509.Certificate, now time.Time) error {
	if r == nil {
		return nil
	}
	err := fmt.Errorf("%w: it was not verified", ErrRevocationUnknown)
	for _, chain := range chains {
		this := r.chain(chain, now)
		if this == nil {
			return nil
		}
		if !errors.Is(err, ErrRevoked) { // ErrRevoked explains more
			err = this
		}
	}
	return err
}

// chain checks every certificate in the chain that has an issuer after it, and then the
// last one: client_auth.ca may contain an intermediate CA, which can be revoked.
func (r *revocation) chain(chain []*x509.Certificate, now time.Time) error {
	for i := range len(chain) - 1 {
		if err := r.certificate(chain[i], chain[i+1], now); err != nil {
			return err
		}
	}
	end := chain[len(chain)-1]
	for _, issuer := range r.anchors {
		if bytes.Equal(end.RawIssuer, issuer.RawSubject) && end.CheckSignatureFrom(issuer) == nil {
			if err := r.certificate(end, issuer, now); errors.Is(err, ErrRevoked) {
				return err
			}
		}
	}
	return nil
}

// certificate looks for c in all lists of its issuer, whose signature on c was verified.
func (r *revocation) certificate(c, issuer *x509.Certificate, now time.Time) error {
	covered := false
	var expired *config.RevocationList
	for _, f := range r.files {
		for _, l := range f.lists.Load().lists {
			switch {
			case !bytes.Equal(l.List.RawIssuer, issuer.RawSubject) || !l.signedBy(issuer):
			case l.Revokes(c):
				return fmt.Errorf("%w: the revocation list of %q in %s contains the serial number %x", ErrRevoked, l.Issuer(), f.path, c.SerialNumber)
			case !l.Covers(c):
			case l.Expired(now):
				expired = l.RevocationList
			default:
				covered = true
			}
		}
	}
	switch {
	case covered:
		return nil
	case expired != nil:
		return fmt.Errorf("%w: the revocation list of %q expired on %s; put a newer one into its file in client_auth.crl", ErrRevocationUnknown,
			expired.Issuer(), expired.List.NextUpdate.UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("%w: client_auth.crl has no revocation list of its CA %q for this kind of certificate; add one", ErrRevocationUnknown, issuer.Subject)
}

// Standing remembers whether weir still accepts a client with an open connection after the
// lists of its policy changed. All exchanges of a connection share it.
type Standing struct {
	revoked *revocation
	chains  [][]*x509.Certificate
	state   atomic.Uint64 // when last checked: twice the sum of the files' versions, plus 1 if they refuse the client
}

// Stand returns a Standing to check before each request of a connection. chains are the
// verified chains of the client certificate under p. nil: no check is needed.
func (p *Policy) Stand(chains [][]*x509.Certificate) *Standing {
	if p.revoked == nil {
		return nil
	}
	s := &Standing{revoked: p.revoked, chains: chains}
	// Not the current versions: a list may have changed since the handshake.
	return s
}

// Refused returns true if the client's certificate was revoked after the handshake.
// The call is cheap while no list has changed. A list that has expired since the
// handshake does not refuse the client.
func (s *Standing) Refused() bool {
	if s == nil {
		return false
	}
	version := uint64(0)
	for _, f := range s.revoked.files {
		version += f.lists.Load().version
	}
	state := s.state.Load()
	if state>>1 != version { // concurrent exchanges each compute their own answer
		state = version << 1
		if errors.Is(s.revoked.check(s.chains, time.Now()), ErrRevoked) {
			state |= 1
		}
		s.state.Store(state)
	}
	return state&1 == 1
}

// crlFile is a file of lists, whose content may change.
type crlFile struct {
	path  string
	lists atomic.Pointer[crlLists]
}

// crlLists is one content of a file. It does not change.
type crlLists struct {
	lists   []*signedList
	version uint64 // increases with each content, from 1
	sum     [sha256.Size]byte
}

// signedList is a list that remembers which CAs signed it.
type signedList struct {
	*config.RevocationList
	signers sync.Map // the SHA-256 of a CA's certificate -> bool; few entries, because only verified CAs are asked for
}

func (l *signedList) signedBy(ca *x509.Certificate) bool {
	key := sha256.Sum256(ca.Raw)
	if known, ok := l.signers.Load(key); ok {
		return known.(bool)
	}
	signed := l.List.CheckSignatureFrom(ca) == nil
	l.signers.Store(key, signed)
	return signed
}
