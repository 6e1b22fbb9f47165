package message

import "net/netip"

// CutLast cuts the last element from a comma-separated list. It returns the element without
// the spaces and tabs around it.
func CutLast(list []byte) (rest, element []byte) {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] == ',' {
			return list[:i], TrimSpace(list[i+1:])
		}
	}
	return nil, TrimSpace(list)
}

// ParseAddress parses an element of X-Forwarded-For: an IPv4 address, or an IPv6 address
// with or without brackets. A port may follow an IPv4 address or brackets; without one the
// port is 0. It returns a mapped IPv4 address as IPv4, and an IPv6 address without its
// zone, which only a link-local address may have. It refuses everything else: names,
// "unknown" and "_hidden" (RFC 7239, section 6), quotes, and addresses that no client can
// have. It does not allocate.
func ParseAddress(b []byte) (a netip.AddrPort, ok bool) {
	host, port := b, uint16(0)
	bracketed := len(b) > 0 && b[0] == '['
	if bracketed {
		end := 1
		for end < len(b) && b[end] != ']' {
			end++
		}
		if end == len(b) {
			return a, false
		}
		host, b = b[1:end], b[end+1:]
		if len(b) > 0 {
			if port, ok = parsePort(b); !ok {
				return a, false
			}
		}
	} else if colon := onlyColon(b); colon >= 0 {
		if port, ok = parsePort(b[colon:]); !ok {
			return a, false
		}
		host = b[:colon]
	}
	var addr netip.Addr
	if four, ok := parseIPv4(host); ok && !bracketed {
		addr = netip.AddrFrom4(four)
	} else {
		host, zoned := cutZone(host)
		sixteen, ok := parseIPv6(host)
		if addr = netip.AddrFrom16(sixteen); !ok || zoned && !addr.IsLinkLocalUnicast() {
			return a, false
		}
		if addr = addr.Unmap(); zoned && addr.Is4() {
			return a, false
		}
	}
	return netip.AddrPortFrom(addr, port), !addr.IsUnspecified()
}

// onlyColon returns the position of the only colon in b; -1: there is none, or several.
func onlyColon(b []byte) int {
	at := -1
	for i, c := range b {
		if c != ':' {
			continue
		}
		if at >= 0 {
			return -1
		}
		at = i
	}
	return at
}

// parsePort parses a colon and a port.
func parsePort(b []byte) (uint16, bool) {
	if b[0] != ':' || len(b) == 1 || !validPort(b[1:]) {
		return 0, false
	}
	n, _ := ParseLength(b[1:])
	return uint16(n), true
}

// cutZone removes the zone from an IPv6 address (RFC 4007, section 11). It does not remove
// an empty one, because that is invalid.
func cutZone(b []byte) (host []byte, zoned bool) {
	for i, c := range b {
		if c == '%' && i+1 < len(b) {
			return b[:i], true
		}
	}
	return b, false
}

// parseIPv4 parses four numbers without leading zeros, as netip.ParseAddr does.
func parseIPv4(b []byte) (a [4]byte, ok bool) {
	for i := range a {
		n, digits := 0, 0
		for digits < len(b) && digits < 3 && '0' <= b[digits] && b[digits] <= '9' {
			n = n*10 + int(b[digits]-'0')
			digits++
		}
		if digits == 0 || n > 255 || digits > 1 && b[0] == '0' {
			return a, false
		}
		a[i], b = byte(n), b[digits:]
		if i < 3 {
			if len(b) == 0 || b[0] != '.' {
				return a, false
			}
			b = b[1:]
		}
	}
	return a, len(b) == 0
}

// parseIPv6 parses an address of RFC 4291, section 2.2, without a zone, as netip.ParseAddr
// does.
func parseIPv6(b []byte) (a [16]byte, ok bool) {
	at, gap := 0, -1 // number of bytes in a, and the position of "::" among them
	if len(b) >= 2 && b[0] == ':' && b[1] == ':' {
		gap, b = 0, b[2:]
	}
	for len(b) > 0 {
		if at == len(a) {
			return a, false
		}
		group, digits := 0, 0
		for digits < len(b) && HexDigit(b[digits]) {
			if digits++; digits > 4 {
				return a, false
			}
			group = group<<4 | int(unhex(b[digits-1]))
		}
		if digits < len(b) && b[digits] == '.' { // the last four bytes in the form of IPv4
			four, ok := parseIPv4(b)
			if !ok || at > 12 || gap < 0 && at != 12 {
				return a, false
			}
			at += copy(a[at:], four[:])
			break
		}
		if digits == 0 {
			return a, false
		}
		a[at], a[at+1] = byte(group>>8), byte(group)
		at += 2
		if b = b[digits:]; len(b) == 0 {
			break
		}
		if b[0] != ':' || len(b) == 1 {
			return a, false
		}
		if b = b[1:]; b[0] == ':' {
			if gap >= 0 {
				return a, false
			}
			gap, b = at, b[1:]
		}
	}
	if gap < 0 {
		return a, at == len(a)
	}
	if at == len(a) {
		return a, false // "::" stands for at least one group
	}
	tail := at - gap
	copy(a[len(a)-tail:], a[gap:at])
	clear(a[gap : len(a)-tail])
	return a, true
}

// unhex returns the value of a hexadecimal digit.
func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}
