package main

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/weirproxy/weir/probe"
)

const probeable = `
admin: {address: '@admin'}
listeners: {web: {address: '@web', protocol: http, proxy_protocol: edge}}
proxy_protocol: {edge: {header_timeout: 1s, rules: [{from: [127.0.0.0/8], header: require}]}}
routes: [{listeners: [web], respond: {body: hello}}]
`

func TestProbeCommand(t *testing.T) {
	r := newRunning(t, probeable, "web", "admin")
	out, errs, status := weir("probe", "--wait", "10s", "--json", r.address("web"))
	var report probe.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || status != 0 {
		t.Fatalf("status %d, %v: %s%s", status, err, out, errs)
	}
	if report.Verdict != probe.Requires || report.Late != probe.Closes || report.Malformed != probe.Closes || strings.Contains(out, `"plaintext"`) {
		t.Errorf("%s", out)
	}
}

func TestProbeCommandOfNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	out, errs, status := weir("probe", l.Addr().String())
	if status != 1 || !strings.Contains(out, "served no connection") || !strings.Contains(errs, "set --host") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	l.Close()
	if _, errs, status := weir("probe", l.Addr().String()); status != 1 || !strings.Contains(errs, "check the address") {
		t.Errorf("status %d: %s", status, errs)
	}
	if _, errs, status := weir("probe", "--wait", "1ms", l.Addr().String()); status != 1 || !strings.Contains(errs, "--wait") {
		t.Errorf("status %d: %s", status, errs)
	}
}
