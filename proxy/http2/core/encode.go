package core

import (
	"net/http"

	"github.com/weirproxy/weir/proxy/message"
)

// Heads are encoded without a dynamic table. A table would save bytes, but it would cost
// more work, and memory of idle connections. Fields whose secret values an attacker could
// guess from the compressed size are marked as never indexed.

const (
	neverIndexed = 0x10
	indexedField = 0x80
	noTable      = 0x20 // the dynamic table's size becomes 0
)

// appendInt appends an integer (RFC 7541, section 5.1). It begins in the lowest bits of
// the byte first.
func appendInt(b []byte, first byte, bits uint, n int) []byte {
	most := 1<<bits - 1
	if n < most {
		return append(b, first|byte(n))
	}
	b = append(b, first|byte(most))
	for n -= most; n >= 0x80; n >>= 7 {
		b = append(b, 0x80|byte(n))
	}
	return append(b, byte(n))
}

// appendString appends a string without Huffman coding.
func appendString(b, s []byte) []byte { return append(appendInt(b, 0, 7, len(s)), s...) }

// appendIndexedName appends a field whose name is in the static table.
func appendIndexedName(b []byte, name int, value []byte) []byte {
	return appendString(appendInt(b, 0, 4, name), value)
}

// The places of pseudo-fields in the static table (RFC 7541, appendix A).
const (
	indexAuthority = 1
	indexGet       = 2
	indexPost      = 3
	indexMethod    = 2
	indexRoot      = 4
	indexPath      = 4
	indexHTTP      = 6
	indexHTTPS     = 7
	indexStatus    = 8
)

func appendMethod(b, method []byte) []byte {
	switch string(method) {
	case "GET":
		return append(b, indexedField|indexGet)
	case "POST":
		return append(b, indexedField|indexPost)
	}
	return appendIndexedName(b, indexMethod, method)
}

func appendScheme(b []byte, scheme string) []byte {
	if scheme == "http" {
		return append(b, indexedField|indexHTTP)
	}
	return append(b, indexedField|indexHTTPS)
}

func appendPath(b, path []byte) []byte {
	if string(path) == "/" {
		return append(b, indexedField|indexRoot)
	}
	return appendIndexedName(b, indexPath, path)
}

// wholeStatus has the place of each :status that the static table contains with its
// value.
var wholeStatus = map[int]byte{200: 8, 204: 9, 206: 10, 304: 11, 400: 12, 404: 13, 500: 14}

func appendStatus(b []byte, status int) []byte {
	if i := wholeStatus[status]; i != 0 {
		return append(b, indexedField|i)
	}
	return append(b, indexStatus, 3, byte('0'+status/100), byte('0'+status/10%10), byte('0'+status%10))
}

// appendFields appends the fields that are not dropped, in lower case. It leaves out
// fields that only apply to a connection of HTTP/1.1, the Host, which becomes :authority,
// and the field named except, if any.
func appendFields(b []byte, h *message.Head, except string) []byte {
	for i := range h.Fields {
		f := &h.Fields[i]
		if f.Dropped || connectionOnly[f.ID] || except != "" && message.EqualFold(h.Name(i), except) {
			continue
		}
		b = appendField(b, h.Name(i), h.Value(i))
	}
	return b
}

// connectionOnly has the fields that do not exist in HTTP/2.
var connectionOnly = [256]bool{message.Host: true, message.Connection: true, message.TransferEncoding: true, message.KeepAlive: true,
	message.ProxyConnection: true, message.Upgrade: true, message.TE: true, message.HTTP2Settings: true}

func appendField(b, name, value []byte) []byte {
	var buf [32]byte
	first, index := byte(0), 0
	if len(name) <= len(buf) {
		lowered := buf[:len(name)]
		for i, c := range name {
			lowered[i] = lower(c)
		}
		if index = staticIndex(string(lowered)); sensitive(index) {
			first = neverIndexed
		}
	}
	b = appendInt(b, first, 4, index)
	if index == 0 {
		b = appendInt(b, 0, 7, len(name))
		for _, c := range name {
			b = append(b, lower(c))
		}
	}
	return appendString(b, value)
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}

