package kube

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// In ingress-nginx one Ingress with use-regex or rewrite-target makes regular expressions of all
// paths of its hosts, also of paths in other Ingresses. Here it does so for the Ingresses of its
// namespace. Paths of other namespaces keep their meaning, and are tried among the expressions,
// in the order of their lengths, as ingress-nginx does.

// patternHosts are the hosts with regular expressions.
type patternHosts struct {
	of     map[hostIn]bool         // of a namespace
	any    map[string]bool         // of any namespace
	shared map[string][]sharedPath // the paths of those hosts, the oldest first, if several namespaces have the host
}

type hostIn struct{ namespace, host string }

// sharedPath is a path of a host that several namespaces have.
type sharedPath struct {
	of           *networkingv1.Ingress
	text         string
	isExpression bool
	beginnings   []string
}

// patternsOf finds the hosts with regular expressions.
func patternsOf(all []*networkingv1.Ingress) *patternHosts {
	h := &patternHosts{of: map[hostIn]bool{}, any: map[string]bool{}, shared: map[string][]sharedPath{}}
	for _, i := range all {
		if !annotation.UsesPatterns(i) {
			continue
		}
		for host, rule := range ruleHosts(i) {
			if rule.HTTP != nil {
				h.of[hostIn{i.Namespace, host}], h.any[host] = true, true
			}
		}
	}
	if len(h.any) > 0 {
		h.findShared(all)
	}
	return h
}

// findShared finds the paths of hosts that several namespaces share.
func (h *patternHosts) findShared(all []*networkingv1.Ingress) {
	first, shared := map[string]string{}, map[string]bool{} // the namespaces of hosts
	for _, i := range all {
		for host := range ruleHosts(i) {
			if other, known := first[host]; known && other != i.Namespace {
				shared[host] = h.any[host]
			}
			first[host] = i.Namespace
		}
	}
	for _, i := range slices.SortedFunc(slices.Values(all), compareAges) {
		for host, rule := range ruleHosts(i) {
			if !shared[host] || rule.HTTP == nil {
				continue
			}
			for n := range rule.HTTP.Paths {
				p := &rule.HTTP.Paths[n]
				path, beginnings, err := pathOf(p, h.of[hostIn{i.Namespace, host}])
				if err == nil {
					h.shared[host] = append(h.shared[host], sharedPath{i, p.Path, path.Expression, beginnings})
					continue
				}
				for _, path := range closedBy(p, err, maxClosed) {
					h.shared[host] = append(h.shared[host], sharedPath{i, path.Value, false, []string{strings.ToLower(path.Value)}})
				}
			}
		}
	}
}

// maxCompared is the maximum number of paths that weir compares with one path.
const maxCompared = 1000

// taken returns an older Ingress of another namespace from which the expression would take all
// requests of a path; nil: there is none. A plain path that is longer than the beginning of the
// expression keeps its requests, because it goes before the expression (goesBefore).
func (h *patternHosts) taken(i *networkingv1.Ingress, host, text string, beginnings []string) *networkingv1.Ingress {
	for n, other := range h.shared[host] {
		switch {
		case compareAges(other.of, i) >= 0:
			return nil // all others are younger
		case other.of.Namespace == i.Namespace, len(text) < len(other.text) || len(text) == len(other.text) && text < other.text:
		case n >= maxCompared:
			return other.of
		case !other.isExpression && slices.Contains(beginnings, other.beginnings[0]), other.isExpression && beginWith(other.beginnings, beginnings):
			return other.of
		}
	}
	return nil
}

// goesBefore reports whether a path that is no expression goes before the expressions of its host,
// because a younger one of another namespace would take its requests. Otherwise it goes among them,
// in the order of the lengths.
func (h *patternHosts) goesBefore(i *networkingv1.Ingress, host, text string) bool {
	all := h.shared[host]
	for _, other := range all[:min(maxCompared, len(all))] {
		if other.isExpression && other.of.Namespace != i.Namespace && compareAges(other.of, i) > 0 && len(other.text) > len(text) && beginWith([]string{strings.ToLower(text)}, other.beginnings) {
			return true
		}
	}
	return false
}

// beginWith reports whether one of the texts begins with one of the beginnings.
func beginWith(texts, beginnings []string) bool {
	return slices.ContainsFunc(texts, func(text string) bool {
		return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(text, b) })
	})
}

// ruleHosts are the valid hosts of the rules of an Ingress.
func ruleHosts(i *networkingv1.Ingress) func(yield func(string, *networkingv1.IngressRule) bool) {
	return func(yield func(string, *networkingv1.IngressRule) bool) {
		for n := range i.Spec.Rules {
			rule := &i.Spec.Rules[n]
			host, err := "", error(nil)
			if rule.Host != "" {
				host, err = config.ParseHost(rule.Host)
			}
			if err == nil && !yield(host, rule) {
				return
			}
		}
	}
}

// compareAges compares two Ingresses so that the older one comes first, as claim.Decide does.
func compareAges(a, b *networkingv1.Ingress) int {
	if c := a.CreationTimestamp.Time.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return compareNames(config.ObjectName{Namespace: a.Namespace, Name: a.Name}, config.ObjectName{Namespace: b.Namespace, Name: b.Name})
}
