package config

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// scalar marks dst and returns the text of a scalar that has one of the shapes. A value
// from the environment may have any shape: only its text matters.
func (d *decoder) scalar(dst any, n *Tree, p path, want string, shapes ...Shape) (string, bool) {
	d.mark(dst, n, p)
	if n.isScalar() && (n.Hidden || slices.Contains(shapes, n.Shape)) {
		return n.Text, true
	}
	got := n.describe()
	if n.isScalar() && len(shapes) == 1 && shapes[0] == ShapeText {
		got += "; put it in quotes"
	}
	d.fail(n, p, "has to be %s, not %s%s", want, got, p.example(""))
	return "", false
}

// str decodes text that is not empty and has no control characters.
func (d *decoder) str(dst any, n *Tree, p path) (string, bool) {
	s, ok := d.scalar(dst, n, p, "text", ShapeText)
	switch {
	case !ok:
		return "", false
	case s == "":
		d.fail(n, p, "is empty; give it a value, or take the key out")
		return "", false
	case !isOneLine(s):
		d.fail(n, p, "contains control characters or broken UTF-8; write plain text on one line")
		return "", false
	}
	return s, true
}

// isOneLine reports whether text has neither control characters nor what stands for broken UTF-8.
func isOneLine(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError })
}

// text is any text.
func text(dst *string) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			if s, ok := v.str(dst, n, p); ok {
				*dst = s
			}
		},
		print:  func(*shower) *Tree { return textUnlessEmpty(*dst) },
		schema: anyText,
	}
}

// A kind is a kind of text.
type kind[T any] struct {
	what string // names the valid texts, for errors
	// parse returns the meaning of a text. Its error may quote the text: weir does not show
	// it for values from the environment.
	parse func(string) (T, error)
	// format returns the text of a value, or "" to leave the key out.
	format func(T) string
	// pattern is a regular expression that matches every valid text, and perhaps others.
	// words are all valid texts. Both empty: the schema allows any text.
	pattern string
	words   []string
}

// at returns the value of a key, or of an element of a list, with a text of the kind.
func (k kind[T]) at(dst *T) value { return (&k).bind(dst) }

// bind is at for a kind that lives as long as the value.
func (k *kind[T]) bind(dst *T) value {
	return value{
		read:   func(v *draft, n *Tree, p path) { k.read(v, dst, n, p) },
		print:  func(*shower) *Tree { return textUnlessEmpty(k.format(*dst)) },
		schema: func() *schema { return textLike(k.what, k.pattern, k.words) },
	}
}

func (k *kind[T]) read(v *draft, dst *T, n *Tree, p path) {
	// A number or true may also be wrong when it is quoted; then the error names the
	// valid values.
	if (n.Shape == ShapeInteger || n.Shape == ShapeFraction || n.Shape == ShapeBoolean) && !n.Hidden {
		if _, err := k.parse(n.Text); err != nil {
			v.mark(dst, n, p)
			v.fail(n, p, "%q %v", shorten(n.Text), err)
			return
		}
	}
	s, ok := v.str(dst, n, p)
	if !ok {
		return
	}
	value, err := k.parse(s)
	switch {
	case err == nil:
		*dst = value
	case n.Hidden:
		v.fail(n, p, "the value from the environment is not %s", k.what)
	default:
		v.fail(n, p, "%q %v", shorten(s), err)
	}
}

// same is the format of a kind whose value is the text itself.
func same[T ~string](s T) string { return string(s) }

// oneOf is a kind with the given words.
func oneOf[T ~string](words ...T) kind[T] {
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = string(w)
	}
	return kind[T]{
		what: "one of " + strings.Join(all, ", "), format: same[T], words: all,
		parse: func(s string) (T, error) {
			if slices.Contains(all, s) {
				return T(s), nil
			}
			return "", notOneOf(s, all)
		},
	}
}

// explaining returns a kind whose error for each of these words, if it does not know it, is why.
func (k kind[T]) explaining(words []string, why string) kind[T] {
	parse := k.parse
	k.parse = func(s string) (T, error) {
		v, err := parse(s)
		if err != nil && slices.Contains(words, s) {
			err = errors.New(why)
		}
		return v, err
	}
	return k
}

// notOneOf returns an error that suggests one of words instead of s.
func notOneOf(s string, words []string) error {
	if near := nearest(s, words); near != "" {
		return fmt.Errorf("is not known here; did you mean %q?", near)
	}
	if len(words) == 1 {
		return fmt.Errorf("is not known here; write %q", words[0])
	}
	return fmt.Errorf("is not known here; write one of %s", strings.Join(words, ", "))
}

