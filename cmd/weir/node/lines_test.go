package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// If the disk is full, weir loses lines of the access log and nothing else. The log reports
// it once, and weir counts every lost line.
func TestAccessLogOnAFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("this system has no /dev/full, and CI leaves nothing out")
		}
		t.Skip("this system has no /dev/full")
	}
	r, _ := newWeb(t, web+"access_log: {path: /dev/full}\n")
	for range 20 {
		r.want("web", 200, "app")
	}
	eventually(t, "20 lost lines are counted", func() error {
		if n := testutil.ToFloat64(r.metrics.droppedLines.WithLabelValues("failed")); n != 20 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	const lost = "the access log cannot be written, and its lines are dropped until it can (access_log.path)"
	eventually(t, "the loss is logged", func() error {
		if n := r.lines.FilterMessage(lost).Len(); n != 1 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
}

// On a terminal the access log is on, unless the file turns it off.
func TestAccessLogByDefault(t *testing.T) {
	r, a := newWeb(t, web)
	web := strings.ReplaceAll(web, "@app", a.address)
	f := func(text string, terminal bool, want string) {
		t.Helper()
		r.showRequests = terminal
		r.load(text)
		got := ""
		if a := r.server.lines.Load(); a != nil {
			got = a.of.Path + strings.Join(a.of.Redact, ",")
		}
		if got != want {
			t.Errorf("%q, terminal %t: the access log is %q, not %q", text, terminal, got, want)
		}
	}
	f(web, false, "")
	f(web, true, "stdout")
	f(web+"access_log: {path: off}\n", true, "")
	f(web+"access_log: {redact: [token]}\n", false, "stdouttoken")
	path := filepath.Join(t.TempDir(), "access.log")
	f(web+"access_log: {path: "+path+"}\n", true, path)
	file := r.server.lines.Load().Writer
	f(web+"access_log: {path: "+path+", redact: [token]}\n", true, path+"token")
	if now := r.server.lines.Load().Writer; now != file {
		t.Error("the file was opened again")
	}
	r.want("web", 200, "app")
	eventually(t, "the line is in the file", func() error {
		text, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(text), `"route"`) {
			err = os.ErrNotExist
		}
		return err
	})
}
