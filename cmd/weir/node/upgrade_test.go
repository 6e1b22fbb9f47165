package node

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestEndsContainer(t *testing.T) {
	for _, one := range []struct {
		pid, parent int
		first, want string // want: empty means that no container ends
	}{
		{1, 0, "weir", "process 1"},
		{7, 0, "pause", "main process"},
		{7, 1, "tini", "child of tini"},
		{7, 1, "docker-init", "child of docker-init"},
		{7, 6, "tini", ""},
		{7, 1, "systemd", ""},
		{7, 1, "bash", ""},
		{7, 1, "", ""},
	} {
		got := endsContainer(one.pid, one.parent, one.first)
		if (got == "") != (one.want == "") || !strings.Contains(got, one.want) {
			t.Errorf("process %d, parent %d, first %q: %q, and not %q", one.pid, one.parent, one.first, got, one.want)
		}
	}
}

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

// The end of weir and the takeover exclude each other: the new process is either ended, or serves.
func TestUpgradeIsDecidedOnce(t *testing.T) {
	u := newUpgrade()
	u.cancel = true
	if u.advance(stageLeft, &successor{}) == nil || u.at == stageLeft || u.current() != nil {
		t.Errorf("after the end began, a new process takes over in the stage %s", u.at)
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
			c := &successor{conn: conn, notes: json.NewDecoder(conn)}
			if _, err := c.hear(kind, 10*time.Second); err == nil || err.Error() != want {
				t.Errorf("%s: %v", kind, err)
			}
		})
	}
}
