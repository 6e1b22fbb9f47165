package storage

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestRedisConforms(t *testing.T) {
	conform(t, func(t *testing.T) kind {
		m := miniredis.RunT(t)
		return kind{
			open: func(t *testing.T) Storage { return opened(t, "redis://"+m.Addr()) },
			kill: func(t *testing.T, s Storage) {
				forget(&s.(*redisStorage).remote)
				m.FastForward(leaseTime)
			},
		}
	})
}

// forget stops the extension of leases, as if the process died.
func forget(r *remote) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, l := range r.leases {
		l.stop()
		<-l.done
		delete(r.leases, name)
	}
}

// TestRealRedisConforms tests what miniredis cannot prove: that the scripts, transactions
// and leases are correct in a real Redis.
func TestRealRedisConforms(t *testing.T) {
	address := realRedis(t)
	n := 0
	conform(t, func(t *testing.T) kind {
		n++
		url := fmt.Sprintf("redis://%s/3?prefix=test-%d", address, n)
		return kind{
			open: func(t *testing.T) Storage { return opened(t, url) },
			kill: func(t *testing.T, s Storage) {
				forget(&s.(*redisStorage).remote)
				hurry(t, s.(*redisStorage), "x")
			},
		}
	})
}

// hurry ends the lease of a lock now. It checks that the lease had an end.
func hurry(t *testing.T, r *redisStorage, lock string) {
	t.Helper()
	if left := remaining(t, r, lock); left <= 0 || left > leaseTime {
		t.Errorf("a lock lasts for %s more, want at most %s", left, leaseTime)
	}
	must(t, r.client.PExpire(t.Context(), r.lockKey(lock), time.Millisecond).Err())
}

func remaining(t *testing.T, r *redisStorage, lock string) time.Duration {
	t.Helper()
	left, err := r.client.PTTL(t.Context(), r.lockKey(lock)).Result()
	must(t, err)
	return left
}

// weir extends the lease of a held lock before the lease ends.
func TestLeaseIsExtended(t *testing.T) {
	s := opened(t, "redis://"+realRedis(t)).(*redisStorage)
	s.extend = 50 * time.Millisecond
	must(t, s.Lock(within(t), "x"))
	lowest := remaining(t, s, "x")
	for deadline := time.Now().Add(patience); ; {
		left := remaining(t, s, "x")
		if left > lowest {
			break
		}
		if lowest = left; time.Now().After(deadline) {
			t.Fatalf("nobody extends the lease; %s are left", left)
		}
	}
	must(t, s.Unlock(t.Context(), "x"))
	if left := remaining(t, s, "x"); left > 0 {
		t.Errorf("a lock that was given back lasts for %s more", left)
	}
}

// realRedis starts a Redis without persistence.
func realRedis(t *testing.T) (address string) {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("redis-server is not installed; in CI it has to be")
		}
		t.Skip("redis-server is not installed (Debian: redis-server)")
	}
	for range 5 { // another process may take the port in between
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		address = l.Addr().String()
		l.Close()
		_, port, _ := net.SplitHostPort(address)
		cmd := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir(), "--daemonize", "no")
		must(t, cmd.Start())
		exited := make(chan struct{})
		go func() { cmd.Wait(); close(exited) }()
		t.Cleanup(func() { cmd.Process.Kill(); <-exited })
		if answers(t, address, exited) {
			return address
		}
	}
	t.Fatal("no redis-server came up")
	return ""
}

func answers(t *testing.T, address string, exited <-chan struct{}) bool {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if client.Ping(t.Context()).Err() == nil {
			return true
		}
		select {
		case <-exited:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}

func TestPrefixesAreApart(t *testing.T) {
	m := miniredis.RunT(t)
	a, b := opened(t, "redis://"+m.Addr()+"/0?prefix=a"), opened(t, "redis://"+m.Addr()+"?prefix=b")
	must(t, a.Store(t.Context(), "key", nil))
	must(t, a.Lock(within(t), "x"))
	if b.Exists(t.Context(), "key") || !try(t, b, "x") {
		t.Error("one prefix sees what another has")
	}
	for _, key := range m.Keys() {
		if !strings.HasPrefix(key, "a:") && !strings.HasPrefix(key, "b:") {
			t.Errorf("the key %q has no prefix", key)
		}
	}
	must(t, a.Delete(t.Context(), "key"))
	must(t, a.Unlock(t.Context(), "x"))
	if keys := m.Keys(); len(keys) != 1 { // the lock of b
		t.Errorf("%q are left", keys)
	}
}

const password = "hunter2%2F%40x"

// Open succeeds while the Redis is down; the first operation fails. Errors name the
// Redis, and contain no password.
func TestRedisIsDown(t *testing.T) {
	const address = "127.0.0.1:1" // no process listens there
	s := opened(t, "redis://user:"+password+"@"+address+"/2")
	_, err := s.Load(within(t), "tickets/x")
	isSentence(t, err, "cannot load tickets/x", address+"/2", "refused")
	err = s.Lock(within(t), "x")
	isSentence(t, err, "cannot lock x", address, "refused")
	if s.Exists(within(t), "x") {
		t.Error("something exists in a storage that is down")
	}
}

func isSentence(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error %q does not contain %q", err, p)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error %q contains the password", err)
	}
}

func TestRedisPasswords(t *testing.T) {
	m := miniredis.RunT(t)
	m.RequireUserAuth("user", "hunter2/@x")
	must(t, opened(t, "redis://user:"+password+"@"+m.Addr()).Store(within(t), "a", nil))
	isSentence(t, opened(t, "redis://user:hunter2wrong@"+m.Addr()).Store(within(t), "a", nil), "cannot store a", "WRONGPASS")
	isSentence(t, opened(t, "redis://"+m.Addr()).Store(within(t), "a", nil), "NOAUTH")
}

