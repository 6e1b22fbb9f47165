package node

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/tls/policy"
)

// A reload rotates ECH keys. SHA-1 is switched on only while a policy needs it.
func TestReloadOfTLS(t *testing.T) {
	dir := t.TempDir()
	var lists [][]byte
	for _, name := range []string{"0.pem", "1.pem"} {
		text, list, err := policy.NewECH("cover.example.org")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
		lists = append(lists, list)
	}
	base := `
listeners: {tls: {address: '@tls', protocol: tls}}
certificates: [{self_signed: {hosts: [a.example.org, cover.example.org]}}]
routes: [{listeners: [tls], backend: app}]
backends: {app: {endpoints: ["127.0.0.1:9"]}}
`
	keys := func(names ...string) string {
		for i, name := range names {
			names[i] = filepath.Join(dir, name)
		}
		return base + "ech: {keys: [" + strings.Join(names, ", ") + "]}\n"
	}
	r := newRunning(t, keys("0.pem"), "tls")
	f := func(list []byte, want bool) {
		t.Helper()
		nc, err := net.Dial("tcp", r.address("tls"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(patience))
		c := tls.Client(nc, &tls.Config{ServerName: "a.example.org", InsecureSkipVerify: true, EncryptedClientHelloConfigList: list,
			EncryptedClientHelloRejectionVerify: func(tls.ConnectionState) error { return nil }})
		if err := c.Handshake(); (err == nil) != want || want != c.ConnectionState().ECHAccepted {
			t.Errorf("accepted %v, error %v; want %v", c.ConnectionState().ECHAccepted, err, want)
		}
	}
	f(lists[0], true)
	f(lists[1], false)
	r.load(keys("1.pem", "0.pem"))
	f(lists[0], true)
	f(lists[1], true)
	r.load(keys("1.pem"))
	f(lists[0], false)
	f(lists[1], true)

	admitted := func() bool { return strings.Contains(os.Getenv("GODEBUG"), "tlssha1=1") }
	if admitted() {
		t.Error("SHA-1 is possible and no policy wants it")
	}
	r.load(base + "tls_policies: {robots: {max_version: '1.2', sha1_signatures: true}}\n")
	if !admitted() {
		t.Error("SHA-1 is not possible and a policy wants it")
	}
	r.load(base)
	if admitted() {
		t.Error("SHA-1 is still possible and no policy wants it any more")
	}
}
