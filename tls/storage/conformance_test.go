package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
)

// kind is one kind of storage under test.
type kind struct {
	// open returns another client of the same storage, as in another process.
	open func(t *testing.T) Storage
	// kill ends a client as if its process died, and makes its locks expire.
	kill func(t *testing.T, s Storage)
}

// conform runs the tests that every kind of storage must pass. make is called for each
// test and returns a kind with an empty storage.
func conform(t *testing.T, make func(t *testing.T) kind) {
	for name, f := range map[string]func(*testing.T, kind){
		"files and directories":               testSemantics,
		"keys that are none":                  testBadKeys,
		"big and odd values":                  testValues,
		"concurrent stores":                   testConcurrentStores,
		"locks exclude":                       testExclusion,
		"a held lock":                         testHeldLock,
		"a wait that is given up":             testLockContexts,
		"locks of the dead":                   testDeadHolder,
		"locks outlive the context of a Lock": testLockOutlivesContext,
		"after Close":                         testClosed,
	} {
		t.Run(name, func(t *testing.T) { f(t, make(t)) })
	}
}

// patience is the time limit of operations that normally take no time.
const patience = 20 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testSemantics(t *testing.T, k kind) {
	ctx, s, other := within(t), k.open(t), k.open(t)
	files := []string{"certificates/ca/a.example/a.crt", "certificates/ca/a.example/a.key", "certificates/ca/ab/x", "certificates/cab/y", "single"}

	list := func(key string, recursive bool, want ...string) {
		t.Helper()
		got, err := other.List(ctx, key, recursive)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("List(%q, %v) = %q, %v; want %q", key, recursive, got, err, want)
		}
	}
	missing := func(key string) {
		t.Helper()
		if _, err := other.Load(ctx, key); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Load(%q) = %v, want fs.ErrNotExist", key, err)
		}
		if _, err := other.Stat(ctx, key); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Stat(%q) = %v, want fs.ErrNotExist", key, err)
		}
		if _, err := other.List(ctx, key, true); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("List(%q) = %v, want fs.ErrNotExist", key, err)
		}
		if other.Exists(ctx, key) {
			t.Errorf("Exists(%q), which was never stored or is deleted", key)
		}
		if err := other.Delete(ctx, key); err != nil {
			t.Errorf("Delete(%q) of nothing = %v, want nil", key, err)
		}
	}

	list("", false)
	list("", true)
	missing("certificates")
	missing("single/below")
	before := time.Now().Add(-time.Minute) // the clock of a file system may be coarse
	for _, f := range files {
		must(t, s.Store(ctx, f, []byte("old")))
		must(t, s.Store(ctx, f, []byte("of "+f)))
	}
	for _, f := range files {
		if got, err := other.Load(ctx, f); err != nil || string(got) != "of "+f {
			t.Errorf("Load(%q) = %q, %v", f, got, err)
		}
		info, err := other.Stat(ctx, f)
		if err != nil || !info.IsTerminal || info.Key != f || info.Size != int64(len("of "+f)) || info.Modified.Before(before) {
			t.Errorf("Stat(%q) = %+v, %v", f, info, err)
		}
	}
	for _, d := range []string{"certificates", "certificates/ca", "certificates/ca/a.example"} {
		if info, err := other.Stat(ctx, d); err != nil || info.IsTerminal || info.Key != d {
			t.Errorf("Stat(%q) of a directory = %+v, %v", d, info, err)
		}
		if _, err := other.Load(ctx, d); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Load(%q) of a directory = %v, want fs.ErrNotExist", d, err)
		}
		if !other.Exists(ctx, d) {
			t.Errorf("Exists(%q) of a directory is false", d)
		}
	}
	missing("certificates/c")
	missing("sing")

	list("", false, "certificates", "single")
	list("certificates", false, "certificates/ca", "certificates/cab")
	list("certificates/ca/a.example", false, files[0], files[1])
	list("certificates/ca", true, "certificates/ca/a.example", files[0], files[1], "certificates/ca/ab", files[2])
	list("", true, "certificates", "certificates/ca", "certificates/ca/a.example", files[0], files[1],
		"certificates/ca/ab", files[2], "certificates/cab", files[3], "single")
	list("single", true)

	must(t, s.Delete(ctx, "certificates/ca/a.example/a.crt"))
	missing("certificates/ca/a.example/a.crt")
	list("certificates/ca/a.example", false, files[1])
	must(t, s.Delete(ctx, "certificates/ca"))
	missing("certificates/ca")
	missing(files[1])
	list("", true, "certificates", "certificates/cab", files[3], "single")
	must(t, s.Delete(ctx, "single"))
	missing("single")
}

