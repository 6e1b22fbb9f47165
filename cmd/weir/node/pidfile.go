package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/disk"
)

// writePIDFile writes the id of this process into pid_file. Readers of an older id never see an empty file.
func writePIDFile(path string) error {
	if path == "" {
		return nil
	}
	f, err := disk.OpenOwn(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("pid_file: %w", err)
	}
	defer f.Close()
	text := strconv.Itoa(os.Getpid()) + "\n"
	if _, err = f.WriteAt([]byte(text), 0); err == nil {
		err = f.Truncate(int64(len(text)))
	}
	if err != nil {
		return fmt.Errorf("pid_file: %w", err)
	}
	return nil
}

// permitsPIDFile returns an error if this process could not write its id. It is called before this process
// takes over: whoever knows weir by the file of the former process would lose it. If the former process could
// not write one either, nothing is lost.
func (b *former) permitsPIDFile(path string) error {
	if path == "" || b.state.PIDFile == "" {
		return nil
	}
	f, err := disk.OpenOwn(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		// Not the file itself: readers must never see an empty one.
		if f, err = os.CreateTemp(filepath.Dir(path), ".weir*.pid"); err == nil {
			defer os.Remove(f.Name())
		}
	}
	if err != nil {
		return fmt.Errorf("pid_file: the new process could not write its id: %w", err)
	}
	return f.Close()
}

// removePIDFile removes the file, if it contains the id pid. If the user of weir may not remove files from
// the folder, the file is empty afterwards: the system may give the id to another process.
func removePIDFile(path string, pid int) {
	if path == "" {
		return
	}
	if text, err := disk.Read(path, 1<<20); err != nil || strings.TrimSpace(string(text)) != strconv.Itoa(pid) || os.Remove(path) == nil {
		return
	}
	if f, err := disk.OpenOwn(path, os.O_WRONLY|os.O_TRUNC, 0); err == nil {
		f.Close()
	}
}

// removeEmptyPIDFile removes the file that confine made for the user of a weir that did not start.
func removeEmptyPIDFile(path string) {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		os.Remove(path)
	}
}

// removePIDFile removes the file of the former process, unless this process writes the same file.
func (b *former) removePIDFile(now string) {
	if b != nil && b.state.PIDFile != now {
		removePIDFile(b.state.PIDFile, b.PID)
	}
}
