package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// family returns pid and all processes below it: nginx works in a child process.
func family(pid int) []int {
	pids := []int{pid}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		for child := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				pids = append(pids, family(n)...)
			}
		}
	}
	return pids
}

// cpuTime returns the CPU time, user and system, of all living threads of pid and its
// children. The scheduler counts in nanoseconds; /proc/PID/stat counts in ticks of 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	var sum time.Duration
	for _, p := range family(pid) {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p))
		if err != nil || len(files) == 0 {
			return 0, fmt.Errorf("process %d has no schedstat; is it alive?", p)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				continue // the thread has ended meanwhile
			}
			ns, _, _ := strings.Cut(string(text), " ")
			n, err := strconv.ParseInt(ns, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("cannot read %s: %w", f, err)
			}
			sum += time.Duration(n)
		}
	}
	return sum, nil
}
