package route

import (
	"bytes"
	"iter"
	"strings"

	"github.com/weirproxy/weir/overlay"
)

// MaxHost is the length of the longest host name (RFC 1035) with a port.
const MaxHost = 253 + 6

// Hosts finds hosts by name. Several goroutines may use it at once, because it never changes.
// The zero value has no hosts. NewHosts makes it.
type Hosts[T any] struct {
	exact    *overlay.Map[T]
	oneLabel *overlay.Map[T] // by the part after "*."
	anyDepth *overlay.Map[T] // by the part after "**."
	labels   []bool          // whether anyDepth has a name with so many labels
	byName   *overlay.Map[T] // the same as exact if there are no wildcards
}

// NewHosts compiles hosts by name. Names are lower case, without port and trailing dot. "*." at
// the beginning stands for exactly one label, "**." for one label or more. NewHosts keeps the
// map.
func NewHosts[T any](byName map[string]T) *Hosts[T] {
	h := &Hosts[T]{byName: overlay.Of(byName)}
	if !hasWildcard(byName) {
		h.exact = h.byName
		return h
	}
	exact, oneLabel, anyDepth := make(map[string]T, len(byName)), map[string]T{}, map[string]T{}
	for name, host := range byName {
		if suffix, ok := strings.CutPrefix(name, "**."); ok {
			anyDepth[suffix] = host
		} else if suffix, ok := strings.CutPrefix(name, "*."); ok {
			oneLabel[suffix] = host
		} else {
			exact[name] = host
		}
	}
	h.exact, h.oneLabel, h.anyDepth = overlay.Of(exact), overlay.Of(oneLabel), overlay.Of(anyDepth)
	h.countLabels()
	return h
}

// With returns a copy with these changes by name. Its time depends on the number of changes, not on
// that of all hosts.
func (h *Hosts[T]) With(changes ...overlay.Change[T]) *Hosts[T] {
	var exact, oneLabel, anyDepth []overlay.Change[T]
	for _, c := range changes {
		one := c
		if suffix, ok := strings.CutPrefix(c.Key, "**."); ok {
			one.Key = suffix
			anyDepth = append(anyDepth, one)
		} else if suffix, ok := strings.CutPrefix(c.Key, "*."); ok {
			one.Key = suffix
			oneLabel = append(oneLabel, one)
		} else {
			exact = append(exact, one)
		}
	}
	n := &Hosts[T]{byName: h.byName.With(changes...), oneLabel: h.oneLabel.With(oneLabel...), anyDepth: h.anyDepth.With(anyDepth...)}
	if n.exact = n.byName; n.oneLabel.Len()+n.anyDepth.Len()+h.oneLabel.Len()+h.anyDepth.Len() > 0 {
		n.exact = h.exact.With(exact...)
	}
	n.countLabels()
	return n
}

func (h *Hosts[T]) countLabels() {
	for suffix := range h.anyDepth.All() {
		n := strings.Count(suffix, ".") + 1
		h.labels = append(h.labels, make([]bool, max(0, n+1-len(h.labels)))...)
		h.labels[n] = true
	}
}

func hasWildcard[T any](byName map[string]T) bool {
	for name := range byName {
		if strings.HasPrefix(name, "*") {
			return true
		}
	}
	return false
}

// Len returns the number of hosts.
func (h *Hosts[T]) Len() int { return h.byName.Len() }

// Named returns the host with exactly this name; the zero value: there is none.
func (h *Hosts[T]) Named(name string) T {
	host, _ := h.byName.Get(name)
	return host
}

// All returns all hosts by name, in no order.
func (h *Hosts[T]) All() iter.Seq2[string, T] { return h.byName.All() }

// Find returns the most specific host for a name as a client wrote it: the name itself, else the
// wildcard with the longest name, and of "*." and "**." with the same name the first. Case, a
// trailing dot and the port do not matter.
func (h *Hosts[T]) Find(name []byte) (host T, found bool) {
	name = bare(name)
	if isLower(name) {
		return h.find(name)
	}
	var buf [MaxHost]byte
	return h.find(appendLower(buf[:0], name))
}

// find is Find for a name in the form of AppendHost.
func (h *Hosts[T]) find(name []byte) (host T, found bool) {
	if host, found = h.exact.Find(name); found {
		return host, true
	}
	if h.oneLabel.Len() > 0 {
		if i := bytes.IndexByte(name, '.'); i > 0 {
			if host, found = h.oneLabel.Find(name[i+1:]); found {
				return host, true
			}
		}
	}
	if h.anyDepth.Len() > 0 {
		return h.findDeep(name)
	}
	return host, false
}

// findDeep returns the host of the longest "**." wildcard for a normal name. It looks only for
// names with as many labels as some wildcard has.
func (h *Hosts[T]) findDeep(name []byte) (host T, found bool) {
	labels := bytes.Count(name, dot) + 1
	for len(name) > 0 && name[0] != '.' { // a wildcard stands for one label at least
		_, rest, more := bytes.Cut(name, dot)
		if !more {
			break
		}
		name, labels = rest, labels-1
		if labels < len(h.labels) && h.labels[labels] {
			if host, found = h.anyDepth.Find(name); found {
				return host, true
			}
		}
	}
	return host, false
}

var dot = []byte(".")

// AppendHost appends name in lower case, without port and trailing dot, and an IPv6 address
// without brackets. If name is too long for a host name, it appends nothing.
func AppendHost(buf, name []byte) []byte { return appendLower(buf, bare(name)) }

func appendLower(buf, name []byte) []byte {
	for _, c := range name {
		buf = append(buf, lower(c))
	}
	return buf
}

func isLower(name []byte) bool {
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return true
}

// bare returns name without port, brackets and trailing dot, or nothing if it is too long.
func bare(name []byte) []byte {
	if len(name) > MaxHost {
		return nil
	}
	name = withoutPort(name)
	if n := len(name); n > 1 && name[n-1] == '.' {
		name = name[:n-1]
	}
	return name
}

// withoutPort removes the port from an authority, and the brackets from an IPv6 address.
func withoutPort(name []byte) []byte {
	if len(name) > 0 && name[0] == '[' {
		if end := bytes.IndexByte(name, ']'); end > 0 {
			return name[1:end]
		}
	}
	if colon := bytes.IndexByte(name, ':'); colon >= 0 {
		return name[:colon]
	}
	return name
}
