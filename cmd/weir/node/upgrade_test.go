package node

import (
	"encoding/json"
	"fmt"
	"net"
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
			c := &successor{conn: &noteConn{Conn: conn, decoder: json.NewDecoder(conn)}}
			if _, err := c.hear(kind, 10*time.Second); err == nil || err.Error() != want {
				t.Errorf("%s: %v", kind, err)
			}
		})
	}
}
