package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

const drainable = `
listeners: {web: {address: '@web', protocol: http}}
routes: [{name: app, listeners: [web], respond: {body: hello}}]
admin: {address: '@admin'}
health: {address: '@health'}
`

func TestDrainCommand(t *testing.T) {
	r := newRunning(t, drainable, "web", "admin", "health")
	admin := r.address("admin")
	f := func(args string, wantStatus int, wants ...string) {
		t.Helper()
		out, errs, status := weir(strings.Fields(args + " " + admin)...)
		if status != wantStatus {
			t.Errorf("weir %s: status %d: %s%s", args, status, out, errs)
		}
		for _, want := range wants {
			if !strings.Contains(out+errs, want) {
				t.Errorf("weir %s prints no %q:\n%s%s", args, want, out, errs)
			}
		}
	}
	f("drain", 0, "draining; the health port answers 503", "draining")
	f("undrain", 0, "the drain is over; the health port answers 200")
	f("drain --wait --quiet 10ms", 0, "quiet: no connection has arrived since the drain began")
	c, err := net.DialTimeout("tcp", r.address("web"), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "weir has accepted the connection", func() error {
		st, err := askStatus(t.Context(), admin, adminOptions{})
		if err == nil && st.Drain.NewConnections != 1 {
			err = fmt.Errorf("the status is %+v", st.Drain)
		}
		return err
	})
	f("drain --wait --quiet 1h --timeout 20ms", statusError, "waiting: connections since the drain began: 1, the last one after ", " s from 127.0.0.1", "weir is not quiet yet after 20ms", "weir undrain")
	f("undrain", 0, "the drain is over; the health port answers 200")
	r.load(strings.Replace(drainable, "health: {address: '@health'}\n", "", 1))
	f("drain", 0, "draining; there is no health port (section health)")
	f("undrain", 0, "the drain is over; there is no health port")
	if _, errs, status := weir("drain", "127.0.0.1:1"); status != statusError || !strings.Contains(errs, "cannot query the admin port") {
		t.Errorf("without a weir: status %d, %s", status, errs)
	}
}

func TestWhatADrainWaitsFor(t *testing.T) {
	const status = `{"node": "n", "verdict": {}, "connections": {"active": %ACTIVE, "idle": 7}, "drain": {"seconds": 20, "new_connections": 3, "last_new_connection": %LAST, "last_new_connection_from": "192.0.2.7", "load_balancers_told": %TOLD, "load_balancers_not_told": ["192.0.2.8", "2001:db8::8"]}}`
	f := func(active, last, told, want string) {
		t.Helper()
		st, err := readDrained("a", []byte(strings.NewReplacer("%ACTIVE", active, "%LAST", last, "%TOLD", told).Replace(status)))
		if err != nil {
			t.Fatal(err)
		}
		if got := st.waitsFor(5 * time.Second); got != want {
			t.Errorf("active %s, last %s, told %s: it waits for %q, want %q", active, last, told, got, want)
		}
	}
	f("0", "1", "true", "")
	f("0", "1", "false", "these load balancers have not yet seen two answers 503: 192.0.2.8, 2001:db8::8 (an address counts until two minutes after its last check)")
	f("0", "15.5", "true", "connections since the drain began: 3, the last one after 15.5 s from 192.0.2.7")
	f("2", "1", "true", "active requests and tunnels: 2")
	if st, err := readDrained("a", []byte(`{"node": "n", "drain": {"seconds": 20, "load_balancers_told": true}, "old_processes": [{"generation": 1, "pid": 7, "active": 2}, {"generation": 2, "pid": 8}, {"generation": 3, "pid": 9, "active": 1}]}`)); err != nil || st.waitsFor(0) != "active requests and tunnels of old processes of upgrades: process 7 (generation 1): 2, process 9 (generation 3): 1" {
		t.Error(st.waitsFor(0), err)
	}
	if st, err := readDrained("a", []byte(`{"node": "n"}`)); err != nil || st.waitsFor(0) != "somebody took the drain back" {
		t.Error(st, err)
	}
	if _, err := readDrained("a", []byte(`{}`)); err == nil || !strings.Contains(err.Error(), "admin.address") {
		t.Error(err)
	}
}

// Who waits for a drain learns that weir ended, and that Ctrl-C takes nothing back.
func TestDrainWaitEnds(t *testing.T) {
	waiting := make(chan struct{}, 1)
	m := http.NewServeMux()
	m.HandleFunc("POST /drain", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"node": "n", "connections": {"active": 1}, "drain": {"seconds": 9, "load_balancers_told": true}}`)
		waiting <- struct{}{}
	})
	admin := httptest.NewServer(m) // it has no /status
	defer admin.Close()
	address := admin.Listener.Addr().String()
	run := func(every time.Duration) error {
		c := newDrainCommand()
		c.SetOut(io.Discard)
		o := drainOptions{wait: true, timeout: time.Hour, every: every}
		c.SetContext(t.Context())
		return o.run(c, address)
	}
	if err := run(time.Millisecond); err == nil || !strings.Contains(err.Error(), "weir has answered before, so it may have ended meanwhile: ") {
		t.Error(err)
	}
	<-waiting
	signal.Ignore(os.Interrupt) // the tests go on if the command does not handle it
	defer signal.Reset(os.Interrupt)
	done := make(chan error, 1)
	go func() { done <- run(time.Hour) }()
	<-waiting
	eventually(t, "the command handles Ctrl-C", func() error {
		syscall.Kill(os.Getpid(), syscall.SIGINT)
		select {
		case err := <-done:
			done <- err
			return nil
		default:
			return errors.New("it waits")
		}
	})
	if err := <-done; err == nil || err.Error() != "interrupted, and weir is not quiet yet: active requests and tunnels: 1; it still drains, and weir undrain takes that back" {
		t.Error(err)
	}
}
