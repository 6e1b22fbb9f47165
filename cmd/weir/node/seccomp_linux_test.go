package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// seccompChildEnv names, for a process that TestRefusedCalls starts, a program for another machine type.
const seccompChildEnv = "WEIR_TEST_SECCOMP_CHILD"

// An attacker who takes weir over cannot use the system calls in refusedCalls, enter new namespaces, or
// start a program whose system calls have other numbers. Other programs still start.
func TestRefusedCalls(t *testing.T) {
	if other, child := os.LookupEnv(seccompChildEnv); child {
		runtime.LockOSThread() // never unlocked: the filter belongs to this thread
		if err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), refuseCalls()); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, other)
		return
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, exit386(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(other).Run(); err != nil {
		t.Logf("this kernel does not run programs for 386, so they need no filter: %v", err)
		other = ""
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestRefusedCalls$", "-test.v")
	cmd.Env = append(os.Environ(), seccompChildEnv+"="+other)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

// wantRefused makes system calls that this thread must not make any more. Without the filter,
// each of them works for root, or fails with another error.
func wantRefused(t *testing.T, other string) {
	var attr [16]byte
	_, _, bpf := unix.Syscall(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	_, _, uring := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	_, _, ptrace := unix.Syscall(unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1<<30, 0) // no such process
	_, _, clone3 := unix.Syscall(unix.SYS_CLONE3, 0, 0, 0)
	inNamespace := exec.Command("/proc/self/exe", "-test.run", "^$")
	inNamespace.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	for what, c := range map[string]struct{ got, want error }{
		"bpf":                      {bpf, unix.EPERM},
		"io_uring_setup":           {uring, unix.EPERM},
		"ptrace":                   {ptrace, unix.EPERM},
		"clone3":                   {clone3, unix.ENOSYS},
		"mount":                    {unix.Mount("none", "/tmp", "no such file system", 0, ""), unix.EPERM},
		"unshare":                  {unix.Unshare(unix.CLONE_NEWUSER), unix.EPERM},
		"clone with a namespace":   {inNamespace.Run(), unix.EPERM},
		"an ordinary program":      {exec.Command("/proc/self/exe", "-test.run", "^$").Run(), nil},
		"the start of a goroutine": {startThread(), nil},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	if other == "" {
		return
	}
	if err := exec.Command(other).Run(); err == nil {
		t.Error("a program for 386 ran")
	}
}

// startThread starts a thread of the operating system.
func startThread() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- unix.Access("/", unix.R_OK)
	}()
	return <-done
}

// exit386 is a program for Linux on 386 that only exits with status 0. After a refused system
// call it runs into an illegal instruction.
func exit386() []byte {
	const base = 0x08048000
	code := []byte{
		0xb8, 1, 0, 0, 0, // mov eax, 1: exit
		0x31, 0xdb, // xor ebx, ebx
		0xcd, 0x80, // int 0x80
		0x0f, 0x0b, // ud2
	}
	le := binary.LittleEndian
	head := append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 9)...)
	head = le.AppendUint16(head, 2) // an executable
	head = le.AppendUint16(head, 3) // for 386
	const headers = 52 + 32
	for _, v := range []uint32{1, base + headers, 52, 0, 0} {
		head = le.AppendUint32(head, v)
	}
	for _, v := range []uint16{52, 32, 1, 0, 0, 0} {
		head = le.AppendUint16(head, v)
	}
	size := uint32(headers + len(code))
	for _, v := range []uint32{1, 0, base, base, size, size, 5, 0x1000} { // one segment, read and executed
		head = le.AppendUint32(head, v)
	}
	if len(head) != headers {
		panic(fmt.Sprintf("the headers have %d bytes", len(head)))
	}
	return append(head, code...)
}
