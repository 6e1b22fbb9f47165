package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
)

// The process that serves has only the rights that it needs: the user in the configuration,
// the capabilities in keptCapabilities, and write access below certain folders. The process
// that read the configuration gives up all other rights and then executes the same binary
// again (confine_linux.go). The second execution is needed because rights belong to a
// thread, and after execve there is only one thread. So this works with and without cgo,
// and nothing is opened with rights that a later reload would not have. The process id
// stays the same.

// confinedEnv is the environment variable that shows the second process that it is already
// confined. Child processes inherit the variable, and the limits as well.
const confinedEnv = "WEIR_CONFINED"

// confined is the report of the first process to the second one.
type confined struct {
	// User is the user that weir runs as, as the configuration names it, with its ids;
	// empty: the user was not changed.
	User string
	// Landlock is the version of the kernel's Landlock ABI that limits writing; 0: no
	// limit.
	Landlock int
	// Below are the folders, symbolic links resolved, that weir may write to. It has no
	// meaning without Landlock.
	Below []string
	// Seccomp is true if the kernel refuses the system calls in refusedCalls.
	Seccomp bool
	// Missing lists the steps that failed, and why.
	Missing []string
}

// confinement returns the report of the first process; nil if there was none.
func confinement() *confined {
	c := new(confined)
	if err := json.Unmarshal([]byte(os.Getenv(confinedEnv)), c); err != nil {
		return &confined{Missing: []string{confinedEnv + " is set, and not by weir: nothing was dropped"}}
	}
	return c
}

// log writes the log line "privileges given up", which names the user, the capabilities and the writable folders.
func (c *confined) log(log *zap.Logger) {
	fields := []zap.Field{zap.Int("uid", os.Getuid()), zap.Int("gid", os.Getgid())}
	if c.User != "" {
		fields = append(fields, zap.String("user", c.User))
	}
	fields = append(fields, privileges()...)
	if c.Landlock > 0 {
		fields = append(fields, zap.Int("landlock_abi", c.Landlock), zap.Strings("writes_below", c.Below))
	}
	fields = append(fields, zap.Bool("seccomp", c.Seccomp))
	if len(c.Missing) > 0 {
		fields = append(fields, zap.Strings("not_done", c.Missing))
	}
	log.Info("privileges given up", fields...)
}

// account is a user to run as.
type account struct {
	name     string // for log lines and errors
	uid, gid int
	groups   []int // supplementary, without gid
}

// lookupUser finds the user that the key user names: NAME, UID, NAME:GROUP or UID:GID.
func lookupUser(text string) (a account, err error) {
	name, group, withGroup := strings.Cut(text, ":")
	u, err := user.Lookup(name)
	if id, numeric := strconv.ParseUint(name, 10, 31); err != nil && numeric == nil {
		a.uid, a.gid = int(id), int(id)
		u, _ = user.LookupId(name) // a UID need not have a user
		err = nil
	}
	if err != nil {
		return a, fmt.Errorf("user: there is no user %q on this machine; create the user, or name another one", name)
	}
	if u != nil {
		a.uid, _ = strconv.Atoi(u.Uid)
		a.gid, _ = strconv.Atoi(u.Gid)
		ids, _ := u.GroupIds()
		for _, id := range ids {
			if n, err := strconv.Atoi(id); err == nil {
				a.groups = append(a.groups, n)
			}
		}
	}
	if withGroup {
		if a.gid, err = lookupGroup(group); err != nil {
			return a, err
		}
	}
	a.groups = slices.DeleteFunc(a.groups, func(g int) bool { return g == a.gid })
	a.name = fmt.Sprintf("%s (%d:%d)", name, a.uid, a.gid)
	return a, nil
}

func lookupGroup(name string) (int, error) {
	if g, err := user.LookupGroup(name); err == nil {
		return strconv.Atoi(g.Gid)
	}
	id, err := strconv.ParseUint(name, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("user: there is no group %q on this machine; create the group, or name another one", name)
	}
	return int(id), nil
}

// may returns true if the account may create and remove files in the folder, or write to
// the file.
func (a account) may(info fs.FileInfo, uid, gid int) bool {
	mode, need := info.Mode().Perm(), fs.FileMode(0o2)
	if info.IsDir() {
		need = 0o3
	}
	switch {
	case a.uid == 0:
		return true
	case a.uid == uid:
		return mode>>6&need == need
	case a.gid == gid || slices.Contains(a.groups, gid):
		return mode>>3&need == need
	}
	return mode&need == need
}

