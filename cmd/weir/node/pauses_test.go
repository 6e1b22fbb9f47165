package node

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/weirproxy/weir/pause"
)

// The loops of a reload over all routes offer a pause for each route, so that requests never wait for
// a whole loop.
func TestReloadPausesForEachRoute(t *testing.T) {
	const routes = 200
	r := makeRunning(t, "web")
	r.server.path = filepath.Join(t.TempDir(), "weir.yaml")
	reload := func(body string) {
		var text strings.Builder
		fmt.Fprintf(&text, "admin: {address: off}\nlisteners: {web: {address: '%s', protocol: http}}\nroutes:\n", r.address("web"))
		for i := range routes {
			fmt.Fprintf(&text, "- {listeners: [web], hosts: [h%d.example.org], respond: {status: 200, body: %s}}\n", i, body)
		}
		if err := os.WriteFile(r.server.path, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.reload("a test"); err != nil {
			t.Fatal(err)
		}
	}
	reload("one")

	var mu sync.Mutex
	calls := map[string]int{} // by the function that offers the pause
	defer pause.Count(func() {
		var caller [1]uintptr
		runtime.Callers(3, caller[:])
		frame, _ := runtime.CallersFrames(caller[:]).Next()
		mu.Lock()
		calls[path.Base(frame.Function)]++
		mu.Unlock()
	})()
	reload("two")

	mu.Lock()
	defer mu.Unlock()
	for function, least := range map[string]int{
		"file.(*reader).tree":            routes,
		"config.(*decoder).mapping":      routes,
		"config.(*draft).warn":           routes,
		"config.(*treeHash).section":     routes,
		"config.(*Config).joined":        routes,
		"config.Differ[...]":             2 * routes, // for limits of concurrent requests, and for metrics
		"filter.hasSlots":                2 * routes, // of both configurations
		"proxy.NewTable":                 routes,
		"proxy.(*unfinishedEdge).finish": routes,
		"proxy.lockEach[...]":            4 * routes,
	} {
		if calls[function] < least {
			t.Errorf("%s offers %d pauses for %d routes, not %d; all: %v", function, calls[function], routes, least, calls)
		}
	}
}
