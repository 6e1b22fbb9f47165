package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// refusal is a path that weir cannot match. weir closes its literal prefix:
// otherwise its requests would go to a shorter path, which may belong to any tenant.
type refusal struct {
	by        *ingress
	host      string
	written   string
	why       error
	closed    []config.Path // the paths that are closed for it
	incumbent *ingress      // an older Ingress of another namespace, which keeps the requests
	file      bool          // the file keeps the requests
}

const (
	// maxLiteral is the maximum length of a literal prefix in bytes; the rest of a longer one is ignored.
	maxLiteral = 256
	// maxClosed is the maximum number of paths that regular expressions of one Ingress close.
	maxClosed = 1000
)

// refusePath claims the literal prefixes of a path that weir cannot match.
func (v *conversion) refusePath(i *ingress, host string, p *networkingv1.HTTPIngressPath, patterns bool, why error) {
	r := &refusal{by: i, host: host, written: p.Path, why: why}
	i.refused = append(i.refused, r)
	isPattern := errors.As(why, &pattern{})
	for _, path := range i.closedBy(p, patterns, isPattern) {
		loose := path.Begins
		path.Begins = false // it makes no difference to a claim
		if !path.Exact && len(i.guards) > 0 {
			path.Value = cmp.Or(strings.TrimRight(path.Value, "/"), "/") // as served closes it
		}
		i.wants = append(i.wants, &want{claim: claim{host, path}, by: i, name: i.route(host) + separated(path), written: p.Path,
			loose: loose, refusal: r, pattern: isPattern && len(i.guards) > 0, backend: &p.Backend})
	}
}

// closedBy are the paths that weir closes for a path that it cannot match.
func (i *ingress) closedBy(p *networkingv1.HTTPIngressPath, patterns, isPattern bool) []config.Path {
	var all []config.Path
	switch {
	case isPattern && len(i.wants) < maxClosed:
		all = beginnings(p.Path)
	case isPattern:
		all = []config.Path{beginning(p.Path)}
	default:
		path, err := pathOf(escaped(p), patterns)
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

// closeRefused makes the routes of refused paths. It comes last, when it is known
// which path would get their requests otherwise.
func (v *conversion) closeRefused() {
	served := v.servedPrefixes()
	for _, i := range v.ingresses {
		for _, w := range i.wants {
			if w.refusal == nil || v.claims[w.claim] != w && !w.beside {
				continue
			}
			w.guards = w.by.guards
			if w.beside && !w.served().Begins {
				continue // the other want covers all of it
			}
			incumbent, shares := served.incumbent(w)
			if incumbent != nil && !w.defeats {
				w.refusal.incumbent = incumbent
				if !w.beside {
					delete(v.claims, w.claim)
				}
				continue
			}
			w.plainly = incumbent != nil || shares
			w.refusal.closed = append(w.refusal.closed, w.served())
			v.emit(w, v.backend(w))
		}
		for _, r := range i.refused {
			v.on(i, event.ReasonPath, "The path %.300q of %s %v%s", r.written, shown(r.host), r.why, r.outcome())
		}
	}
}

// outcome is the end of the message: how weir treats the requests of the refused path.
func (r *refusal) outcome() string {
	switch {
	case r.file:
		return ". Until then, weir's configuration serves its requests."
	case len(r.closed) == 0 && r.incumbent != nil:
		return fmt.Sprintf(". Until then, its requests go to the older Ingress %s of another namespace.", r.incumbent.name)
	case len(r.closed) == 0:
		return "." // another Ingress has exactly the literal prefix
	}
	var names []string
	for _, p := range r.closed {
		names = append(names, p.Value)
	}
	more := ""
	if len(names) > 3 {
		names, more = names[:3], " and others"
	}
	if slices.Contains(names, "/") {
		return fmt.Sprintf(". Until then, every path of %s that has no other route answers 503.", shown(r.host))
	}
	return ". Until then, paths that begin with " + strings.Join(names, ", ") + more + " answer 503."
}

// prefixes are the served prefixes, by host and by normalized spelling (leveled).
type prefixes map[string]map[string][]*want

func (v *conversion) servedPrefixes() prefixes {
	all := prefixes{}
	for _, i := range v.ingresses {
		for _, w := range i.wants {
			if w.refusal != nil || v.claims[w.claim] != w {
				continue
			}
			if isChallenge(w.path) { // a host with nothing else inherits the routes of its wildcard
				continue
			}
			if all[w.host] == nil {
				all[w.host] = map[string][]*want{}
			}
			key := leveled(w.path.Value)
			if w.path.Exact { // an exact path wins over every closed prefix
				key = ""
			}
			all[w.host][key] = append(all[w.host][key], w)
		}
	}
	return all
}

// incumbent returns the older Ingress of another namespace whose requests the refused
// path w would take, if there is one: without w, the longest matching path belongs to it.
// shares is true if only a shorter path belongs to such an Ingress; that path gets the
// requests in other spellings.
func (p prefixes) incumbent(w *want) (incumbent *ingress, shares bool) {
	closed, host := w.served(), w.host
	if len(p[host]) == 0 && host != "" { // the host inherits the routes of its wildcard (uncover)
		if host = wildcardOf(host); len(p[host]) == 0 {
			host = ""
		}
	}
	first := true
	for at := leveled(closed.Value); ; at = at[:max(1, strings.LastIndexByte(at, '/'))] {
		var loses *want
		for _, other := range p[host][at] {
			n := len(other.path.Value) - len(closed.Value)
			if n > 0 || n == 0 && !closed.Exact && host == w.host {
				continue // the table tries it first
			}
			if loses == nil || isKept(other, w) {
				loses = other
			}
		}
		switch {
		case loses != nil && first && isKept(loses, w):
			return loses.by, true
		case loses != nil && isKept(loses, w):
			return nil, true
		case at == "/":
			return nil, false
		}
		first = first && loses == nil
	}
}

// isKept reports whether other keeps its requests in spite of the refused path.
func isKept(other, refused *want) bool {
	return other.by.order < refused.by.order && other.by.Namespace != refused.by.Namespace
}

// leveled is the normalized form of a path: all spellings that a closed path matches have the same one.
func leveled(path string) string {
	if plain, err := url.PathUnescape(path); err == nil {
		path = plain
	}
	var b strings.Builder
	for n := range len(path) {
		if c := path[n]; c != '/' || n == 0 || path[n-1] != '/' {
			b.WriteByte(c)
		}
	}
	if path = strings.ToLower(b.String()); len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	return path
}

// fileHas reports whether the file keeps the requests of a refused path on the listener:
// it has a prefix of the path, and no Ingress has a longer one.
func (v *conversion) fileHas(w *want, l *config.Listener) bool {
	if w.refusal == nil {
		return false
	}
	for at := w.path.Value; ; at = at[:max(1, strings.LastIndexByte(at, '/'))] {
		c := claim{w.host, config.Path{Value: at}}
		if _, taken := v.seen.claims[fileClaim{l.Name, c}]; taken {
			w.refusal.file = true
			return true
		}
		if other := v.claims[c]; at == "/" || other != nil && other != w && other.refusal == nil && !other.implicit {
			return false
		}
	}
}
