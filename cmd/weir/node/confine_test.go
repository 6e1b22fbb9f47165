package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

func TestLookupUser(t *testing.T) {
	f := func(text string, uid, gid int, want string) {
		t.Helper()
		a, err := lookupUser(text)
		switch {
		case want == "" && (err != nil || a.uid != uid || a.gid != gid || slices.Contains(a.groups, gid)):
			t.Errorf("%s: %+v, %v", text, a, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	f("root", 0, 0, "")
	f("0", 0, 0, "")
	f("root:12345", 0, 12345, "")
	f("12345", 12345, 12345, "")
	f("12345:54321", 12345, 54321, "")
	f("no-such-user", 0, 0, `there is no user "no-such-user" on this machine`)
	f("0:no-such-group", 0, 0, `there is no group "no-such-group" on this machine`)
	f("-1", 0, 0, "there is no user")
}

// mode is a fs.FileInfo that has only the file mode.
type mode fs.FileMode

func (m mode) Name() string       { return "" }
func (m mode) Size() int64        { return 0 }
func (m mode) Mode() fs.FileMode  { return fs.FileMode(m) }
func (m mode) ModTime() time.Time { return time.Time{} }
func (m mode) IsDir() bool        { return fs.FileMode(m).IsDir() }
func (m mode) Sys() any           { return nil }

func TestMayWrite(t *testing.T) {
	a := account{uid: 5, gid: 6, groups: []int{7}}
	f := func(a account, m fs.FileMode, uid, gid int, want bool) {
		t.Helper()
		if got := a.may(mode(m), uid, gid); got != want {
			t.Errorf("%d:%d may write %v of %d:%d: %v", a.uid, a.gid, m, uid, gid, got)
		}
	}
	f(a, 0o600, 5, 0, true)
	f(a, 0o066, 5, 6, false) // the bits of the owner apply to the owner only
	f(a, 0o020, 0, 6, true)
	f(a, 0o020, 0, 7, true)
	f(a, 0o020, 0, 8, false)
	f(a, 0o602, 0, 0, true)
	f(a, 0o660, 0, 0, false)
	f(a, fs.ModeDir|0o200, 5, 6, false) // opening a file needs the execute permission of its folder
	f(a, fs.ModeDir|0o300, 5, 6, true)
	f(account{}, 0o000, 5, 6, true)
}

func TestWrittenPlaces(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/real", 0o755), os.Symlink("real", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{
		Storage:      config.Secret(dir + "/link/state"),
		AccessLog:    &config.AccessLog{Path: dir + "/link/access.log"},
		Certificates: []config.Certificate{{ACME: &config.ACME{Storage: "redis://a/1"}}, {ACME: &config.ACME{Storage: config.Secret(dir + "/link/state")}}},
		Listeners:    []config.Listener{{Name: "a", Network: "unix", Address: dir + "/s/a.sock"}, {Name: "b", Network: "tcp", Address: ":80"}},
		Admin:        config.Admin{Network: "unix", Address: "@abstract"},
	}
	places := writtenPlaces(cfg)
	want := []string{filepath.Join(dir, "real"), filepath.Join(dir, "real/state"), filepath.Join(dir, "s")}
	if got := folders(places); !slices.Equal(got, want) {
		t.Errorf("folders are %q, want %q", got, want)
	}
	// weir may write to the working directory: a relative path of the access log begins there.
	t.Chdir(dir)
	cfg.AccessLog.Path = "access.log"
	if got := folders(writtenPlaces(cfg)); !slices.Contains(got, resolved(dir)) {
		t.Errorf("folders are %q, without that of a relative access log", got)
	}
	cfg.AccessLog.Path = dir + "/link/access.log"
	c := &confined{Landlock: 7, Below: []string{filepath.Join(dir, "real"), filepath.Join(dir, "s")}}
	if err := c.permits(cfg); err != nil {
		t.Error(err)
	}
	c.Below = []string{filepath.Join(dir, "real"), filepath.Join(dir, "so")}
	if err := c.permits(cfg); err == nil || !strings.Contains(err.Error(), "listeners.a.address: weir cannot write to") {
		t.Errorf("a socket elsewhere: %v", err)
	}
	c.Landlock = 0
	if err := errors.Join(c.permits(cfg), (*confined)(nil).permits(cfg)); err != nil {
		t.Error(err)
	}
}
