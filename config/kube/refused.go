package kube

import (
	"cmp"
	"errors"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
)

const (
	// maxLiteral is the maximum length of a literal prefix in bytes; the rest of a longer one is ignored.
	maxLiteral = 256
	// maxClosed is the maximum number of paths that regular expressions of one Ingress close.
	maxClosed = 1000
)

// refusePath claims the literal prefixes of a path that weir cannot match.
func (v *conversion) refusePath(i *ingress, host string, p *networkingv1.HTTPIngressPath, why error) {
	r := &claim.Refusal{Host: host, Written: p.Path, Why: why}
	i.owner.Refusals = append(i.owner.Refusals, r)
	closes := i.owner.Guards != nil
	isPattern := errors.As(why, &pattern{})
	for _, path := range closedBy(p, why, maxClosed-len(i.owner.Claims)) {
		loose := path.Begins
		path.Begins = false // it makes no difference to a claim
		if !path.Exact && closes {
			path.Value = cmp.Or(strings.TrimRight(path.Value, "/"), "/") // as claim.Served closes it
		}
		c := v.claim(i, host, separated(path), path, &p.Backend)
		c.Written, c.Loose, c.Refusal, c.Pattern = p.Path, loose, r, isPattern && closes
	}
}

// closedBy are the paths that weir closes for a path that it cannot match, because of why. If room
// is 0 or less, it is only one.
func closedBy(p *networkingv1.HTTPIngressPath, why error, room int) []config.Path {
	var all []config.Path
	isPattern := errors.As(why, &pattern{})
	switch {
	case isPattern && room > 0:
		all = beginnings(p.Path)
	case isPattern:
		all = []config.Path{beginning(p.Path)}
	default:
		path, err := textOf(escaped(p))
		if err != nil {
			path = literal(p.Path)
		}
		all = []config.Path{path}
	}
	for n := range all {
		all[n] = bounded(all[n])
	}
	return all
}

// literal is the longest prefix of an invalid path that is a valid path.
func literal(text string) config.Path {
	if !strings.HasPrefix(text, "/") {
		text = "/" + text
	}
	rest := text
	if end := strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r > 0x7e || strings.ContainsRune(`?#\`, r) }); end >= 0 {
		text = text[:end]
	}
	if end := strings.Index(strings.ToLower(text), "%5c"); end >= 0 {
		text = text[:end]
	}
	begin := 0
	for segment := range strings.SplitSeq(text, "/") {
		if s := strings.ReplaceAll(strings.ToLower(segment), "%2e", "."); s == "." || s == ".." {
			text = text[:begin]
			break
		}
		begin += len(segment) + 1
	}
	path, err := config.ParsePath(text)
	if err != nil {
		return everyPath
	}
	path.Begins = len(text) < len(rest) && !strings.HasSuffix(text, "/")
	return path
}

// bounded is the path, or a prefix of limited length: weir looks up each segment, and
// the author of the path chooses its length.
func bounded(p config.Path) config.Path {
	if len(p.Value) <= maxLiteral {
		return p
	}
	end := maxLiteral
	if escape := strings.LastIndexByte(p.Value[:end], '%'); escape > end-3 {
		end = escape
	}
	p.Value, p.Exact = p.Value[:end], false
	p.Begins = !strings.HasSuffix(p.Value, "/")
	return p
}
