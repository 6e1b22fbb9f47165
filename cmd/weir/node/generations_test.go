package node

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/cmd/weir/node/status"
	"github.com/weirproxy/weir/listener/pressure"
)

// chain is the generations of one fake process.
type chain struct {
	*generations
	lines  *observer.ObservedLogs
	remain atomic.Int64
	parts  atomic.Int64 // 0: it is alone
}

func newChain(number int) *chain {
	core, lines := observer.New(zap.InfoLevel)
	c := &chain{lines: lines}
	c.generations = &generations{number: number, log: zap.New(core), left: make(chan struct{}), remain: func(n int) { c.remain.Store(int64(n)) }, beside: func(b *pressure.Beside) {
		if c.parts.Store(0); b != nil {
			c.parts.Store(b.Parts)
		}
	}}
	return c
}

// fakeOld is the end of an old process.
type fakeOld struct {
	*noteConn
	t *testing.T
}

func newFakeOld(t *testing.T, p status.OldProcess) (*fakeOld, *former) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := newNoteConn(os.NewFile(uintptr(pair[1]), "old"), math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	f, err := formerWith(pair[0], p)
	if err != nil {
		t.Fatal(err)
	}
	return &fakeOld{conn, t}, f
}

func (o *fakeOld) says(text string) {
	o.t.Helper()
	if _, err := io.WriteString(o, text); err != nil {
		o.t.Fatal(err)
	}
}

// wants waits for a note.
func (o *fakeOld) wants(kind string) note {
	o.t.Helper()
	n, err := o.hear(patience)
	if err != nil || n.Kind != kind {
		o.t.Fatalf("the old process gets %+v, %v; want %s", n, err, kind)
	}
	return n
}

func (c *chain) remains(t *testing.T, want int64) {
	t.Helper()
	eventually(t, fmt.Sprint(want, " connections remain"), func() error {
		if n := c.remain.Load(); n != want {
			return fmt.Errorf("%d remain", n)
		}
		return nil
	})
}

// An upgrade hands the socket pairs of old processes to the new process, although half of a note was read. The new
// process forgets old processes that have ended meanwhile. If the serving process is killed, the new process skips the
// second half of the note.
func TestOldProcessesArePassedOn(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %t", killed), func(t *testing.T) {
			before := newChain(4)
			var fakes []*fakeOld
			for n := range 3 {
				fake, f := newFakeOld(t, status.OldProcess{Generation: n + 1, PID: 1<<30 + n, Version: fmt.Sprint("v", n), Connections: 1})
				fakes, before.old = append(fakes, fake), append(before.old, f)
			}
			before.old[0].told = time.Now()
			before.follow(func() {})
			if n := fakes[0].wants(noteShare); n.Parts != 6 || !slices.Equal(n.Processes, []int{1 << 30, 1<<30 + 1, 1<<30 + 2, os.Getpid()}) {
				t.Errorf("%+v", n)
			}
			fakes[0].says(`{"kind":"remaining","connections":5,"active":2}` + "\n" + `{"kind":"remaining","conn`)
			before.remains(t, 7)
			old, fds, err := before.pass()
			if err != nil || len(old) != 3 {
				t.Fatal(old, err)
			}
			_, b := newFakeOld(t, status.OldProcess{Generation: 4, PID: 1<<30 + 4})
			b.state = &passedState{}
			for n, fd := range fds {
				f, err := formerWith(fd, old[n].OldProcess)
				if err != nil {
					t.Fatal(err)
				}
				b.before = append(b.before, f)
			}
			go b.read()
			after := newChain(0)
			after.adopt(b)
			fakes[1].Close()
			before.remains(t, 6)
			left := note{}
			if !killed {
				left = note{Kind: noteLeft, Connections: 10, Active: 1, Until: time.Now().Add(time.Minute), Old: before.leave()}
				if len(left.Old) != 2 || string(left.Old[0].Rest) != `{"kind":"remaining","conn` {
					t.Errorf("%+v", left.Old)
				}
			} else {
				before.leave()
			}
			after.settle(b, left)
			var reloads atomic.Int64
			after.follow(func() { reloads.Add(1) })
			defer func() { after.leave() }()
			fakes[0].says(`ections":3}` + "\n")
			fakes[2].says(`{"kind":"reload"}` + "\n")
			want := int64(10 + 3 + 1)
			if killed {
				fakes[0].says(`{"kind":"remaining","connections":4}` + "\n")
				want = 0 + 4 + 1
			}
			after.remains(t, want)
			eventually(t, "the signal of an old process is passed on", func() error {
				if reloads.Load() != 1 {
					return fmt.Errorf("%d reloads", reloads.Load())
				}
				return nil
			})
			list := after.list()
			if after.number != 5 || len(list) != 3 || list[0].Version != "v0" || list[1].Generation != 3 || list[2].Generation != 4 || list[2].Since.IsZero() || list[2].Until.IsZero() != killed {
				t.Errorf("generation %d has taken over from %+v", after.number, list)
			}
			after.mu.Lock()
			told := after.old[0].told
			after.mu.Unlock()
			if told.IsZero() != killed {
				t.Errorf("it was told to end at %v", told)
			}
			const aborted = "upgrade: the old process has ended with open connections: it was killed or has failed"
			if n := after.lines.FilterMessage(aborted).Len(); n > 1 || n == 1 && !killed {
				t.Errorf("%d lines for one that had ended before", n)
			}
			fakes[2].Close()
			after.remains(t, want-1)
			eventually(t, "a line about its end", func() error {
				if n := after.lines.FilterMessage(aborted).FilterLevelExact(zap.WarnLevel).FilterField(zap.Int("old_generation", 3)).Len(); n != 1 {
					return fmt.Errorf("%d lines", n)
				}
				return nil
			})
		})
	}
}

