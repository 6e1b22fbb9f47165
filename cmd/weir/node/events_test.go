package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/weirproxy/weir/listener"
	"github.com/weirproxy/weir/proxy/accesslog"
)

// A panic in a connection is logged once, with its stack, and counted.
func TestPanicsAreLogged(t *testing.T) {
	r := newRunning(t, web, "web", "app")
	r.proxy.Panicked("web", "a fault", []byte("a stack"))
	lines := r.lines.FilterMessage(panicLine).All()
	if len(lines) != 1 || lines[0].ContextMap()["panic"] != "a fault" || lines[0].ContextMap()["stack"] != "a stack" {
		t.Errorf("logged is %v", lines)
	}
	eventually(t, "it is counted", func() error {
		families, err := r.registry.Gather()
		for _, f := range families {
			if f.GetName() == "weir_panics_total" && f.GetMetric()[0].GetCounter().GetValue() == 1 {
				return err
			}
		}
		return fmt.Errorf("it is not: %v", err)
	})
}

// Without an access log, weir's own log has the first refused connection of each listener and reason, and the first
// failed request of each backend and reason.
func TestFirstRefusalsAndFailuresAreLogged(t *testing.T) {
	r := makeRunning(t, "web", "behind", "tunnel", "gone")
	r.load(`
listeners:
  web: {address: '@web', protocol: http}
  behind: {address: '@behind', protocol: http, proxy_protocol: lb}
  tunnel: {address: '@tunnel', protocol: tcp}
proxy_protocol: {lb: {rules: [{from: [127.0.0.0/8], header: require}]}}
routes:
  - {name: all, listeners: [web, behind], backend: app}
  - {name: raw, listeners: [tunnel], backend: raw}
backends:
  app: {endpoints: ['@gone']}
  raw: {protocol: tcp, endpoints: ['@gone']}
`)
	send := func(listener, text string) {
		t.Helper()
		c, err := net.DialTimeout("tcp", r.address(listener), patience)
		if errors.Is(err, syscall.ECONNRESET) {
			return // weir was faster than the dial
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, text)
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
	}
	const get = "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
	has := func(level zapcore.Level, message string, fields ...any) {
		t.Helper()
		eventually(t, fmt.Sprint(message, fields), func() error { return hasLine(r.lines, level, message, fields...) })
	}
	for range 3 {
		send("behind", get)
		send("behind", "")
		send("web", get)
		send("tunnel", "hello")
	}
	has(zapcore.InfoLevel, refusedLine, "listener", "behind", "reason", "header_missing", "peer", "127.0.0.1:", "error", "proxy_protocol.lb requires a PROXY header")
	has(zapcore.InfoLevel, silentLine, "listener", "behind", "peer", "127.0.0.1:")
	has(zapcore.WarnLevel, failedLine, "backend", "app", "route", "all", "reason", "connect", "host", "shop.example", "endpoint", r.address("gone"), "status", 502, "error", "refused")
	has(zapcore.WarnLevel, failedLine, "backend", "raw", "route", "raw", "reason", "connect", "endpoint", r.address("gone"), "error", "refused")
	if n := r.lines.FilterMessage(refusedLine).Len(); n != 1 {
		t.Errorf("%d lines of one kind", n)
	}
}

// hasLine returns an error unless the log has a line with these fields. Values need only contain the wanted text.
func hasLine(lines *observer.ObservedLogs, level zapcore.Level, message string, fields ...any) error {
	var seen []string
	for _, l := range lines.FilterMessage(message).All() {
		all := l.ContextMap()
		missing := l.Level != level
		for i := 0; i < len(fields); i += 2 {
			missing = missing || !strings.Contains(fmt.Sprint(all[fields[i].(string)]), fmt.Sprint(fields[i+1]))
		}
		if !missing {
			return nil
		}
		seen = append(seen, fmt.Sprint(l.Level, all))
	}
	return fmt.Errorf("the lines are %q", seen)
}

// After the first event of a kind the log has the number of further ones each minute, and nothing if there are none.
func TestFurtherRefusalsAndFailuresAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, lines := observer.New(zapcore.DebugLevel)
		s := &server{log: zap.New(core)}
		s.often = &listener.Repeats{Every: time.Minute, More: s.moreOften}
		events := func() {
			s.refusedByListener(listener.Refusal{Listener: "behind", Silent: true})
			s.tellRefused("behind", "header_missing", netip.AddrPort{}, netip.AddrPort{}, nil)
			s.endpointFailed("app", "connect", func() *accesslog.Record { return &accesslog.Record{} })
		}
		for range 3 {
			events()
		}
		wants := func(n int) {
			t.Helper()
			synctest.Wait()
			if lines.Len() != n {
				t.Errorf("%d lines, want %d: %v", lines.Len(), n, lines.All())
			}
		}
		wants(3)
		time.Sleep(time.Minute)
		wants(6)
		for _, err := range []error{
			hasLine(lines, zapcore.DebugLevel, silentLine+", more of these", "listener", "behind", "more", 2),
			hasLine(lines, zapcore.InfoLevel, refusedLine+", more of these", "listener", "behind", "reason", "header_missing", "more", 2),
			hasLine(lines, zapcore.WarnLevel, failedLine+", more of these", "backend", "app", "reason", "connect", "more", 2),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Hour) // these kinds are forgotten
		wants(6)
		events()
		wants(9)
	})
}
