package node

import (
	"fmt"
	"slices"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refusedCalls are system calls that weir never makes, and that a program which takes weir
// over would use to take over more of the machine. The kernel answers them with EPERM.
// Everything else is allowed, because the Go runtime and the libraries may begin to
// use a call that no list of today has. execve is allowed: an upgrade starts the new binary.
var refusedCalls = []string{
	// Other processes.
	"kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace",
	// The kernel, its modules and its interfaces with a history of faults.
	"bpf", "delete_module", "finit_module", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup",
	"kexec_file_load", "kexec_load", "perf_event_open", "userfaultfd", "vmsplice",
	// Files of others: mounts, namespaces, devices, keys.
	"add_key", "chroot", "fsconfig", "fsmount", "fsopen", "fspick", "keyctl", "mknod", "mknodat", "mount", "mount_setattr",
	"move_mount", "name_to_handle_at", "open_by_handle_at", "open_tree", "pivot_root", "quotactl", "quotactl_fd", "request_key",
	"setns", "swapoff", "swapon", "umount2", "unshare",
	// The machine's clock, name and power.
	"acct", "adjtimex", "clock_adjtime", "clock_settime", "ioperm", "iopl", "lookup_dcookie", "nfsservctl", "personality",
	"reboot", "setdomainname", "sethostname", "settimeofday", "syslog", "vhangup",
}

// namespaces are the flags of clone that make the child leave a namespace of the kernel.
var namespaces = []uint64{unix.CLONE_NEWCGROUP, unix.CLONE_NEWIPC, unix.CLONE_NEWNET, unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWUSER, unix.CLONE_NEWUTS}

// refuseCalls makes the kernel refuse refusedCalls to this thread, and to all processes that
// it executes or starts from now on. The thread must have no_new_privs.
func refuseCalls() error {
	machine, err := arch.GetInfo("")
	if err != nil {
		return fmt.Errorf("system calls of this machine are not known: %w", err)
	}
	known := slices.DeleteFunc(slices.Clone(refusedCalls), func(name string) bool {
		_, ok := machine.SyscallNames[name]
		return !ok
	})
	refused := seccomp.SyscallGroup{Action: seccomp.ActionErrno | seccomp.Action(unix.EPERM), Names: known}
	for _, flag := range namespaces {
		refused.NamesWithCondtions = append(refused.NamesWithCondtions, seccomp.NameWithConditions{
			Name: "clone", Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsSet, Value: flag}},
		})
	}
	// The flags of clone3 are in memory, where a filter cannot see them. A program that is
	// told that there is no clone3 uses clone.
	absent := seccomp.SyscallGroup{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), Names: []string{"clone3"}}
	err = seccomp.LoadFilter(seccomp.Filter{Policy: seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls:      []seccomp.SyscallGroup{refused, absent},
	}})
	if err != nil {
		return err
	}
	return refuseOtherMachines(uint32(machine.ID))
}

// refuseOtherMachines refuses the system calls of other machine types, such as those of
// 32-bit programs on amd64. Their numbers differ, and the filter of the library lets all of
// them pass.
func refuseOtherMachines(id uint32) error {
	const offset = 4 // of the machine type in the data that a filter sees (struct seccomp_data)
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: id, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	})
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, 0, len(raw))
	for _, i := range raw {
		filter = append(filter, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return nil
}
