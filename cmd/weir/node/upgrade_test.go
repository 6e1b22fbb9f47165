package node

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// An upgrade may wait for a reload that waits for a cluster. The signal that ends weir waits for neither.
func TestEndDoesNotWaitForReload(t *testing.T) {
	r := newRunning(t, "listeners: {web: {address: '@web', protocol: http}}\nroutes: [{listeners: [web], respond: {status: 200}}]\n", "web")
	r.upgrade.container = "" // where the tests run
	r.loading.Lock()
	go func() { // a reload that waits
		<-r.waits.Done()
		r.loading.Unlock()
	}()
	r.startUpgrade()
	if r.cancelUpgrade() {
		t.Error("a new process serves")
	}
}

// Whoever is told that an upgrade has failed, by the log or by READY=1, may ask for the next one at once.
func TestUpgradeAfterFailedOne(t *testing.T) {
	r := newRunning(t, "listeners: {web: {address: '@web', protocol: http}}\nroutes: [{listeners: [web], respond: {status: 200}}]\n", "web")
	r.upgrade.container, r.upgrade.binary = "", "/bin/false"
	again := sync.OnceFunc(r.startUpgrade)
	r.log = r.log.WithOptions(zap.Hooks(func(e zapcore.Entry) error {
		if strings.HasPrefix(e.Message, "the upgrade failed") {
			again()
		}
		return nil
	}))
	r.startUpgrade()
	eventually(t, "the second upgrade has failed as well", func() error {
		if n := testutil.ToFloat64(r.metrics.upgrades.WithLabelValues("failure")); n != 2 {
			return fmt.Errorf("%v have failed", n)
		}
		return nil
	})
	if got := r.lasting.text(upgradeProblem); !strings.HasPrefix(got, "the last upgrade failed: ") {
		t.Errorf("the problem is %q", got)
	}
}

// The end of weir and the takeover exclude each other: the new process is either ended before it accepts, or serves.
func TestUpgradeIsDecidedOnce(t *testing.T) {
	u := newUpgrade()
	u.cancel = true
	for _, at := range []stage{stageStarting, stageLoading, stageAccepting} {
		if u.advance(at, &successor{}) == nil || u.at == at || u.current() != nil {
			t.Errorf("after the end began, a new process takes over in the stage %s", u.at)
		}
	}
	u.at = stageAccepting
	if err := u.advance(stageLeft, &successor{}); err != nil || u.at != stageLeft {
		t.Errorf("a new process that has clients does not get the sockets: %v", err)
	}
}

// The error for a new process that is too slow names upgrade_timeout only if this setting is the limit.
func TestTooSlowSuccessor(t *testing.T) {
	for kind, want := range map[string]string{
		noteHello:   "the new process did not answer within 10s; it hangs, or is not weir",
		noteReady:   "the new process did not become ready within 10s (upgrade_timeout); its log says what it waits for",
		noteServing: "the new process did not answer within 10s; it hangs, or is not weir",
	} {
		synctest.Test(t, func(t *testing.T) {
			conn, other := net.Pipe()
			defer other.Close()
			defer conn.Close()
			c := &successor{conn: &noteConn{Conn: conn, reader: bufio.NewReader(conn)}}
			if _, err := c.hear(kind, 10*time.Second); err == nil || err.Error() != want {
				t.Errorf("%s: %v", kind, err)
			}
		})
	}
}

// A process that stood still until its timeout had passed, as with SIGSTOP, still reads that the new one serves.
func TestStandsStillDuringUpgrade(t *testing.T) {
	conn, other := net.Pipe()
	defer other.Close()
	defer conn.Close()
	c := &successor{conn: &noteConn{Conn: conn, reader: bufio.NewReader(conn)}}
	go (&noteConn{Conn: other}).say(note{Kind: noteServing})
	if n, err := c.hear(noteServing, time.Nanosecond); err != nil || n.Kind != noteServing {
		t.Errorf("%+v, %v", n, err)
	}
}

// The kernel's error for a missing interpreter is the one for a missing file.
func TestStartErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want, not string }{
		"no file":          {"", "no such file or directory", "interpreter"},
		"no interpreter":   {"#!/nowhere/sh\n", "no such file or directory; the file exists, but its interpreter does not", "machine"},
		"no program":       {"weir\n", "exec format error; the file is not a program for this machine", "interpreter"},
		"a folder instead": {"#!/\n", "permission denied", "interpreter"},
	} {
		t.Run(name, func(t *testing.T) {
			binary := filepath.Join(t.TempDir(), "weir")
			if c.text != "" {
				if err := os.WriteFile(binary, []byte(c.text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			_, err := startSuccessor(binary, []string{"weir"}, nil)
			if err == nil || !strings.Contains(err.Error(), "cannot start "+binary+" as uid") || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), c.not) {
				t.Errorf("%v", err)
			}
		})
	}
}
