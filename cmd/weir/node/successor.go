package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// successor is the new process, as the old one sees it.
type successor struct {
	pid     int
	process *os.Process
	conn    *noteConn
	exited  chan struct{}
	status  string // set before exited is closed
}

// mostNotes limits the bytes that weir reads from a new process, which may be any program.
const mostNotes = 8 << 20

// exitPatience is how long weir waits until a killed process, or a process that has closed its
// connection, has ended.
const exitPatience = 5 * time.Second

// stillPatience is how long weir reads after the end of a timeout.
const stillPatience = time.Second

// startSuccessor starts a binary with the descriptors of sockets. The new process has the environment and the rights
// of this one. It has a process group of its own until it takes over (former.rejoin), so
// that kill also ends what a script has started.
func startSuccessor(binary string, args []string, descriptors []int) (*successor, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open a socket pair for the new process: %w", err)
	}
	unix.CloseOnExec(pair[0])
	unix.CloseOnExec(pair[1])
	defer unix.Close(pair[1])
	conn, err := newNoteConn(os.NewFile(uintptr(pair[0]), "upgrade"), mostNotes)
	if err != nil {
		return nil, fmt.Errorf("cannot open a socket pair for the new process: %w", err)
	}
	files := []uintptr{0, 1, 2, uintptr(pair[1])}
	for _, fd := range descriptors {
		files = append(files, uintptr(fd))
	}
	unix.Seek(0, 0, io.SeekStart) // a configuration from standard input is read again
	// Not os.StartProcess: it would make the sockets blocking, for both processes.
	pid, err := syscall.ForkExec(binary, args, &syscall.ProcAttr{Env: successorEnv(os.Environ()), Files: files, Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		conn.Close()
		return nil, startError(binary, err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		conn.Close()
		syscall.Kill(-pid, syscall.SIGKILL)
		return nil, fmt.Errorf("cannot watch the new process: %w", err)
	}
	c := &successor{pid: pid, process: process, conn: conn, exited: make(chan struct{})}
	go func() {
		defer close(c.exited)
		if state, err := process.Wait(); err == nil {
			c.status = state.String()
		}
	}()
	return c, nil
}

// startError returns an error that says why the kernel did not start the binary.
func startError(binary string, err error) error {
	err = fmt.Errorf("cannot start %s as uid %d: %w", binary, os.Getuid(), err)
	_, missing := os.Stat(binary)
	switch {
	case errors.Is(err, syscall.ENOENT) && missing == nil: // execve(2) has one error for both
		return fmt.Errorf("%w; the file exists, but its interpreter does not: the program after #! of a script, or the dynamic loader of a binary", err)
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("%w; the file is not a program for this machine", err)
	}
	return err
}

// successorEnv returns the environment of a new process. It has no WATCHDOG_PID, which names this
// process.
func successorEnv(all []string) (env []string) {
	for _, one := range all {
		if name, _, _ := strings.Cut(one, "="); name != "WATCHDOG_PID" && name != upgradeEnv {
			env = append(env, one)
		}
	}
	return append(env, upgradeEnv+"="+strconv.Itoa(os.Getpid()))
}

// hear waits for a note of this kind.
func (c *successor) hear(kind string, within time.Duration) (note, error) {
	n, err := c.conn.hear(within)
	if errors.Is(err, os.ErrDeadlineExceeded) { // if this process stood still, the note has come: a new process that serves must not be killed
		n, err = c.conn.hear(stillPatience)
	}
	switch {
	case err != nil:
		return n, c.explain(err, kind, within)
	case n.Kind == noteFailed:
		return n, fmt.Errorf("the new process cannot take over: %s", n.Error)
	case n.Kind != kind:
		return n, fmt.Errorf("the new process said %q instead of %q; it is not a weir that this one can pass its sockets to", n.Kind, kind)
	}
	return n, nil
}

// explain returns why there is no note of this kind from the new process.
func (c *successor) explain(err error, kind string, within time.Duration) error {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && kind == noteReady:
		return fmt.Errorf("the new process did not become ready within %v (upgrade_timeout); its log says what it waits for", within)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the new process did not answer within %v; it hangs, or is not weir", within)
	case errors.As(err, &syntax):
		return errors.New("the new process is not weir: its messages have another form")
	}
	timer := time.NewTimer(exitPatience)
	defer timer.Stop()
	select {
	case <-c.exited:
		return fmt.Errorf("the new process ended (%s); its log says why", c.status)
	case <-timer.C:
		return fmt.Errorf("the new process closed its connection to this one: %w", err)
	}
}

// signalEnd kills the new process and its process group. A script may have started a weir as its child.
// That weir would take over when the socket pair ends, because it could not tell that from the end of
// this process.
func (c *successor) signalEnd() {
	c.process.Kill()
	// The group keeps the id after the end of its first process, as long as it has others.
	syscall.Kill(-c.pid, syscall.SIGKILL)
}

// kill ends the new process, and waits until it has ended.
func (c *successor) kill() {
	c.signalEnd()
	select {
	case <-c.exited:
	case <-time.After(exitPatience): // the process waits for a disk, for example
	}
	c.conn.Close()
}
