package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/disk"
)

// keptCapabilities are the capabilities that weir keeps if it was started with them: for
// ports below 1024, and for files that only root may read, also after a reload. Only root
// keeps the last one: its logs and sockets may be in folders of other users.
var keptCapabilities = []struct {
	number   uintptr
	name     string
	rootOnly bool
}{
	{unix.CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE", false},
	{unix.CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH", false},
	{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE", true},
}

// keepInput makes it possible to read standard input, or a pipe, twice: before and after confine. It returns
// the path for it.
func keepInput(path string) (string, error) {
	var in *os.File
	if path == "-" {
		in = os.Stdin
	} else if info, err := os.Stat(path); err != nil || info.Mode().IsRegular() || info.IsDir() {
		return path, nil
	}
	if _, again := os.LookupEnv(confinedEnv); again {
		return "-", nil
	}
	text, err := disk.ReadStream(in, path, maxInput)
	if err == nil {
		err = replaceInput(text)
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the configuration from a pipe: %w", err)
	}
	return "-", nil
}

// replaceInput makes text the content of standard input.
func replaceInput(text []byte) error {
	fd, err := unix.MemfdCreate("weir.yaml", 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	f := os.NewFile(uintptr(fd), "weir.yaml")
	if _, err = f.Write(text); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = unix.Dup3(fd, 0, 0)
	}
	runtime.KeepAlive(f)
	return err
}

// maxInput limits standard input; a configuration may not be larger.
const maxInput = 17 << 20

// confine takes from this process all rights that serving cfg does not need, and
// starts the binary again in its place: then it does not return. In the second
// process it returns a description of the limits. After an error the process must
// end, because it may have lost rights already.
func confine(cfg *config.Config) (*confined, error) {
	if _, done := os.LookupEnv(confinedEnv); done {
		return confinement(), nil
	}
	runtime.LockOSThread() // never unlocked: the limits belong to this thread, and execve keeps it
	c := new(confined)
	a, places := account{uid: os.Geteuid(), gid: os.Getegid()}, writtenPlaces(cfg)
	switch {
	case cfg.User == "":
	case a.uid != 0:
		c.Missing = append(c.Missing, fmt.Sprintf("user: weir was not started as root, so it stays with uid %d", a.uid))
	default:
		var err error
		if a, err = lookupUser(cfg.User); err != nil {
			return nil, err
		}
		c.User = a.name
	}
	if err := a.prepare(places, c.User != ""); err != nil {
		return nil, err
	}
	if err := c.drop(a, c.User != ""); err != nil {
		return nil, err
	}
	if cfg.Landlock {
		c.limitWrites(folders(places))
	}
	if cfg.Seccomp {
		if err := refuseCalls(); err != nil {
			c.Missing = append(c.Missing, fmt.Sprintf("seccomp: %v", err))
		} else {
			c.Seccomp = true
		}
	}
	return nil, c.startAgain()
}

// drop takes capabilities and, if change, the user from this thread.
func (c *confined) drop(a account, change bool) error {
	have, err := capabilities()
	if err != nil {
		return fmt.Errorf("cannot ask for the capabilities of this process: %w", err)
	}
	keep := uint64(0)
	for _, k := range keptCapabilities {
		if have&(1<<k.number) != 0 && (a.uid == 0 || !k.rootOnly) {
			keep |= 1 << k.number
		}
	}
	// On execve, root regains every capability in the bounding set.
	for number := uintptr(0); number < 64; number++ {
		if keep&(1<<number) != 0 {
			continue
		}
		if set, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, number, 0, 0, 0); err != nil || set == 0 {
			continue // the kernel does not know it, or it is dropped
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, number, 0, 0, 0); err != nil {
			if a.uid == 0 { // under no_new_privs the bounding set gives no rights to other users
				c.Missing = append(c.Missing, "the bounding set of capabilities stays: weir was started without CAP_SETPCAP")
			}
			break
		}
	}
	if change {
		if err := a.become(); err != nil {
			return err
		}
	}
	switch err := setCapabilities(keep); {
	case err != nil && have != keep:
		return fmt.Errorf("cannot drop capabilities: %w", err)
	case err != nil: // a filter of system calls refuses the call, but there were no capabilities to drop
		c.Missing = append(c.Missing, fmt.Sprintf("capset: %v", err))
	}
	if a.uid != 0 { // otherwise execve takes them as well
		for _, k := range keptCapabilities {
			if keep&(1<<k.number) == 0 {
				continue
			}
			if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, k.number, 0, 0); err != nil {
				c.Missing = append(c.Missing, fmt.Sprintf("%s is lost: %v", k.name, err))
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		c.Missing = append(c.Missing, fmt.Sprintf("no_new_privs: %v", err))
	}
	return nil
}

// become changes the user of this process to a. This thread keeps its capabilities.
func (a account) become() error {
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("user: cannot keep capabilities while the user changes: %w", err)
	}
	for _, step := range []error{syscall.Setgroups(a.groups), syscall.Setresgid(a.gid, a.gid, a.gid), syscall.Setresuid(a.uid, a.uid, a.uid)} {
		if step != nil {
			return fmt.Errorf("user: cannot become %s: %w; weir needs CAP_SETUID and CAP_SETGID for that, or start it as that user and take user out", a.name, step)
		}
	}
	return nil
}

// prepare creates the files and folders to which weir writes, because it cannot create them once it
// is confined. If the user changes, prepare gives them to the user a, and checks that a can write to them.
func (a account) prepare(places []written, change bool) error {
	for _, w := range places {
		_, err := os.Stat(w.path)
		switch {
		case !errors.Is(err, fs.ErrNotExist):
			continue
		case !change:
			if w.storage {
				makeFolder(w.path) // opening the storage fails with the same error, which is reported then
			}
			continue
		}
		err = a.make(w)
		if !w.folder && errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: the folder %s does not exist, so %s cannot be made for the user %s; make the folder, or give another path", w.key, filepath.Dir(w.path), w.path, a.name)
		}
		if err != nil {
			return fmt.Errorf("%s: cannot make %s for the user %s: %w", w.key, w.path, a.name, err)
		}
	}
	if !change {
		return nil
	}
	return errors.Join(a.unwritable(places)...)
}

// make creates a file or a folder for the user a. It gives it away by its descriptor: something else may
// take the place of the path meanwhile.
func (a account) make(w written) error {
	var f *os.File
	var err error
	if w.folder {
		if err = makeFolder(w.path); err == nil {
			f, err = disk.OpenFolder(w.path)
		}
	} else {
		f, err = disk.OpenOwn(w.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, w.mode())
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Chown(a.uid, a.gid), f.Close())
}

// makeFolder creates a folder that only its owner may enter. Missing folders above it may
// be entered by everybody.
func makeFolder(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.Mkdir(path, 0o700)
}

// unwritable returns an error for each existing path that a cannot write to.
func (a account) unwritable(places []written) (errs []error) {
	for _, w := range places {
		info, err := os.Stat(w.path)
		if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
			continue // it will be created, or is a stream
		}
		if of, ok := info.Sys().(*syscall.Stat_t); ok && !a.may(info, int(of.Uid), int(of.Gid)) {
			errs = append(errs, fmt.Errorf("%s: the user %s cannot write to %s, which belongs to %d:%d with mode %04o; chown -R %d:%d it",
				w.key, a.name, w.path, of.Uid, of.Gid, info.Mode().Perm(), a.uid, a.gid))
		}
	}
	return errs
}

