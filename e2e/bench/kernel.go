package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// kernelMemory is the memory that the kernel of this machine uses for all its sockets: of the proxy, the
// clients and the backend. The result is therefore divided by the number of sockets. Other sockets on the
// machine disturb the measurement.
type kernelMemory struct {
	sockets int // connected TCP sockets
	slab    int // bytes of the kernel objects of sockets and their descriptors
	queued  int // bytes that wait in sockets, with their overhead
	known   bool
}

// socketObjects are the kernel objects for each socket: the socket, its inode, its name,
// its file, and its entries in epoll sets.
var socketObjects = []string{"TCP", "sock_inode_cache", "dentry", "filp", "eventpoll_epi", "ep_head"}

// lookAtKernel reads /proc/slabinfo, which only root may read, and /proc/net/sockstat.
func lookAtKernel() (k kernelMemory, err error) {
	slabs, err := readSlabs()
	if err != nil {
		return k, nil // only root may read it
	}
	k.known, k.sockets = true, slabs["TCP"].active
	for _, name := range socketObjects {
		k.slab += slabs[name].active * slabs[name].size
	}
	text, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		return k, err
	}
	if _, rest, ok := strings.Cut(string(text), "TCP: "); ok {
		fields := strings.Fields(rest)
		for i := 0; i+1 < len(fields); i += 2 {
			if n, _ := strconv.Atoi(fields[i+1]); fields[i] == "mem" {
				k.queued = n * os.Getpagesize()
				break
			}
		}
	}
	return k, nil
}

func (after kernelMemory) since(before kernelMemory) kernelMemory {
	return kernelMemory{after.sockets - before.sockets, after.slab - before.slab, after.queued - before.queued, after.known && before.known}
}

// String returns the memory of one socket as text.
func (k kernelMemory) String() string {
	if !k.known || k.sockets <= 0 {
		return "unknown (needs root)"
	}
	n := float64(k.sockets) * 1024
	return fmt.Sprintf("%.2f KiB in slabs and %.2f KiB queued for each of %d sockets of all sides", float64(k.slab)/n, float64(k.queued)/n, k.sockets)
}

type slab struct{ active, size int }

func readSlabs() (map[string]slab, error) {
	f, err := os.Open("/proc/slabinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[string]slab{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[0] == "#" {
			continue
		}
		active, err := strconv.Atoi(fields[1])
		if err != nil {
			continue // the heading
		}
		size, _ := strconv.Atoi(fields[3])
		all[fields[0]] = slab{active, size}
	}
	return all, nil
}
