package pause

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// Between two turns the scheduler looks for network events, also on one processor.
func TestTurnsLetNetworkEventsIn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer serving.Store(serving.Load())
	Serve()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var read atomic.Int64
	go func() {
		defer to.Close()
		for b := make([]byte, 1); ; read.Add(1) {
			if _, err := to.Read(b); err != nil {
				return
			}
		}
	}()
	// The kernel may stop the thread that reads. So one round in which the bytes are read in time is enough.
	for range 100 {
		if late := writeInTurn(from, &read); late < 20 {
			return
		}
	}
	t.Error("network events wait until all turns are over")
}

// writeInTurn writes 200 bytes, each in a turn. It returns how many bytes at most were not read when a turn began.
func writeInTurn(to net.Conn, read *atomic.Int64) (late int64) {
	var all sync.WaitGroup
	var mu sync.Mutex
	written, before := int64(0), read.Load()
	for range 200 {
		all.Go(func() {
			Turn()
			mu.Lock()
			defer mu.Unlock()
			late = max(late, written-(read.Load()-before))
			to.Write([]byte{0})
			written++
		})
	}
	all.Wait()
	for read.Load() < before+200 {
		runtime.Gosched()
	}
	return late
}