// capabilities returns the permitted capabilities of this thread.
func capabilities() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, err
	}
	return uint64(data[1].Permitted)<<32 | uint64(data[0].Permitted), nil
}

// setCapabilities makes set the permitted, effective and inheritable capabilities of this
// thread. It makes no system call if nothing changes.
func setCapabilities(set uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data, now [2]unix.CapUserData
	known := unix.Capget(&header, &now[0]) == nil
	for i := range data {
		half := uint32(set >> (32 * i))
		data[i] = unix.CapUserData{Effective: half, Permitted: half, Inheritable: half}
	}
	if known && now == data {
		return nil
	}
	return unix.Capset(&header, &data[0])
}

// writes are the rights that Landlock allows only below certain folders. Landlock limits
// neither reading, nor starting programs, nor the network: a reload may name any
// certificate and any port.
const writes = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
	unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REFER |
	unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
	unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM

const (
	landlockLeast  = 3 // Linux 6.2: older versions do not limit truncation
	landlockScopes = 6 // Linux 6.12: no signals to other processes
)

// limitWrites lets this thread and its successors write only below places and
// alwaysWritten. If the kernel has no Landlock, c records the reason.
func (c *confined) limitWrites(places []string) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case errno != 0:
		c.Missing = append(c.Missing, fmt.Sprintf("landlock: the kernel does not have it (%v)", errno))
		return
	case abi < landlockLeast:
		c.Missing = append(c.Missing, fmt.Sprintf("landlock: the kernel has ABI %d, and weir needs %d (Linux 6.2)", abi, landlockLeast))
		return
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: writes}
	if abi >= landlockScopes {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL
	}
	ruleset, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		c.Missing = append(c.Missing, fmt.Sprintf("landlock: %v", errno))
		return
	}
	defer unix.Close(int(ruleset))
	for _, file := range []string{"/dev/null", "/dev/tty", "/dev/console"} {
		allowWrites(int(ruleset), file, unix.LANDLOCK_ACCESS_FS_WRITE_FILE|unix.LANDLOCK_ACCESS_FS_TRUNCATE)
	}
	allowWrites(int(ruleset), "/dev/pts", unix.LANDLOCK_ACCESS_FS_WRITE_FILE)
	for _, folder := range slices.Concat(places, alwaysWritten) {
		if !slices.Contains(alwaysWritten, folder) {
			folder = existing(folder)
		}
		err := allowWrites(int(ruleset), folder, writes)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			c.Missing = append(c.Missing, fmt.Sprintf("landlock: %s: %v", folder, err))
			return
		}
		c.Below = append(c.Below, resolved(folder))
	}
	slices.Sort(c.Below)
	c.Below = slices.Compact(c.Below)
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0, 0); errno != 0 {
		c.Missing = append(c.Missing, fmt.Sprintf("landlock: %v", errno))
		return
	}
	c.Landlock = int(abi)
}

