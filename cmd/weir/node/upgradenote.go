package node

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/cmd/weir/node/status"
	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/listener/sockets"
)

// This file has the messages between the processes of upgrades. upgrade.go has the diagram.

// upgradeEnv is the environment variable of a new process. Its value is the id of the old one.
const upgradeEnv = "WEIR_UPGRADE"

// upgradeDescriptor is the new process's end of the socket pair. The sockets follow, in order, and then the ends of
// the socket pairs with the old processes before.
const upgradeDescriptor = 3

// The versions of the messages. A binary that does not know the version refuses to take over. Versions of weir that
// cannot take over old processes know version 1, which is used if there are none.
const (
	upgradeVersion    = 1
	upgradeVersionOld = 2
)

// helloPatience limits the time to send a note, and to answer the first one.
const helloPatience = 10 * time.Second

// A note is a message between two processes. Each is one JSON object on a line.
type note struct {
	Kind  string              `json:"kind"`
	State *passedState        `json:"state,omitempty"`
	Taken []sockets.Inherited `json:"taken,omitempty"` // of ready
	Error string              `json:"error,omitempty"` // of failed
	// Cordoned and Draining are set in go and left, because an operator may have changed the cordon, or
	// begun a drain, since the note state. nil: as in state.
	Cordoned *bool `json:"cordoned,omitempty"`
	Draining *bool `json:"draining,omitempty"`
	// LoadBalancers, of left, have asked the health port of the old process.
	LoadBalancers []health.LoadBalancer `json:"load_balancers,omitempty"`
	// Connections and Active, of left and remaining, count the open connections of the old process, and
	// the requests and tunnels among them.
	Connections int `json:"connections,omitempty"`
	Active      int `json:"active,omitempty"`
	// End, of left, means that weir was told to end while the new process began to accept: the new process drains.
	End bool `json:"end,omitempty"`
	// Until, of left, is the end of drain.timeout. Old are the old processes before this one that have not ended.
	Until time.Time    `json:"until,omitzero"`
	Old   []oldProcess `json:"old,omitempty"`
	// Processes and Parts, of share, are for besideOf.
	Processes []int `json:"processes,omitempty"`
	Parts     int64 `json:"parts,omitempty"`
}

// oldProcess is an old process that a process passes on when it leaves.
type oldProcess struct {
	status.OldProcess
	// Rest, in the note left, is the part of a note that was read already.
	Rest []byte `json:"rest,omitempty"`
	// Told, in the note left, is when the process was told to end at once.
	Told time.Time `json:"told,omitzero"`
}

// The kinds of notes, in the order of an upgrade.
const (
	noteState     = "state"     // old: the passedState
	noteHello     = "hello"     // new: it is weir, and has read the state
	noteReady     = "ready"     // new: it could serve
	noteGo        = "go"        // old: accept
	noteServing   = "serving"   // new: it accepts
	noteLeft      = "left"      // old: it accepts no more
	noteRemaining = "remaining" // old: so many connections are still open there
	noteReload    = "reload"    // old: it has left, and got SIGHUP
	noteReopen    = "reopen"    // new: it got SIGHUP, and the old process has to open its access log again
	noteShare     = "share"     // new: so much of the memory is for the old process
	noteEnd       = "end"       // new: the old process has to end at once
	noteFailed    = "failed"    // new: it ends; Error says why
)

// passedState describes the old process to the new one. It contains secrets.
type passedState struct {
	Version   int                 `json:"version"`
	Sockets   []sockets.Inherited `json:"sockets"` // FD has no meaning
	Tickets   json.RawMessage     `json:"tickets"`
	StickyKey string              `json:"sticky_key,omitempty"`
	// SharedStickyKey is the key for sticky sessions that the old process got from its storage.
	SharedStickyKey string          `json:"shared_sticky_key,omitempty"`
	PIDFile         string          `json:"pid_file,omitempty"` // path of the file that has its id
	Binary          string          `json:"binary,omitempty"`   // path
	Args            []string        `json:"args,omitempty"`
	Cordoned        bool            `json:"cordoned"`
	Healthy         bool            `json:"healthy"`
	Ready           bool            `json:"ready"`
	Working         map[string]bool `json:"working"` // see server.working
	// Sender is the old process, without its connections. Old are those before it.
	Sender status.OldProcess `json:"sender,omitzero"`
	Old    []oldProcess      `json:"old,omitempty"`
}

// noteConn is one end of the socket pair between two processes. One goroutine may call hear;
// any goroutine may call say and tell.
type noteConn struct {
	net.Conn
	reader  *bufio.Reader
	rest    []byte // the beginning of a note whose end has not been read
	writing sync.Mutex
}

// newNoteConn takes f, which is one end of the socket pair, and closes it. It reads limit bytes
// at most.
func newNoteConn(f *os.File, limit int64) (*noteConn, error) {
	defer f.Close() // FileConn duplicates
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return &noteConn{Conn: conn, reader: bufio.NewReader(io.LimitReader(conn, limit))}, nil
}

// say sends a note.
func (c *noteConn) say(n note) error { return c.sayWithin(n, helloPatience) }

// tell sends a note to an old process, which may hang.
func (c *noteConn) tell(n note) error { return c.sayWithin(n, tellPatience) }

func (c *noteConn) sayWithin(n note, patience time.Duration) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.SetWriteDeadline(time.Now().Add(patience))
	return json.NewEncoder(c).Encode(n)
}

// brokenNote is the error of hear for a line that is no note. The next line may be one.
type brokenNote struct{ error }

func (b brokenNote) Unwrap() error { return b.error }

// hear waits for the next note. within limits the wait; 0: the read deadline of the connection does.
func (c *noteConn) hear(within time.Duration) (n note, err error) {
	if within > 0 {
		c.SetReadDeadline(time.Now().Add(within))
		defer c.SetReadDeadline(time.Time{})
	}
	read, err := c.reader.ReadBytes('\n')
	c.rest = append(c.rest, read...)
	if err != nil {
		return n, err
	}
	line := c.rest
	c.rest = nil
	if err := json.Unmarshal(line, &n); err != nil {
		return note{}, brokenNote{err}
	}
	return n, nil
}

// dup returns another descriptor of the socket, for a process that takes over.
func (c *noteConn) dup() (fd int, err error) {
	raw, err := c.Conn.(syscall.Conn).SyscallConn()
	if err == nil {
		closed := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
		err = errors.Join(closed, err)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot pass the connection to an old process: %w", err)
	}
	return fd, nil
}
