package soak

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// A wire is the socket of a link. It makes the faults in a ClientHello and the slow
// readers, and it detects plaintext on TLS connections.
type wire struct {
	*net.TCPConn
	link  *link
	hello bool // the next write is a ClientHello
	slow  bool
	// secure: only TLS records may arrive.
	secure  bool
	records records
}

func (w *wire) Read(p []byte) (int, error) {
	if w.slow {
		p = p[:min(len(p), slowRate)]
		if !w.link.run.sleep(time.Second) {
			return 0, errTimeIsUp
		}
	}
	n, err := w.TCPConn.Read(p)
	w.link.run.received.Add(int64(n))
	if w.secure && n > 0 {
		if at := w.records.wrong(p[:n]); at >= 0 {
			return 0, problemf(PlaintextOnTLS, "%q", p[at:min(n, at+64)])
		}
	}
	return n, err
}

func (w *wire) Write(p []byte) (int, error) {
	if !w.hello {
		return w.put(p)
	}
	w.hello = false
	return len(p), w.link.send(Hello, p, func(b []byte) error {
		_, err := w.put(b)
		return err
	})
}

func (w *wire) put(p []byte) (int, error) {
	n, err := w.TCPConn.Write(p)
	w.link.run.sent.Add(int64(n))
	return n, err
}

// Slow readers read slowRate bytes in a second, from a window of about slowWindow.
const (
	slowRate   = 1024
	slowWindow = 4096
)

// records parses a stream of TLS records (RFC 8446, section 5.1), as far as their heads.
type records struct {
	have int // received bytes of the head
	head [5]byte
	left int // bytes of the record that are still to come
}

// wrong returns the position of the first byte that cannot be part of a record, or -1.
func (r *records) wrong(b []byte) int {
	for i := 0; i < len(b); {
		if r.left > 0 {
			n := min(r.left, len(b)-i)
			r.left -= n
			i += n
			continue
		}
		r.head[r.have] = b[i]
		if r.have == 0 && (b[i] < 20 || b[i] > 24) || r.have == 1 && b[i] != 3 {
			return i
		}
		i++
		if r.have++; r.have == len(r.head) {
			r.have, r.left = 0, int(r.head[3])<<8|int(r.head[4])
		}
	}
	return -1
}

// ended waits until the other side closes or d has passed. It takes no bytes from the
// socket. It reports whether the other side closed. If unread bytes are there, ended
// cannot see a close behind them, and returns false after d.
func (w *wire) ended(d time.Duration) (bool, error) {
	deadline := time.Now().Add(d)
	raw, err := w.SyscallConn()
	if err != nil {
		return false, err
	}
	w.link.until(deadline, true)
	var (
		n   int
		one [1]byte
		why error
	)
	err = raw.Read(func(fd uintptr) bool {
		for {
			if n, _, why = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK); why != syscall.EINTR {
				return why != syscall.EAGAIN
			}
		}
	})
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		if !w.link.run.running() {
			return false, errTimeIsUp
		}
		return false, nil
	case err != nil:
		return false, err
	case why != nil:
		return true, why
	case n == 0:
		return true, nil
	}
	if !w.link.run.sleep(time.Until(deadline)) {
		return false, errTimeIsUp
	}
	return false, nil
}
