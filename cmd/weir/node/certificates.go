package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/tls/acme"
	"github.com/weirproxy/weir/tls/certs"
	"github.com/weirproxy/weir/tls/policy"
	"github.com/weirproxy/weir/tls/storage"
)

// certificates connects all parts for certificates: certificates from files, certificates
// from authorities, and the reports about both.
type certificates struct {
	certs   *certs.Store
	crls    *policy.CRLs
	acme    *acme.Manager
	ending  recentlyLogged // certificates for which weir logged a warning
	missing recentlyLogged // names without a certificate for which weir refused a handshake
}

// expiryRound is how often weir warns of certificates that end soon.
const expiryRound = 24 * time.Hour

func (s *server) newCertificates() {
	s.expiries = certs.NewMetrics(s.registry)
	s.certs = certs.New(s.expiries)
	s.certs.Missing = s.certificateMissing
	s.certs.Stapled = s.certificateStapled
	s.crls = policy.NewCRLs(s.registry)
	named := s.log.Named("acme")
	s.acme = acme.New(acme.Options{
		Open:    func(url string) (acme.Storage, error) { return storage.Open(url, s.log.Named("storage")) },
		Notify:  s.certificateEvent,
		Log:     named,
		Metrics: acme.NewMetrics(s.registry),
	})
	go s.certs.Run(s.ctx)
	go s.warnOfEndings(s.ctx)
}

// readCertificates reads the certificate files of a file. It waits for the file system, and
// changes nothing.
func (s *server) readCertificates(a *ahead, file *config.Config) (err error) {
	a.files, err = s.certs.ReadFiles(file.Certificates)
	return err
}

// planCertificates adds the certificates of objects to those that were read ahead, and prepares the
// entries of both for authorities. If both are in effect already, there is nothing to do.
func (s *server) planCertificates(p *plan) (err error) {
	if p.again && p.adopted != nil && p.objects.routing.SameCertificates(p.adopted.routing) {
		return nil
	}
	if p.managed, err = s.acme.Prepare(p.cfg.Certificates); err != nil {
		return err
	}
	p.certificates, err = s.certs.Plan(p.cfg.Certificates, func(a *config.ACME) certs.Managed { return p.managed.Entry(a) }, p.files)
	return err
}

// adoptCertificates puts the certificates of a plan into use. Certificates from
// authorities take effect first, so that the table finds them.
func (s *server) adoptCertificates(p *plan) {
	if p.certificates != nil {
		p.managed.Commit()
		p.certificates.Commit()
		s.logEndings(!p.again)
	}
}

// reloadCertificates puts changed certificate files, and files of users and keys, into effect, even if the
// configuration has other errors. The caller holds loading. The files are read without
// the lock change.
func (s *server) reloadCertificates() {
	changes, err := s.certs.ReadAgain()
	lists, errLists := s.crls.Reload()
	authFiles, errAuth := s.filters.Reload()
	s.change.Lock()
	replaced := changes.Commit()
	s.changes++ // otherwise an older plan could restore the old certificates
	s.change.Unlock()
	for _, file := range lists {
		s.log.Info("a revocation list file changed and is in use", zap.String("crl", file))
	}
	for _, err := range parts(errLists) {
		s.log.Error("a revocation list file changed and cannot be used; the previous lists stay in use", zap.Error(err))
	}
	for _, file := range authFiles {
		s.log.Info("a file of users or keys changed and is in use", zap.String("auth_file", file))
	}
	for _, err := range parts(errAuth) {
		s.log.Error("a file of users or keys changed and cannot be used; its previous content stays in use", zap.Error(err))
	}
	for _, file := range replaced {
		s.log.Info("a certificate file changed and is in use", zap.String("cert", file))
	}
	for _, err := range parts(err) {
		s.log.Error("a certificate file changed and cannot be used; the previous certificate stays in use", zap.Error(err))
	}
}

// parts returns the errors that were joined into err.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}

// maxRecentlyLogged limits the names that weir remembers, because tenants of a cluster
// choose how many names there are.
const maxRecentlyLogged = 10_000

// recentlyLogged remembers when a message about a name was last logged.
type recentlyLogged struct {
	mu    sync.Mutex
	said  map[string]time.Time
	swept time.Time // when old entries were last removed
}