// Beyond eight old processes the oldest ends, and is killed if it does not.
func TestTooManyOldProcesses(t *testing.T) {
	hangs := exec.Command("sleep", "1000")
	if err := hangs.Start(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := newChain(mostOld + 3)
		var heard sync.Map
		var ends []net.Conn
		for n := range mostOld + 2 {
			here, there := net.Pipe()
			f := &former{OldProcess: status.OldProcess{Generation: n + 1, PID: 1<<30 + n, Connections: 1}, conn: &noteConn{Conn: here, reader: bufio.NewReader(here)},
				notes: make(chan note), ended: make(chan struct{})}
			if n == 1 {
				f.PID = hangs.Process.Pid
			}
			c.old, ends = append(c.old, f), append(ends, there)
			go func() {
				old := &noteConn{Conn: there, reader: bufio.NewReader(there)}
				for {
					got, err := old.hear(0)
					if err != nil {
						return
					}
					if got.Kind == noteEnd {
						heard.Store(n, true)
						if n == 0 {
							there.Close()
						}
					}
				}
			}()
		}
		c.follow(func() {})
		time.Sleep(endPatience / 2)
		synctest.Wait()
		var told []int
		for n := range ends {
			if _, ok := heard.Load(n); ok {
				told = append(told, n)
			}
		}
		if !slices.Equal(told, []int{0, 1}) {
			t.Errorf("the note end came to %v", told)
		}
		if all := c.list(); len(all) != mostOld+1 || all[0].Generation != 2 {
			t.Errorf("after the end of the oldest there are %+v", all)
		}
		time.Sleep(endPatience)
		synctest.Wait()
		lines := c.lines.FilterMessageSnippet("too many old processes").All()
		if len(lines) != 2 || lines[0].ContextMap()["connections"] != int64(1) {
			t.Errorf("lines %+v", lines)
		}
		if c.lines.FilterMessageSnippet("is killed").Len() != 1 {
			t.Error("no line says that the one that hangs is killed")
		}
		for _, there := range ends {
			there.Close()
		}
		c.heard.Wait()
	})
	late := time.AfterFunc(patience, func() { hangs.Process.Signal(syscall.SIGINT) })
	defer late.Stop()
	if err := hangs.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the one that hangs: %v", err)
	}
}

// An old process that still runs after its drain.timeout is killed. A process that ends waits for its old ones.
func TestOldProcessAfterItsTime(t *testing.T) {
	hangs := exec.Command("sleep", "1000")
	if err := hangs.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { hangs.Process.Signal(syscall.SIGINT) })
	defer late.Stop()
	synctest.Test(t, func(t *testing.T) {
		c := newChain(2)
		here, there := net.Pipe()
		c.old = []*former{{OldProcess: status.OldProcess{Generation: 1, PID: hangs.Process.Pid, Until: time.Now().Add(time.Minute)}, conn: &noteConn{Conn: here, reader: bufio.NewReader(here)},
			notes: make(chan note), ended: make(chan struct{})}}
		go io.Copy(io.Discard, there)
		c.follow(func() {})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+latePatience-time.Second)
		defer cancel()
		c.await(ctx)
		if ctx.Err() == nil || c.lines.FilterMessage("upgrade: this process ends before old ones").Len() != 1 || c.lines.FilterMessageSnippet("is killed").Len() != 0 {
			t.Errorf("before the end of its time: %v, lines %+v", ctx.Err(), c.lines.All())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if lines := c.lines.FilterMessageSnippet("is killed").All(); len(lines) != 1 || lines[0].ContextMap()["kill"] != nil {
			t.Errorf("after the end of its time: %+v", c.lines.All())
		}
		there.Close()
		c.await(t.Context())
		if len(c.list()) != 0 || c.lines.FilterMessage("upgrade: the old process has ended").FilterLevelExact(zap.InfoLevel).Len() != 1 {
			t.Errorf("after its end: %+v", c.lines.All())
		}
	})
	if err := hangs.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the one that hangs: %v", err)
	}
}

// The memory is divided again whenever a process starts, fails to start, ends or leaves.
func TestOldProcessesShareMemory(t *testing.T) {
	c := newChain(3)
	one, f1 := newFakeOld(t, status.OldProcess{Generation: 1, PID: 1 << 30})
	two, f2 := newFakeOld(t, status.OldProcess{Generation: 2, PID: 1<<30 + 1})
	c.old = []*former{f1, f2}
	wants := func(o *fakeOld, parts int64, processes ...int) {
		t.Helper()
		if n := o.wants(noteShare); n.Parts != parts || !slices.Equal(n.Processes, append(processes, os.Getpid())) {
			t.Errorf("%+v; want %d parts for %v", n, parts, processes)
		}
	}
	c.follow(func() {})
	wants(one, 4, 1<<30, 1<<30+1)
	wants(two, 4, 1<<30, 1<<30+1)
	c.starts(1<<30 + 2)
	wants(one, 4, 1<<30, 1<<30+1, 1<<30+2)
	c.starts(0)
	wants(one, 4, 1<<30, 1<<30+1)
	two.Close()
	wants(one, 2, 1<<30)
	if n := c.parts.Load(); n != 2 {
		t.Errorf("the one that serves has 1/%d", n)
	}
	c.starts(1<<30 + 2)
	c.leave()
	if n := c.parts.Load(); n != 4 {
		t.Errorf("after it has left, it has 1/%d", n)
	}
	alone := newChain(1)
	alone.follow(func() {})
	if n := alone.parts.Load(); n != 0 {
		t.Errorf("one that is alone has 1/%d", n)
	}
}
