package message

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// Tests every byte at each of the eight positions that hasControl checks together, with
// neighbours that could cause a borrow.
func TestControlCharactersInEveryPlace(t *testing.T) {
	for _, around := range []byte{'a', ' ', '\t', 0x7e, 0x80, 0xff} {
		for place := range 8 {
			for c := range 256 {
				b := bytes.Repeat([]byte{around}, 8)
				b[place] = byte(c)
				control := c < ' ' && c != '\t' || c == 0x7f
				if got := ValidValue(b); got == control {
					t.Errorf("%q: valid is %v", b, got)
				}
				if control && !hasControl(binary.LittleEndian.Uint64(b)) {
					t.Errorf("%q: a control character was missed", b)
				}
				if got := ValidValue(append([]byte("abcdefgh"), b[:place+1]...)); got == control {
					t.Errorf("%q behind others: valid is %v", b[:place+1], got)
				}
			}
		}
	}
}

func TestTokenBytes(t *testing.T) {
	for c := range 256 {
		want := c > ' ' && c < 0x7f && bytes.IndexByte([]byte(`"(),/:;<=>?@[\]{}`), byte(c)) < 0
		if TokenByte(byte(c)) != want {
			t.Errorf("%#x: a token character is %v", c, TokenByte(byte(c)))
		}
	}
}
