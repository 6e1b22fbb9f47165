package pressure

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Memory is what the process may use of memory, and what it uses. It sets the
// runtime's limit (GOMEMLIMIT) by the cgroup's, and goes on doing so.
type Memory struct {
	// Changed, if set, is told that the cgroup has another limit than before.
	Changed func(*Memory)
	// Limited, if set, is called when the runtime's limit has changed, on the goroutine
	// that calls Read.
	Limited func()

	given   bool                   // GOMEMLIMIT was: it stays as it is
	cgroup  func() (uint64, error) // the cgroup's limit
	err     error                  // what cgroup said last
	asked   time.Time
	limit   int64  // the cgroup's; 0: none
	files   *usage // of the cgroup whose limit it is; nil: not found
	goLimit int64  // the runtime's; 0: none

	samples []metrics.Sample
	cycles  uint64    // garbage collections when Read was called last
	forced  time.Time // when Read collected last
	short   bool      // memory ran short, and does not suffice again
}

// cgroupInterval is how often the cgroup is asked for its limit, which changes
// when a pod is resized in place.
const cgroupInterval = 10 * time.Second

// LimitMemory sets the runtime's limit, unless environment has GOMEMLIMIT.
func LimitMemory(lookup func(string) (string, bool)) *Memory {
	m := newMemory(memlimit.FromCgroup)
	_, m.given = lookup("GOMEMLIMIT")
	if now := debug.SetMemoryLimit(-1); m.given && now != math.MaxInt64 {
		m.goLimit = now
	}
	m.ask(time.Now())
	m.adjust(0)
	return m
}

// CgroupLimit is the cgroup's limit in bytes; 0: none.
func (m *Memory) CgroupLimit() int64 { return m.limit }

// Source says where the runtime's limit comes from: the environment, the cgroup, or nowhere.
func (m *Memory) Source() string {
	switch {
	case m.given:
		return "GOMEMLIMIT"
	case m.goLimit > 0:
		return "cgroup"
	}
	return "none"
}

// Err is why the cgroup's limit is not known; nil: it is, or there is none.
func (m *Memory) Err() error { return m.err }

// ask asks the cgroup for its limit, once in a while. An error leaves it as it was.
func (m *Memory) ask(now time.Time) {
	if !m.asked.IsZero() && now.Sub(m.asked) < cgroupInterval {
		return
	}
	first := m.asked.IsZero()
	m.asked = now
	limit, err := cgroupLimit(m.cgroup)
	if m.err = err; err != nil || limit == m.limit {
		return
	}
	m.limit = limit
	m.files = findUsage(limit)
	if !first {
		m.adjust(0)
		if m.Changed != nil {
			m.Changed(m)
		}
	}
}

// The runtime's share of the cgroup's limit: nine tenths, without what the rest
// of the process takes (mostly the kernel's memory for sockets, which counts
// against the cgroup as well). That is not known beforehand and is measured. Garbage is so
// collected before there is too little for sockets; below a quarter that would
// do nothing but take time.
func share(limit, rest int64) int64 { return max(limit/10*9-rest, limit/4) }

// adjust sets the runtime's limit by the cgroup's and what the rest takes.
func (m *Memory) adjust(rest int64) {
	if m.given {
		return
	}
	want := int64(0)
	if m.limit > 0 {
		want = share(m.limit, rest)
	}
	if diff := want - m.goLimit; max(diff, -diff) <= m.limit/32 { // each change makes the runtime think anew
		return
	}
	m.goLimit = want
	if want == 0 {
		want = math.MaxInt64
	}
	debug.SetMemoryLimit(want)
	if m.Limited != nil {
		m.Limited()
	}
}

// Resource is the memory as a resource.
func (m *Memory) Resource() Resource {
	return Resource{Name: "memory", Read: m.Read, Shed: memoryShed, Calm: memoryCalm}
}

const memoryShed, memoryCalm = 0.90, 0.80

// perConnection is what one further connection may take while its handshake
// runs, the kernel's buffers included.
const perConnection = 32 << 10

// collectInterval is how often a garbage collection is begun, at most, to find
// out how much is in use.
const collectInterval = 3 * time.Second

// Read compares what is in use, garbage excepted, with nine tenths of the limits
// of runtime and cgroup, and tells of the one that is nearer. What is garbage
// only a collection finds out: while memory is short Read begins one where there
// was none of late.
func (m *Memory) Read() Reading {
	now := time.Now()
	m.ask(now)
	if m.limit == 0 && m.goLimit == 0 {
		return Reading{}
	}
	h := m.heap()
	r := m.nearest(h)
	m.short = r.ratio() >= memoryShed || m.short && r.ratio() >= memoryCalm
	if m.short && h.cycles == m.cycles && now.Sub(m.forced) >= collectInterval {
		m.forced = now
		runtime.GC()
		h = m.heap()
		r = m.nearest(h)
	}
	r.Stale = h.cycles == m.cycles
	m.cycles = h.cycles
	return r
}

func (m *Memory) nearest(h heap) Reading {
	byGo := Reading{Used: h.used, Full: m.goLimit / 10 * 9, Reserve: m.goLimit / 10, Each: perConnection}
	if m.limit == 0 {
		return byGo
	}
	rest := m.rest(h)
	m.adjust(rest)
	byCgroup := Reading{Used: h.used + rest, Full: m.limit / 10 * 9, Reserve: m.limit / 10, Each: perConnection}
	if byCgroup.ratio() > byGo.ratio() {
		return byCgroup
	}
	return byGo
}

// rest is what the cgroup has in use beside the runtime's memory.
func (m *Memory) rest(h heap) int64 {
	if m.files == nil {
		return 0
	}
	used, err := m.files.read()
	if err != nil {
		return 0
	}
	return max(0, used-h.mapped)
}

// heap is what the runtime says of its memory.
type heap struct {
	mapped int64 // all that it has of the system
	used   int64 // of that, without garbage and room for it
	cycles uint64
}

// The samples, in this order.
var names = [...]string{
	"/memory/classes/total:bytes",
	"/memory/classes/heap/released:bytes",
	"/memory/classes/heap/objects:bytes",
	"/memory/classes/heap/unused:bytes",
	"/memory/classes/heap/free:bytes",
	"/gc/heap/live:bytes",
	"/gc/cycles/total:gc-cycles",
}

func newMemory(cgroup func() (uint64, error)) *Memory {
	m := &Memory{cgroup: cgroup}
	for _, name := range names {
		m.samples = append(m.samples, metrics.Sample{Name: name})
	}
	return m
}

// heap reads the runtime's metrics: some microseconds, and nothing stops for it.
func (m *Memory) heap() heap {
	metrics.Read(m.samples)
	v := func(i int) int64 { return int64(m.samples[i].Value.Uint64()) }
	mapped := v(0) - v(1)
	return heap{mapped: mapped, used: mapped - v(2) - v(3) - v(4) + v(5), cycles: m.samples[6].Value.Uint64()}
}
