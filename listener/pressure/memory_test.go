package pressure

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const mib = 1 << 20

func TestShare(t *testing.T) {
	f := func(limit, rest, want int64) {
		t.Helper()
		if got := share(limit, rest); got != want {
			t.Errorf("share(%d, %d) is %d, want %d", limit, rest, got, want)
		}
	}
	f(1000, 0, 850)
	f(1000, 300, 550)
	f(1000, 899, 250)
	f(1000, 5000, 250)
}

func TestDescriptors(t *testing.T) {
	f := func(used, limit, full, room int64) {
		t.Helper()
		r := descriptors(used, limit)
		if r.Full != full || r.room() != room || r.Used != used {
			t.Errorf("with %d of %d: full at %d, room for %d; want %d and %d", used, limit, r.Full, r.room(), full, room)
		}
	}
	f(40, 80, 48, 4)
	f(48, 80, 48, 0)
	f(90, 80, 48, 0)
	f(5, 10, 5, 0)
	f(500, 1024, 992, 246)
	f(18_000, 20_000, 19_500, 750) // room for 9000 tunnels
	f(0, 1<<20, 1<<20-1<<20/40, (1<<20-1<<20/40)/2)
	f(7, 0, 0, math.MaxInt32)
	if r := Descriptors(func() int { return 12 }, func() int { return 0 }).Read(); r.Used < 3 || r.Full < 0 {
		t.Errorf("this process: %+v", r)
	}
}

// keepLimit restores the runtime's limit after a test.
func keepLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
}

func TestLimitFollowsTheCgroup(t *testing.T) {
	keepLimit(t)
	synctest.Test(t, func(t *testing.T) {
		limit, failure := uint64(4096*mib), error(nil)
		m := newMemory(func() (uint64, error) { return limit, failure })
		changes := 0
		m.Changed = func(*Memory) { changes++ }
		f := func(what string, wantGo int64, wantChanges int, source string) {
			t.Helper()
			time.Sleep(cgroupInterval)
			m.Read()
			if got := debug.SetMemoryLimit(-1); got != wantGo || changes != wantChanges || m.Source() != source {
				t.Errorf("%s: the runtime's limit is %d (%s) after %d changes, want %d, %s, %d", what, got, m.Source(), changes, wantGo, source, wantChanges)
			}
		}
		m.ask(time.Now())
		m.adjust(0)
		f("at the start", share(4096*mib, 0), 0, "cgroup")
		limit = 8192 * mib
		f("the pod is made larger", share(8192*mib, 0), 1, "cgroup")
		failure = errors.New("cannot read")
		limit = 1
		f("it cannot be read", share(8192*mib, 0), 1, "cgroup")
		if m.Err() == nil {
			t.Error("nobody is told why")
		}
		failure = memlimit.ErrNoLimit
		f("the limit was taken away", math.MaxInt64, 2, "none")
		if r := m.Read(); r != (Reading{}) {
			t.Errorf("without a limit it reads %+v", r)
		}
		failure, limit = nil, 2048*mib
		f("there is one again", share(2048*mib, 0), 3, "cgroup")
	})
}

// The runtime's share becomes smaller by the memory that the kernel takes for sockets.
func TestAdjust(t *testing.T) {
	keepLimit(t)
	m := &Memory{limit: 1024 * mib}
	f := func(rest, want int64) {
		t.Helper()
		m.adjust(rest)
		if got := debug.SetMemoryLimit(-1); got != want || m.goLimit != want {
			t.Errorf("with %d beside it: %d and %d, want %d", rest, got, m.goLimit, want)
		}
	}
	f(0, share(1024*mib, 0))
	f(5*mib, share(1024*mib, 0)) // too small a change
	f(200*mib, share(1024*mib, 200*mib))
	f(180*mib, share(1024*mib, 200*mib)) // too small a change upwards
	f(210*mib, share(1024*mib, 210*mib))
	f(2000*mib, 256*mib)
	m.given = 256 * mib
	f(0, 256*mib)
}

func TestGivenLimitStays(t *testing.T) {
	keepLimit(t)
	debug.SetMemoryLimit(512 * mib)
	m := LimitMemory(func(name string) (string, bool) { return "512MiB", name == "GOMEMLIMIT" }, nil)
	if got := debug.SetMemoryLimit(-1); got != 512*mib || m.Source() != "GOMEMLIMIT" || m.goLimit != 512*mib {
		t.Errorf("the limit is %d by %s", got, m.Source())
	}
	if r := m.Read(); r.Used < 100<<10 || r.Full > 512*mib/10*9 {
		t.Errorf("it reads %+v", r)
	}
}

