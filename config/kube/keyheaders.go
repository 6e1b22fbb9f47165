package kube

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/proxy/script"
)

// This file has the keys of ingress-nginx's ConfigMap that become directives for all Ingresses. As in ingress-nginx,
// these directives come before those of snippets:
//   - block-user-agents and block-referers refuse requests.
//   - proxy-add-original-uri-header sends the URI of the request to Services.
//   - proxy-set-headers and add-headers each name a ConfigMap of HTTP headers. Snippets and custom-headers replace these.
//
// Applications may trust an HTTP header that only the proxy sets. So weir closes all Ingresses if it cannot set what
// proxy-set-headers asks for. Without a ConfigMap ingress-nginx sets nothing, and clients could send these headers.

const (
	setHeadersKey = "proxy-set-headers"
	addHeadersKey = "add-headers"
)

// keyScript has the directives of these keys.
type keyScript struct {
	blocks, requests, responses string
	// closes is why weir closes all Ingresses, after "because"; nil: it serves them.
	closes error
	unread bool     // closes is about a ConfigMap that weir has not read
	left   []string // sentences about what weir does not do
}

// isEmpty reports whether there are no directives. h may be nil.
func (h *keyScript) isEmpty() bool { return h == nil || h.blocks+h.requests+h.responses == "" }

// lookUpKeys notes that an Ingress depends on the ConfigMaps of the keys. They are more important than those of
// annotations.
func (v *conversion) lookUpKeys() {
	if v.controller == nil {
		return
	}
	for _, value := range []string{v.controller.SetHeaders, v.controller.AddHeaders} {
		if name, err := config.ParseObjectName(value); err == nil && value != "" {
			v.namedMap(name, time.Time{})
		}
	}
}

// readKeyScript reads the keys and their ConfigMaps; nil: there are none.
func (v *conversion) readKeyScript() *keyScript {
	if v.controller == nil || v.controller.SetHeaders+v.controller.AddHeaders+v.controller.Blocks == "" && !v.controller.OriginalURI {
		return nil
	}
	h := &keyScript{blocks: v.controller.Blocks}
	if value := v.controller.SetHeaders; value != "" {
		m, why := v.mapOfKey(setHeadersKey, value, h)
		if why == nil {
			h.requests, why = h.directives(m, setHeadersKey, requestDirective)
		}
		if why != nil {
			h.requests, h.closes, h.unread = "", why, v.isUnread(value)
		}
	}
	if v.controller.OriginalURI {
		h.requests = "proxy_set_header X-Original-URI $request_uri;\n" + h.requests
	}
	if value := v.controller.AddHeaders; value != "" {
		m, why := v.mapOfKey(addHeadersKey, value, h)
		if why == nil {
			h.responses, why = h.directives(m, addHeadersKey, responseDirective)
		}
		if why != nil && !v.isUnread(value) {
			h.left = append(h.left, fmt.Sprintf("weir sets no HTTP headers of %s: %v", addHeadersKey, why))
		}
	}
	return h
}

// isUnread reports whether weir has not looked for the ConfigMap that a key names yet.
func (v *conversion) isUnread(value string) bool {
	name, err := config.ParseObjectName(value)
	return err == nil && v.namedMap(name, time.Time{}).Unread == notYet
}

// mapOfKey returns the ConfigMap that a key names. A deleted ConfigMap keeps its last state, because those who remove
// ingress-nginx often delete its ConfigMaps too.
func (v *conversion) mapOfKey(key, value string, h *keyScript) (*corev1.ConfigMap, error) {
	name, err := config.ParseObjectName(value)
	if err != nil {
		return nil, fmt.Errorf("%s of ingress-nginx's ConfigMap is %q, which names no ConfigMap; write NAMESPACE/NAME", key, value)
	}
	switch m := v.namedMap(name, time.Time{}); {
	case m.Unread != "":
		return nil, fmt.Errorf("weir cannot read the ConfigMap %s, which %s of ingress-nginx's ConfigMap names: %s", name, key, m.Unread)
	case m.Map != nil:
		return m.Map, nil
	case m.Last != nil:
		h.left = append(h.left, fmt.Sprintf("weir uses the last state of the ConfigMap %s, which %s names, until weir restarts: somebody has deleted it; create it, or remove the key", name, key))
		return m.Last, nil
	}
	return nil, fmt.Errorf("the ConfigMap %s, which %s of ingress-nginx's ConfigMap names, does not exist; create it, or remove the key", name, key)
}

// configMapKey matches the keys that a ConfigMap may have.
var configMapKey = regexp.MustCompile(`^[-._a-zA-Z0-9]+$`)

