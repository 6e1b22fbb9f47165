//go:build !linux

package proxy

import (
	"os"
	"testing"
)

// waitUntilArrived and arrived work only on systems whose kernel shows the queues of its sockets.

func waitUntilArrived(t testing.TB, _ *peer) { skipArrival(t) }

func arrived(t testing.TB, _ *peer) bool { skipArrival(t); return false }

func skipArrival(t testing.TB) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("the system does not show what a socket has received; CI needs Linux")
	}
	t.Skip("the system does not show what a socket has received")
}
