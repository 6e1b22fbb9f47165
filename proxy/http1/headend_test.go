package http1

import (
	"bytes"
	"testing"
)

// findHeadEnd finds the same index as bytes.Index in each text of up to nine of the bytes CR, LF and a.
func TestFindHeadEnd(t *testing.T) {
	var check func(text []byte)
	check = func(text []byte) {
		if got, want := findHeadEnd(text), bytes.Index(text, []byte(headEnd)); got != want {
			t.Fatalf("%q: %d, want %d", text, got, want)
		}
		if len(text) == 9 {
			return
		}
		for _, c := range []byte("\r\na") {
			check(append(text, c))
		}
	}
	check(nil)
}
