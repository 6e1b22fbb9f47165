package proxy

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/route"
)

// This file computes the key by which a backend with balance: hash chooses an endpoint.

// chooseBy returns the key by which the backend chooses an endpoint: the client's address, or a hash
// of the route's key in the form of an address. Every process computes the same hash.
func (x *exchange) chooseBy(r *Route) netip.Addr {
	if len(r.config.HashBy) == 0 {
		return x.client.Addr()
	}
	h := keyHash{fnvOffset, fnvOffset ^ 0x9e3779b97f4a7c15}
	for i := range r.config.HashBy {
		x.hashPart(&h, &r.config.HashBy[i])
	}
	var a [16]byte
	binary.BigEndian.PutUint64(a[:8], h[0])
	binary.BigEndian.PutUint64(a[8:], h[1])
	return netip.AddrFrom16(a)
}

// keyHash are two hashes by FNV-1a, which differ in their beginning.
type keyHash [2]uint64

const fnvOffset, fnvPrime = 14695981039346656037, 1099511628211

func (h *keyHash) add(b []byte) {
	for _, c := range b {
		h[0] = (h[0] ^ uint64(c)) * fnvPrime
		h[1] = (h[1] ^ uint64(c)) * fnvPrime
	}
}

func (h *keyHash) addString(s string) {
	for i := range len(s) {
		h[0] = (h[0] ^ uint64(s[i])) * fnvPrime
		h[1] = (h[1] ^ uint64(s[i])) * fnvPrime
	}
}

func (x *exchange) hashPart(h *keyHash, p *config.HashPart) {
	switch {
	case p.Variable != "":
		x.hashVariable(h, p.Variable)
	case p.Header != "":
		h.add(headerLike(&x.req, p.Header))
	case p.Cookie != "":
		value, _ := x.req.Cookie(p.Cookie)
		h.add(value)
	case p.Query != "":
		h.add(queryParameter(x.req.Bytes(x.req.Target)[x.req.Path.Len():], p.Query))
	default:
		h.addString(p.Text)
	}
}

func (x *exchange) hashVariable(h *keyHash, v config.Variable) {
	switch v {
	case config.VariableClient:
		a := x.client.Addr().As16()
		h.add(a[:])
	case config.VariableScheme:
		if x.Secure() {
			h.addString("https")
		} else {
			h.addString("http")
		}
	case config.VariableHost:
		var buf [route.MaxHost]byte
		h.add(route.AppendHost(buf[:0], x.req.Bytes(x.req.Host)))
	case config.VariableURI:
		h.add(x.req.Bytes(x.req.Target))
	case config.VariablePath:
		h.add(x.req.Bytes(x.req.Path))
	case config.VariableQuery:
		h.add(bytes.TrimPrefix(x.req.Bytes(x.req.Target)[x.req.Path.Len():], questionMark))
	case config.VariableMethod:
		h.add(x.req.Bytes(x.req.Method))
	}
}

var questionMark, ampersand, equalsSign = []byte("?"), []byte("&"), []byte("=")

// headerLike returns the value of the first header whose name is like name, in which _ stands for
// any byte other than letters and digits.
func headerLike(req *message.Request, name string) []byte {
	for i := range req.Fields {
		if !req.Fields[i].Dropped && isLike(req.Name(i), name) {
			return req.Value(i)
		}
	}
	return nil
}

func isLike(header []byte, name string) bool {
	if len(header) != len(name) {
		return false
	}
	for i, c := range header {
		isLetter := 'a' <= c|0x20 && c|0x20 <= 'z'
		switch {
		case isLetter && c|0x20 == name[i], c == name[i]:
		case name[i] == '_' && !isLetter && (c < '0' || c > '9'):
		default:
			return false
		}
	}
	return true
}

// queryParameter returns the value of the first parameter of the name, without decoding. The case
// of the name does not matter. query begins with a question mark, or is empty.
func queryParameter(query []byte, name string) []byte {
	for query = bytes.TrimPrefix(query, questionMark); len(query) > 0; {
		var pair []byte
		pair, query, _ = bytes.Cut(query, ampersand)
		if n, value, _ := bytes.Cut(pair, equalsSign); message.EqualFold(n, name) {
			return value
		}
	}
	return nil
}
