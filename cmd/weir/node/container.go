package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// endsContainer returns why a container would end with this process; empty: none would. first is
// the name of process 1.
func endsContainer(pid, parent int, first string) string {
	switch {
	case pid == 1:
		return "weir is process 1 of a container, which ends with it"
	case parent == 0: // the parent is outside: the container shares its processes with others
		return "weir is the main process of a container, which ends with it"
	case parent == 1 && slices.Contains(endWithChild, first):
		return "weir is the child of " + first + ", process 1 of a container, which ends with it"
	}
	return ""
}

// endWithChild has the names of the init processes of containers (docker run --init, for example). Such
// a process starts one child, and ends together with it.
var endWithChild = []string{"tini", "tini-static", "docker-init", "podman-init", "catatonit", "dumb-init"}

// processName returns the name of a process; empty: unknown.
func processName(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(text))
}
