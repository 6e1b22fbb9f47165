package acme

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/libdns/rfc2136"
	"github.com/mholt/acmez/v3/acme"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/tls/hello"
)

// authority is what entries of equal settings share: an account at a directory,
// a storage, and the names that are looked after.
type authority struct {
	m        *Manager
	settings config.ACME // without Hosts
	key      string      // settingsOf them
	pool     *x509.CertPool
	ctx      context.Context    // ends when no entry has these settings any more
	stop     context.CancelFunc // nil until an entry has them
	patience time.Duration      // bounds one attempt
	taken    *placeholder
	work     sync.WaitGroup // what looks after names

	troubled atomic.Bool // it was told of that the storage does not work

	slots    chan struct{} // bounds attempts for listed names
	answered atomic.Bool   // the authority answered the last attempt
	probing  chan struct{} // holds one while an attempt finds out whether it does

	opening sync.Mutex
	opened  atomic.Pointer[engine]

	listed atomic.Pointer[map[string]*keeper] // never changed, only replaced
	demand *demand                            // nil: only what is listed
}

// maxAttempts bounds the attempts for listed names at one authority at once.
const maxAttempts = 32

// engine is an authority whose storage could be opened.
type engine struct {
	storage Storage
	cache   *certmagic.Cache
	config  *certmagic.Config
	issuer  *certmagic.ACMEIssuer
}

// settingsOf identifies what makes two entries the same but for their hosts.
func settingsOf(a *config.ACME) string {
	one := *a
	one.Hosts = nil
	secrets := []string{string(a.Storage)} // which do not show themselves
	if a.ExternalAccount != nil {
		secrets = append(secrets, string(a.ExternalAccount.MACKey))
	}
	if a.DNS != nil {
		secrets = append(secrets, string(a.DNS.RFC2136.Key))
	}
	text, _ := json.Marshal([]any{one, secrets}) // plain values: it cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// nameOf spells a host as certmagic does.
func nameOf(host string) string { return hello.Name(host) }

func newAuthority(m *Manager, c *config.ACME, key string) (*authority, error) {
	a := &authority{m: m, settings: *c, key: key, patience: 10 * time.Minute, taken: m.placeholder,
		slots: make(chan struct{}, maxAttempts), probing: make(chan struct{}, 1)}
	a.settings.Hosts = nil
	if len(c.CAPool) > 0 {
		a.pool = x509.NewCertPool()
		if !a.pool.AppendCertsFromPEM(c.CAPool) {
			return nil, fmt.Errorf("the file of acme.ca, %s, contains no PEM certificate", c.CAFile)
		}
	}
	if c.DNS != nil {
		a.patience += c.DNS.PropagationDelay + max(0, c.DNS.PropagationTimeout)
	}
	a.ctx = m.ctx
	a.listed.Store(new(map[string]*keeper))
	if c.OnDemand != nil {
		a.demand = newDemand(a, c.OnDemand)
	}
	return a, nil
}

// look makes names the ones that are looked after. What old authorities have
// for a name goes on being served until there is something newer.
func (a *authority) look(names map[string]bool, old map[string]*authority) {
	if a.stop == nil {
		a.ctx, a.stop = context.WithCancel(a.m.ctx)
	}
	before := *a.listed.Load()
	next := make(map[string]*keeper, len(names))
	for name := range names {
		k := before[name]
		if k == nil {
			k = newKeeper(a, name)
			for _, o := range old {
				if o.settings.KeyKind() != a.settings.KeyKind() { // of one kind they replace each other
					continue
				}
				if other := (*o.listed.Load())[name]; other != nil {
					k.serve(other.current.Load())
				}
			}
			k.start(a.ctx)
		}
		next[name] = k
	}
	a.listed.Store(&next)
	for name, k := range before {
		if next[name] == nil {
			k.stop()
		}
	}
}

// retire ends an authority that no entry names any more.
func (a *authority) retire() {
	a.m.retiring.Go(func() {
		a.finish()
		a.closeStorage()
	})
}

// finish ends what looks after names, and waits for it.
func (a *authority) finish() {
	if a.demand != nil {
		a.demand.end()
	}
	a.stop()
	a.work.Wait()
}

func (a *authority) closeStorage() {
	a.opening.Lock()
	defer a.opening.Unlock()
	if e := a.opened.Load(); e != nil && e.storage != nil {
		e.storage.Close()
		a.opened.Store(&engine{})
	}
}

var errRetired = errors.New("the acme entry was removed from the configuration")

// open returns the engine, and makes it first where that has not succeeded yet.
func (a *authority) open() (*engine, error) {
	if e := a.opened.Load(); e != nil {
		if e.storage == nil {
			return nil, errRetired
		}
		return e, nil
	}
	a.opening.Lock()
	defer a.opening.Unlock()
	if e := a.opened.Load(); e != nil {
		if e.storage == nil {
			return nil, errRetired
		}
		return e, nil
	}
	if a.ctx.Err() != nil {
		return nil, errRetired
	}
	s, err := a.m.Open(string(a.settings.Storage))
	if err != nil {
		return nil, err
	}
	e := a.setUp(s)
	a.opened.Store(e)
	return e, nil
}

// setUp sets certmagic up. Its cache serves nothing and looks after nothing,
// so its upkeep ends at once; it stays to answer when a certificate is due.
func (a *authority) setUp(s Storage) *engine {
	log := quiet(a.m.Log)
	e := &engine{storage: s}
	e.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(certmagic.Certificate) (*certmagic.Config, error) { return e.config, nil },
		RenewCheckInterval: leastPause,
		Logger:             log,
	})
	e.cache.Stop()
	e.config = certmagic.New(e.cache, certmagic.Config{
		Storage:   keyed(s, a.settings.KeyType),
		KeySource: certmagic.StandardKeyGenerator{KeyType: certmagic.KeyType(a.settings.KeyType)},
		OCSP:      certmagic.OCSPConfig{DisableStapling: true}, // it waits for responders without end; package certs staples
		OnEvent:   a.onEvent,
		Logger:    log,
	})
	e.issuer = certmagic.NewACMEIssuer(e.config, a.template())
	e.config.Issuers = []certmagic.Issuer{e.issuer}
	return e
}

