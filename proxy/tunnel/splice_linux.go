package tunnel

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// splicer moves the bulk of a direction within the kernel, between two plain
// TCP sockets through a pipe. A pipe is held only while there are bytes to move:
// small messages go through a buffer, which takes fewer system calls, and an
// idle direction holds nothing.
type splicer struct {
	// eager: the last step moved so much that the next may begin by splicing.
	eager bool
	// off: it does not work for these sockets; on: it was found that it does or may.
	on, off bool

	pipe *pipe
	err  error
	step func(fd uintptr) bool // d.spliceOut, made once
}

const (
	// spliceMax bounds one splice(2). A pipe counts pieces and not bytes, so it
	// usually takes more than its nominal size.
	spliceMax = 1 << 20
	// pipeSize is asked for: 64 pieces, as a network card delivers them in small ones.
	pipeSize = 256 << 10
	// eagerBytes in one step make the next begin by splicing.
	eagerBytes = 64 << 10
	// maxPipes bounds the pipes in use, two descriptors each. Beyond it tunnels copy through buffers.
	maxPipes = 256
	// sparePipes bounds those kept for use.
	sparePipes = 16
)

// splice moves what is there until the source has no more. An end of stream is
// left for a read to find.
func (d *direction) splice() next {
	s := &d.splicer
	s.eager = false
	if !s.on && !d.maySplice() {
		return nextRead
	}
	if s.pipe = takePipe(); s.pipe == nil {
		return nextRead
	}
	before := d.bytes
	n := d.spliceAll()
	s.eager = d.bytes-before >= eagerBytes
	s.pipe.giveBack()
	s.pipe = nil
	return n
}

// maySplice finds out once whether both ends are plain TCP.
func (d *direction) maySplice() bool {
	s := &d.splicer
	if s.off {
		return false
	}
	s.on = isTCP(d.src) && isTCP(d.dst)
	s.off = !s.on
	s.step = d.spliceOut
	return s.on
}

func isTCP(s *side) bool {
	return s.Stream == nil && s.Conn.IsTCP() && s.TLS == nil
}

func (d *direction) spliceAll() next {
	s := &d.splicer
	for {
		n, err := splice(d.src.Conn.FD(), s.pipe.w, spliceMax)
		switch {
		case err == syscall.EAGAIN:
			return nextWait
		case err == syscall.EINVAL:
			s.on, s.off = false, true
			return nextRead
		case err != nil:
			d.t.fail(d.src.failed, os.NewSyscallError("splice", err))
			return nextEnd
		case n == 0:
			return nextRead
		}
		s.pipe.holds, s.err = n, nil
		d.src.Conn.BytesRead += int64(n)
		if err := errors.Join(d.dst.Conn.AwaitWrite(s.step), s.err); err != nil {
			d.t.fail(d.dst.failed, err)
			return nextEnd
		}
	}
}

// spliceOut empties the pipe into the destination, as far as there is room.
func (d *direction) spliceOut(fd uintptr) bool {
	s := &d.splicer
	for s.pipe.holds > 0 {
		n, err := splice(s.pipe.r, int(fd), s.pipe.holds)
		if err == syscall.EAGAIN {
			return false
		}
		if err != nil {
			s.err = os.NewSyscallError("splice", err)
			return true
		}
		s.pipe.holds -= n
		d.dst.Conn.BytesWritten += int64(n)
		d.count(int64(n))
	}
	return true
}

func splice(from, to, n int) (int, error) {
	for {
		moved, err := unix.Splice(from, nil, to, nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if err != syscall.EINTR {
			return max(int(moved), 0), err
		}
	}
}

// pipe carries bytes from one socket to another.
type pipe struct {
	r, w  int
	holds int
}

var pipes struct {
	mu    sync.Mutex
	spare []*pipe
	taken atomic.Int64
}

// takePipe returns an empty pipe, or nil if there are too many or no descriptors left.
func takePipe() *pipe {
	if pipes.taken.Add(1) > maxPipes {
		pipes.taken.Add(-1)
		return nil
	}
	pipes.mu.Lock()
	if n := len(pipes.spare); n > 0 {
		p := pipes.spare[n-1]
		pipes.spare = pipes.spare[:n-1]
		pipes.mu.Unlock()
		return p
	}
	pipes.mu.Unlock()
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		pipes.taken.Add(-1)
		return nil
	}
	// Refused beyond a user's limit (pipe(7)): then the size stays as it was.
	unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{r: fds[0], w: fds[1]}
}

// giveBack keeps an empty pipe for the next and closes one that still holds bytes.
func (p *pipe) giveBack() {
	pipes.taken.Add(-1)
	if p.holds == 0 {
		pipes.mu.Lock()
		keep := len(pipes.spare) < sparePipes
		if keep {
			pipes.spare = append(pipes.spare, p)
		}
		pipes.mu.Unlock()
		if keep {
			return
		}
	}
	unix.Close(p.r)
	unix.Close(p.w)
}
