package pause

import (
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer serving.Store(serving.Load())
		paused := func() bool {
			before := due.Load()
			IfDue()
			return due.Load() != before
		}
		serving.Store(false)
		if paused() {
			t.Error("IfDue pauses before the process serves traffic")
		}
		Serve()
		if !paused() {
			t.Error("the first IfDue does not pause")
		}
		if paused() {
			t.Error("IfDue pauses again without work between")
		}
		time.Sleep(stretch)
		if !paused() {
			t.Error("IfDue does not pause after enough work")
		}
		due.Store(time.Now().Add(time.Hour).UnixNano())
		if !paused() {
			t.Error("IfDue does not pause after the clock was set back")
		}
	})
}

// While the only processor always has something to do, as during a reload, IfDue lets a goroutine run that
// waits for the network.
func TestNetworkGoesFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer serving.Store(serving.Load())
	Serve()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var read atomic.Int64
	go func() {
		var b [1]byte
		for {
			if _, err := server.Read(b[:]); err != nil {
				return
			}
			read.Add(1)
		}
	}()
	stop := make(chan struct{})
	defer close(stop)
	go func() { // as the sweeper does
		for {
			select {
			case <-stop:
				return
			default:
				runtime.Gosched()
			}
		}
	}()
	// On a busy machine the kernel may stop the runtime's monitor thread just after it has taken an event,
	// and a pause cannot hand on this event. So one round of three has to be without a late byte. Without
	// pollNetwork, nearly all bytes of each round are late.
	for range 3 {
		late := 0
		for range 100 {
			n := read.Load()
			client.Write([]byte{0})
			for i := 0; read.Load() == n; i++ {
				if i == 5 {
					late++
				}
				due.Store(0)
				IfDue()
			}
		}
		if late == 0 {
			return
		}
		t.Logf("%d of 100 bytes were not read after five pauses", late)
	}
	t.Error("in each round a byte was not read after five pauses")
}

func TestStepAllocatesNothing(t *testing.T) {
	defer serving.Store(serving.Load())
	Serve()
	if n := testing.AllocsPerRun(10, IfDue); n != 0 {
		t.Errorf("IfDue allocates %v times", n)
	}
}
