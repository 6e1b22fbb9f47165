package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// If weir has used up its descriptors, it accepts no connections and says so in the log. The health port
// still answers. When descriptors are free again, weir serves as before.
func TestDescriptorsExhausted(t *testing.T) {
	needLinux(t)
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	w.before = []string{"sh", "-c", `ulimit -n 80 && exec "$@"`, "sh"}
	w.start(webConfig)
	var held []net.Conn
	for range 200 {
		c, err := net.DialTimeout("tcp", w.at("web"), time.Second)
		if err != nil {
			break // the accept queue is full as well
		}
		defer c.Close()
		held = append(held, c)
	}
	eventually(t, "the log shouts", func() error {
		log := strings.ToLower(w.log.String())
		if !strings.Contains(log, "descriptor") && !strings.Contains(log, "too many open files") {
			return errNotYet
		}
		return nil
	})
	for range 20 {
		if status, body, err := w.get("health", "/"); err != nil || status != 200 {
			t.Fatalf("the health port says %d, %s, %v", status, body, err)
		}
	}
	if n := strings.Count(w.log.String(), "\n"); n > 500 {
		t.Errorf("%d lines of log", n)
	}
	for _, c := range held {
		c.Close()
	}
	eventually(t, "connections are taken again", func() error {
		status, _, err := w.get("web", "/")
		if err == nil && status != 200 {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
}

func TestListenerLimit(t *testing.T) {
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(strings.Replace(webConfig, "web: {address: '@web', protocol: http}", "web: {address: '@web', protocol: http, max_connections: 5}", 1))
	var held []net.Conn
	for range 5 {
		c := dial(t, w.at("web"))
		if _, err := askSeen(c, "a", "/"); err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	extra := dial(t, w.at("web"))
	extra.SetDeadline(time.Now().Add(500 * time.Millisecond))
	io.WriteString(extra, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := http.ReadResponse(bufio.NewReader(extra), nil); err == nil {
		t.Error("a sixth connection was served")
	}
	extra.Close()
	if status, _, err := w.get("health", "/"); err != nil || status != 200 {
		t.Errorf("the health port at a listener's limit: %d, %v", status, err)
	}
	held[0].Close()
	eventually(t, "there is room again", func() error {
		status, _, err := w.get("web", "/")
		if err == nil && status != 200 {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
}

// After load of every kind, weir has as many goroutines and descriptors as before.
func TestNothingLeaks(t *testing.T) {
	needLinux(t)
	app, echo := newWebBackend(t, "app"), newEchoBackend(t)
	w := newWeir(t)
	w.address["app"], w.address["echo"] = app.address, echo.address
	w.start(`
listeners:
  web: {address: '@web', protocol: http}
  secure: {address: '@secure', protocol: tls}
  raw: {address: '@raw', protocol: tcp}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [web, secure], backend: app}
  - {listeners: [raw], backend: echo}
backends:
  app: {endpoints: ['@app'], timeouts: {keep_alive: 1s}}
  echo: {protocol: tcp, endpoints: ['@echo']}
`)
	load := func(n int) {
		var running sync.WaitGroup
		for i := range n {
			running.Go(func() { mixedLoad(t, w, i) })
		}
		running.Wait()
	}
	load(20) // creates everything that weir creates only once
	settle := func(what string, good func(files, routines int) bool) (files, routines int) {
		t.Helper()
		eventually(t, what, func() error {
			files, routines = w.descriptors(), w.goroutines()
			if !good(files, routines) {
				return fmt.Errorf("%d descriptors, %d goroutines", files, routines)
			}
			return nil
		})
		return files, routines
	}
	idle := func(int, int) bool {
		return w.metric("weir_connections_open") == 0 && w.metric("weir_tunnels_open") == 0
	}
	settle("all connections are gone", idle)
	// The idle connections of the pool end after a second. After that, the counts no longer change.
	var files, routines int
	for last, since := -1, time.Now(); time.Since(since) < 3*time.Second; time.Sleep(50 * time.Millisecond) {
		if files, routines = w.descriptors(), w.goroutines(); files+routines != last {
			last, since = files+routines, time.Now()
		}
	}
	for range 5 {
		load(60)
	}
	settle("all connections are gone", idle)
	settle(fmt.Sprintf("the counts go back to %d descriptors and %d goroutines", files, routines),
		func(f, r int) bool { return f <= files+2 && r <= routines+3 })
}

// mixedLoad runs one client of a kind. Some kinds violate the protocol.
func mixedLoad(t *testing.T, w *weir, kind int) {
	address := w.at([]string{"web", "secure", "raw"}[kind%3])
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	switch kind % 12 {
	case 0, 3: // keep-alive
		r := bufio.NewReader(c)
		for range 10 {
			if _, _, err := ask(c, r, "GET", "a", "/bytes/1000"); err != nil {
				t.Error(err)
			}
		}
	case 1, 4: // TLS
		if _, err := askSeen(tlsOver(c), "app.example.org", "/"); err != nil {
			t.Error(err)
		}
	case 2, 5: // tunnel
		c.Write([]byte("hello"))
		c.(*net.TCPConn).CloseWrite()
		if got, err := readToEnd(c); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	case 6: // leaves in the middle of an answer
		io.WriteString(c, "GET /bytes/10000000 HTTP/1.1\r\nHost: a\r\n\r\n")
		io.ReadFull(c, make([]byte, 1000))
	case 7: // leaves in the middle of the handshake
		c.Write(clientHello(t)[:50])
	case 8: // resets a tunnel
		c.Write([]byte("hello"))
		io.ReadFull(c, make([]byte, 5))
		c.(*net.TCPConn).SetLinger(0)
	case 9: // sends no valid request
		io.WriteString(c, "\x16\x03\x01 nonsense\r\n\r\n")
		readToEnd(c)
	case 10: // sends no valid TLS
		io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
		readToEnd(c)
	case 11: // a tunnel that the client leaves
		c.Write([]byte("hello"))
	}
}

var demoCommand = regexp.MustCompile(`(?m)^  ([^ #].*)$`)

// weir demo needs no file, and each command that it prints works as printed.
func TestDemo(t *testing.T) {
	t.Parallel()
	need(t, "curl")
	cmd := exec.Command(executable(t), "demo")
	cmd.Dir = t.TempDir()
	var out logBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	defer cmd.Process.Kill()

	var commands []string
	eventually(t, "the commands are printed", func() error {
		if !strings.Contains(out.String(), "Ctrl-C ends it.") {
			return fmt.Errorf("so far: %s", out.String())
		}
		return nil
	})
	for _, m := range demoCommand.FindAllStringSubmatch(out.String(), -1) {
		commands = append(commands, m[1])
	}
	if len(commands) < 7 {
		t.Errorf("%d commands are printed: %s", len(commands), out.String())
	}
	for _, command := range commands {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		sh := exec.CommandContext(ctx, "sh", "-c", command)
		var answer bytes.Buffer
		sh.Stdout, sh.Stderr = &answer, &answer
		err := sh.Run()
		cancel()
		if err != nil || answer.Len() == 0 {
			t.Errorf("%s: %v: %s", command, err, answer.String())
		}
		t.Logf("%s\n%.200s", command, answer.String())
	}
	// Ctrl-C aborts an open tunnel, and the exit status is still 0.
	address := regexp.MustCompile(`telnet://(\S+)`).FindStringSubmatch(out.String())
	if address == nil {
		t.Fatal("no command is for raw TCP")
	}
	c := dial(t, address[1])
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Signal(os.Interrupt)
	select {
	case err := <-exited:
		if err != nil {
			t.Errorf("Ctrl-C: %v\n%s", err, out.String())
		}
	case <-time.After(patience):
		t.Error("Ctrl-C does not end the demo")
		cmd.Process.Signal(syscall.SIGQUIT)
	}
}

// weir check and weir run refuse the same configurations, and both report every error at once.
func TestCheckAndRunRefuseTheSame(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.write(strings.Replace(webConfig, "protocol: http}", "protokol: http}", 1) + "nonsense: 1\n")
	for _, command := range []string{"check", "run"} {
		out, err := exec.Command(executable(t), command, "-c", w.config).CombinedOutput()
		if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 1 {
			t.Errorf("weir %s: %v", command, err)
		}
		for _, want := range []string{w.config + ":3:", "protokol", "protocol", "nonsense"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("weir %s does not say %q:\n%s", command, want, out)
			}
		}
	}
	w.write(webConfig)
	if out, err := exec.Command(executable(t), "check", "-c", w.config).CombinedOutput(); err != nil {
		t.Errorf("weir check: %v\n%s", err, out)
	}
	if out, err := exec.Command(executable(t), "version").CombinedOutput(); err != nil || len(out) == 0 {
		t.Errorf("weir version: %v: %s", err, out)
	}
}
