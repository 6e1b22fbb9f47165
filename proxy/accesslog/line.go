package accesslog

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"
	"time"
	"unicode/utf8"
)

// line is the line that is being written, as JSON or as text. A field calls at most one of the
// methods that write a value. In JSON a value that is empty leaves the field out.
type line struct {
	b       []byte
	key     string  // of the running field in JSON, such as `,"status":`; "": the line is text
	quoted  bool    // the running field of a text is between quotation marks
	object  bool    // the text is a JSON object that a template makes
	most    int     // bytes of a value
	counted uint64  // the number of the line, once a field has asked for it; 0: none has
	share   float64 // the share of such records that have a line; 1: all
	format  *Format
	hidden  []byte // memory for a URL without its secrets
	clock   clock
	local   localClock
	fields  headerFields
}

// begin writes the key of the field.
func (l *line) begin() {
	if l.key == "" {
		return
	}
	key := l.key
	if l.b[len(l.b)-1] == '{' { // a value never ends with "{", so this is the first field
		key = key[1:]
	}
	l.b = append(l.b, key...)
}

// mark writes the quotation mark around a JSON string.
func (l *line) mark() {
	if l.key != "" {
		l.b = append(l.b, '"')
	}
}

func (l *line) text(s string) {
	switch {
	case s == "":
	case l.key == "":
		l.b = appendValue(l, l.b, s, l.quoted)
	default:
		l.begin()
		l.b = append(appendValue(l, append(l.b, '"'), s, true), '"')
	}
}

// bytes writes text. In JSON it also writes empty text.
func (l *line) bytes(p []byte) {
	if l.key == "" {
		l.b = appendValue(l, l.b, p, l.quoted)
		return
	}
	l.begin()
	l.b = append(appendValue(l, append(l.b, '"'), p, true), '"')
}

// optional writes text unless it is empty.
func (l *line) optional(p []byte) {
	if len(p) > 0 {
		l.bytes(p)
	}
}

// url writes a URL without the values of the parameters that must not be in the log.
func (l *line) url(p []byte) {
	if len(p) > 0 {
		l.bytes(l.public(p))
	}
}

// public returns a URL without the values of the parameters that must not be in the log. The
// result is valid until the next call.
func (l *line) public(p []byte) []byte {
	if l.format.redact == nil {
		return p
	}
	l.hidden = l.format.redact.Append(l.hidden[:0], p)
	return l.hidden
}

// count returns the number of the line.
func (l *line) count() uint64 {
	if l.counted == 0 {
		l.counted = l.format.count.Add(1)
	}
	return l.counted
}

// word writes text of weir's own, which needs no escape.
func (l *line) word(s string) {
	l.begin()
	l.mark()
	l.b = append(l.b, s...)
	l.mark()
}

func (l *line) number(n int64) {
	l.begin()
	l.b = strconv.AppendInt(l.b, n, 10)
}

func (l *line) unsigned(n uint64) {
	l.begin()
	l.b = strconv.AppendUint(l.b, n, 10)
}

// yes writes true.
func (l *line) yes(is bool) {
	if is {
		l.begin()
		l.b = append(l.b, "true"...)
	}
}

// either writes true or false.
func (l *line) either(is bool) {
	l.begin()
	l.b = strconv.AppendBool(l.b, is)
}

func (l *line) float(f float64) {
	l.begin()
	l.b = strconv.AppendFloat(l.b, f, 'f', -1, 64)
}

func (l *line) address(a netip.AddrPort) {
	l.begin()
	l.mark()
	l.b = a.AppendTo(l.b)
	l.mark()
}

// host writes an address without a port.
func (l *line) host(a netip.Addr) {
	l.begin()
	l.mark()
	l.b = a.AppendTo(l.b)
	l.mark()
}

func (l *line) hex(p []byte) {
	if len(p) > 0 {
		l.begin()
		l.mark()
		l.b = hex.AppendEncode(l.b, p)
		l.mark()
	}
}

// list writes a JSON list, or texts with commas between them. A list that takes more than l.most bytes
// loses its last elements; its end then says how many it had.
func (l *line) list(all []string) {
	l.begin()
	if l.key != "" {
		l.b = append(l.b, '[')
	}
	for i, begin := 0, len(l.b); i < len(all); i++ {
		s := all[i]
		if len(l.b)+len(s)-begin > l.most {
			s, i = "...[cut:"+strconv.Itoa(len(all))+"]", len(all)
		}
		if len(l.b) > begin {
			l.b = append(l.b, ',')
		}
		l.mark()
		l.b = appendValue(l, l.b, s, l.quoted)
		l.mark()
	}
	if l.key != "" {
		l.b = append(l.b, ']')
	}
}