func (a *authority) template() certmagic.ACMEIssuer {
	c := &a.settings
	t := certmagic.ACMEIssuer{
		CA: c.Directory, // its retries would go to a TestCA; we make one attempt at a time
		// A space stands for no address: for an empty one certmagic would take
		// that of any other account in the process or the storage, or ask on
		// standard input.
		Email:                   cmp.Or(c.Email, " "),
		Agreed:                  true,
		DisableHTTPChallenge:    !slices.Contains(c.Challenges, config.ChallengeHTTP01),
		DisableTLSALPNChallenge: !slices.Contains(c.Challenges, config.ChallengeTLSALPN01),
		ListenHost:              a.taken.host,
		AltHTTPPort:             a.taken.port,
		AltTLSALPNPort:          a.taken.port,
		TrustedRoots:            a.pool,
		Logger:                  quiet(a.m.Log),
	}
	if x := c.ExternalAccount; x != nil {
		t.ExternalAccount = &acme.EAB{KeyID: x.KeyID, MACKey: string(x.MACKey)}
	}
	if d := c.DNS; d != nil {
		t.DNS01Solver = &certmagic.DNS01Solver{DNSManager: certmagic.DNSManager{
			DNSProvider: &rfc2136.Provider{Server: d.RFC2136.Server, KeyName: d.RFC2136.KeyName,
				KeyAlg: d.RFC2136.KeyAlgorithm, Key: string(d.RFC2136.Key)},
			Resolvers:          d.Resolvers,
			PropagationDelay:   d.PropagationDelay,
			PropagationTimeout: max(d.PropagationTimeout, -1),
			Logger:             quiet(a.m.Log),
		}}
	}
	return t
}

// keyedStorage keeps certificates of one kind of key apart from others for the
// same names: certmagic names them by authority and host alone. Accounts,
// challenges and locks are shared, so two kinds for one name are got one after
// the other, as certmagic needs it. TryLock and RenewLockLease, which a storage
// may have, are for certmagic's own upkeep and retries, and those are off.
type keyedStorage struct {
	certmagic.Storage
	folder string // instead of certificates
}

const certificates = "certificates"

// keyed returns s for certificates of a key type. The default's are where
// everybody else who uses certmagic has them.
func keyed(s certmagic.Storage, keyType string) certmagic.Storage {
	if keyType == "" || keyType == "p256" {
		return s
	}
	return keyedStorage{s, certificates + "-" + keyType}
}

func (s keyedStorage) key(k string) string {
	if rest, ok := strings.CutPrefix(k, certificates); ok && (rest == "" || rest[0] == '/') {
		return s.folder + rest
	}
	return k
}

func (s keyedStorage) Store(ctx context.Context, key string, value []byte) error {
	return s.Storage.Store(ctx, s.key(key), value)
}

func (s keyedStorage) Load(ctx context.Context, key string) ([]byte, error) {
	return s.Storage.Load(ctx, s.key(key))
}

func (s keyedStorage) Delete(ctx context.Context, key string) error {
	return s.Storage.Delete(ctx, s.key(key))
}

func (s keyedStorage) Exists(ctx context.Context, key string) bool {
	return s.Storage.Exists(ctx, s.key(key))
}

func (s keyedStorage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	return s.Storage.Stat(ctx, s.key(key))
}

func (s keyedStorage) List(ctx context.Context, path string, recursive bool) ([]string, error) {
	all, err := s.Storage.List(ctx, s.key(path), recursive)
	for i, k := range all {
		if rest, ok := strings.CutPrefix(k, s.folder); ok {
			all[i] = certificates + rest
		}
	}
	return all, err
}
