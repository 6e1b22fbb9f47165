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
	for on := range table.routes {
		if !tried[on.route] {
			t.Errorf("no example goes to the route %s", on.route)
		}
	}
}

// routedFor returns the name of the route of a request to the listener web, or "none". with has
// HTTP headers and a client address in the form of the documentation.
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
	if r, _ := s.routeOf(req); r != nil {
		return r.name
	}
	return "none"
}
