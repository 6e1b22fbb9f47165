package main

import (
	"strings"
	"testing"
)

// A wrong number of arguments is answered with what to write.
func TestWrongNumberOfArguments(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"probe", "write one endpoint: weir probe HOST:PORT"},
		{"probe a:1 b:2", "write one endpoint: weir probe HOST:PORT"},
		{"man", "write one folder: weir man FOLDER"},
		{"drain a b", "write one admin port: weir drain URL"},
		{"undrain a b", "write one admin port: weir undrain URL"},
		{"run a b", "write one configuration file: weir run FILE"},
		{"check --cluster a b", "--cluster takes one configuration file"},
		{"reload a b", "write one admin port: weir reload URL"},
		{"status a b", "write one admin port: weir status URL"},
		{"ech", "write one public name: weir ech PUBLIC_NAME"},
	} {
		name, _, _ := strings.Cut(test.line, " ")
		want := "weir: " + test.want + "\nTry \"weir " + name + " --help\".\n"
		if _, stderr, status := weir(strings.Fields(test.line)...); status != statusUsage || stderr != want {
			t.Errorf("weir %s: status %d, %q, want %q", test.line, status, stderr, want)
		}
	}
}
