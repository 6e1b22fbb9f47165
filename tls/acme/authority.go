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

// authority is shared by all entries with equal settings: an account at a directory, a
// storage, and the keepers of the names.
type authority struct {
	m        *Manager
	settings config.ACME // without Hosts
	key      string      // settingsOf(settings)
	pool     *x509.CertPool
	ctx      context.Context    // ends when no entry has these settings any more
	stop     context.CancelFunc // nil until an entry has these settings
	patience time.Duration      // time limit of one attempt
	taken    *placeholder
	work     sync.WaitGroup // the goroutines of all names

	storageDown atomic.Bool // an event reported that the storage does not work

	slots    chan struct{} // limits attempts for listed names
	answered atomic.Bool   // the authority answered the last attempt
	probing  chan struct{} // holds one element while an attempt finds out whether the authority answers

	opening sync.Mutex
	opened  atomic.Pointer[engine]

	listed atomic.Pointer[map[string]*keeper] // never changed, only replaced
	demand *demand                            // nil: only listed names
}

// maxAttempts limits the concurrent attempts for listed names at one authority.
const maxAttempts = 32

// engine is the part of an authority that needs its storage. After closeStorage, its
// fields are nil.
type engine struct {
	storage Storage
	cache   *certmagic.Cache
	config  *certmagic.Config
	issuer  *certmagic.ACMEIssuer
}

// settingsOf returns a hash of the settings of an entry without its hosts. Entries
// with equal hashes share an authority.
func settingsOf(a *config.ACME) string {
	one := *a
	one.Hosts, one.Issuer, one.Owner = nil, nil, ""
	secrets := []string{string(a.Storage)} // json.Marshal does not show their text
	if a.ExternalAccount != nil {
		secrets = append(secrets, string(a.ExternalAccount.MACKey))
	}
	if a.DNS != nil {
		secrets = append(secrets, string(a.DNS.RFC2136.Key))
	}
	text, _ := json.Marshal([]any{one, secrets}) // Marshal cannot fail for values of these types
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// nameOf spells a host as certmagic does.
func nameOf(host string) string { return hello.Name(host) }

func newAuthority(m *Manager, c *config.ACME, key string) (*authority, error) {
	a := &authority{m: m, settings: *c, key: key, patience: 10 * time.Minute, taken: m.placeholder,
		slots: make(chan struct{}, maxAttempts), probing: make(chan struct{}, 1)}
	a.settings.Hosts, a.settings.Issuer, a.settings.Owner = nil, nil, ""
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

// setNames starts keepers for new names and stops those of names that are gone. weir
// continues to serve the certificates of old authorities until a new keeper has a newer
// one.
func (a *authority) setNames(names map[string]bool, old map[string]*authority) {
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
				if o.settings.KeyKind() != a.settings.KeyKind() { // only a certificate of the same kind can stand in
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

// retire ends an authority that no entry uses any more, in the background.
func (a *authority) retire() {
	a.m.retiring.Go(func() {
		a.finish()
		a.closeStorage()
	})
}

// finish ends the work for all names, and waits for its end.
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

// open returns the engine. It opens the storage, unless an earlier call has opened it.
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

// setUp configures certmagic. Its cache serves and renews nothing, so setUp stops the
// cache's maintenance at once. certmagic still needs the cache to decide when a
// certificate is due.
func (a *authority) setUp(s Storage) *engine {
	log := debugOnly(a.m.Log)
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
		OCSP:      certmagic.OCSPConfig{DisableStapling: true}, // certmagic waits without a limit; package certs staples
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
		CA: c.Directory, // retries of certmagic would go to a TestCA; weir makes one attempt at a time
		// A space means no address. For an empty one certmagic would take the address of
		// any other account in the process or the storage, or ask on standard input.
		Email:                   cmp.Or(c.Email, " "),
		Agreed:                  true,
		DisableHTTPChallenge:    !slices.Contains(c.Challenges, config.ChallengeHTTP01),
		DisableTLSALPNChallenge: !slices.Contains(c.Challenges, config.ChallengeTLSALPN01),
		ListenHost:              a.taken.host,
		AltHTTPPort:             a.taken.port,
		AltTLSALPNPort:          a.taken.port,
		TrustedRoots:            a.pool,
		Logger:                  debugOnly(a.m.Log),
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
			Logger:             debugOnly(a.m.Log),
		}}
	}
	return t
}

// keyedStorage separates the certificates of one kind of key from others for the same
// names, because certmagic names them only by authority and host. Accounts, challenges
// and locks are shared, so weir obtains two kinds for one name one after the other, as
// certmagic requires. keyedStorage hides TryLock and RenewLockLease of the storage:
// certmagic uses them only for its own maintenance and retries, and both are off.
type keyedStorage struct {
	certmagic.Storage
	folder string // replaces the folder certificates
}

const certificates = "certificates"

// keyed returns s for certificates of a key type. The default type stays in certmagic's
// usual folder, where other programs with certmagic find it.
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