// written is a path that weir writes to.
type written struct {
	key, path string // the key and value in the configuration; the path is absolute
	folder    bool   // weir creates files in this folder
	storage   bool   // weir creates the folder itself, too
}

// mode is that of a file which weir makes for its user. Everybody may read the process id, as without user.
func (w written) mode() fs.FileMode {
	if w.key == "pid_file" {
		return 0o644
	}
	return 0o640
}

// writtenPlaces returns the paths that weir writes to with this configuration, each once.
func writtenPlaces(cfg *config.Config) (all []written) {
	add := func(key, path string, folder, storage bool) {
		if filepath.IsAbs(path) && !slices.ContainsFunc(all, func(w written) bool { return w.path == path }) {
			all = append(all, written{key, path, folder, storage})
		}
	}
	add("storage", string(cfg.Storage), true, true)
	for _, c := range cfg.Certificates {
		if c.ACME != nil {
			add("certificates[].acme.storage", string(c.ACME.Storage), true, true)
		}
	}
	if a := cfg.AccessLog; a != nil && a.Path != "stdout" && a.Path != "stderr" {
		if abs, err := filepath.Abs(a.Path); err == nil { // it may be relative to the working directory
			add("access_log.path", abs, false, false)
		}
	}
	add("pid_file", cfg.PIDFile, false, false)
	socket := func(key, network, path string) {
		if abs, err := filepath.Abs(path); network == "unix" && err == nil && !strings.HasPrefix(path, "@") {
			add(key, filepath.Dir(abs), true, false)
		}
	}
	for _, l := range cfg.Listeners {
		socket("listeners."+l.Name+".address", l.Network, l.Address)
	}
	if h := cfg.Health; h != nil {
		socket("health.address", h.Network, h.Address)
	}
	if m := cfg.Metrics; m != nil && m.Address != "" {
		socket("metrics.address", m.Network, m.Address)
	}
	socket("admin.address", cfg.Admin.Network, cfg.Admin.Address)
	return all
}

// folders returns the folders that must be writable for all places. Symbolic links are resolved.
func folders(places []written) (all []string) {
	for _, w := range places {
		path := resolved(w.path)
		if !w.folder {
			path = filepath.Dir(path)
		}
		all = append(all, path)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// resolved returns path without symbolic links. The part of path that does not exist yet is kept unchanged.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) {
		return real
	}
	return filepath.Join(resolved(filepath.Dir(path)), filepath.Base(path))
}

// alwaysWritten are folders that weir may always write to, so that a reload may name them.
var alwaysWritten = []string{"/tmp", "/var/tmp", "/var/log", "/var/lib/weir", "/run/weir"}

// permits returns an error if the configuration writes to a folder that Landlock
// forbids. A process cannot remove its own Landlock rules: only a restart helps.
func (c *confined) permits(cfg *config.Config) error {
	if c == nil || c.Landlock == 0 {
		return nil
	}
	var errs []error
	for _, w := range writtenPlaces(cfg) {
		place := folders([]written{w})[0]
		if strings.HasPrefix(place, "/dev") || strings.HasPrefix(place, "/proc") {
			continue // a standard stream; for other files there the kernel returns an error
		}
		if !slices.ContainsFunc(c.Below, func(b string) bool { return place == b || strings.HasPrefix(place, strings.TrimSuffix(b, "/")+"/") }) {
			errs = append(errs, fmt.Errorf("%s: weir cannot write to %s before a restart: Landlock lets this process write only below %s; restart weir, or choose a path below one of these folders",
				w.key, place, strings.Join(c.Below, ", ")))
		}
	}
	return errors.Join(errs...)
}

// warnUser returns warnings about the key user, for example that this machine has no such
// user.
func warnUser(cfg *config.Config) (all []string) {
	if cfg.User == "" {
		return nil
	}
	a, err := lookupUser(cfg.User)
	if err != nil {
		return []string{err.Error()}
	}
	for _, err := range a.unwritable(writtenPlaces(cfg)) {
		all = append(all, err.Error())
	}
	return all
}
