package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes makes every child end with the bench, however the bench ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

const apart = "WEIR_BENCH_APART"

// runApart runs the bench again in a network namespace of its own, in which nothing else
// opens connections or leaves connections behind. It needs root. done is false without
// root, or if this process is already the second one.
func runApart(args []string) (done bool, err error) {
	if os.Getenv(apart) != "" {
		return false, raiseLoopback()
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), apart+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Cloneflags: syscall.CLONE_NEWNET}
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // the second process receives the signal as well, and ends
	err = cmd.Run()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) {
		return false, nil
	}
	return true, err
}

// raiseLoopback brings up loopback, the only interface of a new network namespace.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("ioctl", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
}

// pinTo pins this process and its threads to some cores. New threads inherit that.
func pinTo(on cores) error {
	var set unix.CPUSet
	for _, core := range on {
		set.Set(core)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil {
			return os.NewSyscallError("sched_setaffinity", err)
		}
	}
	return nil
}

// first returns the arguments of a process that runs before the proxies: if this process has a real-time priority
// ("chrt -r 1 bench"), with the next one.
func first(args ...string) []string {
	if p := realTime(); p > 0 {
		return append([]string{"chrt", "-r", fmt.Sprint(p + 1)}, args...)
	}
	return args
}

// last returns the arguments of a process that runs after the proxies, but before the other programs of the machine. A
// core on which processes with a real-time priority are always busy would be taken from them for 50 ms each second.
func last(args ...string) []string {
	if realTime() > 0 {
		return append([]string{"chrt", "-o", "0", "nice", "-n", "-15"}, args...)
	}
	return args
}

// realTime returns the real-time priority of this process, or 0.
func realTime() int {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy != unix.SCHED_RR && attr.Policy != unix.SCHED_FIFO {
		return 0
	}
	return int(attr.Priority)
}
