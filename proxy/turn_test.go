package proxy

import (
	"sync/atomic"
	"testing"

	"github.com/weirproxy/weir/pause"
)

// A handshake waits for its turn, once.
func TestHandshakesTakeTurns(t *testing.T) {
	r := newNameless(t, "", "", "")
	var turns atomic.Int64
	defer pause.Count(func() { turns.Add(1) })()
	for want := int64(1); want <= 3; want++ {
		r.dialTLS("tls", "a", nil).Close()
		if n := turns.Load(); n != want {
			t.Fatalf("%d handshakes have taken %d turns", want, n)
		}
	}
}
