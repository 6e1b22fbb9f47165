package annotation

import (
	"math"
	"strconv"
	"strings"
)

// bodySizes is the family of the size of request bodies.
var bodySizes = map[string]judge{"proxy-body-size": setting(bodySize)}

const noBodySize = "ingress-nginx cannot read the value either, and applies its default; weir accepts bodies of any size; write a number of bytes, or one with the suffix k, m or g"

// bodySize reads proxy-body-size. 0 is no limit.
func bodySize(value string, _ context, s *Settings) (Rating, string) {
	n, ok := byteSize(value)
	if !ok {
		return No, noBodySize
	}
	s.MaxBody = n
	return Exact, ""
}

// byteSize reads a size as nginx does (ngx_parse_offset): digits, and the suffix k, m or g in
// lower or upper case.
func byteSize(text string) (int64, bool) {
	digits, unit := text, int64(1)
	if text != "" {
		if at := strings.IndexByte("kmg", text[len(text)-1]|0x20); at >= 0 {
			digits, unit = text[:len(text)-1], 1<<(10*(at+1))
		}
	}
	if strings.Trim(digits, "0123456789") != "" {
		return 0, false // ParseInt accepts a sign
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64/unit {
		return 0, false
	}
	return n * unit, true
}
