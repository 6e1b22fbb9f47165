package filter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

// keyServer answers requests for keys, and notes when they came.
type keyServer struct {
	lock     sync.Mutex
	began    time.Time
	document []byte
	err      error
	hangs    bool
	times    []time.Duration
	told     []string
}

func (s *keyServer) get(ctx context.Context, _ Decider, target string) ([]byte, error) {
	s.lock.Lock()
	s.times = append(s.times, time.Since(s.began).Round(time.Second))
	document, err, hangs := s.document, s.err, s.hangs
	s.lock.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if target != "/keys?a=1" {
		return nil, errors.New("wrong target " + target)
	}
	return document, err
}

func (s *keyServer) tell(entry, _ string, err error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.told = append(s.told, fmt.Sprint(entry, ": ", err))
}

// answer sets what the server answers from now on.
func (s *keyServer) answer(document []byte, err error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.document, s.err = document, err
}

func (s *keyServer) hang() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.hangs = true
}

// requests counts the requests until now.
func (s *keyServer) requests() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.times)
}

// keyTest is a Shared with a server of keys.
type keyTest struct {
	*testing.T
	Shared
	keyServer
	decider Decider
}

func newKeyTest(t *testing.T) *keyTest {
	k := &keyTest{T: t, decider: new(int)}
	k.began = time.Now()
	k.RemoteKeys = RemoteKeys{Get: k.get, Tell: k.tell}
	return k
}

func urlEntry(audience, url string) config.Auth {
	c := *tokenEntry(audience)
	c.JWT.Keys = url
	return c
}

const keysURL = "https://issuer.test/keys?a=1"

func (k *keyTest) apply(entries ...config.Auth) {
	k.Helper()
	p, err := k.Plan(&config.Config{Auth: entries}, func(string) Decider { return k.decider })
	if err != nil {
		k.Fatal(err)
	}
	p.Commit()
	before := k.requests()
	if synctest.Wait(); k.requests() != before {
		k.Error("Commit requested keys; before the first table, the process cannot send requests")
	}
	k.RequestKeys()
	synctest.Wait()
}

func (k *keyTest) want(what, token, want string) {
	k.Helper()
	x := withAuthorization("Bearer " + token)
	var got string
	if id := k.auth["token"].authenticator().authenticate(x); id != nil {
		got = id.User
	} else {
		got = x.answer
	}
	if !strings.HasPrefix(got, want) {
		k.Errorf("%s: %q, want %q", what, got, want)
	}
	synctest.Wait()
}

func (k *keyTest) wantTimes(want ...time.Duration) {
	k.Helper()
	k.lock.Lock()
	defer k.lock.Unlock()
	if fmt.Sprint(k.times) != fmt.Sprint(want) {
		k.Errorf("weir requested keys at %v, want %v", k.times, want)
	}
}

// wantGaps checks the times between the requests from the one with this index on.
func (k *keyTest) wantGaps(from int, least, most time.Duration) {
	k.Helper()
	k.lock.Lock()
	defer k.lock.Unlock()
	if len(k.times) < from+2 {
		k.Errorf("weir requested keys at %v, want more requests", k.times)
	}
	for i := from + 1; i < len(k.times); i++ {
		if gap := k.times[i] - k.times[i-1]; gap < least || gap > most {
			k.Errorf("weir requested keys %v after the request before, want %v to %v", gap, least, most)
		}
	}
}

// The keys are requested at once, more and more rarely while requests fail, and every 5 minutes
// afterwards. The last good keys stay in use.
func TestKeysFromURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, i, next := newKeyTest(t), newIssuer(t), newIssuer(t)
		k.answer(nil, errors.New("no route"))
		k.apply(urlEntry("shop", keysURL))
		k.want("before the first success", i.token(t, ""), "503 auth_no_keys auth: https://issuer.test/keys?a=1: no route")
		time.Sleep(130 * time.Second)
		synctest.Wait()
		s := time.Second
		k.wantTimes(0, s, 3*s, 7*s, 15*s, 31*s, 63*s, 123*s)
		k.answer(i.keys(t), nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		k.want("after the first success", i.token(t, `,"sub":"ada"`), "ada")
		before := k.requests()
		time.Sleep(time.Hour)
		synctest.Wait()
		k.wantGaps(before-1, 270*s, 330*s)
		for _, document := range []string{"junk", `{"keys":[]}`, `{"keys":[{"kty":"oct","k":"aGk"}]}`} {
			k.answer([]byte(document), nil)
			time.Sleep(time.Hour)
			synctest.Wait()
			k.want(document, i.token(t, `,"sub":"ada"`), "ada")
		}
		k.answer(next.keys(t), nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		k.want("the old key", i.token(t, ""), "401")
		k.want("the new key", next.token(t, `,"sub":"bob"`), "bob")
		want := []string{"token: no route", "token: <nil>", "token: the document is no JSON Web Key Set", "token: <nil>"}
		k.Close()
		if len(k.told) != len(want) {
			t.Fatalf("told %q", k.told)
		}
		for n := range want {
			if !strings.HasPrefix(k.told[n], want[n]) {
				t.Errorf("told %q, want %q", k.told[n], want[n])
			}
		}
	})
}

