package file

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/weirproxy/weir/pause"
)

// Reading and hashing a large file offers a pause for each part.
func TestLargeFilesAreReadInParts(t *testing.T) {
	text := bytes.Repeat([]byte("# a comment\n"), 1<<20/12)
	path := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var pauses atomic.Int64
	defer pause.Count(func() { pauses.Add(1) })()
	for name, read := range map[string]func() bool{
		"readRegular": func() bool {
			got, err := readRegular(path)
			return err == nil && bytes.Equal(got, text)
		},
		"hashOf": func() bool { return hashOf(text) == sha256.Sum256(text) },
		"hashOfFile": func() bool {
			sum, err := hashOfFile(path)
			return err == nil && sum == sha256.Sum256(text)
		},
		"the watch": func() bool { return ContentsOf([]string{path})[path] == sha256.Sum256(text) },
	} {
		before := pauses.Load()
		if !read() {
			t.Errorf("%s: another content", name)
		}
		if got, want := pauses.Load()-before, int64(len(text)/partOfFile); got < want {
			t.Errorf("%s: %d pauses, not %d", name, got, want)
		}
	}
}
