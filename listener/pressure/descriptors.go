package pressure

import (
	"math"

	"golang.org/x/sys/unix"
)

// Descriptors are the open files of the process and their limit. estimate returns about
// how many files are open, for kernels that do not report it. It may be a little too
// high.
//
// inFlight returns how many exchanges and tunnels already have the descriptor of their
// connection to an endpoint. They need no further descriptor.
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

// descriptors keeps a reserve of descriptors for connections to endpoints, which open
// client connections still need, and for everything else. If the limit is small, the
// reserve is a larger share of it. A client with an exchange or a tunnel takes two
// descriptors, the second one later.
func descriptors(used, limit int64) Reading {
	if limit <= 0 {
		return Reading{Used: used}
	}
	reserve := min(max(limit/40, 32), limit/2)
	return Reading{Used: used, Full: limit - reserve, Reserve: reserve, Each: 2}
}

// descriptorLimit reads the limit each time, because other processes can change it; 0:
// none.
func descriptorLimit() int64 {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil || uint64(r.Cur) >= math.MaxInt64 {
		return 0
	}
	return int64(r.Cur)
}