// first returns true if no message about name was logged within while, and records the
// new message. If the list is full, a new name is not logged until old names are removed.
// All calls on one recentlyLogged must use the same while.
func (l *recentlyLogged) first(name string, while time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if at, said := l.said[name]; said && now.Sub(at) < while {
		return false
	}
	if len(l.said) >= maxRecentlyLogged && now.Sub(l.swept) >= while/10 { // the list is full: remove old names, but not on each call
		l.swept = now
		maps.DeleteFunc(l.said, func(_ string, at time.Time) bool { return now.Sub(at) >= while })
	}
	if _, known := l.said[name]; !known && len(l.said) >= maxRecentlyLogged {
		return false
	}
	if l.said == nil {
		l.said = make(map[string]time.Time)
	}
	l.said[name] = now
	return true
}

// certificateMissing logs, at a limited rate, that a client asked for a name without a
// certificate.
func (s *server) certificateMissing(name string) {
	if s.missing.first(name, time.Minute) {
		s.log.Warn("a handshake was refused: there is no certificate for the name yet", zap.String("name", name))
	}
}

// certificateEvent logs the result for a certificate from an authority.
func (s *server) certificateEvent(e acme.Event) {
	s.issuing.note(e)
	s.tellSoon() // the status of a Gateway says what became of its order
	fields := []zap.Field{zap.String("name", e.Name), zap.String("directory", e.Directory)}
	if !e.NotAfter.IsZero() {
		fields = append(fields, zap.Time("not_after", e.NotAfter.UTC()))
	}
	if !e.Next.IsZero() {
		fields = append(fields, zap.Time("next_attempt", e.Next.UTC().Truncate(time.Second)))
	}
	if e.Err != nil {
		fields = append(fields, zap.Error(e.Err))
	}
	switch e.Kind {
	case acme.Obtained, acme.Renewed, acme.Found:
		s.log.Info(string(e.Kind), fields...)
		s.certs.Refresh()
	case acme.Failed, acme.StorageError:
		s.log.Error(string(e.Kind), fields...)
	default:
		s.log.Warn(string(e.Kind), fields...)
	}
}

// certificateStapled logs the answer of an OCSP responder for a certificate.
func (s *server) certificateStapled(e certs.OCSPEvent) {
	names := zap.String("names", namesTold(e.Names))
	switch {
	case e.Err != nil:
		s.log.Warn("weir cannot staple the OCSP status of a certificate", names, zap.Error(e.Err))
	case !e.Revoked.IsZero():
		s.log.Error("a certificate was REVOKED by its authority: clients will refuse it; replace it", names, zap.Time("revoked", e.Revoked.UTC()))
		s.acme.Replace(e.Leaf) // if the certificate comes from an authority of ACME
	default:
		s.log.Info("weir staples the OCSP status of a certificate", names)
	}
}

// warnOfEndings warns daily of certificates that end soon.
func (s *server) warnOfEndings(ctx context.Context) {
	ticker := time.NewTicker(expiryRound)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.logEndings(true)
			s.logExpiredLists()
		}
	}
}

// logExpiredLists logs the revocation lists that have expired.
func (s *server) logExpiredLists() {
	for _, e := range s.crls.Expired(time.Now()) {
		s.log.Error("a revocation list has expired: weir refuses client certificates of its CA until there is a newer list",
			zap.String("crl", e.File), zap.String("issuer", e.Issuer), zap.Time("next_update", e.NextUpdate.UTC()))
	}
}

// maxNamesTold limits the names of one certificate in a log line.
const maxNamesTold = 20

func namesTold(names []string) string {
	if more := len(names) - maxNamesTold; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamesTold], ", "), more)
	}
	return strings.Join(names, ", ")
}

// logEndings warns of certificates that end soon. If all is false, it skips certificates
// that it has warned of recently.
func (s *server) logEndings(all bool) {
	now := time.Now()
	for _, e := range s.certs.Ending(now) {
		if !s.ending.first(e.Source+e.NotAfter.String(), expiryRound) && !all {
			continue
		}
		fields := []zap.Field{zap.String("names", strings.Join(e.Names, ", ")), zap.String("source", e.Source),
			zap.Time("not_after", e.NotAfter.UTC()), zap.Int("days", int(e.NotAfter.Sub(now).Hours()/24))}
		if e.NotAfter.Before(now) {
			s.log.Error("a certificate has expired: clients refuse it", fields...)
			continue
		}
		s.log.Warn("a certificate expires soon", fields...)
	}
}
