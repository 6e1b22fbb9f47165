package conn

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// exhaustedWait is how long a Reserve waits for a connection before it looks for free
// descriptors again.
const exhaustedWait = 50 * time.Millisecond

// Reserve is the listener of the health, the admin or the metrics port. It reserves a few
// descriptors, and uses them to accept connections while clients use up all others.
type Reserve struct {
	net.Listener
	most  int
	spare func() bool

	mu    sync.Mutex
	files []*os.File
	done  bool
}

// NewReserve reserves most descriptors for ln. If all of these are in use, Accept calls
// spare, which closes a connection of the port so that Accept can use its descriptor, and
// returns false if there is no connection.
func NewReserve(ln net.Listener, most int, spare func() bool) *Reserve {
	r := &Reserve{Listener: ln, most: most, spare: spare}
	r.Refill()
	return r
}

// Accept returns the next connection. If no descriptor is left, it first waits for a
// connection. The kernel takes a descriptor before it looks for a connection: without
// this wait, accept would fail although no connection waits, and Accept would use up the
// reserve for nothing.
func (r *Reserve) Accept() (net.Conn, error) {
	for {
		nc, err := r.Listener.Accept()
		if err == nil || !Exhausted(err) {
			return nc, err
		}
		waiting, err := r.await()
		switch {
		case err != nil:
			return nil, err
		case !waiting:
			r.Refill()
		case !r.spend() && !r.spare():
			// The port has no descriptor to free. await would not wait here,
			// because a connection is ready to be accepted.
			time.Sleep(exhaustedWait)
			r.Refill()
		}
	}
}

// await waits a moment until a connection can be accepted.
func (r *Reserve) await() (waiting bool, err error) {
	sc, ok := r.Listener.(syscall.Conn)
	if !ok {
		return true, nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false, err
	}
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(exhaustedWait/time.Millisecond))
		waiting = n > 0 && err == nil
	})
	return waiting, err
}

// spend frees one descriptor of the reserve for the next accept.
func (r *Reserve) spend() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.files)
	if n == 0 {
		return false
	}
	r.files[n-1].Close()
	r.files = r.files[:n-1]
	return true
}

// Refill reserves descriptors again, as many as it can get. Call it when a connection of
// the port has ended.
func (r *Reserve) Refill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.files) < r.most && !r.done {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return
		}
		r.files = append(r.files, f)
	}
}

// Low returns true if some of the reserve is in use. Then connections should end soon.
func (r *Reserve) Low() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.files) < r.most
}

// Close closes the listener and frees the reserve.
func (r *Reserve) Close() error {
	err := r.Listener.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = true
	for _, f := range r.files {
		f.Close()
	}
	r.files = nil
	return err
}
