package config

import (
	"slices"
	"testing"
)

// TestKeysOfTunnels: each key of a route works on requests, or tunnels can have it. A new key that works on
// requests needs forRequests; otherwise the routes of tunnels may have it, without effect.
func TestKeysOfTunnels(t *testing.T) {
	ofTunnels := []string{"name", "listeners", "hosts", "tls_policy", "tls", "alpn", "first_bytes", "silent_after", "backend", "backends",
		"clients", "rate_limit", "in_flight", "access_log", "max_lifetime", "tunnel_idle"}
	ofRequests := []string{"paths", "match"} // refused with messages of their own
	for _, k := range requestKeys {
		ofRequests = append(ofRequests, k.name)
	}
	for _, k := range routeKeys {
		if slices.Contains(ofTunnels, k.name) == slices.Contains(ofRequests, k.name) {
			t.Errorf("%s: either mark it with forRequests, or add it to the keys of tunnels in this test", k.name)
		}
	}
}
