package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPrepareNamesMissingFolder: weir creates the access log for its user, but not the folder of the log.
func TestPrepareNamesMissingFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "absent")
	a := account{name: "weir (5:6)", uid: 5, gid: 6}
	err := a.prepare([]written{{key: "access_log.path", path: filepath.Join(folder, "access.log")}}, true)
	if err == nil || !strings.Contains(err.Error(), "access_log.path: the folder "+folder+" does not exist") {
		t.Error(err)
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the folder was made")
	}
}

// What root makes for the user of weir is the user's, and nothing is made through a link.
func TestPrepareFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	a := account{name: "weir", uid: os.Geteuid(), gid: os.Getegid()}
	if a.uid == 0 {
		a.uid, a.gid = 12345, 12346
	}
	for _, folder := range []bool{false, true} {
		link, made := filepath.Join(dir, "link"), filepath.Join(dir, "made")
		if err := os.Symlink(filepath.Join(dir, "victim"), link); err != nil {
			t.Fatal(err)
		}
		if err := a.prepare([]written{{key: "pid_file", path: link, folder: folder}}, true); err == nil {
			t.Error("a link is prepared")
		}
		if _, err := os.Lstat(filepath.Join(dir, "victim")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file that a link names: %v", err)
		}
		if err := a.prepare([]written{{key: "pid_file", path: made, folder: folder}}, true); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(made); err != nil || info.IsDir() != folder || int(info.Sys().(*syscall.Stat_t).Uid) != a.uid {
			t.Errorf("%v, %v", info, err)
		}
		if err := errors.Join(os.Remove(link), os.Remove(made)); err != nil {
			t.Fatal(err)
		}
	}
}
