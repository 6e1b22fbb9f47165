package pressure

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Memory is the memory that the process may use, and the memory that it uses. It sets the
// limit of the Go runtime (GOMEMLIMIT) from the limit of the cgroup, and updates it.
type Memory struct {
	// Changed, if set, is called when the limit of the cgroup has changed.
	Changed func(*Memory)
	// Limited, if set, is called when the limit of the runtime has changed, on the
	// goroutine that calls Read.
	Limited func()

	given   int64 // GOMEMLIMIT, if the user has set it; 0: not set
	beside  atomic.Pointer[Beside]
	cgroup  func() (uint64, error) // the cgroup's limit
	err     error                  // the last error of cgroup
	asked   time.Time
	limit   int64  // the cgroup's; 0: none
	files   *usage // of the cgroup that has this limit; nil: not found
	goLimit int64  // the runtime's; 0: none

	rest   int64     // of the cgroup, see readRest
	restAt time.Time // when it was read

	samples []metrics.Sample
	cycles  uint64    // number of garbage collections at the last Read
	forced  time.Time // when Read last started a collection
	short   bool      // memory ran short, and is not yet enough again
}

// cgroupInterval is the time between two reads of the cgroup's limit. Resizing a pod in
// place changes the limit.
const cgroupInterval = 10 * time.Second

// LimitMemory sets the limit of the runtime, unless the environment has GOMEMLIMIT. beside is
// as in SetBeside.
func LimitMemory(lookup func(string) (string, bool), beside *Beside) *Memory {
	m := newMemory(memlimit.FromCgroup)
	if _, given := lookup("GOMEMLIMIT"); given {
		m.given = debug.SetMemoryLimit(-1)
	}
	if m.given != math.MaxInt64 {
		m.goLimit = m.given
	}
	m.beside.Store(beside)
	m.ask(time.Now())
	m.adjust(0)
	return m
}

// CgroupLimit is the cgroup's limit in bytes; 0: none.
func (m *Memory) CgroupLimit() int64 { return m.limit }

// Source returns where the limit of the runtime comes from: GOMEMLIMIT, cgroup, or none.
func (m *Memory) Source() string {
	switch {
	case m.given != 0:
		return "GOMEMLIMIT"
	case m.goLimit > 0:
		return "cgroup"
	}
	return "none"
}

// Err is the reason why the limit of the cgroup is unknown; nil: it is known, or there is
// none.
func (m *Memory) Err() error { return m.err }

// ask reads the limit of the cgroup, at most once in cgroupInterval. After an error the
// limit stays.
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
	if m.files != nil {
		m.files.close()
	}
	m.files = findUsage(limit)
	if !first {
		m.adjust(0)
		if m.Changed != nil {
			m.Changed(m)
		}
	}
}

// share returns the runtime's share of the cgroup's limit: 85 %, minus the memory that the
// rest of the process uses. The rest is mostly the kernel's memory for sockets, which the
// cgroup counts too. weir cannot know it in advance, and measures it. So the runtime
// collects garbage before there is too little memory for sockets. The 15 % are needed: under
// an attack on two busy cores, the runtime exceeded its limit by 4 % of 512 MiB until it had
// collected, and the kernel's memory grew by 2 % between two measurements. A share below a
// quarter would only cost CPU time.
func share(limit, rest int64) int64 { return max(limit/20*17-rest, limit/4) }

const shareOfCgroup = 0.85

// Beside describes the other processes of upgrades, which use the same memory.
type Beside struct {
	// Used returns their memory in bytes.
	Used func() int64
	// Parts is 2 for a process that serves. The old processes share the other half: for each of them it is twice
	// their number.
	Parts int64
}

// part returns the runtime's limit while several processes use one budget. Each process may keep its memory,
// and take its part of the free memory. So all together stay within the budget, although they measure at
// different times. mapped is the memory that the runtime of this process has, and rest is all other memory in the
// budget.
func part(budget, rest, mapped, parts int64) int64 {
	return max(mapped+max(0, budget-rest-mapped)/parts, budget/parts)
}

// SetBeside says which other weirs use the same memory; nil: none. Any goroutine may call it. The next Read
// changes the limit of the runtime.
func (m *Memory) SetBeside(b *Beside) { m.beside.Store(b) }