func testBadKeys(t *testing.T, k kind) {
	ctx, s := within(t), k.open(t)
	for _, key := range []string{"..", "../a", "a/../../b", "a\x00b"} {
		if err := s.Store(ctx, key, nil); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("Store(%q) = %v, want fs.ErrInvalid", key, err)
		}
		if _, err := s.List(ctx, key, true); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("List(%q) = %v, want fs.ErrInvalid", key, err)
		}
	}
	must(t, s.Store(ctx, "a", nil))
	for _, key := range []string{"", ".", "/"} {
		if err := s.Delete(ctx, key); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("Delete(%q), which is all, = %v, want fs.ErrInvalid", key, err)
		}
	}
	if !s.Exists(ctx, "a") {
		t.Error("everything was deleted")
	}
}

func testValues(t *testing.T, k kind) {
	ctx, s := within(t), k.open(t)
	for i, value := range [][]byte{{}, {0}, []byte("\xff\xfe\r\n\x00"), bytes.Repeat([]byte("0123456789abcdef"), 1<<16)} {
		key := fmt.Sprintf("values/%d", i)
		must(t, s.Store(ctx, key, value))
		if got, err := s.Load(ctx, key); err != nil || !bytes.Equal(got, value) {
			t.Errorf("value %d of %d bytes came back with %d, %v", i, len(value), len(got), err)
		}
	}
	// These characters have a meaning in some storages.
	for _, key := range []string{"a b/*", "a b/[x]", "a b/{y}", "a b/z%2e", "a b/ü"} {
		must(t, s.Store(ctx, key, []byte(key)))
		if got, err := s.Load(ctx, key); err != nil || string(got) != key {
			t.Errorf("Load(%q) = %q, %v", key, got, err)
		}
	}
	if got, err := s.List(ctx, "a b", false); err != nil || len(got) != 5 {
		t.Errorf("List of odd keys = %q, %v", got, err)
	}
}

