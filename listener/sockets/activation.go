package sockets

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstDescriptor is the first descriptor that a service manager passes
// (SD_LISTEN_FDS_START). They have no gaps.
const firstDescriptor = 3

// mostDescriptors limits LISTEN_FDS: a larger number is a mistake.
const mostDescriptors = 1 << 16

// activation are the variables by which a service manager passes sockets (sd_listen_fds(3)).
var activation = []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"}

// Activated returns the sockets that a service manager, such as systemd, has opened for the
// process pid. lookup reads the environment.
func Activated(lookup func(string) (string, bool), pid int) ([]Inherited, error) {
	if of, _ := lookup("LISTEN_PID"); of != strconv.Itoa(pid) {
		return nil, nil
	}
	text, _ := lookup("LISTEN_FDS")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > mostDescriptors {
		return nil, fmt.Errorf("LISTEN_FDS is %q, and must be the number of inherited sockets", text)
	}
	list, named := lookup("LISTEN_FDNAMES")
	names := strings.Split(list, ":")
	if named && n > 0 && len(names) != n {
		return nil, fmt.Errorf("LISTEN_FDNAMES has %d names (%s), but LISTEN_FDS says %d sockets; write one name for each socket", len(names), list, n)
	}
	var all []Inherited
	for i := range n {
		one := Inherited{Name: "unknown", FD: firstDescriptor + i} // systemd uses this word as well
		if named {
			one.Name = names[i]
		}
		unix.CloseOnExec(one.FD)
		all = append(all, one)
	}
	return all, nil
}

// ForgetActivated removes the variables of Activated from the environment, so that no program
// that this process starts takes the sockets for its own.
func ForgetActivated() {
	for _, name := range activation {
		os.Unsetenv(name)
	}
}