// number is a whole number from lo to hi.
func number(dst *int, lo, hi int) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			s, ok := v.scalar(dst, n, p, "a number", ShapeInteger, ShapeFraction)
			if !ok {
				return
			}
			i, err := strconv.Atoi(s)
			if err != nil || i < lo || i > hi {
				v.fail(n, p, "%s is not a whole number from %d to %d", v.quoteNode(n), lo, hi)
				return
			}
			*dst = i
		},
		print:  func(*shower) *Tree { return plainTree(ShapeInteger, strconv.Itoa(*dst)) },
		schema: func() *schema { return wholeNumber(lo, hi) },
	}
}

// share is a number from 0 to 1.
func share(dst *float64) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			s, ok := v.scalar(dst, n, p, "a number", ShapeFraction, ShapeInteger)
			if !ok {
				return
			}
			f, err := strconv.ParseFloat(s, 64)
			if err != nil || !(f >= 0 && f <= 1) {
				v.fail(n, p, "%s is not a number from 0 to 1", v.quoteNode(n))
				return
			}
			*dst = f
		},
		print: func(*shower) *Tree { return plainTree(ShapeFraction, strconv.FormatFloat(*dst, 'g', -1, 64)) },
		schema: func() *schema {
			return orVariable(&schema{Type: "number", Minimum: 0, Maximum: 1, bounds: "From 0 to 1."})
		},
	}
}

// truth is true or false.
func truth(dst *bool) value {
	return value{
		read:   func(v *draft, n *Tree, p path) { v.readTruth(dst, n, p, func(b bool) { *dst = b }) },
		print:  func(*shower) *Tree { return plainTree(ShapeBoolean, strconv.FormatBool(*dst)) },
		schema: func() *schema { return orVariable(&schema{Type: "boolean"}) },
	}
}

// negated is true or false; *dst has the opposite.
func negated(dst *bool) value {
	x := truth(dst)
	x.read = func(v *draft, n *Tree, p path) { v.readTruth(dst, n, p, func(b bool) { *dst = !b }) }
	x.print = func(*shower) *Tree { return plainTree(ShapeBoolean, strconv.FormatBool(!*dst)) }
	return x
}

// readTruth calls set with a boolean, and marks dst.
func (d *decoder) readTruth(dst *bool, n *Tree, p path, set func(bool)) {
	s, ok := d.scalar(dst, n, p, "true or false", ShapeBoolean)
	if !ok {
		return
	}
	if s != "true" && s != "false" {
		d.fail(n, p, "%s is not a boolean; write true or false", d.quoteNode(n))
		return
	}
	set(s == "true")
}

// duration is a duration from lo to hi.
func duration(dst *time.Duration, lo, hi time.Duration) value {
	return value{
		read:   func(v *draft, n *Tree, p path) { v.readDuration(dst, lo, hi, n, p) },
		print:  func(*shower) *Tree { return textTree(short(*dst)) },
		schema: func() *schema { return durationText(lo, hi) },
	}
}

func (d *decoder) readDuration(dst *time.Duration, lo, hi time.Duration, n *Tree, p path) {
	s, ok := d.scalar(dst, n, p, `a duration such as "5s"`, ShapeText, ShapeInteger, ShapeFraction)
	if !ok {
		return
	}
	v, err := time.ParseDuration(s)
	bare, errBare := time.ParseDuration(s + "s") // as if it were in seconds
	hasUnit := strings.TrimLeft(s, "+-") != "0"  // Go accepts 0 without a unit
	switch {
	case err == nil && v >= lo && v <= hi && hasUnit:
		*dst = v
	case err == nil && hasUnit, err != nil && wellFormed.MatchString(s), errBare == nil && bare <= 0 && (bare < lo || bare > hi):
		d.fail(n, p, "%s is out of bounds; write a duration from %s to %s", d.quoteNode(n), short(lo), short(hi))
	case n.Hidden:
		d.fail(n, p, `the value from the environment is not a duration such as "5s"`)
	default:
		d.fail(n, p, "%q %s", shorten(s), durationHint(s, lo, hi))
	}
}

// wellFormed matches durations in Go's format. Those that Go cannot read are too long for it.
var wellFormed = regexp.MustCompile("^[+-]?(" + durationPattern + ")$")

// longUnits are units that Go's durations do not have, in hours.
var longUnits = map[string]float64{"w": 7 * 24, "y": 365 * 24}

