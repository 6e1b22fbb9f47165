package e2e

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

// One error names all addresses that cannot be bound, each with its key.
func TestTellsOfAllAddressesThatAreTaken(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	for _, name := range []string{"web", "more", "metrics", "admin"} {
		taken, err := net.Listen("tcp", w.at(name))
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
	}
	w.write("listeners: {web: {address: '@web', protocol: http}, more: {address: '@more', protocol: http}}\nmetrics: {address: '@metrics'}\nadmin: {address: '@admin'}\n")
	w.launch()
	if status := w.wait(); status != 1 {
		t.Errorf("the exit status is %d", status)
	}
	for key, name := range map[string]string{"listeners.web.address": "web", "listeners.more.address": "more", "metrics.address": "metrics", "admin.address": "admin"} {
		want := key + ": cannot bind " + w.at(name) + ": address already in use; another process has the port; stop that process, or use another address\n"
		if log := w.log.String(); !strings.Contains(log, want) {
			t.Errorf("%q is missing in\n%s", want, log)
		}
	}
	if log := w.log.String(); strings.Count(log, "cannot bind") != 4 || !strings.Contains(log, "weir: cannot start:\n") {
		t.Errorf("the log is\n%s", log)
	}
}

// If a certificate file is broken, the log does not call the reload successful.
func TestBrokenCertificateIsToldOfByReload(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	c := writeCertificate(t, w.dir, "c", false, "a.example")
	w.start("listeners: {web: {address: '@web', protocol: tls}}\ncertificates: [{cert: '" + c.cert + "', key: '" + c.key + "'}]\n" +
		"routes: [{listeners: [web], hosts: [a.example], backend: b}]\nbackends: {b: {endpoints: ['127.0.0.1:1']}}\n")
	if err := os.WriteFile(c.cert, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log tells of it", func() error {
		if log := w.log.String(); !strings.Contains(log, `"configuration loaded, but some of its files cannot be used`) || !strings.Contains(log, `"files":1`) {
			return errors.New(log)
		}
		return nil
	})
	if log := w.log.String(); strings.Contains(log, `"configuration loaded"`) {
		t.Errorf("the log says that all is well:\n%s", log)
	}
}
