package certs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/tls/policy"
	"github.com/weirproxy/weir/tls/storage"
)

// replica is one process that serves a scope, and the calls of its notify.
type replica struct {
	*Tickets
	server *tls.Config
	mu     sync.Mutex
	told   []string
}

func (r *replica) notify(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprint(err))
}

// start makes a replica in the order of cmd: Attach, Share, Sync, serve.
func start(t *testing.T, s KeyStorage, scope string) (*replica, error) {
	t.Helper()
	r := &replica{Tickets: NewTickets()}
	r.server = ticketServer(t, r.Tickets, scope)
	r.Share(s, r.notify)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	return r, r.Sync(ctx)
}

func started(t *testing.T, s KeyStorage, scope string) *replica {
	t.Helper()
	r, err := start(t, s, scope)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// begin makes a session.
func begin(t *testing.T, r *replica, version uint16) (client *tls.Config) {
	t.Helper()
	client = resumer(version)
	if resumed(t, r.server, client) {
		t.Error("a session was resumed that never was")
	}
	return client
}

func wantResumed(t *testing.T, where string, r *replica, client *tls.Config, want bool) {
	t.Helper()
	if got := resumed(t, r.server, client); got != want {
		t.Errorf("%s %s: a session is resumed: %v, want %v", tls.VersionName(client.MaxVersion), where, got, want)
	}
}

// everyKind runs f with each kind of storage.
func everyKind(t *testing.T, f func(t *testing.T, open func() KeyStorage)) {
	for name, url := range map[string]func(*testing.T) string{
		"directory": func(t *testing.T) string { return filepath.Join(t.TempDir(), "storage") },
		"redis":     func(t *testing.T) string { return "redis://" + miniredis.RunT(t).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			url := url(t)
			f(t, func() KeyStorage {
				s, err := storage.Open(url, zap.NewNop())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.Close() })
				return s
			})
		})
	}
}

// A client resumes a session of one replica on another, and after a restart of either.
func TestReplicasResume(t *testing.T) {
	everyKind(t, func(t *testing.T, open func() KeyStorage) {
		for _, version := range bothVersions {
			a := started(t, open(), "scope")
			client, second := begin(t, a, version), begin(t, a, version)
			b := started(t, open(), "scope")
			wantResumed(t, "on B", b, client, true)
			wantResumed(t, "back on A", a, client, true)
			a = started(t, open(), "scope")
			wantResumed(t, "after a restart of A", a, client, true)
			wantResumed(t, "after a restart of A", a, second, true)
		}
	})
}

// No session resumes in another scope, even if the names are similar and the storage is
// shared.
func TestScopesAreApartInStorage(t *testing.T) {
	everyKind(t, func(t *testing.T, open func() KeyStorage) {
		for _, version := range bothVersions {
			a, b := started(t, open(), `"default" "none" 00`), started(t, open(), `"default" "require" 00`)
			wantResumed(t, "in another scope on another replica", b, begin(t, a, version), false)
			// On one replica with both, and after a restart.
			both := started(t, open(), `"default" "none" 00`)
			other := &replica{Tickets: both.Tickets, server: ticketServer(t, both.Tickets, `"default" "require" 00`)}
			if err := both.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantResumed(t, "in another scope", other, begin(t, a, version), false)
			wantResumed(t, "in another scope", both, begin(t, b, version), false)
			wantResumed(t, "in its scope", other, begin(t, b, version), true)
		}
	})
}

// During a change, replicas may have policies of one name that trust different CAs. They
// share no keys.
func TestReplicasThatTrustOthers(t *testing.T) {
	for _, version := range bothVersions {
		s := newFakeStorage()
		serve := func(ca []byte) *replica {
			p := config.TLSPolicy{Name: "default", MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13,
				CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
				ClientAuth:   config.ClientAuthRequest, ClientAuthPool: ca, ClientAuthCA: "ca.pem"}
			r := &replica{Tickets: NewTickets()}
			made, err := policy.New(p, newStore(t, selfSigned("app.example.org")).Get, r.Attach)
			if err != nil {
				t.Fatal(err)
			}
			r.server = made.Config
			r.Share(s, nil)
			if err := r.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			return r
		}
		one, other := anyCA(t), anyCA(t)
		a := serve(one)
		wantResumed(t, "where another CA is trusted", serve(other), begin(t, a, version), false)
		wantResumed(t, "where the same CA is trusted", serve(one), begin(t, a, version), true)
	}
}

