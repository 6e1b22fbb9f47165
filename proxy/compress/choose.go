package compress

import (
	"github.com/weirproxy/weir/proxy/message"
)

// Preference is what a client says about codings in Accept-Encoding (RFC 9110, section 12.5.3). The
// zero value belongs to a request without the header: it gets Identity.
type Preference struct {
	weights [codings]int // in thousandths, and 1 more; 0: not named
	others  int          // of "*", in the same way
}

// Add reads a value of the header. Several headers count as one list. It ignores elements that are
// malformed.
func (p *Preference) Add(value []byte) {
	message.EachToken(value, func(element []byte) {
		name, weight, ok := split(element)
		if !ok {
			return
		}
		switch {
		case message.EqualFold(name, "zstd"):
			p.weights[Zstd] = weight + 1
		case message.EqualFold(name, "br"):
			p.weights[Brotli] = weight + 1
		case message.EqualFold(name, "gzip"), message.EqualFold(name, "x-gzip"):
			p.weights[Gzip] = weight + 1
		case message.EqualFold(name, "identity"):
			p.weights[Identity] = weight + 1
		case string(name) == "*":
			p.others = weight + 1
		}
	})
}

// Choose returns the coding that the client likes best. A client that does not name identity
// likes it least.
func (p *Preference) Choose() Coding {
	best, most := Identity, max(p.weights[Identity], 1)
	for c := Zstd; c < codings; c++ {
		weight := p.weights[c]
		if weight == 0 {
			weight = p.others
		}
		if weight > most || weight == most && weight > 1 && best == Identity {
			best, most = c, weight
		}
	}
	return best
}

// split splits an element into the coding and its weight in thousandths.
func split(element []byte) (name []byte, weight int, ok bool) {
	weight = 1000
	for i, c := range element {
		if c != ';' {
			continue
		}
		name = message.TrimSpace(element[:i])
		q := message.TrimSpace(element[i+1:])
		if len(q) < 3 || q[0]|0x20 != 'q' || q[1] != '=' {
			return nil, 0, false
		}
		weight, ok = parseWeight(q[2:])
		return name, weight, ok
	}
	return element, weight, true
}

// parseWeight parses a qvalue (RFC 9110, section 12.4.2), in thousandths.
func parseWeight(q []byte) (weight int, ok bool) {
	if len(q) == 0 || len(q) > 5 || q[0] != '0' && q[0] != '1' || len(q) > 1 && q[1] != '.' {
		return 0, false
	}
	weight = int(q[0]-'0') * 1000
	for i, unit := 2, 100; i < len(q); i, unit = i+1, unit/10 {
		if q[i] < '0' || q[i] > '9' {
			return 0, false
		}
		weight += int(q[i]-'0') * unit
	}
	return weight, weight <= 1000
}
