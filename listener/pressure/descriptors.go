package pressure

import (
	"math"

	"golang.org/x/sys/unix"
)

// Descriptors are the open files of the process against their limit. estimate
// says about how many are open where the kernel does not; a little too many is fine.
//
// inFlight returns how many exchanges and tunnels have an endpoint and the descriptor of
// its connection. They need no further descriptor.
func Descriptors(estimate, inFlight func() int) Resource {
	read := func() Reading {
		used, known := openDescriptors()
		if !known {
			used = int64(estimate())
		}
		return descriptors(used, descriptorLimit())
	}
	expect := func(busy int64) int64 { return busy - int64(inFlight()) }
	return Resource{Name: "descriptors", Read: read, Expect: expect, Bounds: true, Shed: 0.95, Calm: 0.90}
}

// descriptors keeps back some of those that there are for connections to endpoints, which
// clients that are there already need, and for everything else; from a small
// limit a larger share. A client with an exchange or a tunnel takes two, the second
// of them later.
func descriptors(used, limit int64) Reading {
	if limit <= 0 {
		return Reading{Used: used}
	}
	reserve := min(max(limit/40, 32), limit/2)
	return Reading{Used: used, Full: limit - reserve, Reserve: reserve, Each: 2}
}

// descriptorLimit is asked each time, as it can be changed from outside; 0: none.
func descriptorLimit() int64 {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil || uint64(r.Cur) >= math.MaxInt64 {
		return 0
	}
	return int64(r.Cur)
}
