package listener

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// queues are the kernel's tables of connections. weir reads them when no descriptor is
// left, so it opens them early and keeps them open.
var queues connectionTables

type connectionTables struct {
	sync.Mutex
	files []*os.File
}

// open returns the tables. The caller holds the lock.
func (t *connectionTables) open() []*os.File {
	if t.files == nil {
		t.files = []*os.File{}
		for _, name := range [...]string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
			if file, err := os.Open(name); err == nil {
				t.files = append(t.files, file)
			}
		}
	}
	return t.files
}

// readyQueues opens the tables.
func readyQueues() {
	queues.Lock()
	defer queues.Unlock()
	queues.open()
}

// accepting calls f with the addresses of each connection in an accept queue of this
// network namespace, until f returns false. It returns false if the kernel does not report
// them.
func accepting(f func(local, peer netip.AddrPort) bool) bool {
	return eachConnection(func(c tableLine) bool { return c.state != established || c.accepted || f(c.local, c.peer) })
}

// handshaking returns true if a client of the listening socket at an address has begun a
// handshake that is not complete. known is false if the kernel does not report it.
func handshaking(at netip.AddrPort) (begun, known bool) {
	all, known := handshakes.get()
	for local := range all {
		begun = begun || owns(at, local)
	}
	return begun, known
}

// handshakes is what all closing listeners read.
var handshakes = newTableReads(func() (all addresses, known bool) {
	all = addresses{}
	known = eachConnection(func(c tableLine) bool {
		if c.state == synReceived {
			all[c.local] = struct{}{}
		}
		return true
	})
	return all, known
})

// addresses are the local addresses of connections.
type addresses map[netip.AddrPort]struct{}

// tableReads lets many goroutines read the kernel's tables at the price of one. The kernel
// takes tens of milliseconds to write a table, however few connections there are. A
// goroutine gets only a table whose read began after the goroutine asked.
type tableReads struct {
	read func() (addresses, bool)
	turn chan struct{} // holds a token while somebody reads

	mu   sync.Mutex
	next *tableRead // has not begun; nil: nobody waits for it
}

// tableRead is one reading of the tables. Its results are set when done is closed.
type tableRead struct {
	done  chan struct{}
	all   addresses
	known bool
}

func newTableReads(read func() (addresses, bool)) *tableReads {
	return &tableReads{read: read, turn: make(chan struct{}, 1)}
}

// get returns the result of the next reading. The first goroutine that asks reads for all
// that ask before the reading begins. The caller must not change the result.
func (t *tableReads) get() (addresses, bool) {
	t.mu.Lock()
	one, first := t.next, t.next == nil
	if first {
		one = &tableRead{done: make(chan struct{})}
		t.next = one
	}
	t.mu.Unlock()
	if first {
		t.turn <- struct{}{}
		t.mu.Lock()
		t.next = nil
		t.mu.Unlock()
		one.all, one.known = t.read()
		<-t.turn
		close(one.done)
	}
	<-one.done
	return one.all, one.known
}

// tableLine is a line of /proc/net/tcp.
type tableLine struct {
	local, peer netip.AddrPort
	state       string
	accepted    bool // a process has accepted the connection: it has an inode
}

// TCP states, as numbered in /proc/net/tcp.
const (
	established = "01"
	synReceived = "03"
)

// eachConnection calls f with each connection of this network namespace, until f returns
// false. It returns false if the kernel does not report them.
func eachConnection(f func(tableLine) bool) bool {
	known := false
	queues.Lock()
	defer queues.Unlock()
	for _, file := range queues.open() {
		if _, err := file.Seek(0, io.SeekStart); err != nil { // the kernel writes the table again
			continue
		}
		known = true
		lines := bufio.NewScanner(bufio.NewReaderSize(file, 64<<10))
		goOn := true
		for goOn && lines.Scan() {
			if c, ok := readTableLine(lines.Text()); ok {
				goOn = f(c)
			}
		}
		if !goOn {
			return true
		}
	}
	return known
}

// readTableLine reads one line.
//
//	sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ...
func readTableLine(line string) (c tableLine, ok bool) {
	words := strings.Fields(line)
	if len(words) < 10 || words[3] != established && words[3] != synReceived {
		return c, false
	}
	c.state, c.accepted = words[3], words[9] != "0"
	if c.local, ok = procAddress(words[1]); !ok {
		return c, false
	}
	c.peer, ok = procAddress(words[2])
	return c, ok
}

// procAddress parses an address in /proc/net/tcp: words of four bytes, each printed as a number in the machine's
// byte order, a colon and the port.
func procAddress(s string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(address)
	if err != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(b, 4) {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	a, ok := netip.AddrFromSlice(b)
	n, err := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), ok && err == nil
}