func anyCA(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Replicas that start at the same time with an empty storage agree on the keys.
func TestReplicasStartTogether(t *testing.T) {
	everyKind(t, func(t *testing.T, open func() KeyStorage) {
		replicas := make([]*replica, 6)
		var wg sync.WaitGroup
		for i := range replicas {
			s := open()
			replicas[i] = &replica{Tickets: NewTickets()}
			replicas[i].server = ticketServer(t, replicas[i].Tickets, "scope")
			replicas[i].Share(s, nil)
			wg.Go(func() {
				if err := replicas[i].Sync(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i, r := range replicas {
			client := begin(t, r, tls.VersionTLS13)
			wantResumed(t, "on the next", replicas[(i+1)%len(replicas)], client, true)
		}
	})
}

func lists(replicas ...*replica) (all [][][32]byte) {
	for _, r := range replicas {
		r.Tickets.mu.Lock()
		all = append(all, slices.Clone(r.scopes["scope"].list))
		r.Tickets.mu.Unlock()
	}
	return all
}

// agree checks that each replica can decrypt the tickets of all others.
func agree(t *testing.T, when string, lists [][][32]byte) {
	t.Helper()
	for i, l := range lists {
		for j, other := range lists {
			if !slices.Contains(other, l[0]) {
				t.Errorf("%s: replica %d cannot decrypt what replica %d encrypts", when, j, i)
			}
		}
	}
}

// During days of rotation, every replica knows the keys of all sessions.
func TestSharedRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStorage()
		a, b := started(t, s, "scope"), started(t, s, "scope")
		run(t, a.Tickets)
		run(t, b.Tickets)
		born := time.Now()
		used := make(map[[32]byte]bool)
		type visit struct { // of a client that returns once
			at   time.Duration
			want bool
		}
		visits := make(map[*tls.Config]visit)
		for time.Since(born) < 80*time.Hour {
			now := lists(a, b)
			agree(t, time.Since(born).String(), now)
			used[now[0][0]] = true
			if len(now[0]) > 6 {
				t.Errorf("%d keys are kept", len(now[0]))
			}
			age := time.Since(born)
			if age%(5*time.Hour) == 0 {
				for _, version := range bothVersions {
					wantResumed(t, "on B, in the middle of rotation", b, begin(t, a, version), true)
					visits[begin(t, a, version)] = visit{age + ticketLife - ticketRotation - ticketLag, true}
					visits[begin(t, a, version)] = visit{age + ticketLife + ticketLag, false}
				}
			}
			for c, v := range visits {
				if age >= v.at {
					wantResumed(t, fmt.Sprintf("at %s, on B", age), b, c, v.want)
					delete(visits, c)
				}
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if n := len(used); n < 9 || n > 11 {
			t.Errorf("in 80 hours %d keys encrypted, want one each 8 hours", n)
		}
		keys, err := decodeTickets(s.objects[ticketObject("scope")])
		if err != nil || len(keys) > 5 {
			t.Errorf("%d keys are stored, %v", len(keys), err)
		}
		if len(a.told)+len(b.told) > 0 {
			t.Errorf("told of errors: %q %q", a.told, b.told)
		}
	})
}

// TestSharedRotationWithSkew is like TestSharedRotation, with clocks that differ by minutes. synctest cannot
// simulate that.
func TestSharedRotationWithSkew(t *testing.T) {
	type node struct {
		scope
		skew time.Duration
	}
	nodes := []*node{{skew: -7 * time.Minute}, {}, {skew: 7 * time.Minute}}
	var stored []ticketKey
	begin := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	for minute := range 5 * 24 * 60 {
		for i, n := range nodes {
			now := begin.Add(time.Duration(minute)*time.Minute + n.skew)
			if (minute+i)%3 == 0 { // each node looks every third minute
				stored = merge(stored, n.keys, now)
				n.keys = slices.Clone(stored)
			}
			n.tend(now)
		}
		if minute < 3 {
			continue
		}
		var all [][][32]byte
		for _, n := range nodes {
			all = append(all, n.list)
		}
		agree(t, fmt.Sprintf("minute %d", minute), all)
		if len(stored) > 6 {
			t.Fatalf("minute %d: %d keys are stored", minute, len(stored))
		}
	}
}

var errDown = errors.New("the storage is down")

// If a storage is down at the start, replicas serve nevertheless. When the storage works
// again, the sessions made meanwhile resume on all replicas.
func TestStorageDownAtStart(t *testing.T) {
	for _, version := range bothVersions {
		synctest.Test(t, func(t *testing.T) {
			s := newFakeStorage()
			s.set(errDown)
			a, errA := start(t, s, "scope")
			b, errB := start(t, s, "scope")
			if !errors.Is(errA, errDown) || !errors.Is(errB, errDown) {
				t.Errorf("Sync = %v, %v", errA, errB)
			}
			run(t, a.Tickets)
			run(t, b.Tickets)
			ofA, ofB := begin(t, a, version), begin(t, b, version)
			wantResumed(t, "while the storage is down, on A", a, ofA, true)
			wantResumed(t, "while the storage is down, on B", b, begin(t, a, version), false)
			time.Sleep(10 * time.Hour)
			synctest.Wait()
			secondOfA := begin(t, a, version) // only A has the ticket key of this session
			s.set(nil)
			time.Sleep(2 * ticketLag)
			synctest.Wait()
			wantResumed(t, "on B, made by A alone", b, ofA, true)
			wantResumed(t, "on B, made by A alone later", b, secondOfA, true)
			wantResumed(t, "on A, made by B alone", a, ofB, true)
			wantResumed(t, "on A, made now", a, begin(t, b, version), true)
			agree(t, "after the storage is back", lists(a, b))
			for _, r := range []*replica{a, b} {
				if !slices.Equal(r.told, []string{"<nil>"}) {
					t.Errorf("told %q, want that it is over", r.told)
				}
			}
		})
	}
}

// If the storage fails later, notify is called once, and the keys continue to work.
func TestStorageGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStorage()
		a, b := started(t, s, "scope"), started(t, s, "scope")
		run(t, a.Tickets)
		run(t, b.Tickets)
		client := begin(t, a, tls.VersionTLS13)
		s.set(errDown)
		for range 4 {
			time.Sleep(5 * time.Hour)
			wantResumed(t, "while the storage is down", a, client, true)
		}
		time.Sleep(30 * time.Hour)
		client = begin(t, a, tls.VersionTLS12)
		if n := len(lists(a)[0]); n > 4 {
			t.Errorf("%d keys are kept by one that is alone", n)
		}
		if len(a.told) != 1 || !strings.Contains(a.told[0], errDown.Error()) {
			t.Errorf("told %q, want one error", a.told)
		}
		s.set(nil)
		time.Sleep(2 * ticketLag)
		synctest.Wait()
		wantResumed(t, "on B, when the storage is back", b, client, true)
		agree(t, "when the storage is back", lists(a, b))
		if len(a.told) != 2 || a.told[1] != "<nil>" {
			t.Errorf("told %q, want an error and that it is over", a.told)
		}
	})
}

// weir replaces an object with unknown content. It reports that, but not the content.
func TestNonsenseInStorage(t *testing.T) {
	secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("secret!!"), 4))
	for _, nonsense := range []string{"", "{}", "\x00", `{"keys":[{"key":"` + secret + `"}]}`, `{"keys":[{"key":"c2hvcnQ=","created":"2031-01-01T00:00:00Z"}]}`,
		`{"keys":"` + secret + `"}`, strings.Repeat(" ", maxTicketObject+1)} {
		s := newFakeStorage()
		s.put(ticketObject("scope"), nonsense)
		a, err := start(t, s, "scope")
		if !errors.Is(err, errTicketObject) || strings.Contains(err.Error(), secret) {
			t.Errorf("Sync over %.40q = %v", nonsense, err)
		}
		b := started(t, s, "scope")
		wantResumed(t, "over what was nonsense", b, begin(t, a, tls.VersionTLS13), true)
	}
}

