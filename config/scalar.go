package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Every setter in this file marks where the value was written, even if the value is
// wrong: a key with a wrong value must not be reported as missing as well. A nil node was
// already reported.

// scalar marks dst and returns the text of a scalar that has one of the tags. A value
// from the environment matches every tag: only its text matters.
func (d *decoder) scalar(dst any, n *yaml.Node, p path, want string, tags ...string) (string, bool) {
	d.mark(dst, n, p)
	if n.Kind == yaml.ScalarNode {
		if d.hidden[n] {
			return n.Value, true
		}
		for _, t := range tags {
			if n.Tag == t {
				return n.Value, true
			}
		}
	}
	got := d.kind(n)
	if n.Kind == yaml.ScalarNode && len(tags) == 1 && tags[0] == "!!str" {
		got += "; put it in quotes"
	}
	d.fail(n, p, "has to be %s, not %s", want, got)
	return "", false
}

// str decodes text that is not empty and has no control characters.
func (d *decoder) str(dst any, n *yaml.Node, p path) (string, bool) {
	s, ok := d.scalar(dst, n, p, "text", "!!str")
	switch {
	case !ok:
		return "", false
	case s == "":
		d.fail(n, p, "is empty; give it a value, or take the key out")
		return "", false
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }):
		d.fail(n, p, "contains control characters or broken UTF-8; write plain text on one line")
		return "", false
	}
	return s, true
}

func (d *decoder) text(dst *string) setter {
	return func(n *yaml.Node, p path) {
		if s, ok := d.str(dst, n, p); ok {
			*dst = s
		}
	}
}

// parsed decodes text with a function that may return an error; the parameter what names
// the valid values. The error may quote the text: weir does not show it for values from
// the environment.
func parsed[T any](d *decoder, dst *T, what string, parse func(string) (T, error)) setter {
	return func(n *yaml.Node, p path) {
		// A number or true may also be wrong when it is quoted; then the error names the
		// valid values.
		if n.Kind == yaml.ScalarNode && (n.Tag == "!!int" || n.Tag == "!!float" || n.Tag == "!!bool") && !d.hidden[n] {
			if _, err := parse(n.Value); err != nil {
				d.mark(dst, n, p)
				d.fail(n, p, "%q %v", shorten(n.Value), err)
				return
			}
		}
		s, ok := d.str(dst, n, p)
		if !ok {
			return
		}
		v, err := parse(s)
		switch {
		case err == nil:
			*dst = v
		case d.hidden[n]:
			d.fail(n, p, "the value from the environment is not %s", what)
		default:
			d.fail(n, p, "%q %v", shorten(s), err)
		}
	}
}

// choice decodes one of the given words.
func choice[T ~string](d *decoder, dst *T, words ...T) setter {
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = string(w)
	}
	return parsed(d, dst, "one of "+strings.Join(all, ", "), func(s string) (T, error) {
		for _, w := range words {
			if string(w) == s {
				return w, nil
			}
		}
		return "", notOneOf(s, all)
	})
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

func (d *decoder) number(dst *int, lo, hi int) setter {
	return func(n *yaml.Node, p path) {
		s, ok := d.scalar(dst, n, p, "a number", "!!int", "!!float")
		if !ok {
			return
		}
		v, err := strconv.Atoi(s)
		if err != nil || v < lo || v > hi {
			d.fail(n, p, "%s is not a whole number from %d to %d", d.quoteNode(n), lo, hi)
			return
		}
		*dst = v
	}
}

func (d *decoder) share(dst *float64) setter {
	return func(n *yaml.Node, p path) {
		s, ok := d.scalar(dst, n, p, "a number", "!!float", "!!int")
		if !ok {
			return
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= 0 && v <= 1) {
			d.fail(n, p, "%s is not a number from 0 to 1", d.quoteNode(n))
			return
		}
		*dst = v
	}
}

func (d *decoder) truth(dst *bool) setter {
	return func(n *yaml.Node, p path) {
		s, ok := d.scalar(dst, n, p, "true or false", "!!bool")
		if !ok {
			return
		}
		if s != "true" && s != "false" {
			d.fail(n, p, "%s is not a boolean; write true or false", d.quoteNode(n))
			return
		}
		*dst = s == "true"
	}
}

func (d *decoder) duration(dst *time.Duration, lo, hi time.Duration) setter {
	return func(n *yaml.Node, p path) {
		s, ok := d.scalar(dst, n, p, `a duration such as "5s"`, "!!str", "!!int", "!!float")
		if !ok {
			return
		}
		v, err := time.ParseDuration(s)
		bare, errBare := time.ParseDuration(s + "s") // as if it were in seconds; Go accepts 0 without a unit
		switch {
		case err == nil && v >= lo && v <= hi && s != "0":
			*dst = v
		case err == nil && s != "0", errBare == nil && bare <= 0 && (bare < lo || bare > hi):
			d.fail(n, p, "%s is out of bounds; write a duration from %s to %s", d.quoteNode(n), short(lo), short(hi))
		case d.hidden[n]:
			d.fail(n, p, `the value from the environment is not a duration such as "5s"`)
		default:
			d.fail(n, p, "%q %s", shorten(s), durationHint(s, lo, hi))
		}
	}
}

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

func (d *decoder) size(dst *int64, lo, hi int64) setter {
	return func(n *yaml.Node, p path) {
		s, ok := d.scalar(dst, n, p, `a size such as "64KiB"`, "!!str", "!!int", "!!float")
		if !ok {
			return
		}
		v, err := parseSize(s)
		switch {
		case err != nil && d.hidden[n]:
			d.fail(n, p, `the value from the environment is not a size such as "64KiB"`)
		case err != nil:
			d.fail(n, p, "%q %s", shorten(s), sizeHint(s, lo, hi))
		case v < lo || v > hi:
			d.fail(n, p, "%s is out of bounds; write a size from %s to %s", d.quoteNode(n), formatSize(lo), formatSize(hi))
		default:
			*dst = v
		}
	}
}

var errNotSize = errors.New("not a size")

func parseSize(s string) (int64, error) {
	digits, unit := digitsOf(s)
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
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
	if _, err := strconv.ParseInt(digits, 10, 64); err != nil {
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

func (d *decoder) prefix(dst *netip.Prefix) setter {
	return parsed(d, dst, "a CIDR such as 10.0.0.0/8", parsePrefix)
}

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
