package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// weir runs a command line and returns what it printed and its exit status.
func weir(args ...string) (stdout, stderr string, status int) {
	var out, err bytes.Buffer
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&err)
	status = execute(root)
	return out.String(), err.String(), status
}

func TestCommandLine(t *testing.T) {
	f := func(args string, wantStatus int, wantOut, wantErr string) {
		t.Helper()
		out, err, status := weir(strings.Fields(args)...)
		if status != wantStatus || !strings.Contains(out, wantOut) || !strings.Contains(err, wantErr) {
			t.Errorf("weir %s: status %d, printed %q and %q; want %d, %q and %q", args, status, out, err, wantStatus, wantOut, wantErr)
		}
		if wantErr == "" && err != "" || wantOut == "" && out != "" {
			t.Errorf("weir %s printed %q and %q", args, out, err)
		}
	}
	f("", 0, "Available Commands:", "")
	f("--help", 0, "docs/configuration.md", "")
	f("check --help", 0, "FILE:LINE:COLUMN", "")
	f("version", 0, "weir ", "")
	f("schema", 0, `"$schema": "https://json-schema.org/draft/2020-12/schema"`, "")
	f("schema --help", 0, "# yaml-language-server: $schema=weir.schema.json", "")
	f("schema weir.yaml", statusUsage, "", "\nTry \"weir schema --help\".\n")
	f("chekc", statusUsage, "", "there is no command \"chekc\"; did you mean check?\nTry \"weir --help\".\n")
	f("serve", statusUsage, "", "there is no command \"serve\"; did you mean run?\n")
	f("weir.yaml", statusUsage, "", "did you mean weir run weir.yaml?\n")
	f("stop", statusUsage, "", "there is no command \"stop\"; SIGTERM ends weir, as systemctl stop weir does\n")
	f("logs", statusUsage, "", "there is no command \"logs\"; weir writes its log to standard error")
	f("check -c", statusUsage, "", "flag needs an argument: 'c' in -c; write --config FILE\n")
	f("rollback", statusUsage, "", "there is no command \"rollback\"; put the earlier ")
	f("cordon", statusUsage, "", "there is no command \"cordon\"; weir drain makes ")
	f("help chekc", statusUsage, "", "there is no command \"chekc\"; did you mean check?\n")
	f("help tls raport", statusUsage, "", "there is no command \"raport\"; did you mean report?\n")
	f("help tls report", 0, "weir tls report", "")
	f("help", 0, "Available Commands:", "")
	f("xyz", statusUsage, "", "there is no command \"xyz\"\n")
	f("tls raport", statusUsage, "", "there is no command \"raport\"; did you mean report?\nTry \"weir tls --help\".\n")
	f("-t", statusUsage, "", "unknown shorthand flag: 't' in -t; write a command before its flags, such as weir run -c FILE")
	f("--version", 0, "weir ", "")
	f("check", statusUsage, "", "\nTry \"weir check --help\".\n")
	f("run", statusUsage, "", "\nTry \"weir run --help\".\n")
	f("check --colour", statusUsage, "", "\nTry \"weir check --help\".\n")
	f("check -c a b", statusUsage, "", "\nTry \"weir check --help\".\n")
	f("check -c none.yaml", statusError, "", "none.yaml: cannot read the configuration: no such file or directory\n")
	f("check -c ../../examples/minimal.yaml", 0, "../../examples/minimal.yaml: ok: 1 listener, 1 route, 1 backend, hash ", "")
}

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	f := func(text string, wantStatus int, wantOut, wantErr string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err, status := weir("check", "-c", file)
		out, _, _ = strings.Cut(out, ", hash ")
		if status != wantStatus || out != strings.ReplaceAll(wantOut, "FILE", file) || err != strings.ReplaceAll(wantErr, "FILE", file) {
			t.Errorf("status %d, printed\n%s\n%s", status, out, err)
		}
	}
	f("listeners: {web: {adress: \":80\", protocol: http}}\nroutes: [{listeners: [wbe], backend: app}]\nbackends: {app: {endpoints: [\"a:1\"]}}\n", statusError, "",
		"FILE:1:19: listeners.web: unknown key \"adress\"; did you mean \"address\"?\n"+
			"FILE:2:23: routes[0].listeners[0]: \"wbe\" is not the name of a listener; did you mean \"web\"?\n")
	f("listeners: {web: {address: \":80\", protocol: http}}\nbackends: {app: {endpoints: [\"a:1\"]}}\n", 0,
		"FILE: ok: 1 listener, 0 routes, 1 backend",
		"FILE:1:13: warning: listeners.web: no route names this listener, so it answers everything with 404\n"+
			"FILE:2:12: warning: backends.app: nothing uses this backend\n")
	// Warnings are printed together with errors, except warnings that an error may have
	// caused.
	f("listeners: {web: {address: \":80\", protocol: http}}\nroutes: [{listeners: [web], paths: [/a/*], bakend: app}]\nbackends: {app: {endpoints: [\"a:1\"]}}\n", statusError, "",
		"FILE:2:37: warning: routes[0].paths[0]: the star is an ordinary character here; a prefix matches everything below it without a star\n"+
			"FILE:2:44: routes[0]: unknown key \"bakend\"; did you mean \"backend\"?\n")
}

// A sticky key that cannot be used is an error. It is not also called missing.
func TestCheckStickyKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	for key, want := range map[string]string{"'${WEIR_NOT_SET}'": "WEIR_NOT_SET is not set in the environment", "short": "has to have 32 to 1024 characters"} {
		text := "listeners: {web: {address: ':80', protocol: http}}\nroutes: [{listeners: [web], backend: b}]\nbackends: {b: {endpoints: ['192.0.2.1:1'], sticky: {key: " + key + "}}}\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, stderr, status := weir("check", path); status != statusError || !strings.Contains(stderr, want) || strings.Contains(stderr, "warning") {
			t.Errorf("key: %s: status %d, %q", key, status, stderr)
		}
	}
}

func TestCheckStandardInput(t *testing.T) {
	in, err := os.Open("../../examples/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	before := os.Stdin
	os.Stdin = in
	defer func() { os.Stdin = before }()
	if out, errs, status := weir("check", "-c", "-"); status != 0 || !strings.HasPrefix(out, "-: ok: ") {
		t.Errorf("status %d, printed %q and %q", status, out, errs)
	}
}
