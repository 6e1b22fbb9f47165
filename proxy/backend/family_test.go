package backend

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A name server that does not answer for one family does not cost the addresses of the other one.
func TestLookupWithoutOneFamily(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	const never = time.Hour
	f := func(what string, four4, six6 time.Duration, want []netip.Addr, took time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			lookup := func(ctx context.Context, network, host string) ([]netip.Addr, error) {
				wait, list := max(four4, six6), []netip.Addr{four, six}
				switch network {
				case "ip4":
					wait, list = four4, list[:1]
				case "ip6":
					wait, list = six6, list[1:]
				}
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(wait):
					return list, nil
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), lookupTimeout)
			defer cancel()
			begun := time.Now()
			got, err := lookupFamilies(ctx, "app.internal", lookup)
			slices.SortFunc(got, netip.Addr.Compare)
			if !slices.Equal(got, want) || (err == nil) != (want != nil) || want == nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, %v", what, got, err)
			}
			if since := time.Since(begun); since != took {
				t.Errorf("%s: it took %v, not %v", what, since, took)
			}
			cancel()
			synctest.Wait()
		})
	}
	all := []netip.Addr{four, six}
	f("both at once", 0, 0, all, 0)
	f("a slow server", 1900*time.Millisecond, time.Second, all, 1900*time.Millisecond)
	f("no AAAA", 10*time.Millisecond, never, all[:1], slowLookup+10*time.Millisecond+resolutionDelay)
	f("no A", never, 0, all[1:], slowLookup+resolutionDelay)
	f("a very slow server", 2400*time.Millisecond, 2400*time.Millisecond, all, 2400*time.Millisecond)
	f("no answer", never, never, nil, lookupTimeout)
}
