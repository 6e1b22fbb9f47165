package tunnel

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/listener/conn"
)

// splicer moves many bytes of a direction within the kernel, through a pipe between two plain
// TCP sockets. It holds a pipe only while there are bytes to move. Small messages go through
// a buffer, because that takes fewer system calls. An idle direction holds neither.
type splicer struct {
	to   *conn.Conn
	pipe *pipe
	err  error
	step func(fd uintptr) bool // d.spliceOut, made once
}

const (
	// spliceMax limits one splice(2). A pipe counts pieces, not bytes, so it usually takes
	// more than its nominal size.
	spliceMax = 1 << 20
	// pipeSize is the size that weir asks for: 64 pieces, because a network card delivers
	// small pieces.
	pipeSize = 256 << 10
	// eagerBytes is the number of bytes in one step after which the next step begins with
	// splice.
	eagerBytes = 64 << 10
	// maxPipes limits the pipes in use, of two descriptors each. Further tunnels copy
	// through buffers.
	maxPipes = 256
	// sparePipes limits the unused pipes that weir keeps.
	sparePipes = 16
)

// splice moves bytes until the source has no more. At the end of the stream it returns
// nextRead, so that a read finds the end.
func (d *direction) splice(from *ConnEnd) next {
	d.eager = false
	if d.splicer == nil && !d.maySplice(from) {
		return nextRead
	}
	s := d.splicer
	if s.pipe = takePipe(); s.pipe == nil {
		return nextRead
	}
	before := d.bytes
	n := d.spliceAll(from.Conn)
	d.eager = d.bytes-before >= eagerBytes
	s.pipe.giveBack()
	s.pipe = nil
	return n
}

// maySplice checks once whether both ends are plain TCP.
func (d *direction) maySplice(from *ConnEnd) bool {
	to := d.dst().plainTCP()
	if d.noSplice || from.plainTCP() == nil || to == nil {
		d.noSplice = true
		return false
	}
	d.splicer = &splicer{to: to}
	d.splicer.step = d.spliceOut
	return true
}

func (d *direction) spliceAll(from *conn.Conn) next {
	s := d.splicer
	for {
		n, err := splice(from.FD(), s.pipe.w, spliceMax)
		switch {
		case err == syscall.EAGAIN:
			return nextWait
		case err == syscall.EINVAL:
			d.noSplice = true
			return nextRead
		case err != nil:
			d.t.fail(d.src(), os.NewSyscallError("splice", err))
			return nextEnd
		case n == 0:
			return nextRead
		}
		s.pipe.holds, s.err = n, nil
		from.BytesRead += int64(n)
		if err := errors.Join(s.to.AwaitWrite(s.step), s.err); err != nil {
			d.t.fail(d.dst(), err)
			return nextEnd
		}
	}
}

// spliceOut moves the content of the pipe to the destination. It returns false if the
// destination has no more room.
func (d *direction) spliceOut(fd uintptr) bool {
	s := d.splicer
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
		s.to.BytesWritten += int64(n)
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

// takePipe returns an empty pipe. It returns nil if maxPipes are in use, or if the process
// has no free descriptors.
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
	// Beyond a limit for the user the kernel refuses this (pipe(7)); then the size stays.
	unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{r: fds[0], w: fds[1]}
}

// giveBack keeps an empty pipe for the next user. It closes a pipe that still holds bytes.
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
