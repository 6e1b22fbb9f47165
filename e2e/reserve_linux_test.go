package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// largestDescriptor returns the highest number of weir's open descriptors.
func (w *weir) largestDescriptor() (largest int) {
	w.t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.cmd.Process.Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range files {
		n, _ := strconv.Atoi(f.Name())
		largest = max(largest, n)
	}
	return largest
}

// If the process has no descriptor left, the health, metrics and admin ports answer at once: each
// keeps a few in reserve.
func TestPortsAnswerWithoutDescriptors(t *testing.T) {
	t.Parallel()
	w := newWeir(t).start(`
listeners: {web: {address: '@web', protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['127.0.0.1:1']}}
metrics: {address: '@metrics'}
`)
	w.metrics() // from here on, the runtime and the ports have their descriptors
	largest := w.largestDescriptor()
	limit := unix.Rlimit{}
	if err := unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: uint64(largest + 1), Max: limit.Max}
	if err := unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, &low, nil); err != nil {
		t.Fatal(err)
	}
	var held []net.Conn
	hold := func() {
		c, err := net.Dial("tcp", w.at("admin"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		held = append(held, c)
	}
	eventually(t, "no descriptor is left", func() error {
		if open := w.descriptors(); open <= largest {
			for range largest + 1 - open {
				hold() // sends no request: weir ends the connection after five seconds
			}
			return fmt.Errorf("%d are open of %d", open, largest+1)
		}
		return nil
	})
	client := &http.Client{Timeout: 2 * time.Second, Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	ask := func(port, path string) {
		t.Helper()
		resp, err := client.Get("http://" + w.at(port) + path)
		if err != nil {
			t.Fatalf("the %s port, with %d connections held: %v", port, len(held), err)
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 {
			t.Errorf("the %s port answers %s, %v", port, resp.Status, err)
		}
	}
	for range 3 {
		ask("metrics", "/metrics")
		ask("admin", "/metrics")
		ask("health", "/livez")
	}
	for range 6 { // the reserve is smaller, so weir closes the longest idle connection
		hold()
	}
	ask("admin", "/metrics")
	ask("metrics", "/metrics")
	if err := unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the reserve is back", func() error {
		resp, err := client.Get("http://" + w.at("admin") + "/metrics")
		if err == nil {
			resp.Body.Close()
		}
		if err == nil && resp.Close {
			err = fmt.Errorf("the response ends the connection")
		}
		return err
	})
	if status := w.terminate(); status != 0 {
		t.Errorf("weir ends with the status %d", status)
	}
}