// A value is complete, even with concurrent calls of Store.
func testConcurrentStores(t *testing.T, k kind) {
	ctx := within(t)
	first := k.open(t)
	must(t, first.Store(ctx, "dir/key", bytes.Repeat([]byte("x"), 10000)))
	var wg sync.WaitGroup
	for i := range 4 {
		s := k.open(t)
		wg.Go(func() {
			for range 20 {
				if err := s.Store(ctx, "dir/key", bytes.Repeat([]byte{byte('a' + i)}, 10000+i)); err != nil {
					t.Error(err)
				}
				got, err := s.Load(ctx, "dir/key")
				if err != nil || len(got) < 10000 || strings.Trim(string(got), string(got[:1])) != "" {
					t.Errorf("a torn value of %d bytes, %v", len(got), err)
				}
				if err := s.Store(ctx, fmt.Sprintf("dir/%d/own", i), nil); err != nil {
					t.Error(err)
				}
				if err := s.Delete(ctx, fmt.Sprintf("dir/%d", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func testExclusion(t *testing.T, k kind) {
	ctx := within(t)
	var holders, times atomic.Int32
	var wg sync.WaitGroup
	for range 2 {
		s := k.open(t)
		for range 3 { // in one process
			wg.Go(func() {
				for range 5 {
					if err := s.Lock(ctx, "issue_cert_*.example.org"); err != nil {
						t.Error(err)
						return
					}
					if n := holders.Add(1); n != 1 {
						t.Errorf("%d hold the lock", n)
					}
					times.Add(1)
					holders.Add(-1)
					if err := s.Unlock(ctx, "issue_cert_*.example.org"); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if times.Load() != 30 {
		t.Errorf("the lock was had %d times, want 30", times.Load())
	}
}

func try(t *testing.T, s Storage, name string) bool {
	t.Helper()
	got, err := s.TryLock(t.Context(), name)
	must(t, err)
	return got
}

func testHeldLock(t *testing.T, k kind) {
	ctx, a, b := within(t), k.open(t), k.open(t)
	must(t, a.Lock(ctx, "x"))
	if try(t, a, "x") || try(t, b, "x") {
		t.Error("a lock was had twice")
	}
	long := strings.Repeat("long.", 60)
	if !try(t, b, "y") || !try(t, b, long) || try(t, a, long) {
		t.Error("a lock has to do with others, or with how long its name is")
	}
	if err := b.Unlock(ctx, "x"); err == nil || try(t, b, "x") {
		t.Errorf("a lock was given back by one that did not have it: %v", err)
	}
	if got, err := a.List(ctx, "", true); err != nil || len(got) != 0 {
		t.Errorf("locks are listed among the keys: %q, %v", got, err)
	}
	if r, ok := a.(certmagic.LockLeaseRenewer); ok {
		must(t, r.RenewLockLease(ctx, "x", time.Hour))
		if err := b.(certmagic.LockLeaseRenewer).RenewLockLease(ctx, "x", time.Hour); err == nil {
			t.Error("a lease was renewed by one that does not have it")
		}
	}
	must(t, a.Unlock(ctx, "x"))
	if err := a.Unlock(ctx, "x"); err == nil {
		t.Error("a lock was given back twice")
	}
	must(t, b.Lock(ctx, "x"))
	must(t, b.Unlock(ctx, "x"))
}

func testLockContexts(t *testing.T, k kind) {
	a, b := k.open(t), k.open(t)
	must(t, a.Lock(within(t), "x"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Lock(ctx, "x") }()
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a wait that was given up ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Lock does not respect its context")
	}
	if err := b.Lock(ctx, "free"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock with a context that has ended = %v", err)
	}
	if err := b.Store(ctx, "key", nil); !errors.Is(err, context.Canceled) || b.Exists(t.Context(), "key") {
		t.Errorf("Store with a context that has ended = %v", err)
	}
	// A waiting caller gets the lock after Unlock.
	go func() { ended <- b.Lock(within(t), "x") }()
	must(t, a.Unlock(ctx, "x")) // also with a canceled context
	must(t, <-ended)
}

func testLockOutlivesContext(t *testing.T, k kind) {
	a, b := k.open(t), k.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	must(t, a.Lock(ctx, "x"))
	cancel()
	if try(t, b, "x") {
		t.Error("a lock ended with the context that it was taken with")
	}
	must(t, a.Unlock(ctx, "x"))
}

func testDeadHolder(t *testing.T, k kind) {
	a, b := k.open(t), k.open(t)
	must(t, a.Lock(within(t), "x"))
	k.kill(t, a)
	must(t, b.Lock(within(t), "x"))
	must(t, b.Unlock(t.Context(), "x"))
}

func testClosed(t *testing.T, k kind) {
	ctx, a, b := within(t), k.open(t), k.open(t)
	must(t, a.Lock(ctx, "x"))
	must(t, a.Close())
	if !try(t, b, "x") {
		t.Error("Close did not give a lock back")
	}
	if _, err := a.Load(ctx, "key"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load after Close = %v", err)
	}
	if err := a.Lock(ctx, "free"); err == nil {
		t.Error("a lock was had after Close")
	}
}
