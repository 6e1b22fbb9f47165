package node

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// writePIDFile writes the id of this process into pid_file. Readers never see an empty file.
func writePIDFile(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
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

// removePIDFile removes the file, if it contains the id pid.
func removePIDFile(path string, pid int) {
	if path == "" {
		return
	}
	if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(pid) {
		os.Remove(path)
	}
}

// removePIDFile removes the file of the former process, unless this process writes the same file.
func (b *former) removePIDFile(now string) {
	if b != nil && b.state.PIDFile != now {
		removePIDFile(b.state.PIDFile, b.pid)
	}
}
