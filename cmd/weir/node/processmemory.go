package node

import (
	"fmt"
	"os"
)

// processMemory returns the resident memory of a process, and the part of it that is pages of files,
// in bytes; 0: unknown.
func processMemory(pid int) (resident, files int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size int64
	if n, _ := fmt.Sscan(string(text), &size, &resident, &files); n < 3 {
		return 0, 0
	}
	page := int64(os.Getpagesize())
	return resident * page, files * page
}

// privateMemory returns the resident memory of a process without pages of files, in bytes; 0: unknown.
func privateMemory(pid int) int64 {
	resident, files := processMemory(pid)
	return max(0, resident-files)
}