// While old processes drain, each process may use what it has, and its part of what is free.
// Afterwards the limit is as before.
func TestProcessesShareOneBudget(t *testing.T) {
	keepLimit(t)
	f := func(budget, rest, mapped, parts, want int64) {
		t.Helper()
		if got := part(budget, rest, mapped, parts); got != want {
			t.Errorf("part(%d, %d, %d, %d) is %d, want %d", budget, rest, mapped, parts, got, want)
		}
	}
	f(1000, 0, 0, 2, 500)
	f(1000, 200, 400, 2, 600)
	f(1000, 400, 200, 2, 500)
	f(1000, 900, 50, 2, 500) // one that serves has at least half
	f(1000, 900, 600, 2, 600)
	f(1000, 600, 300, 8, 312) // one of four old processes
	f(1000, 900, 50, 8, 125)

	debug.SetMemoryLimit(4096 * mib)
	m := LimitMemory(func(name string) (string, bool) { return "4GiB", name == "GOMEMLIMIT" }, &Beside{Parts: 2, Used: func() int64 { return 1024 * mib }})
	check := func(what string, least, most int64) {
		t.Helper()
		m.Read()
		if got := debug.SetMemoryLimit(-1); got < least || got > most || got != m.goLimit {
			t.Errorf("%s: the limit is %d (%d), want %d to %d", what, got, m.goLimit, least, most)
		}
	}
	check("a weir that starts", 2048*mib, 2048*mib)
	m.SetBeside(nil)
	check("the other one has ended", 4096*mib, 4096*mib)
	m.SetBeside(&Beside{Parts: 2, Used: func() int64 { return 1024 * mib }})
	check("another one starts", 2048*mib, 2048*mib)
	m.SetBeside(&Beside{Parts: 6, Used: func() int64 { return 3072 * mib }})
	check("it is one of three old processes", 682*mib, 683*mib)

	m = newMemory(func() (uint64, error) { return 4096 * mib, nil })
	m.ask(time.Now())
	m.SetBeside(&Beside{Parts: 2, Used: func() int64 { return 0 }})
	m.adjust(1024 * mib)
	if got := debug.SetMemoryLimit(-1); got < 1700*mib || got > 1800*mib {
		t.Errorf("in a cgroup the limit is %d", got)
	}
}

// weir knows the memory in use only after a garbage collection. While memory is short, Read
// starts a collection, but not more often than collectInterval allows.
func TestReadCollects(t *testing.T) {
	keepLimit(t)
	m := newMemory(func() (uint64, error) { return 0, memlimit.ErrNoLimit })
	m.given = math.MaxInt64 // Read changes no limit
	held := make([]byte, 64*mib)
	runtime.GC()
	m.goLimit = m.heap().used / 9 * 10 // Read uses at most nine tenths
	f := func(what string, stale, much bool) {
		t.Helper()
		r := m.Read()
		if r.Stale != stale || r.Used > 48*mib != much || m.short != much {
			t.Errorf("%s: it reads %+v, short is %t", what, r, m.short)
		}
	}
	f("one was made just now", false, true)
	f("none of late", true, true)
	for m.Read().Stale { // until the collection that this began is over
		time.Sleep(time.Millisecond)
	}
	runtime.KeepAlive(held)
	f("64 MiB became garbage, but one was made just now", true, true)
	m.forced = time.Time{}
	r := m.Read()
	for deadline := time.Now().Add(20 * time.Second); r.Stale && time.Now().Before(deadline); r = m.Read() {
		time.Sleep(time.Millisecond)
	}
	if r.Stale || r.Used > 48*mib {
		t.Errorf("64 MiB became garbage, and it reads %+v", r)
	}
	f("there is enough", true, false)
	if m.forced = (time.Time{}); !m.Read().Stale {
		t.Error("it collects while memory suffices")
	}
}

func TestCgroupFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	v := version{dir, "memory.max", "memory.current", "inactive_file"}
	write("pod/memory.max", "1000000\n")
	write("pod/memory.current", "700000\n")
	write("pod/memory.stat", "anon 1\nfile 2\ninactive_file 100000\nsock 5\n")
	write("pod/weir/memory.max", "max\n")
	write("pod/weir/memory.current", "5\n")
	f := func(path string, limit, want int64) {
		t.Helper()
		u := v.find(path, limit)
		got := int64(-1)
		if u != nil {
			got, _ = u.read()
		}
		if got != want {
			t.Errorf("%s with the limit %d: %d in use, want %d", path, limit, got, want)
		}
	}
	f("/pod", 1000000, 600000)
	f("/pod/weir", 1000000, 600000)      // the limit belongs to the pod
	f("/pod/weir/gone", 1000000, 600000) // a path of the host
	f("/pod", 2000000, -1)
	f("/elsewhere", 1000000, -1)
	f("/../../pod", 1000000, 600000)
	write("memory.max", "3000000\n") // a container sees its own cgroup here
	write("memory.current", "40\n")
	write("memory.stat", "anon 1\n")
	f("/kubepods/podx/y", 3000000, 40)
	write("memory.stat", "inactive_file 400\n")
	f("/", 3000000, 0)
}

func TestCgroupLimit(t *testing.T) {
	f := func(limit uint64, err error, want int64, fails bool) {
		t.Helper()
		got, gotErr := cgroupLimit(func() (uint64, error) { return limit, err })
		if got != want || (gotErr != nil) != fails {
			t.Errorf("of %d, %v: %d, %v", limit, err, got, gotErr)
		}
	}
	f(5, nil, 5, false)
	f(math.MaxUint64, nil, math.MaxInt64, false)
	f(0, memlimit.ErrNoLimit, 0, false)
	f(0, memlimit.ErrNoCgroup, 0, false)
	f(0, memlimit.ErrCgroupsNotSupported, 0, false)
	f(0, os.ErrPermission, 0, true)
}