func TestURLsThatAreNone(t *testing.T) {
	f := func(url, want string) {
		t.Helper()
		_, err := open(url, zap.NewNop())
		isSentence(t, err, want)
	}
	f("redis://user:hunter2@[::1/", "not the URL of a Redis")
	f("redis://:hunter2@/1", "not the URL of a Redis")
	f("redis://:hunter2@example.org/one", "example.org:6379: the path of the URL is not a database number")
	f("consul://:hunter2@example.org", "neither an absolute directory nor")
}

// A Redis that accepts connections and never answers delays a call only until its time
// limit.
func TestRedisHangs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	s := opened(t, "redis://"+l.Addr().String())
	s.(*redisStorage).timeout = 300 * time.Millisecond
	_, err = s.Load(within(t), "a")
	isSentence(t, err, "did not answer within 300ms")

	s.(*redisStorage).timeout = operationTimeout
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Load(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Load = %v, want the end of the context", err)
	}
}

// The timer of a socket may be earlier than that of the context whose deadline it has.
func TestSocketNoticesTheDeadlineFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // no timer of a context runs while f does
	late := func(ctx context.Context) error {
		for end, _ := ctx.Deadline(); time.Now().Before(end); {
		}
		return os.ErrDeadlineExceeded
	}
	r := newRemote("a", "the test", zap.NewNop())
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := r.bounded(ctx, late); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("bounded = %v, want the end of the context", err)
	}
	r.timeout = time.Millisecond
	isSentence(t, r.bounded(within(t), late), "the test did not answer within 1ms")
}

func TestRedisOverTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	m := miniredis.NewMiniRedis()
	must(t, m.StartTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}))
	defer m.Close()
	url := "rediss://" + m.Addr()

	isSentence(t, opened(t, url).Store(within(t), "a", nil), "certificate", m.Addr())
	o, _, err := redisOptions(url)
	must(t, err)
	leaf, err := x509.ParseCertificate(der)
	must(t, err)
	o.TLSConfig.RootCAs = x509.NewCertPool()
	o.TLSConfig.RootCAs.AddCert(leaf)
	trusting := opened(t, url).(*redisStorage)
	trusting.client.Close()
	trusting.client = redis.NewClient(o)
	must(t, trusting.Store(within(t), "a", nil))
}

// If a Redis lost a lock, weir logs it and Unlock fails; RenewLockLease takes the lock
// again.
func TestLeaseIsLost(t *testing.T) {
	m := miniredis.RunT(t)
	core, logged := observer.New(zapcore.WarnLevel)
	s, err := open("redis://"+m.Addr(), zap.New(core))
	must(t, err)
	t.Cleanup(func() { s.Close() })
	r, b := s.(*redisStorage), opened(t, "redis://"+m.Addr())
	r.extend = 10 * time.Millisecond

	must(t, r.Lock(within(t), "x"))
	lost := r.leases["x"].done
	m.FlushAll()
	<-lost
	if n := logged.FilterMessageSnippet("lock in the storage was lost").Len(); n != 1 {
		t.Errorf("a lost lock was logged %d times", n)
	}
	must(t, r.RenewLockLease(within(t), "x", time.Hour))
	if try(t, b, "x") {
		t.Error("a lock that was taken again is free")
	}
	lost = r.leases["x"].done
	m.FlushAll()
	must(t, b.Lock(within(t), "x"))
	<-lost
	if err := r.RenewLockLease(within(t), "x", time.Hour); !errors.Is(err, ErrLockLost) {
		t.Errorf("RenewLockLease of a lock that another has = %v, want ErrLockLost", err)
	}
	if err := r.Unlock(t.Context(), "x"); !errors.Is(err, ErrLockLost) {
		t.Errorf("Unlock = %v, want ErrLockLost", err)
	}
	if try(t, r, "x") {
		t.Error("the lock of another was given back")
	}
}

// A Redis that was down for less than a lease loses no lock.
func TestLeaseSurvivesRestart(t *testing.T) {
	m := miniredis.RunT(t)
	s := opened(t, "redis://"+m.Addr()).(*redisStorage)
	s.extend = 10 * time.Millisecond
	must(t, s.Lock(within(t), "x"))
	m.Close()
	if err := s.Store(within(t), "a", nil); err == nil {
		t.Error("a Redis that is down stored something")
	}
	must(t, m.Restart())
	must(t, s.Unlock(within(t), "x"))
}

// For every URL: no panic, an accepted URL gives an address, and no error contains the
// password.
func FuzzRedisURL(f *testing.F) {
	for _, rest := range []string{"example.org", "[::1]:6380/15?prefix=a", "/", "a b", "example.org:port", "example.org/x", "h?prefix=%zz", "h#x", "@h"} {
		f.Add("redis", rest)
		f.Add("rediss", rest)
	}
	f.Fuzz(func(t *testing.T, scheme, rest string) {
		if scheme != "redis" && scheme != "rediss" {
			return
		}
		o, prefix, err := redisOptions(scheme + "://user:hunter2@" + rest)
		if err != nil {
			if !strings.Contains(rest, "hunter2") {
				isSentence(t, err, "storage")
			}
			return
		}
		if host, port, err := net.SplitHostPort(o.Addr); err != nil || host == "" || port == "" || prefix == "" || o.DB < 0 || (o.TLSConfig != nil) != (scheme == "rediss") {
			t.Errorf("%q gives the address %q, database %d, prefix %q, %v", rest, o.Addr, o.DB, prefix, err)
		}
	})
}
