package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

// waitUntilArrived waits until the kernel on weir's side has received everything that p sent, or the end of
// p's stream. weir need not have read it.
func waitUntilArrived(t testing.TB, p *peer) {
	t.Helper()
	eventually(t, "it has arrived", func() error {
		if !arrived(t, p) {
			return errors.New("weir's socket is open and empty")
		}
		return nil
	})
}

// arrived returns true if weir's end of p's connection has unread bytes or an unread end of stream, or was
// reset.
func arrived(t testing.TB, p *peer) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/thread-self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	weir, other := kernelAddress(p.RemoteAddr()), kernelAddress(p.LocalAddr())
	for line := range strings.Lines(string(table)) {
		// The columns are number, local and remote address, state, and tx_queue:rx_queue.
		f := strings.Fields(line)
		if f[1] == weir && f[2] == other {
			const established, empty = "01", ":00000000"
			return f[3] != established || !strings.HasSuffix(f[4], empty)
		}
	}
	return true // after a reset
}

// kernelAddress returns an IPv4 address as /proc/net/tcp writes it.
func kernelAddress(a net.Addr) string {
	ap := a.(*net.TCPAddr).AddrPort()
	ip := ap.Addr().Unmap().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), ap.Port())
}
