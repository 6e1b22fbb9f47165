package proxy

import (
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

var (
	precedenceFile    = regexp.MustCompile("(?s)\nWith these routes:\n\n```yaml\n(.*?)```\n\n(.*?)\n\n")
	precedenceExample = regexp.MustCompile("^\\| `([A-Z]+) ([^/ ]+)(/[^ ]*)` \\| (.*?)\\|? ?([a-z-]+) \\|$")
	inCode            = regexp.MustCompile("(client )?`([^`]*)`")
)

// The examples for the precedence of routes in docs/configuration.md are true.
func TestDocumentedPrecedence(t *testing.T) {
	page, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := precedenceFile.FindStringSubmatch(string(page))
	if parts == nil {
		t.Fatal("the page has no examples")
	}
	table, tried := tableOf(t, parts[1]), map[string]bool{}
	for _, line := range strings.Split(parts[2], "\n")[2:] {
		m := precedenceExample.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%s is not an example", line)
			continue
		}
		if got := table.routedFor(m[1], m[2], m[3], m[4]); got != m[5] {
			t.Errorf("%s\ngoes to %s", line, got)
		}
		tried[m[5]] = true
	}
	for _, r := range table.routes {
		if !tried[r.name] {
			t.Errorf("no example goes to the route %s", r.name)
		}
	}
}

// routedFor returns the name of the route for a request to the listener web, or "none", or the reason of
// another refusal. with has HTTP headers and a client address in the form that the documentation uses.
func (t *Table) routedFor(method, host, target, with string) string {
	s := &exchange{progress: progress{route: new(Route)}, clientSide: clientSide{edge: t.edges["web"]}}
	req := new(message.Request)
	path, _, _ := strings.Cut(target, "?")
	req.Host, req.Method, req.Target, req.Path = req.StoreString(host), req.StoreString(method), req.StoreString(target), req.StoreString(path)
	for _, m := range inCode.FindAllStringSubmatch(with, -1) {
		if m[1] != "" {
			s.client = netip.AddrPortFrom(netip.MustParseAddr(m[2]), 1)
		} else {
			name, value, _ := strings.Cut(m[2], ": ")
			req.AddField(name, value)
		}
	}
	r, refusal := s.routeOf(req)
	switch {
	case r != nil:
		return r.name
	case refusal != refuseNoRoute:
		return refusal.Reason
	}
	return "none"
}

// A guarded path covers every spelling that an endpoint may read as the same path.
func TestGuardedPaths(t *testing.T) {
	table := tableOf(t, `
listeners: {web: {address: "127.0.0.1:1", protocol: http}}
routes:
  - {name: plain, listeners: [web], backend: b}
  - {name: upload, listeners: [web], paths: [/upload], max_body: 1KiB, backend: b}
  - {name: larger, listeners: [web], paths: [/upload/large], max_body: 1MiB, backend: b}
  - {name: free, listeners: [web], paths: [/upload/free, /UPLOAD/meant], backend: b}
  - {name: posted, listeners: [web], paths: [/post], match: {methods: [POST]}, max_body: 1KiB, backend: b}
  - {name: numbered, listeners: [web], paths: ["~/n[0-9]+/"], max_body: 1KiB, backend: b}
  - {name: unguarded, listeners: [web], hosts: [open.test], backend: b}
backends: {b: {endpoints: ["127.0.0.1:3"]}}
`)
	f := func(method, host, path, want string) {
		t.Helper()
		if got := table.routedFor(method, host, path, ""); got != want {
			t.Errorf("%s %s%s goes to %s, want %s", method, host, path, got, want)
		}
	}
	f("GET", "a.test", "/upload/x", "upload")
	f("GET", "a.test", "/uploads", "plain")
	for _, path := range []string{"/Upload", "//upload", "/%75pload/x", "/upload;a=b", "/upload;a=b/x", "/upload%2fx", "/Upload/Large;a/x"} {
		f("GET", "a.test", path, "guarded_path")
		f("GET", "open.test", path, "unguarded")
	}
	f("GET", "a.test", "/upload/large", "larger")
	f("GET", "a.test", "/upload/Large", "upload") // the chosen route has the smaller limit
	f("GET", "a.test", "/upload/free//x", "free")
	f("GET", "a.test", "/Upload/Free", "guarded_path") // an endpoint may know only one of the two routes' paths
	f("GET", "a.test", "/UPLOAD/meant", "free")
	f("GET", "a.test", "/POST", "plain")
	f("POST", "a.test", "/POST", "guarded_path")
	f("GET", "a.test", "/N1/x", "guarded_path")
	f("GET", "a.test", "//n1/x", "guarded_path")
}