// existing returns folder, or the nearest existing folder above it, in which folder can be
// created.
func existing(folder string) string {
	for {
		if _, err := os.Stat(folder); err == nil || folder == filepath.Dir(folder) {
			return folder
		}
		folder = filepath.Dir(folder)
	}
}

// allowWrites allows these rights below path.
func allowWrites(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	beneath := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// startAgain replaces this process with the same binary, which has only the remaining
// rights.
func (c *confined) startAgain() error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	os.Stdin.Seek(0, io.SeekStart) // read the configuration from standard input again
	env := append(os.Environ(), confinedEnv+"="+string(text))
	path, err := os.Executable()
	if err == nil && !strings.HasSuffix(path, " (deleted)") {
		syscall.Exec(path, os.Args, env) // ps and pgrep then show this name
	}
	// The new user may not be able to enter a folder in the path.
	if err = syscall.Exec("/proc/self/exe", os.Args, env); err != nil {
		return fmt.Errorf("cannot start %s again with fewer rights: %w; let the user of this process (uid %d) execute that file", path, err, os.Getuid())
	}
	return nil
}

// privileges returns the current rights of this process, for the log.
func privileges() []zap.Field {
	have, err := capabilities()
	if err != nil {
		return []zap.Field{zap.Error(err)}
	}
	names := []string{}
	for _, k := range keptCapabilities {
		if have&(1<<k.number) != 0 {
			names, have = append(names, k.name), have&^(1<<k.number)
		}
	}
	if have != 0 {
		names = append(names, fmt.Sprintf("%#x", have))
	}
	on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return []zap.Field{zap.Strings("capabilities", names), zap.Bool("no_new_privs", err == nil && on == 1)}
}
