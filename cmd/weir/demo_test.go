package main

import "testing"

// A user can paste the commands that the demo prints, also after "go run".
func TestTyped(t *testing.T) {
	f := func(program, want string) {
		t.Helper()
		if got := typed(program); got != want {
			t.Errorf("%s is typed as %s, want %s", program, got, want)
		}
	}
	f("./weir", "./weir")
	f("/usr/local/bin/weir", "/usr/local/bin/weir")
	f("/tmp/go-build1904/b001/exe/weir", "go run ./cmd/weir")
}
