package acme

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
)

// With ACME Renewal Information (RFC 9773) an authority states when a certificate should
// be renewed, earlier than usual if it has to revoke the certificate. certmagic fetches
// the information with each new certificate and obeys it. This file fetches it again from
// time to time, and stores it in certmagic's format.

const (
	infoTimeout = 2 * time.Minute
	infoPause   = time.Hour // after a failure
)

// wantsInfo reports whether it is time to fetch the information: it is outdated, or
// certmagic could not fetch it with the new certificate.
func (k *keeper) wantsInfo(h *held) bool {
	return outdated(h) && time.Now().After(k.nextInfo)
}

func outdated(h *held) bool { return h.info.NeedsRefresh() || !h.info.HasWindow() }

// loadMeta reads certmagic's metadata of the certificate.
func (k *keeper) loadMeta(ctx context.Context, e *engine) (m acme.Certificate, err error) {
	text, err := e.config.Storage.Load(ctx, certmagic.StorageKeys.SiteMeta(e.issuer.IssuerKey(), k.name))
	if err != nil {
		return m, err
	}
	var r certmagic.CertificateResource
	if err = json.Unmarshal(text, &r); err == nil {
		err = json.Unmarshal(r.IssuerData, &m)
	}
	return m, err
}

// refreshInfo asks the authority again when to renew the certificate. It returns the
// certificate as the storage then has it. It holds the lock of the name, so that no other
// process renews the certificate meanwhile. A failure matters little: weir asks again
// later, and renews before the certificate's end in any case.
func (k *keeper) refreshInfo(ctx context.Context, e *engine, h *held) (*held, error) {
	k.nextInfo = time.Now().Add(jitter(min(infoPause, h.Lifetime()/20)))
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	lock := "issue_cert_" + k.name // certmagic's name of the lock
	if err := e.config.Storage.Lock(ctx, lock); err != nil {
		return h, err
	}
	defer func() {
		ctx, cancel := lastly(ctx)
		defer cancel()
		e.config.Storage.Unlock(ctx, lock)
	}()
	h, _, err := k.load(ctx, e)
	if err != nil {
		return nil, err
	}
	if !outdated(h) { // another process was faster
		return h, nil
	}
	info, err := e.issuer.GetRenewalInfo(ctx, h.Certificate)
	if errors.Is(err, acme.ErrUnsupported) {
		k.nextInfo = time.Now().Add(24 * infoPause)
	}
	if err != nil {
		return h, fmt.Errorf("cannot ask for renewal information: %w", err)
	}
	if info.SameWindow(h.info) && !h.info.SelectedTime.IsZero() {
		info.SelectedTime = h.info.SelectedTime // chosen at random once; a new choice at each fetch would move it
	}
	if err := k.storeInfo(ctx, e, h, info); err != nil {
		return h, err
	}
	h, _, err = k.load(ctx, e)
	return h, err
}

func (k *keeper) storeInfo(ctx context.Context, e *engine, h *held, info acme.RenewalInfo) error {
	m, err := k.loadMeta(ctx, e)
	if err != nil {
		return err
	}
	m.RenewalInfo = &info
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(certmagic.CertificateResource{SANs: h.Names, IssuerData: data}, "", "\t")
	if err != nil {
		return err
	}
	return e.config.Storage.Store(ctx, certmagic.StorageKeys.SiteMeta(e.issuer.IssuerKey(), k.name), text)
}