// A reload neither requests the keys again nor forgets them. It drops the remembered tokens only if the
// settings of the entry change.
func TestKeysFromURLReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, i := newKeyTest(t), newIssuer(t)
		k.answer(i.keys(t), nil)
		k.apply(urlEntry("shop", keysURL))
		token := i.token(t, `,"sub":"ada"`)
		k.want("at first", token, "ada")
		current := func() *bearer { return k.auth["token"].authenticator().(*remoteBearer).current.Load() }
		before := current()
		k.apply(urlEntry("shop", keysURL))
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		k.want("the same keys", i.token(t, `,"sub":"ada"`), "ada")
		if current() != before || k.requests() != 2 {
			t.Errorf("a reload dropped the tokens, or requested the keys: %d", k.requests())
		}
		k.apply(urlEntry("other", keysURL))
		k.want("another audience", i.token(t, ""), "401")
		if k.requests() != 2 {
			t.Errorf("other settings requested the keys: %d", k.requests())
		}
		k.hang()
		k.apply(urlEntry("other", "https://other.test/keys?a=1"))
		k.want("another URL", i.token(t, ""), "503")
		if k.requests() != 3 {
			t.Errorf("requests: %d", k.requests())
		}
		k.apply() // the request that hangs ends, or synctest reports a deadlock
		if len(k.sources) != 0 {
			t.Errorf("%d sources remain", len(k.sources))
		}
		time.Sleep(time.Hour)
		if synctest.Wait(); k.requests() != 3 {
			t.Errorf("weir still requests keys: %d", k.requests())
		}
		k.Close()
		k.apply(urlEntry("shop", keysURL))
		if k.requests() != 3 {
			t.Error("a source started after Close")
		}
	})
}

// Tokens that name an unknown key cause one early request in 10 seconds.
func TestKeysEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, i := newKeyTest(t), newIssuer(t)
		k.answer(i.keysNamed(t, "a"), nil)
		k.apply(urlEntry("shop", keysURL))
		next := newIssuer(t)
		k.want("too early", next.tokenOf(t, "b", ""), "401")
		k.wantTimes(0)
		time.Sleep(10 * time.Second)
		k.answer(next.keysNamed(t, "b"), nil)
		k.want("a wrong signature", next.tokenOf(t, "a", ""), "401")
		k.wantTimes(0)
		k.want("an unknown key", next.tokenOf(t, "b", ""), "401")
		k.wantTimes(0, 10*time.Second)
		k.want("the new key", next.tokenOf(t, "b", `,"sub":"bob"`), "bob")
		for range 100 {
			k.want("a stranger", i.tokenOf(t, "c", ""), "401")
		}
		k.wantTimes(0, 10*time.Second)
		k.Close()
	})
}

func TestKeysMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeyTest(t)
		k.answer(nil, errors.New("no route"))
		k.apply(urlEntry("shop", keysURL))
		reg := prometheus.NewRegistry()
		k.Register(reg)
		f := func(want float64) {
			t.Helper()
			all, err := reg.Gather()
			if err != nil || len(all) != 1 || all[0].GetName() != "weir_auth_keys_refreshed_timestamp_seconds" || all[0].Metric[0].Gauge.GetValue() != want {
				t.Errorf("%v, %v, want %v", all, err, want)
			}
		}
		f(0)
		k.answer(newIssuer(t).keys(t), nil)
		time.Sleep(time.Second)
		synctest.Wait()
		f(float64(time.Now().Unix()))
		k.Close()
	})
}