// directives converts the entries of a ConfigMap. one returns the directive of an entry, an empty text if weir does
// the same anyway, or an error that follows the name of the ConfigMap.
func (h *keyScript) directives(m *corev1.ConfigMap, key string, one func(h *keyScript, name, value string) (string, error)) (string, error) {
	about := fmt.Sprintf("the ConfigMap %s, which %s of ingress-nginx's ConfigMap names,", objectName(m), key)
	if err := checkSize(m); err != nil {
		return "", fmt.Errorf("%s %w", about, err)
	}
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m.Data)) {
		value, err := strings.TrimSpace(m.Data[name]), error(nil)
		text := ""
		switch {
		case !configMapKey.MatchString(name):
			err = fmt.Errorf("has the key %q, which is no HTTP header; write letters, digits, - and _", name)
		case strings.ContainsFunc(value, unicode.IsControl):
			err = fmt.Errorf("has a value of %s with a line break or another control character; write one line", name)
		default:
			text, err = one(h, name, value)
		}
		switch {
		case err == nil:
			all.WriteString(text)
		case key == setHeadersKey:
			return "", fmt.Errorf("%s %w", about, err)
		default: // a missing header of a response opens nothing
			h.left = append(h.left, fmt.Sprintf("weir does not set an HTTP header of %s: %s %v", key, about, err))
		}
	}
	return all.String(), nil
}

// requestDirective is the directive of an entry of proxy-set-headers.
func requestDirective(h *keyScript, name, value string) (string, error) {
	if script.SetsOwn(name, value) {
		if value == "https" || value == "443" {
			h.left = append(h.left, fmt.Sprintf("weir does not set %s to %s, as %s asks for: it sends what the client used; let the proxy in front of weir send it, and list that proxy in trust_forwarded", name, value, setHeadersKey))
		}
		return "", nil
	}
	if err := config.CheckRequestHeader(name); err != nil {
		return "", fmt.Errorf("has %s, which %w", name, err)
	}
	return checkedDirective("proxy_set_header "+name+" "+script.Quote(value)+";\n", name)
}

// responseDirective is the directive of an entry of add-headers.
func responseDirective(_ *keyScript, name, value string) (string, error) {
	if err := config.CheckResponseHeader(name); err != nil {
		return "", fmt.Errorf("has %s, which %w", name, err)
	}
	return checkedDirective("more_set_headers "+script.Quote(name+": "+value)+";\n", name)
}

// checkedDirective returns a directive, if weir supports it.
func checkedDirective(text, name string) (string, error) {
	if _, err := (&config.Script{Location: text, Namespace: "a", Object: "a"}).Parse(); err != nil {
		return "", fmt.Errorf("has a value of %s with %w, which weir does not know; take it out", name, err)
	}
	return text, nil
}

// closeForKeys closes an Ingress if weir cannot set what proxy-set-headers asks for.
func (v *conversion) closeForKeys(owner *claim.Owner) {
	v.lookUpKeys()
	h := v.keyScript
	if h == nil || h.closes == nil {
		return
	}
	guards := guardsOf(owner.Kind.Name, owner.Name, []string{annotation.FromConfigMap(setHeadersKey)})
	guards.Why, _, _ = strings.Cut(h.closes.Error(), ";")
	shut(owner, guards)
	v.events.Put(event.Event{Object: owner.Reference(), Reason: event.ReasonAccess, Unread: h.unread,
		Message: fmt.Sprintf("All paths of this %s answer 503, because applications may trust HTTP headers that only the proxy sets: %v.", owner.Kind.Name, h.closes)})
}

// scriptOfKeys is the script of a path without snippets; nil: there is none.
func (v *conversion) scriptOfKeys(owner *claim.Owner) *config.Script {
	h := v.keyScript
	if h.isEmpty() {
		return nil
	}
	return &config.Script{Host: h.blocks + h.responses, Location: h.requests, Namespace: owner.Name.Namespace, Object: owner.Name.Name}
}

// tellKeyScript reports on the ConfigMap of ingress-nginx what weir does not do for these keys.
func (v *conversion) tellKeyScript(at corev1.ObjectReference) {
	h := v.keyScript
	if h == nil {
		return
	}
	if h.closes != nil && !h.unread {
		v.event(at, event.ReasonAccess, "All paths of all Ingresses answer 503, because applications may trust HTTP headers that only the proxy sets: %v.", h.closes)
	}
	for _, one := range h.left {
		v.event(at, event.ReasonUndone, "%s.", one)
	}
}
