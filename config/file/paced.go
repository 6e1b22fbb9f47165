package file

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"

	"github.com/weirproxy/weir/disk"
	"github.com/weirproxy/weir/pause"
)

// paced reads a text in small parts, and pauses between them. A configuration file may have
// megabytes.
type paced struct{ io.Reader }

const partOfFile = 32 << 10 // bytes

// Read implements io.Reader.
func (p paced) Read(b []byte) (int, error) {
	pause.IfDue()
	return p.Reader.Read(b[:min(len(b), partOfFile)])
}

// hashOf returns the hash of a text.
func hashOf(text []byte) [sha256.Size]byte {
	sum, _ := hashOfAll(bytes.NewReader(text))
	return sum
}

// hashOfFile returns the hash of the content of a regular file.
func hashOfFile(path string) (sum [sha256.Size]byte, err error) {
	return disk.With(path, func(f *os.File) ([sha256.Size]byte, error) { return hashOfAll(f) })
}

func hashOfAll(in io.Reader) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	_, err = io.Copy(h, paced{in})
	return [sha256.Size]byte(h.Sum(nil)), err
}