// adjust sets the limit of the runtime from the cgroup's limit and the rest.
func (m *Memory) adjust(rest int64) {
	want := int64(0)
	switch beside := m.beside.Load(); {
	case m.given == math.MaxInt64: // GOMEMLIMIT=off
		return
	case m.given > 0 && beside != nil:
		want = part(m.given, beside.Used(), m.heap().mapped, beside.Parts)
	case m.given > 0:
		want = m.given
	case m.limit > 0 && beside != nil:
		want = part(m.limit/20*17, rest, m.heap().mapped, beside.Parts)
	case m.limit > 0:
		want = share(m.limit, rest)
	}
	// Each change makes the runtime recompute, so small ones wait. A limit that is too high
	// is dangerous, and waits for less.
	slack := m.limit
	if m.given > 0 {
		slack = 0
	}
	if more := want - m.goLimit; more <= slack/32 && -more <= slack/128 {
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

// Resource returns the memory as a Resource.
func (m *Memory) Resource() Resource {
	return Resource{Name: "memory", Read: m.Read, Ends: true, Shed: memoryShed, Calm: memoryCalm}
}

const memoryShed, memoryCalm = 0.90, 0.80

// perConnection is the memory in bytes that a further connection may take during its
// handshake, with the kernel's buffers.
const perConnection = 32 << 10

// collectInterval is the shortest time between two garbage collections that Read starts
// to measure the memory in use.
const collectInterval = 3 * time.Second

// Read compares the memory in use, without garbage, with nine tenths of the limits of the
// runtime and of the cgroup. It returns the reading that is nearer to its limit. The
// memory in use is known only after a garbage collection. While memory is short, Read starts
// a collection if there was none recently.
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
		go runtime.GC() // on a busy machine it takes seconds
	}
	r.Stale = h.cycles == m.cycles
	m.cycles = h.cycles
	return r
}

// small is the limit, in bytes, below which the process without connections takes a large part.
const small = 64 << 20

// nearest returns the reading of the limit that is nearest.
func (m *Memory) nearest(h heap) Reading {
	r := m.nearestOf(h)
	if r.Small = r.Full < small; r.Small {
		r.Peak = 0
	}
	return r
}

func (m *Memory) nearestOf(h heap) Reading {
	byGo := Reading{Used: h.used, Full: m.goLimit / 10 * 9, Reserve: m.goLimit / 10, Each: perConnection}
	if m.goLimit > 0 {
		byGo.Peak = float64(h.mapped) / float64(m.goLimit) * shareOfCgroup
	}
	if m.limit == 0 {
		m.adjust(0)
		return byGo
	}
	rest := m.readRest(h)
	m.adjust(rest)
	byCgroup := Reading{Used: h.used + rest, Full: m.limit / 10 * 9, Reserve: m.limit / 10, Each: perConnection}
	if m.given == 0 { // else the user has decided how near the runtime comes to the cgroup's limit
		byGo.Peak = float64(h.mapped+rest) / float64(m.limit)
	}
	byCgroup.Peak = byGo.Peak
	if byCgroup.ratio() > byGo.ratio() {
		return byCgroup
	}
	return byGo
}

// readRest returns the memory that the cgroup uses in addition to the memory of the runtime. It reads the
// cgroup's files four times a second at most.
func (m *Memory) readRest(h heap) int64 {
	now := time.Now()
	if m.files == nil || now.Sub(m.restAt) < shedInterval {
		return m.rest
	}
	m.rest, m.restAt = 0, now
	if used, err := m.files.read(); err == nil {
		m.rest = max(0, used-h.mapped)
	}
	return m.rest
}

// heap is the runtime's information about its memory.
type heap struct {
	mapped int64 // all memory that the runtime has from the system
	used   int64 // the part of mapped without garbage, and without room for garbage
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

// heap reads the metrics of the runtime. This takes some microseconds and stops no
// goroutine.
func (m *Memory) heap() heap {
	metrics.Read(m.samples)
	v := func(i int) int64 { return int64(m.samples[i].Value.Uint64()) }
	mapped := v(0) - v(1)
	return heap{mapped: mapped, used: mapped - v(2) - v(3) - v(4) + v(5), cycles: m.samples[6].Value.Uint64()}
}