func (l *line) time(t time.Time) {
	l.begin()
	l.mark()
	l.b = l.clock.append(l.b, t)
	l.mark()
}

// localTime writes a time as web servers do in the Common Log Format.
func (l *line) localTime(t time.Time) {
	l.begin()
	l.mark()
	l.b = l.local.append(l.b, t)
	l.mark()
}

// seconds writes a duration as seconds, with nanoseconds as far as they are not zero.
func (l *line) seconds(d time.Duration) {
	l.begin()
	l.b = appendSeconds(l.b, d)
}

// thousandths writes a duration in seconds with three digits behind the point.
func (l *line) thousandths(d time.Duration) {
	l.begin()
	l.b = appendThousandths(l.b, max(d, 0))
}

func appendThousandths(b []byte, d time.Duration) []byte {
	ms := int64(d / time.Millisecond)
	b = append(strconv.AppendInt(b, ms/1000, 10), '.')
	return append(b, byte('0'+ms/100%10), byte('0'+ms/10%10), byte('0'+ms%10))
}

func appendSeconds(b []byte, d time.Duration) []byte {
	d = max(d, 0)
	b = strconv.AppendInt(b, int64(d/time.Second), 10)
	rest := uint32(d % time.Second)
	if rest == 0 {
		return b
	}
	b = appendNanoseconds(append(b, '.'), rest)
	for b[len(b)-1] == '0' {
		b = b[:len(b)-1]
	}
	return b
}

// appendNanoseconds writes nine digits.
func appendNanoseconds(b []byte, n uint32) []byte {
	var digits [9]byte
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = byte('0' + n%10)
		n /= 10
	}
	return append(b, digits[:]...)
}

// clock writes times in RFC 3339 with nanoseconds. It keeps the text of the last second.
type clock struct {
	unix   int64
	begin  [len("2006-01-02T15:04:05.")]byte
	offset [len("+00:00")]byte
	length int // of the offset
}

func (c *clock) append(b []byte, t time.Time) []byte {
	if unix := t.Unix(); unix != c.unix || c.length == 0 {
		c.unix = unix
		t.AppendFormat(c.begin[:0], "2006-01-02T15:04:05.")
		c.length = len(t.AppendFormat(c.offset[:0], "Z07:00"))
	}
	b = appendNanoseconds(append(b, c.begin[:]...), uint32(t.Nanosecond()))
	return append(b, c.offset[:c.length]...)
}

// localClock writes times such as 25/Nov/2026:12:30:45 +0000. It keeps the text of the last second.
type localClock struct {
	unix int64
	text [len(localFormat)]byte
	set  bool
}

const localFormat = "02/Jan/2006:15:04:05 -0700"

func (c *localClock) append(b []byte, t time.Time) []byte {
	if unix := t.Unix(); unix != c.unix || !c.set {
		c.unix, c.set = unix, true
		t.AppendFormat(c.text[:0], localFormat)
	}
	return append(b, c.text[:]...)
}

// appendEscaped writes the inside of a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendEscaped[T string | []byte](b []byte, s T) []byte {
	n := len(b)
	b = append(b, s...) // most values need no escape
	ok := plain(b[n:])
	if ok == len(s) {
		return b
	}
	b = b[:n+ok]
	for i := ok; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if escaped[c] {
				b = appendEscape(b, c)
			} else {
				b = append(b, c)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(b, `\ufffd`...)
		case r < 0xa0 || r == '\u2028' || r == '\u2029': // some readers take them for the end of a line
			b = append(append(b, `\u`...), digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
		default:
			b = append(b, s[i:i+size]...)
		}
		i += size
	}
	return b
}

// escaped has true for the ASCII bytes that a JSON string cannot contain, and for DEL, which
// terminals interpret.
var escaped = func() (t [utf8.RuneSelf]bool) {
	for c := range t {
		t[c] = c < ' ' || c == '"' || c == '\\' || c == 0x7f
	}
	return t
}()

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
}

const digits = "0123456789abcdef"

// plain returns how many bytes at the beginning of s need no escape in any format. It looks at
// eight bytes at a time.
func plain(s []byte) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	i := 0
	for ; i+8 <= len(s); i += 8 {
		w := binary.LittleEndian.Uint64(s[i:])
		quote, slash, del := w^('"'*ones), w^('\\'*ones), w^(0x7f*ones)
		// The high bit of (w - n) &^ w tells that a byte is below n. It may also be set for bytes
		// above such a byte, and the loop below finds out.
		bad := (w-' '*ones)&^w | (quote-ones)&^quote | (slash-ones)&^slash | (del-ones)&^del | w
		if bad&highs != 0 {
			break
		}
	}
	for i < len(s) && s[i] < utf8.RuneSelf && !escaped[s[i]] {
		i++
	}
	return i
}
