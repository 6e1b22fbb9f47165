package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// cgroupLimit returns the limit of the cgroup, or 0 if it has no limit or there are no
// cgroups.
func cgroupLimit(ask func() (uint64, error)) (int64, error) {
	limit, err := ask()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("cannot find out the cgroup's memory limit: %w; set GOMEMLIMIT in the environment", err)
	}
	return int64(min(limit, math.MaxInt64)), nil
}

// usage is the files in which a cgroup reports the memory that it uses. They stay open, and reading them does not
// allocate: while memory is short, whatever allocates may wait for the garbage collector.
type usage struct {
	current, stat *os.File
	inactive      []byte // the beginning of a line of stat
	buffer        [8 << 10]byte
}

// version is the names of files and fields in one version of cgroups.
type version struct{ mount, limit, current, inactive string }

var versions = [2]version{
	{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
}

// findUsage finds the cgroup that has the limit: the cgroup of the process, or one above
// it. It returns nil if there is none at the usual place.
func findUsage(limit int64) *usage {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || limit == 0 {
		return nil
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		v := &versions[1]
		switch {
		case parts[0] == "0" && parts[1] == "":
			v = &versions[0]
		case !strings.Contains(","+parts[1]+",", ",memory,"):
			continue
		}
		if u := v.find(parts[2], limit); u != nil {
			return u
		}
	}
	return nil
}

// find goes up from path. In a container, path may be a path of the host, while the
// cgroup of the container is at the top.
func (v *version) find(path string, limit int64) *usage {
	for dir := filepath.Join("/", path); ; dir = filepath.Dir(dir) {
		folder := filepath.Join(v.mount, dir)
		if n, err := readNumber(filepath.Join(folder, v.limit)); err == nil && n == limit {
			return openUsage(filepath.Join(folder, v.current), filepath.Join(folder, "memory.stat"), v.inactive)
		}
		if dir == "/" {
			return nil
		}
	}
}

func openUsage(current, stat, inactive string) *usage {
	u := &usage{inactive: []byte(inactive + " ")}
	var err error
	if u.current, err = os.Open(current); err != nil {
		return nil
	}
	if u.stat, err = os.Open(stat); err != nil {
		u.current.Close()
		return nil
	}
	return u
}

func (u *usage) close() {
	u.current.Close()
	u.stat.Close()
}

// read returns the memory in use, without file caches that the kernel can drop at any
// time.
func (u *usage) read() (int64, error) {
	n, err := u.current.ReadAt(u.buffer[:], 0)
	if err != nil && err != io.EOF {
		return 0, err
	}
	current := leadingNumber(u.buffer[:n])
	if n, err = u.stat.ReadAt(u.buffer[:], 0); err != nil && err != io.EOF {
		return 0, err
	}
	for rest := u.buffer[:n]; len(rest) > 0; {
		var line []byte
		line, rest, _ = bytes.Cut(rest, []byte{'\n'})
		if value, found := bytes.CutPrefix(line, u.inactive); found {
			return max(0, current-leadingNumber(value)), nil
		}
	}
	return current, nil
}

// leadingNumber returns the decimal number at the beginning of b.
func leadingNumber(b []byte) (n int64) {
	for _, c := range b {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int64(c-'0')
	}
	return n
}

func readNumber(file string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}
