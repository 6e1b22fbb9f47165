package node

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config/file"
)

func TestWarningOfRequireLocalElsewhere(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	f := func(node, endpoints string, warned bool) {
		t.Helper()
		cfg, err := file.Parse("weir.yaml", []byte(node+`listeners: {web: {address: ":80", protocol: http}}
routes: [{listeners: [web], backend: app}]
health: {address: ":8086", require_local: [app]}
backends: {app: {health_check: {tcp: {}}, endpoints: [`+endpoints+`]}}
`), os.LookupEnv)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(warnLocal(cfg, own), "\n")
		if is := strings.HasPrefix(got, `health.require_local: no endpoint of backend "app" has an address of this machine`); is != warned || !warned && got != "" {
			t.Errorf("%s%s: the warning is %q, want one: %v", node, endpoints, got, warned)
		}
	}
	f("", `"198.51.100.1:80", "[2001:db8::2]:80"`, true)
	f("", `{address: "192.0.2.1:80", node: elsewhere}`, true)
	f("", `"198.51.100.1:80", "192.0.2.1:80"`, false)
	f("", `"[2001:db8::1]:80"`, false)
	f("", `"127.0.0.1:80"`, false)
	f("", `"app.internal:80"`, false) // a name may have any address
	f("", `"unix:/run/app.sock"`, false)
	f("node: a\n", `"198.51.100.1:80"`, false) // package config warns
}
