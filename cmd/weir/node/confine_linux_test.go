package node

import (
	"os"
	"path/filepath"
	"strings"
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