// durationHint returns the end of an error message about the invalid duration s. It
// explains the mistake and suggests a value from lo to hi.
func durationHint(s string, lo, hi time.Duration) string {
	unit := strings.TrimLeft(s, "0123456789.")
	count, err := strconv.ParseFloat(s[:len(s)-len(unit)], 64)
	fits := func(text string) bool {
		v, err := time.ParseDuration(text)
		return err == nil && v >= lo && v <= hi
	}
	bounds := fmt.Sprintf("write a duration from %s to %s", short(lo), short(hi))
	switch {
	case err != nil:
	case unit == "" && fits(s+"s"):
		return fmt.Sprintf(`has no unit; write "%ss" for seconds`, s)
	case unit == "" && fits(s+"ms"):
		return fmt.Sprintf(`has no unit; write "%sms" for milliseconds`, s)
	case unit == "":
		return "has no unit; " + bounds
	case unit == "%":
		return "is a percentage; " + bounds
	case unit == "d":
		return `is in days, which may have 23 to 25 hours; write hours, such as "24h"`
	case longUnits[unit] > 0:
		if hours := strconv.FormatFloat(count*longUnits[unit], 'f', -1, 64) + "h"; fits(hours) {
			return fmt.Sprintf("has a unit that weir does not know; write hours, such as %q", hours)
		}
		return "has a unit that weir does not know; " + bounds
	}
	return `is not a duration; write one such as "500ms", "5s" or "1m30s"`
}

// short returns v without the zero units at the end of Duration.String.
func short(v time.Duration) string {
	s := v.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// size is a number of bytes from lo to hi.
func size[T int | int64](dst *T, lo, hi int64) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			s, ok := v.scalar(dst, n, p, `a size such as "64KiB"`, ShapeText, ShapeInteger, ShapeFraction)
			if !ok {
				return
			}
			b, err := parseSize(s)
			switch {
			case err != nil && n.Hidden:
				v.fail(n, p, `the value from the environment is not a size such as "64KiB"`)
			case err != nil:
				v.fail(n, p, "%q %s", shorten(s), sizeHint(s, lo, hi))
			case b < lo || b > hi:
				v.fail(n, p, "%s is out of bounds; write a size from %s to %s", v.quoteNode(n), formatSize(lo), formatSize(hi))
			default:
				*dst = T(b)
			}
		},
		print:  func(*shower) *Tree { return textTree(formatSize(int64(*dst))) },
		schema: func() *schema { return sizeText(lo, hi) },
	}
}

var errNotSize = errors.New("not a size")

func parseSize(s string) (int64, error) {
	digits, unit := digitsOf(s)
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, errNotSize
	}
	for _, u := range sizeUnits {
		if u.name == unit {
			if v > (1<<62)/u.bytes {
				return 1 << 62, nil
			}
			return v * u.bytes, nil
		}
	}
	return 0, errNotSize
}

// digitsOf returns the digits at the beginning of s, and the rest of s.
func digitsOf(s string) (digits, rest string) {
	digits = s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
	return digits, s[len(digits):]
}

// sizeHint returns the end of an error message about the invalid size s. It explains the
// mistake and suggests a value from lo to hi.
func sizeHint(s string, lo, hi int64) string {
	digits, unit := digitsOf(s)
	if digits == "" {
		return `is not a size; write one such as "64KiB" or "10MiB"`
	}
	bounds := fmt.Sprintf("write a size from %s to %s", formatSize(lo), formatSize(hi))
	for _, u := range sizeUnits {
		if unit != "" && strings.EqualFold(unit[:1], u.name[:1]) {
			return fmt.Sprintf("has no unit that weir knows; did you mean %q?", digits+u.name)
		}
	}
	switch {
	case unit == "%":
		return "is a percentage; " + bounds
	case unit != "" && unit[0] == '.':
		return `is not a whole number; write a smaller unit, such as "512KiB" for half a MiB`
	case unit != "":
		return "has a unit that weir does not know; " + bounds
	}
	for _, u := range slices.Backward(sizeUnits) {
		if v, err := parseSize(digits + u.name); err == nil && v >= lo && v <= hi {
			return fmt.Sprintf("has no unit; write B, KiB, MiB or GiB behind it, such as %q", digits+u.name)
		}
	}
	return "has no unit; " + bounds
}

func formatSize(v int64) string {
	for _, u := range sizeUnits {
		if v%u.bytes == 0 && v != 0 {
			return strconv.FormatInt(v/u.bytes, 10) + u.name
		}
	}
	return "0B"
}

// prefix is a network in CIDR notation.
var prefix = kind[netip.Prefix]{what: "a CIDR such as 10.0.0.0/8", parse: parsePrefix, format: netip.Prefix.String,
	pattern: ipv4Pattern + "/(3[0-2]|[12]?[0-9])|" + ipv6Pattern + "/(12[0-8]|1[01][0-9]|[1-9]?[0-9])"}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			return p, fmt.Errorf("is an address, not a CIDR; write %q", fmt.Sprintf("%s/%d", a, a.BitLen()))
		}
		return p, fmt.Errorf(`is not a CIDR; write one such as "10.0.0.0/8" or "fd00::/8"`)
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("is an IPv4-mapped IPv6 network, which matches no address; write the IPv4 network")
	}
	if m := p.Masked(); m != p {
		return p, fmt.Errorf("has bits set outside its mask; write %q", m.String())
	}
	return p, nil
}