// A storage that hangs and ignores contexts blocks no other work, and Share can replace
// it.
func TestStorageHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStorage()
		started(t, s, "scope") // stores a key
		s.hang = make(chan struct{})
		begun := time.Now()
		a, err := start(t, s, "scope")
		if err == nil || err.Error() != "the storage did not answer within 2s" || time.Since(begun) != 2*time.Second {
			t.Errorf("Sync = %v after %s", err, time.Since(begun))
		}
		run(t, a.Tickets)
		client := begin(t, a, tls.VersionTLS13)
		time.Sleep(20 * time.Hour) // several rotations
		wantResumed(t, "while the storage hangs", a, client, true)
		fresh := newFakeStorage()
		a.Share(fresh, nil)
		if err := a.Sync(t.Context()); err != nil {
			t.Error(err)
		}
		wantResumed(t, "in another storage", started(t, fresh, "scope"), client, true)
		before := lists(a)
		close(s.hang)
		synctest.Wait()
		if after := lists(a); !slices.Equal(before[0], after[0]) {
			t.Error("a storage that was given up had a say")
		}
	})
}

// A reload may remove the storage and add it again; sessions continue.
func TestShareChanges(t *testing.T) {
	s := newFakeStorage()
	a, b := started(t, s, "scope"), started(t, s, "scope")
	client := begin(t, a, tls.VersionTLS13)
	a.Share(nil, nil)
	if err := a.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	wantResumed(t, "without storage", a, client, true)
	if n := s.loads; a.Sync(t.Context()) != nil || s.loads != n {
		t.Error("a storage is asked that was taken away")
	}
	other := newFakeStorage()
	for _, r := range []*replica{a, b} {
		r.Share(other, nil)
		if err := r.Sync(t.Context()); err != nil {
			t.Error(err)
		}
	}
	wantResumed(t, "in another storage", b, client, true)
	wantResumed(t, "in another storage, on the other replica", b, begin(t, a, tls.VersionTLS12), true)
}

