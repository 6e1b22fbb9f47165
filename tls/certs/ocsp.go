package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ocsp"
)

// weir fetches the OCSP response (RFC 6960) of a certificate in the background. It
// staples the response while it is good and fresh. Neither a handshake nor the start of
// weir waits for a responder. If a responder is down, only the staple is missing.

// OCSPEvent is the result of an OCSP request.
type OCSPEvent struct {
	Names []string // of the certificate
	Leaf  *x509.Certificate
	// Revoked is when the certificate was revoked; zero: it was not.
	Revoked time.Time
	// Err is the reason why there is no usable response. Nil: a staple is there, or
	// Revoked is set.
	Err error
}

const (
	ocspTimeout   = 10 * time.Second
	ocspAtOnce    = 4
	ocspRound     = time.Minute    // interval of the checks for due certificates
	ocspLeastLife = time.Minute    // minimum time from one response to the next request
	ocspNoEnd     = 12 * time.Hour // how long weir uses a response that has no end
	ocspMostPause = time.Hour      // maximum pause after consecutive failures
	ocspSkew      = 5 * time.Minute
	maxOCSP       = 1 << 20
)

// staple is the OCSP state of one certificate. It does not change.
type staple struct {
	cert     *tls.Certificate // with the response; nil: there is no good response
	until    time.Time        // end of the response
	due      time.Time        // time of the next request
	failures int              // consecutive failures
	revoked  time.Time
}

// staples holds the staples of all certificates, by leaf.
type staples struct {
	client *http.Client
	known  atomic.Pointer[map[*x509.Certificate]*staple] // never changed, only replaced
	wake   chan struct{}
}

func (s *staples) init() {
	s.client = &http.Client{Timeout: ocspTimeout}
	s.wake = make(chan struct{}, 1)
	s.known.Store(new(map[*x509.Certificate]*staple))
}

// with returns cert with its staple, or cert itself if there is no fresh staple.
func (s *staples) with(cert *tls.Certificate) *tls.Certificate {
	known := *s.known.Load()
	if cert == nil || len(known) == 0 {
		return cert
	}
	if one := known[cert.Leaf]; one != nil && one.cert != nil && time.Now().Before(one.until) {
		return one.cert
	}
	return cert
}

// checkSoon makes Run check the certificates at once.
func (s *staples) checkSoon() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run fetches OCSP responses until ctx ends.
func (s *Store) Run(ctx context.Context) {
	ticker := time.NewTicker(ocspRound)
	defer ticker.Stop()
	for {
		s.staple(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-s.staples.wake:
		}
	}
}

// staple sends the OCSP requests of all certificates that are due.
func (s *Store) staple(ctx context.Context) {
	certs := s.table.Load().withResponder()
	known := *s.staples.known.Load()
	next := make(map[*x509.Certificate]*staple, len(certs))
	var mu sync.Mutex
	var queries sync.WaitGroup
	slots := make(chan struct{}, ocspAtOnce)
	for _, c := range certs {
		old := known[c.Leaf]
		if old != nil && time.Now().Before(old.due) {
			mu.Lock()
			next[c.Leaf] = old
			mu.Unlock()
			continue
		}
		slots <- struct{}{}
		queries.Go(func() {
			defer func() { <-slots }()
			one := s.ask(ctx, c, old)
			mu.Lock()
			defer mu.Unlock()
			next[c.Leaf] = one
		})
	}
	queries.Wait()
	s.staples.known.Store(&next)
}

