package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const drainConfig = `
listeners:
  web: {address: '@web', protocol: http}
  raw: {address: '@raw', protocol: tcp}
routes:
  - {listeners: [web], backend: app}
  - {listeners: [raw], backend: echo}
backends:
  app: {endpoints: ['@app']}
  echo: {protocol: tcp, endpoints: ['@echo']}
drain: {lame_duck: %s, timeout: %s}
`

func startDrain(t *testing.T, lameDuck, timeout string) (*weir, *webBackend) {
	t.Helper()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"], w.address["echo"] = app.address, newEchoBackend(t).address
	return w.start(fmt.Sprintf(drainConfig, lameDuck, timeout)), app
}

// hold starts a request that the backend does not answer until the test releases it.
func hold(t *testing.T, w *weir, app *webBackend) (answer func() error) {
	t.Helper()
	c := dial(t, w.at("web"))
	done := make(chan error, 1)
	go func() {
		resp, _, err := ask(c, bufio.NewReader(c), "GET", "a", "/hold")
		if err == nil && (resp.StatusCode != 200 || !resp.Close) {
			err = fmt.Errorf("%s, close: %t", resp.Status, resp.Close)
		}
		done <- err
	}()
	app.arrived(t)
	return func() error { return <-done }
}

func TestDrainWaitsForARunningRequest(t *testing.T) {
	t.Parallel()
	w, app := startDrain(t, "0s", "30s")
	answer := hold(t, w, app)
	w.signal(syscall.SIGTERM)
	eventually(t, "the listeners close", func() error { return refuses(w.at("web")) })
	w.stillRunning(300 * time.Millisecond)
	close(app.release)
	if err := answer(); err != nil {
		t.Errorf("the running request: %v", err)
	}
	if status := w.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

func TestDrainOfNothingEndsAtOnce(t *testing.T) {
	t.Parallel()
	w, _ := startDrain(t, "0s", "120s")
	if status := w.terminate(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// From the first moment of a drain the health port answers 503, while weir still accepts connections.
func TestDrainLameDuck(t *testing.T) {
	t.Parallel()
	w, _ := startDrain(t, "5s", "30s") // the request below must arrive within these 5 seconds
	w.signal(syscall.SIGTERM)
	w.wantVerdict(503)
	c := dial(t, w.at("web"))
	resp, _, err := ask(c, bufio.NewReader(c), "GET", "a", "/")
	if err != nil || resp.StatusCode != 200 || !resp.Close {
		t.Errorf("a request while the duck is lame: %v, %v", resp, err)
	}
	if status := w.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if w.linesWith("no new connections are accepted any more", `"because":"drain.lame_duck is over"`) != 1 {
		t.Error("without until_quiet, the lame-duck phase ended early")
	}
}

// A drain does not close an idle keep-alive connection at once: weir answers its next request, with
// Connection: close.
func TestDrainKeepsIdleConnectionsForOneMore(t *testing.T) {
	t.Parallel()
	w, app := startDrain(t, "0s", "30s")
	answer := hold(t, w, app)
	c := dial(t, w.at("web"))
	r := bufio.NewReader(c)
	if resp, _, err := ask(c, r, "GET", "a", "/"); err != nil || resp.Close {
		t.Fatalf("%v, %v", resp, err)
	}
	w.signal(syscall.SIGTERM)
	eventually(t, "the listeners close", func() error { return refuses(w.at("web")) })
	resp, _, err := ask(c, r, "GET", "a", "/")
	if err != nil || resp.StatusCode != 200 || !resp.Close {
		t.Errorf("a request on an idle connection: %v, %v", resp, err)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("after Connection: close comes %v", err)
	}
	close(app.release)
	if err := answer(); err != nil {
		t.Error(err)
	}
	if status := w.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// Requests and tunnels that are still open at the timeout of the drain are cut, and the exit status is not 0.
func TestDrainCutsAtItsTimeout(t *testing.T) {
	t.Parallel()
	t.Run("request", func(t *testing.T) {
		w, app := startDrain(t, "0s", "1s")
		answer := hold(t, w, app)
		if status := w.terminate(); status == 0 {
			t.Error("exit status 0 though a request was cut")
		}
		if err := answer(); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) { // no byte came
			t.Errorf("the request ended with %v", err)
		}
	})
	// The client must not take the part of a response for the whole.
	t.Run("response", func(t *testing.T) {
		w, _ := startDrain(t, "0s", "1s")
		for _, version := range []string{"1.0", "1.1"} {
			c := dialWith(t, w.at("web"), []byte("GET /begin HTTP/"+version+"\r\nHost: a\r\n\r\n"))
			r := bufio.NewReader(c)
			for line := ""; !strings.Contains(line, "begun"); {
				var err error
				if line, err = r.ReadString('n'); err != nil {
					t.Fatal(err)
				}
			}
			defer func() {
				if _, err := io.Copy(io.Discard, r); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("a response of HTTP/%s ended with %v", version, err)
				}
			}()
		}
		if status := w.terminate(); status == 0 {
			t.Error("exit status 0 though responses were cut")
		}
	})
	t.Run("tunnel", func(t *testing.T) {
		w, _ := startDrain(t, "0s", "1s")
		c := openTunnel(t, w)
		if status := w.terminate(); status == 0 {
			t.Error("exit status 0 though a tunnel was cut")
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the tunnel ended with %v", err)
		}
	})
	t.Run("idle-connection", func(t *testing.T) {
		w, _ := startDrain(t, "0s", "1s")
		c := dial(t, w.at("web"))
		if _, err := askSeen(c, "a", "/"); err != nil {
			t.Fatal(err)
		}
		if status := w.terminate(); status != 0 {
			t.Errorf("exit status %d though only an idle connection was closed", status)
		}
	})
}

func openTunnel(t *testing.T, w *weir) net.Conn {
	t.Helper()
	c := dialWith(t, w.at("raw"), []byte("x"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDrainEndsWithTheLastTunnel(t *testing.T) {
	t.Parallel()
	w, _ := startDrain(t, "0s", "30s")
	c := openTunnel(t, w)
	w.signal(syscall.SIGTERM)
	eventually(t, "the listeners close", func() error { return refuses(w.at("raw")) })
	w.stillRunning(300 * time.Millisecond)
	c.Write([]byte("y"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("the tunnel does not go on: %v", err)
	}
	c.Close()
	if status := w.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

func TestSecondSIGTERMEndsAtOnce(t *testing.T) {
	t.Parallel()
	w, app := startDrain(t, "1h", "1h")
	answer := hold(t, w, app)
	w.signal(syscall.SIGTERM)
	w.wantVerdict(503)
	if status := w.terminate(); status == 0 {
		t.Error("exit status 0 though a request was cut")
	}
	if err := answer(); err == nil {
		t.Error("the request was answered")
	}
}

// refuses returns nil if nothing listens on address.
func refuses(address string) error {
	c, err := net.Dial("tcp", address)
	if err == nil {
		c.Close()
		return errNotYet
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil
}

func (w *weir) stillRunning(d time.Duration) {
	w.t.Helper()
	select {
	case <-w.exited:
		w.t.Fatalf("weir ended with status %d", w.cmd.ProcessState.ExitCode())
	case <-time.After(d):
	}
}

// The admin port can start a drain. After undrain, weir serves as before.
func TestDrainAndUndrainByHand(t *testing.T) {
	t.Parallel()
	w, _ := startDrain(t, "0s", "30s")
	w.wantVerdict(200)
	openTunnel(t, w)
	w.wantMetric(0, "weir_drain_connections_remaining")
	w.post("/drain")
	w.wantMetric(1, "weir_drain_connections_remaining")
	w.wantVerdict(503)
	w.post("/undrain")
	w.wantMetric(0, "weir_drain_connections_remaining")
	w.wantVerdict(200)
	eventually(t, "a line says how many connections arrived, and who has not noticed the drain", func() error {
		if n := w.linesWith(`"the drain was taken back"`, `"new_connections":0,`, `"load_balancers_not_told":["127.0.0.1"]`); n != 1 {
			return fmt.Errorf("%d lines do", n)
		}
		return nil
	})
	if status, body, err := w.get("web", "/"); status != 200 || err != nil || !strings.Contains(body, "app") {
		t.Errorf("%d, %v", status, err)
	}
	w.stillRunning(100 * time.Millisecond)
}

// TestDrainUntilQuiet: a lame-duck phase that is as long as the slowest load balancer delays every
// rollout. With until_quiet it ends when load balancers have stopped, and not before they have
// noticed the drain.
func TestDrainUntilQuiet(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"], w.address["echo"] = app.address, newEchoBackend(t).address
	w.start(strings.Replace(fmt.Sprintf(drainConfig, "1h", "30s"), "timeout: 30s", "timeout: 30s, until_quiet: 1s", 1) + "health: {address: '@health'}\n")

	request := func() error {
		c, err := net.DialTimeout("tcp", w.at("web"), patience)
		if err != nil {
			return err
		}
		defer c.Close()
		resp, _, err := ask(c, bufio.NewReader(c), "GET", "a", "/")
		if err == nil && resp.StatusCode != 200 {
			err = errors.New(resp.Status)
		}
		return err
	}
	// The load balancer has asked once, and is quiet for longer than until_quiet before it has seen two answers 503.
	w.wantVerdict(200)
	w.signal(syscall.SIGTERM)
	w.wantVerdict(503)
	w.stillRunning(1500 * time.Millisecond)
	if out, err := exec.Command(executable(t), "undrain", w.at("admin")).CombinedOutput(); err == nil || !strings.Contains(string(out), "its drain cannot be taken back") {
		t.Errorf("weir undrain after SIGTERM: %v: %s", err, out)
	}
	if status, body, err := w.get("admin", "/status"); err != nil || status != 200 || !strings.Contains(body, `"load_balancers_told": false`) || !strings.Contains(body, `"127.0.0.1"`) {
		t.Errorf("the status is %d %v: %s", status, err, body)
	}
	if err := request(); err != nil {
		t.Errorf("a request before the load balancer has noticed: %v", err)
	}
	w.wantVerdict(503)
	if n := w.metric("weir_drain_last_new_connection_seconds"); n < 1.5 || n > 60 {
		t.Errorf("the last connection came after %v s", n)
	}
	if status := w.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if n := w.linesWith(`"because":"no connection arrived for drain.until_quiet"`, `"new_connections":1,`, `"last_new_connection":`, `"last_new_connection_from":"127.0.0.1"`); n != 1 {
		t.Errorf("%d lines say why the lame-duck phase ended", n)
	}
	for line := range strings.Lines(w.log.String()) {
		var end struct {
			Because string
			After   float64
			Last    float64 `json:"last_new_connection"`
		}
		if json.Unmarshal([]byte(line), &end); end.Because != "" && end.After-end.Last < 1 {
			t.Errorf("the lame-duck phase ended %v s after the last connection, and until_quiet is 1s", end.After-end.Last)
		}
	}
}

// While weir reads its configuration, SIGTERM ends it as it ends every program. It has no connections yet.
func TestTerminatedWhileItReads(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	if err := syscall.Mkfifo(w.config, 0o600); err != nil { // reading waits for a writer
		t.Fatal(err)
	}
	w.launch()
	w.signal(syscall.SIGTERM)
	w.wait()
	if got := w.cmd.ProcessState.Sys().(syscall.WaitStatus); !got.Signaled() || got.Signal() != syscall.SIGTERM {
		t.Errorf("weir ended with %v", w.cmd.ProcessState)
	}
}
