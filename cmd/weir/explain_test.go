package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/cmd/weir/node"
)

var update = flag.Bool("update", false, "write what weir explain prints into testdata/explain.txt; read the difference before committing it")

// explained runs weir explain with the arguments of a line, in which quotes hold words together.
func explained(t *testing.T, line string, more ...string) (out string, status int) {
	t.Helper()
	args := append([]string{"explain"}, more...)
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			args = append(args, part)
		} else {
			args = append(args, strings.Fields(part)...)
		}
	}
	var b strings.Builder
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(&b)
	root.SetErr(&b)
	status = execute(root)
	return b.String(), status
}

// TestExplain compares weir explain with testdata/explain.txt: after each command line stands
// its output, and the exit status if it is not 0.
func TestExplain(t *testing.T) {
	const golden = "testdata/explain.txt"
	data, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, text := range strings.Split("\n"+string(data), "\n$ ")[1:] {
		line, want, _ := strings.Cut(text, "\n")
		want = strings.TrimRight(want, "\n")
		got, status := explained(t, line, "-c", "testdata/explain.yaml")
		if got = strings.TrimRight(got, "\n"); status != 0 {
			got += "\n(status " + string(rune('0'+status)) + ")"
		}
		all.WriteString("$ " + line + "\n" + got + "\n\n")
		if got != want && !*update {
			t.Errorf("%s\ngot\n%s\nwant\n%s", line, got, want)
		}
	}
	if *update {
		if err := os.WriteFile(golden, []byte(strings.TrimRight(all.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExplainCommandLine(t *testing.T) {
	f := func(line string, status int, want string) {
		t.Helper()
		if got, is := explained(t, line); is != status || !strings.Contains(got, want) {
			t.Errorf("%s ends with %d: %s", line, is, got)
		}
	}
	f("http://a/", statusUsage, "name the configuration with -c FILE")
	f("-c a.yaml --admin b:1 http://a/", statusUsage, "exclude each other")
	f("-c testdata/explain.yaml", statusUsage, "no URL; write weir explain -c FILE URL")
	f("testdata/explain.yaml http://a/", statusUsage, "write -c before the configuration")
	f("-c testdata/explain.yaml http://a/ POST", statusUsage, "takes one URL, not 2")
	f("-c testdata/none.yaml http://a/", statusError, "none.yaml")
	f("--admin 127.0.0.1:1 http://a/", statusError, "cannot query the admin port")
}

// A file without errors has the same answer offline and in a running weir.
func TestExplainRunning(t *testing.T) {
	r := newRunning(t, `
listeners:
  web: {address: "@web", protocol: http}
routes:
  - {name: plain, listeners: [web], hosts: [shop.test], backend: app}
  - {name: cart, listeners: [web], hosts: [shop.test], paths: [/cart], match: {methods: [POST], headers: {A: "b c"}}, max_body: 1KiB, backend: app}
backends:
  app: {endpoints: ["127.0.0.1:1"]}
admin: {address: "@admin", token: a-token-of-some-length}
`, "web", "admin")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-of-some-length\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := []string{"--admin", r.address("admin"), "--token-file", token}
	f := func(line string, status int, route string) {
		t.Helper()
		got, is := explained(t, line, append(admin, "--json")...)
		var x node.Explained
		if err := json.NewDecoder(strings.NewReader(got)).Decode(&x); err != nil || is != status || x.Route != route || x.Listener != "web" {
			t.Errorf("%s ends with %d: %v, %s", line, is, err, got)
		}
	}
	f("--method POST --header 'A: b c' http://shop.test/cart?x=1&y=2", 0, "cart")
	f("http://shop.test/cart", 0, "plain")
	f("http://other.test/cart", 1, "")
	if got, status := explained(t, "http://shop.test:1/", admin...); status != 1 || !strings.HasPrefix(got, "weir: http://shop.test:1/: no listener for http has this port") {
		t.Errorf("an error on the other side ends with %d: %s", status, got)
	}
	if got, status := explained(t, "http://shop.test/", admin[:2]...); status != 0 {
		t.Errorf("without the token, by the socket of the port: %d, %s", status, got)
	}
	t.Setenv(tokenVariable, "another-token-0123456789")
	if got, status := explained(t, "http://shop.test/", admin[:2]...); status != 1 || !strings.Contains(got, "does not match admin.token") {
		t.Errorf("with another token: %d, %s", status, got)
	}
}
