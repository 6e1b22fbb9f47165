package main

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var record = flag.Bool("record", false, "write what this binary does into testdata, after a change that users are to see")

// seeds are the rounds of the test. The command plays others.
const seeds = 6

// TestSameAsBefore compares weir with what the last recorded binary did. It runs on Linux alone, where testdata was
// recorded: errors of other systems have other texts.
func TestSameAsBefore(t *testing.T) {
	binary := os.Getenv("WEIR_E2E_BINARY")
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "weir")
		if out, err := exec.Command("go", "build", "-o", binary, "github.com/weirproxy/weir/cmd/weir").CombinedOutput(); err != nil {
			t.Fatalf("cannot build weir: %v\n%s", err, out)
		}
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed+1), func(t *testing.T) {
			t.Parallel()
			seen, err := round(binary, seed+1)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", fmt.Sprintf("%d.txt.gz", seed+1))
			if *record {
				if err := write(path, seen); err != nil {
					t.Fatal(err)
				}
			}
			before, err := read(path)
			if err != nil {
				t.Fatal(err)
			}
			if lines := diff(before, seen); len(lines) > 0 {
				t.Errorf("it is not as before; if users are to see the change: go test ./e2e/compare -record\n%s", strings.Join(lines[:min(len(lines), 40)], "\n"))
			}
		})
	}
}

func write(path string, lines []string) error {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	io.WriteString(z, strings.Join(lines, "\n"))
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func read(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(z)
	return strings.Split(string(text), "\n"), err
}

func TestDiff(t *testing.T) {
	got := diff([]string{"a", "b", "c"}, []string{"a", "x", "c", "d"})
	if want := "- b|+ x|+ d"; strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := diff([]string{"a", "b"}, []string{"b", "a"}); len(got) == 0 {
		t.Error("the order is part of it")
	}
}
