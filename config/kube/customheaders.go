package kube

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// This file has the HTTP headers that custom-headers of ingress-nginx takes from a ConfigMap. Like
// ingress-nginx, weir closes an Ingress whose ConfigMap is missing, or has something that it must not have.
// If weir cannot read the ConfigMap, it serves the Ingress without these headers: they restrict no access.

// NamedMap is the last known state of a ConfigMap that an annotation names. The zero value means that the
// ConfigMap does not exist.
type NamedMap struct {
	Map *corev1.ConfigMap
	// Last is the state that weir saw last; nil: it saw none. It differs from Map after a deletion.
	Last *corev1.ConfigMap
	// Unread is why weir cannot read the ConfigMap: a part of a sentence; empty: weir reads it.
	Unread string
}

// notYet is Unread of a ConfigMap that no conversion has asked for before.
const notYet = "weir has not read it yet"

// namedMap returns the last known state of a ConfigMap. Source then watches the ConfigMap; the oldest object that
// needs it was created at this time.
func (v *conversion) namedMap(name config.ObjectName, created time.Time) NamedMap {
	if v.looked != nil {
		if before, known := v.looked.maps[name]; !known || created.Before(before) {
			v.looked.maps[name] = created
		}
	}
	if m, known := v.o.Maps[name]; known {
		return m
	}
	return NamedMap{Unread: notYet}
}

// readCustomHeaders reads the ConfigMap of an Ingress with custom-headers.
func (v *conversion) readCustomHeaders(owner *claim.Owner) {
	h := v.asked[owner].CustomHeaders
	if h.Name == "" {
		return
	}
	name := config.ObjectName{Namespace: h.Namespace, Name: h.Name}
	m := v.namedMap(name, owner.Created)
	switch {
	case m.Unread != "":
		v.events.Put(event.Event{Object: owner.Reference(), Reason: event.ReasonUndone, Unread: m.Unread == notYet,
			Message: fmt.Sprintf("weir serves this %s without the HTTP headers of custom-headers, because of the ConfigMap %s: %s.", owner.Kind.Name, name, m.Unread)})
		return
	case m.Map == nil:
		v.closeAs(owner, "custom-headers", fmt.Errorf("the ConfigMap %s, which custom-headers names, does not exist; create it", name), asNginx)
		return
	}
	edits, left, err := headersOf(m.Map, strings.Split(h.Allowed, ","))
	if err != nil {
		v.closeAs(owner, "custom-headers", fmt.Errorf("the ConfigMap %s, which custom-headers names, %w", name, err), asNginx)
		return
	}
	for _, one := range left {
		v.on(owner, event.ReasonUndone, "weir does not set an HTTP header of custom-headers from the ConfigMap %s: %s.", name, one)
	}
	v.headers[owner] = edits
}

// asNginx is the purpose of closing an Ingress that ingress-nginx closes too.
const asNginx = "as in ingress-nginx"

// What ingress-nginx accepts in a ConfigMap.
var (
	customName  = regexp.MustCompile(`^[a-zA-Z\d\-_]+$`)
	customValue = regexp.MustCompile(`^[a-zA-Z\d_ :;.,\\/"'?!(){}\[\]@<>=\-+*#$&\x60|~^%]+$`)
)

// maxHeaders is the maximum size of a ConfigMap of HTTP headers in bytes. Few clients accept larger heads.
const maxHeaders = 16 << 10

// noHeader is an error about a key of a ConfigMap of HTTP headers.
const noHeader = "has the key %q, which is no HTTP header; write letters, digits, - and _"

// checkSize returns an error if the ConfigMap is too large. The error follows the name of the ConfigMap.
func checkSize(m *corev1.ConfigMap) error {
	if m.Annotations[oversized] != "" || sizeOf(m.Data) > maxHeaders {
		return fmt.Errorf("has more than %d bytes; make it smaller", maxHeaders)
	}
	return nil
}

// headersOf returns the changes of responses for a ConfigMap. left are sentences about headers that weir does
// not set. The error follows the name of the ConfigMap.
func headersOf(m *corev1.ConfigMap, allowed []string) (edits *config.HeaderEdits, left []string, err error) {
	if err := checkSize(m); err != nil {
		return nil, nil, err
	}
	for i := range allowed {
		allowed[i] = strings.TrimSpace(allowed[i])
	}
	values := map[string]config.HeaderValue{} // by the name in lower case: nginx uses the last of several spellings
	for _, name := range slices.Sorted(maps.Keys(m.Data)) {
		value := m.Data[name]
		switch {
		case !customName.MatchString(name):
			return nil, nil, fmt.Errorf(noHeader, name)
		case !customValue.MatchString(value):
			return nil, nil, fmt.Errorf("has a value of %s that is empty, or has a line break or another character that ingress-nginx does not accept; write one line of ASCII", name)
		case !slices.Contains(allowed, name):
			return nil, nil, fmt.Errorf("has %s, which %s of ingress-nginx's ConfigMap does not list in this spelling; add it there", name, annotation.AllowedHeaders)
		}
		if err := config.CheckResponseHeader(name); err != nil {
			left = append(left, fmt.Sprintf("%s %v", name, err))
			continue
		}
		values[strings.ToLower(name)] = config.HeaderValue{Name: name, Value: config.Template(strings.ReplaceAll(strings.TrimSpace(value), "{", "{{"))}
	}
	edits = &config.HeaderEdits{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if one := values[name]; one.Value != "" {
			edits.Set = append(edits.Set, one)
		} else { // nginx removes a header without a value
			edits.Remove = append(edits.Remove, one.Name)
		}
	}
	return edits, left, nil
}

// oversized is an annotation that no object of a cluster has, because its name is not valid. It marks a
// ConfigMap that was too large to be kept.
const oversized = "\x00oversized"

func sizeOf(data map[string]string) (n int) {
	for name, value := range data {
		n += len(name) + len(value)
	}
	return n
}

// slimHeaders removes what weir does not use of a ConfigMap with HTTP headers.
func slimHeaders(o any) (any, error) {
	m, ok := o.(*corev1.ConfigMap)
	if !ok {
		return o, nil
	}
	m.Annotations, m.Labels, m.ManagedFields, m.BinaryData = nil, nil, nil, nil
	if sizeOf(m.Data) > maxHeaders {
		m.Data, m.Annotations = nil, map[string]string{oversized: "true"}
	}
	return m, nil
}

// applyHeaders lets a route change responses; e may be nil.
func applyHeaders(r *config.Route, e *config.HeaderEdits) {
	if e == nil {
		return
	}
	all := config.HeaderEdits{}
	if r.Response != nil {
		all = *r.Response
	}
	all.Remove, all.Set = slices.Concat(all.Remove, e.Remove), e.Set
	if len(all.Remove)+len(all.Set) > 0 {
		r.Response = &all
	}
}

// setsHSTS reports whether custom-headers has set Strict-Transport-Security. In ingress-nginx, this replaces that of the
// controller's ConfigMap.
func setsHSTS(e *config.HeaderEdits) bool {
	return e != nil && slices.ContainsFunc(e.Set, func(h config.HeaderValue) bool { return strings.EqualFold(h.Name, "Strict-Transport-Security") })
}
