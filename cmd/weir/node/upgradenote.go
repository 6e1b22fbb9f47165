package node

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/listener/sockets"
)

// This file has the messages between the two processes of an upgrade. upgrade.go has the diagram.

// upgradeEnv is the environment variable of a new process. Its value is the id of the old one.
const upgradeEnv = "WEIR_UPGRADE"

// upgradeDescriptor is the new process's end of the socket pair. The sockets follow, in order.
const upgradeDescriptor = 3

// upgradeVersion is the version of the messages. A binary with another version refuses to take over.
const upgradeVersion = 1

// helloPatience limits the time to send a note, and to answer the first one.
const helloPatience = 10 * time.Second

// A note is a message between the two processes. Each is one JSON object.
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
}

// noteConn is one end of the socket pair between the two processes. One goroutine may call hear;
// any goroutine may call say.
type noteConn struct {
	net.Conn
	decoder *json.Decoder
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
	return &noteConn{Conn: conn, decoder: json.NewDecoder(io.LimitReader(conn, limit))}, nil
}

// say sends a note.
func (c *noteConn) say(n note) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.SetWriteDeadline(time.Now().Add(helloPatience))
	return json.NewEncoder(c).Encode(n)
}

// hear waits for the next note. within limits the wait; 0: nothing does.
func (c *noteConn) hear(within time.Duration) (n note, err error) {
	var until time.Time
	if within > 0 {
		until = time.Now().Add(within)
	}
	c.SetReadDeadline(until)
	err = c.decoder.Decode(&n)
	return n, err
}
