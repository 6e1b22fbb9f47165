//go:build !race

package proxy

import (
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"unsafe"

	"github.com/weirproxy/weir/listener/conn"
)

const (
	// firstStack is the size in bytes of the stack with which a goroutine starts under load.
	firstStack = 4 << 10
	// spare is the part of firstStack that an exchange must leave free, because some exchanges need more than
	// that of the test.
	spare = 128
)

// An exchange over an idle connection to the endpoint fits into the first stack of a new
// connection. Otherwise the runtime copies the stack of each connection. The race detector
// needs larger frames, so this test does not run with it.
func TestExchangeFitsTheFirstStack(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, plain, nil, "@app", e.address)
	r.proxy.SetLog(nil) // a line of the access log needs more stack
	c := r.dial("web")
	c.write(get)
	s := serveOnce(e.accept(), ok("x"))
	c.wantResponse(200, "x") // from now on there is an idle connection to the endpoint

	keepStacks(t)
	const tries = 20
	for range tries { // some exchanges need more stack; the test fails only if all tries do
		if !movesStack(t, r, s) {
			return
		}
	}
	t.Errorf("each of %d exchanges leaves less than %d of the first %d bytes of stack", tries, spare, firstStack)
}

// movesStack makes an exchange on a new connection. It returns whether the stack of its
// goroutine was too small.
func movesStack(t *testing.T, r *rig, endpoint *peer) bool {
	c, accepted := accept(t)
	moved := make(chan bool, 1)
	r.serving.Go(func() {
		useStack()
		before := stackAddress()
		withLess(func() { r.proxy.Serve(accepted, "web") }, [spare]byte{})
		moved <- stackAddress() != before
	})
	c.write("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	serveOnce(endpoint, ok("y"))
	c.wantResponse(200, "y")
	return next(t, moved, "the end of the connection")
}

// useStack makes a smaller stack of the goroutine as large as firstStack.
//
//go:noinline
func useStack() (sum byte) {
	var b [firstStack * 3 / 8]byte
	for i := range b {
		b[i] = byte(i)
	}
	for i := range b { // without a copy of b
		sum += b[i]
	}
	return sum
}

// withLess calls f with less stack: taken is on the stack of the caller.
//
//go:noinline
func withLess(f func(), taken [spare]byte) byte {
	f()
	return taken[0]
}

// keepStacks prevents the garbage collector from moving a stack until the test ends.
func keepStacks(t *testing.T) {
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	runtime.GC() // sets the size of first stacks to what the goroutines of now need
	size := []metrics.Sample{{Name: "/gc/stack/starting-size:bytes"}}
	if metrics.Read(size); size[0].Value.Uint64() > firstStack {
		if os.Getenv("CI") == "true" {
			t.Fatalf("goroutines start with %d bytes of stack, so the test cannot run", size[0].Value.Uint64())
		}
		t.Skipf("goroutines start with %d bytes of stack", size[0].Value.Uint64())
	}
}

// accept returns both ends of a new connection.
func accept(t *testing.T) (*peer, *conn.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a, _, err := conn.NewAcceptor(ln)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	client, err := net.Dial("tcp", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	return newPeer(t, client), c
}

// stackAddress returns the address of a variable on the stack. It changes if the stack moves.
//
//go:noinline
func stackAddress() uintptr {
	var here byte
	return uintptr(unsafe.Pointer(&here))
}