// A process does not store a key that it made and never used.
func TestUnusedKeysAreNotShared(t *testing.T) {
	s := newFakeStorage()
	for range 5 {
		started(t, s, "scope")
	}
	if keys, err := decodeTickets(s.objects[ticketObject("scope")]); err != nil || len(keys) != 1 {
		t.Errorf("%d keys are stored, %v; want one", len(keys), err)
	}
}

// weir deletes the objects of unused scopes after a week. It never deletes other objects.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStorage()
		started(t, s, "gone") // not used again
		s.put("tickets/readme", "not ours")
		s.put("certificates/a", "neither")
		a := started(t, s, "scope")
		run(t, a.Tickets)
		client := begin(t, a, tls.VersionTLS13)
		f := func(want ...string) {
			t.Helper()
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := slices.Sorted(maps.Keys(s.objects)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Errorf("the storage has %q, want %q", got, want)
			}
		}
		kept := []string{"tickets/readme", "certificates/a", ticketObject("scope")}
		time.Sleep(6 * 24 * time.Hour)
		f(append(kept, ticketObject("gone"))...)
		time.Sleep(2 * 24 * time.Hour)
		f(kept...)
		wantResumed(t, "after a week", a, client, false)
	})
}

// No printing function shows a key.
func TestKeysArePrintedNowhere(t *testing.T) {
	k := newTicketKey(time.Now(), time.Now())
	text := fmt.Sprintf("%v %+v %#v %s %v %#v", k, k, k, k, []ticketKey{k}, []ticketKey{k})
	for _, form := range []string{fmt.Sprintf("%x", k.Key[:8]), fmt.Sprint(k.Key[:4])[1:], base64.StdEncoding.EncodeToString(k.Key[:6]), "0x"} {
		if strings.Contains(text, strings.TrimSuffix(form, "]")) {
			t.Errorf("a key is shown: %s", text)
		}
	}
}

func FuzzDecodeTickets(f *testing.F) {
	now := time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)
	good, err := encodeTickets([]ticketKey{newTicketKey(now, now), newTicketKey(now, time.Time{}), newTicketKey(now, now.Add(time.Hour))})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"keys":[]}`))
	f.Add([]byte(`{"keys":[{"key":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","created":"2031-01-01T00:00:00Z"}]}`))
	f.Add([]byte(`{"keys":[{"key":"c2VjcmV0ISFzZWNyZXQhIXNlY3JldCEhc2VjcmV0ISE=","created":"9999-12-31T23:59:59Z","from":"0001-01-01T00:00:01Z"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := decodeTickets(data)
		if err != nil {
			if !errors.Is(err, errTicketObject) {
				t.Errorf("an error that may show keys: %v", err)
			}
			return
		}
		again, err := encodeTickets(keys)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeTickets(again); err != nil || !sameTickets(back, keys) {
			t.Errorf("%v came back as %v, %v", keys, back, err)
		}
		// For every stored object, there is a key to encrypt with, and a second merge
		// changes nothing.
		merged := merge(keys, nil, now)
		if list := inOrder(merged, now); len(list) == 0 || newest(merged).expired(now) {
			t.Errorf("%v leaves nothing to encrypt with", keys)
		}
		if !sameTickets(merge(merged, nil, now), merged) {
			t.Errorf("%v is merged for ever", keys)
		}
	})
}

// readOnly is a storage that refuses writes, for example because it is full.
type readOnly struct{ *fakeStorage }

func (readOnly) Store(context.Context, string, []byte) error { return errDown }

// Without this check, all replicas would keep the key of a replica whose clock is years
// ahead. They would make no other key for years.
func TestKeysFromTheFutureAreNotTaken(t *testing.T) {
	future := newTicketKey(time.Now().AddDate(10, 0, 0), time.Now().AddDate(10, 0, 0))
	data, err := encodeTickets([]ticketKey{future})
	if err != nil {
		t.Fatal(err)
	}
	f := func(s KeyStorage, written *fakeStorage, want bool) {
		t.Helper()
		written.put(ticketObject("scope"), string(data))
		r, err := start(t, s, "scope")
		if (err == nil) != want {
			t.Errorf("Sync = %v", err)
		}
		r.Tickets.mu.Lock()
		defer r.Tickets.mu.Unlock()
		if keys := r.scopes["scope"].keys; len(keys) != 1 || index(keys, future) >= 0 {
			t.Errorf("the keys are %v", keys)
		}
		stored, err := loadTickets(t.Context(), written, ticketObject("scope"))
		if err != nil || (index(stored, future) < 0) != want {
			t.Errorf("stored are %v, %v", stored, err)
		}
	}
	s := newFakeStorage()
	f(s, s, true)
	s = newFakeStorage()
	f(readOnly{s}, s, false)
}