// sensitive reports whether the name at index is authorization, cookie or set-cookie.
func sensitive(index int) bool { return index == 23 || index == 32 || index == 55 }

// staticIndex finds a name in the static table (RFC 7541, appendix A).
func staticIndex(name string) int {
	switch name {
	case "accept-charset":
		return 15
	case "accept-encoding":
		return 16
	case "accept-language":
		return 17
	case "accept-ranges":
		return 18
	case "accept":
		return 19
	case "access-control-allow-origin":
		return 20
	case "age":
		return 21
	case "allow":
		return 22
	case "authorization":
		return 23
	case "cache-control":
		return 24
	case "content-disposition":
		return 25
	case "content-encoding":
		return 26
	case "content-language":
		return 27
	case "content-length":
		return 28
	case "content-location":
		return 29
	case "content-range":
		return 30
	case "content-type":
		return 31
	case "cookie":
		return 32
	case "date":
		return 33
	case "etag":
		return 34
	case "expect":
		return 35
	case "expires":
		return 36
	case "from":
		return 37
	case "if-match":
		return 39
	case "if-modified-since":
		return 40
	case "if-none-match":
		return 41
	case "if-range":
		return 42
	case "if-unmodified-since":
		return 43
	case "last-modified":
		return 44
	case "link":
		return 45
	case "location":
		return 46
	case "max-forwards":
		return 47
	case "range":
		return 50
	case "referer":
		return 51
	case "retry-after":
		return 53
	case "server":
		return 54
	case "set-cookie":
		return 55
	case "strict-transport-security":
		return 56
	case "user-agent":
		return 58
	case "vary":
		return 59
	case "via":
		return 60
	case "www-authenticate":
		return 61
	}
	return 0
}

// appendRequest appends the block of a request's head. A request with an Upgrade becomes
// an extended CONNECT.
func (c *Connection) appendRequest(b []byte, req *message.Request) []byte {
	except := ""
	if req.Upgrade.Len() > 0 {
		except = webSocketKey
		b = appendIndexedName(b, indexMethod, []byte("CONNECT"))
		b = appendField(b, []byte(":protocol"), req.Bytes(req.Upgrade))
	} else {
		b = appendMethod(b, req.Bytes(req.Method))
	}
	b = appendScheme(b, c.config.Scheme)
	host := req.Get(message.Host) // weir may have changed it
	if host == nil {
		host = req.Bytes(req.Host)
	}
	b = appendIndexedName(b, indexAuthority, host)
	b = appendPath(b, req.EndpointTarget())
	b = appendFields(b, &req.Head, except)
	if req.AcceptsTrailers {
		b = appendField(b, []byte("te"), []byte("trailers"))
	}
	return b
}

// listSize returns the size of a request's head as SETTINGS_MAX_HEADER_LIST_SIZE counts
// it (RFC 9113, section 6.5.2), or more, never less.
func listSize(req *message.Request) int64 {
	const each = 32
	n := int64(4*each+len(":method:scheme:path:authorityhttps")) + int64(req.Method.Len()+len(req.EndpointTarget())+req.Host.Len())
	for i := range req.Fields {
		if !req.Fields[i].Dropped {
			n += int64(each + len(req.Name(i)) + len(req.Value(i)))
		}
	}
	return n
}

// appendResponse appends the block of a response's head. The 101 of a tunnel becomes 200.
func appendResponse(b []byte, res *message.Response) []byte {
	if res.Status != http.StatusSwitchingProtocols {
		return appendFields(appendStatus(b, res.Status), &res.Head, "")
	}
	return appendFields(appendStatus(b, http.StatusOK), &res.Head, webSocketAccept)
}