// withResponder returns the certificates that have an OCSP responder.
func (t *table) withResponder() (all []*tls.Certificate) {
	add := func(c *tls.Certificate) {
		if c.Leaf != nil && len(c.Leaf.OCSPServer) > 0 && time.Now().Before(c.Leaf.NotAfter) && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	for _, e := range t.entries {
		switch {
		case e.source.NoOCSP || e.source.SelfSigned != nil:
		case e.source.Pair != nil: // tenants of a cluster must not choose where weir sends requests
		case e.managed != nil:
			for _, c := range e.managed.All() {
				add(c)
			}
		default:
			for _, one := range e.candidates {
				if c, err := one.get(); err == nil && c != nil {
					add(c)
				}
			}
		}
	}
	return all
}

// ask sends the OCSP request of c. It reports a result that differs from old.
func (s *Store) ask(ctx context.Context, c *tls.Certificate, old *staple) *staple {
	raw, answer, err := s.staples.fetch(ctx, c)
	now := time.Now()
	if err != nil {
		one := &staple{failures: 1}
		if old != nil { // the earlier response may still be good
			*one = *old
			one.failures++
		}
		one.due = now.Add(min(ocspRound<<min(one.failures-1, 10), ocspMostPause))
		if one.failures == 1 && ctx.Err() == nil {
			s.tell(OCSPEvent{Names: namesOf(c.Leaf), Leaf: c.Leaf, Err: err})
		}
		return one
	}
	until := answer.NextUpdate
	if until.IsZero() {
		until = answer.ThisUpdate.Add(ocspNoEnd)
	}
	one := &staple{until: until, due: halfway(answer.ThisUpdate, until, now)}
	if answer.Status == ocsp.Revoked {
		one.revoked = answer.RevokedAt
		if old == nil || !old.revoked.Equal(one.revoked) {
			s.tell(OCSPEvent{Names: namesOf(c.Leaf), Leaf: c.Leaf, Revoked: answer.RevokedAt})
		}
		return one
	}
	stapled := *c
	stapled.OCSPStaple = raw
	one.cert = &stapled
	if old == nil || old.cert == nil {
		s.tell(OCSPEvent{Names: namesOf(c.Leaf), Leaf: c.Leaf})
	}
	return one
}

// halfway returns the time when half of a response's life is over, but at least
// ocspLeastLife from now.
func halfway(from, until, now time.Time) time.Time {
	at := from.Add(until.Sub(from) / 2)
	if soon := now.Add(ocspLeastLife); at.Before(soon) {
		return soon
	}
	return at
}

func (s *Store) tell(e OCSPEvent) {
	if s.Stapled != nil {
		s.Stapled(e)
	}
}

// fetch gets the response and checks it: the status is good or revoked, the response is
// valid now, and the issuer or its delegate signed it (RFC 6960, section 4.2.2.2).
func (s *staples) fetch(ctx context.Context, c *tls.Certificate) ([]byte, *ocsp.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, ocspTimeout)
	defer cancel()
	issuer, err := s.issuer(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	question, err := ocsp.CreateRequest(c.Leaf, issuer, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot request the certificate's OCSP status: %w", err)
	}
	raw, err := s.post(ctx, c.Leaf.OCSPServer[0], question)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot request the certificate's OCSP status: %w", err)
	}
	answer, err := ocsp.ParseResponseForCert(raw, c.Leaf, issuer)
	if err == nil {
		err = acceptable(answer, issuer, time.Now())
	}
	if err != nil {
		return nil, nil, fmt.Errorf("weir does not accept the OCSP response of %s: %w", c.Leaf.OCSPServer[0], err)
	}
	return raw, answer, nil
}

// acceptable checks what ocsp.ParseResponseForCert does not check.
func acceptable(answer *ocsp.Response, issuer *x509.Certificate, now time.Time) error {
	by := answer.Certificate
	switch {
	case by != nil && !by.Equal(issuer) && !slices.Contains(by.ExtKeyUsage, x509.ExtKeyUsageOCSPSigning):
		return errors.New("its signing certificate is not for OCSP")
	case answer.ThisUpdate.After(now.Add(ocspSkew)):
		return fmt.Errorf("its time, %s, is in the future; check the clock of this machine", answer.ThisUpdate.UTC().Format(time.RFC3339))
	case !answer.NextUpdate.IsZero() && !now.Before(answer.NextUpdate):
		return fmt.Errorf("it expired on %s", answer.NextUpdate.UTC().Format(time.RFC3339))
	case answer.NextUpdate.IsZero() && now.Sub(answer.ThisUpdate) > ocspNoEnd:
		return fmt.Errorf("it is too old, from %s", answer.ThisUpdate.UTC().Format(time.RFC3339))
	case answer.Status != ocsp.Good && answer.Status != ocsp.Revoked:
		return errors.New("the responder does not know the certificate")
	}
	return nil
}

func (s *staples) post(ctx context.Context, url string, question []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(question))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/ocsp-request")
	return s.do(req)
}

func (s *staples) do(req *http.Request) ([]byte, error) {
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", req.URL, res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, maxOCSP))
}

// issuer returns the certificate of the issuer of c: the next one of the chain, or the
// file at the URL in the certificate.
func (s *staples) issuer(ctx context.Context, c *tls.Certificate) (*x509.Certificate, error) {
	if len(c.Certificate) > 1 {
		return x509.ParseCertificate(c.Certificate[1])
	}
	if len(c.Leaf.IssuingCertificateURL) == 0 {
		return nil, errors.New("the certificate file has no chain, and OCSP needs the issuer's certificate; add it to the file, or set ocsp to false")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Leaf.IssuingCertificateURL[0], nil)
	if err != nil {
		return nil, err
	}
	data, err := s.do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot get the issuer's certificate: %w", err)
	}
	if block, _ := pem.Decode(data); block != nil {
		data = block.Bytes
	}
	return x509.ParseCertificate(data)
}
