package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
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
// failed request of each backend and reason. Then it has their number, and nothing if there are none.
func TestFirstRefusalsAndFailuresAreLogged(t *testing.T) {
	r := makeRunning(t, "web", "behind", "tunnel", "gone")
	r.often.Every = 300 * time.Millisecond
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
		eventually(t, fmt.Sprint(message, fields), func() error {
			var seen []string
			for _, l := range r.lines.FilterMessage(message).All() {
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
		})
	}
	for range 3 {
		send("behind", get)
		send("behind", "")
		send("web", get)
		send("tunnel", "hello")
	}
	has(zapcore.InfoLevel, refusedLine, "listener", "behind", "reason", "header_missing", "peer", "127.0.0.1:", "error", "proxy_protocol.lb requires a PROXY header")
	has(zapcore.InfoLevel, refusedLine+", more of these", "listener", "behind", "reason", "header_missing", "more", 2)
	has(zapcore.InfoLevel, silentLine, "listener", "behind", "peer", "127.0.0.1:")
	has(zapcore.DebugLevel, silentLine+", more of these", "listener", "behind", "more", 2)
	has(zapcore.WarnLevel, failedLine, "backend", "app", "route", "all", "reason", "connect", "host", "shop.example", "endpoint", r.address("gone"), "status", 502, "error", "refused")
	has(zapcore.WarnLevel, failedLine, "backend", "raw", "route", "raw", "reason", "connect", "endpoint", r.address("gone"), "error", "refused")
	if n := r.lines.FilterMessage(refusedLine).Len(); n != 1 {
		t.Errorf("%d lines of one kind", n)
	}
	eventually(t, "quiet kinds are forgotten", func() error {
		lines := r.lines.Len()
		time.Sleep(3 * r.often.Every)
		if r.lines.Len() != lines {
			return fmt.Errorf("the log goes on")
		}
		return nil
	})
	send("behind", get)
	eventually(t, "the next one is new", func() error {
		if n := r.lines.FilterMessage(refusedLine).Len(); n != 2 {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	})
}
